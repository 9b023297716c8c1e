"""Measure the cost of the command itself, as ratios to an empty Python measured in the same run.

python benchmarks/cost.py BUNDLE     ratios for --help, completion and verify, the time of 1,000 bundles, and
                                     how long a run takes to end, with its bundle, after Ctrl-C
"""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 15


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> int:
    bundle = Path(sys.argv[1])
    # A shell starts background jobs with SIGINT ignored, and our children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    bench = str(Path(sys.executable).with_name("bench"))
    commands = {
        "python3 -c pass": [sys.executable, "-c", "pass"],
        "bench --help": [bench, "--help"],
        "completing an option": [bench, "completion", "--of", "compare", "--"],
        "completing a card": [bench, "completion", "--of", "plan", "--gpu", "h"],
        "bench verify BUNDLE": [bench, "verify", str(bundle)],
    }
    for command in commands.values():
        seconds(command)
    # The commands alternate, so that a drift in the speed of the machine affects all of them.
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            times[name].append(seconds(command))
    base = statistics.median(times["python3 -c pass"])
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"{name:<22} {1000 * middle:7.1f} ms   {middle / base:5.1f}x   median of {RUNS}")
    with tempfile.TemporaryDirectory() as folder:
        for i in range(1000):
            shutil.copyfile(bundle, Path(folder, f"{i:04}.tar"))
        many = seconds([bench, "verify", folder])
    print(f"bench verify, 1,000 copies of {bundle.stat().st_size:,} bytes: {many:.2f} s")
    ends = [interrupted(bench, delay) for delay in (12.0, 14.5, 17.0)]
    print(f"Ctrl-C to the end of bench run: {', '.join(f'{end:.2f} s' for end in ends)}")
    return 0


def interrupted(bench: str, delay: float) -> float:
    """Interrupt a quickstart after `delay` seconds; return the seconds that it takes to end."""
    manifest = Path(__file__).parents[1] / "manifests" / "quickstart.json"
    with tempfile.TemporaryDirectory() as folder:
        command = [bench, "run", str(manifest), "--out", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        started = time.perf_counter()
        process.send_signal(signal.SIGINT)
        code = process.wait()
        ended = time.perf_counter() - started
        (made,) = Path(folder).glob("*.tar")
        subprocess.run([bench, "verify", str(made)], check=True, stdout=subprocess.DEVNULL)
    assert code == 5, f"exit code {code}"
    return ended


if __name__ == "__main__":
    sys.exit(main())
