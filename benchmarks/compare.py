"""Measure the time and memory of comparing many bundles, which are copies of a real one under other names.

python benchmarks/compare.py BUNDLE [COUNT...]     default: 100, 1,000 and 10,000
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.command_cost import cost
from tests.report.made import copies


def measured(command: list[str], out: Path) -> tuple[float, float, float]:
    """Run a command; returns wall seconds, processor seconds, and the largest resident set in MiB."""
    with out.open("w") as file:
        seconds, busy = cost(command, out=file)
    return seconds, busy, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main() -> int:
    """Print one line for each number of copies of the bundle."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="what is copied")
    counted = "copies; default: 100, 1,000 and 10,000"
    parser.add_argument("counts", nargs="*", type=int, metavar="COUNT", help=counted)
    given = parser.parse_args()
    source: Path = given.bundle
    counts = given.counts or [100, 1_000, 10_000]
    bench = str(Path(sys.executable).with_name("bench"))
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            copies(source, Path(name), count)
            seconds, busy, peak = measured([bench, "compare", name], Path(name, "out.txt"))
            size = sum(path.stat().st_size for path in Path(name).glob("*.tar")) / count
        times = f"{seconds:6.2f} s, {busy:6.2f} s of processor time"
        print(f"{count:>7,} bundles of {size:,.0f} bytes: {times}, {peak:4.0f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
