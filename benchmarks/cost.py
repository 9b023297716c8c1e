"""Measure the cost of the command itself, as ratios to an empty Python measured in the same run.

python benchmarks/cost.py           the processor time of --help, completion and verify, and which goals hold
python benchmarks/cost.py BUNDLE    also the time of 1,000 bundles, and how long a run takes to end, with its
                                    bundle, after Ctrl-C

Processor time is what the process and its children used, in turn with an empty Python. The compiled modules
are kept between the starts, as where bench is installed.

The empty Python is that of this environment. If bench is installed here as `pip install -e` does it, every
start of Python imports setuptools' finder of such packages, which counts in the empty Python too.
`python3 -S -c pass` leaves it out: this is an empty Python where all packages are ordinary ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.command_cost import cost, in_turn

RUNS = 21
SMALL_BUNDLE = Path(__file__).parents[1] / "results" / "proof-h200" / "pythia-1b.tar"
EMPTY = "python3 -c pass"
BARE = "python3 -S -c pass"


@dataclass(frozen=True, slots=True)
class Start:
    """A command whose start is measured, and the most that it may take; None: no goal."""

    command: Sequence[str]
    most_times: float | None = None  # the time of an empty Python
    most_seconds: float | None = None

    def verdict(self, seconds: float, empty_seconds: float) -> str:
        """Say which of its goals hold; empty without a goal."""
        goals = []
        if self.most_times is not None:
            held = seconds <= self.most_times * empty_seconds
            goals.append(f"at most {self.most_times:g}x: {'holds' if held else 'MISSED'}")
        if self.most_seconds is not None:
            held = seconds <= self.most_seconds
            goals.append(f"at most {1000 * self.most_seconds:.0f} ms: {'holds' if held else 'MISSED'}")
        return ", ".join(goals)


def starts(bench: str) -> dict[str, Start]:
    """Return the commands to measure, by what they do; the first is an empty Python."""
    complete = [bench, "completion", "--of"]
    return {
        EMPTY: Start([sys.executable, "-c", "pass"]),
        BARE: Start([sys.executable, "-S", "-c", "pass"]),
        "bench --help": Start([bench, "--help"], most_times=3),
        "bench verify, a small bundle": Start([bench, "verify", str(SMALL_BUNDLE)], most_times=5),
        "completing a model": Start([*complete, "init", "--model", "llama-"], most_seconds=0.1),
        "completing a command": Start([*complete, "comp"], most_seconds=0.1),
        "completing an option": Start([*complete, "compare", "--"], most_seconds=0.1),
        "completing a card": Start([*complete, "plan", "--gpu", "h"], most_seconds=0.1),
    }


def medians(commands: dict[str, Start]) -> dict[str, float]:
    """Return the median processor time of each command."""
    costs = in_turn({name: start.command for name, start in commands.items()}, RUNS + 1)
    return {  # the first compiles modules, and does not count
        name: statistics.median(each.cpu_seconds for each in found[1:]) for name, found in costs.items()
    }


def main() -> int:
    """Print each command's processor time and which goals hold; returns 0 also if one is missed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    many = "also the time of 1,000 bundles, copies of this one, and of Ctrl-C"
    parser.add_argument("bundle", nargs="?", type=Path, metavar="BUNDLE", help=many)
    bundle = parser.parse_args().bundle
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A shell starts background jobs with SIGINT ignored, and our children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    bench = str(Path(sys.executable).with_name("bench"))
    commands = starts(bench)
    found = medians(commands)
    for name, start in commands.items():
        times = found[name] / found[EMPTY]
        verdict = start.verdict(found[name], found[EMPTY])
        print(f"{name:<30} {1000 * found[name]:6.1f} ms {times:5.1f}x   {verdict}".rstrip())
    if bundle is not None:
        measure_many(bench, bundle)
    return 0


def measure_many(bench: str, bundle: Path) -> None:
    """Print how long the verification of 1,000 copies of a bundle takes, and a run to end after Ctrl-C."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(1000):
            shutil.copyfile(bundle, Path(folder, f"{i:04}.tar"))
        many = cost([bench, "verify", folder]).wall_seconds
    print(f"bench verify, 1,000 copies of {bundle.stat().st_size:,} bytes: {many:.2f} s")
    ends = [interrupted(bench, delay) for delay in (12.0, 14.5, 17.0)]
    print(f"Ctrl-C to the end of bench run: {', '.join(f'{end:.2f} s' for end in ends)}")


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
