"""How much of a core does the live line of a run take, in the process that supervises?

python benchmarks/live_line.py [STEPS_A_SECOND [SECONDS]]

Feeds the events of timed steps to `Progress` on a pseudo-terminal, and prints its CPU time as a share of the
time that passed, beside that of the same loop without it.
"""

from __future__ import annotations

import argparse
import os
import pty
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.base.live_line import LiveLine
from bench.runner.run.progress import Progress
from tests.builders import trial


def share(tick: Callable[[dict[str, float]], object], a_second: float, seconds: float) -> float:
    """Return the CPU time of this thread as a share of the time in which it takes the events."""
    begun, cpu = time.monotonic(), time.thread_time()
    for step in range(int(a_second * seconds)):
        time.sleep(max(0.0, begun + step / a_second - time.monotonic()))
        tick({"step": 1 + step % 2, "seconds": 0.1 + 0.001 * (step % 7)})
    return (time.thread_time() - cpu) / (time.monotonic() - begun)


def drain(terminal: int) -> None:
    """Read a terminal until it is closed, so that the writer never waits."""
    while os.read(terminal, 1 << 16):
        pass


def main() -> None:
    """Print the share of time that drawing takes at this many steps a second."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    steps = parser.add_argument("a_second", nargs="?", type=float, default=200.0, metavar="STEPS_A_SECOND")
    steps.help = "default: 200"
    parser.add_argument("seconds", nargs="?", type=float, default=30.0, metavar="SECONDS", help="default: 30")
    given = parser.parse_args()
    a_second, seconds = given.a_second, given.seconds
    ours, theirs = pty.openpty()
    threading.Thread(target=drain, args=(ours,), daemon=True).start()
    os.environ["TERM"] = "xterm"
    with open(theirs, "w", encoding="utf-8", buffering=1) as stream:  # noqa: PTH123
        progress = Progress(LiveLine(stream))
        progress.begin("trial", ["a-model", "a-setting", "micro-batch 4"], trial())
        progress.event({"phase": "measure"})
        with_line = share(progress.event, a_second, seconds)
        without = share(lambda _event: None, a_second, seconds)
    told = f"{100 * with_line:.2f}% of a core, {100 * without:.2f}% without"
    print(f"{a_second:.0f} steps a second: {told}", flush=True)
    os._exit(0)  # the thread still reads


if __name__ == "__main__":
    main()
