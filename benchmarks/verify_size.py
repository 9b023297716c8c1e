"""Measure `bench verify` on generated bundles of growing size: time beyond an empty Python, and peak memory.

python benchmarks/verify_size.py [MEGABYTES ...]     default: 1 10 60

Then on bundles as large as a member may be (64 MiB): of samples, of the telemetry of eight GPUs, and of eight
GPUs that were held back, whose telemetry is read twice.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.command_cost import in_turn
from tests.large import large_bundle, large_gpu_bundle, peak_bytes

RUNS = 5
LARGEST = 63 * 2**20  # of one member, which has at most 64 MiB


def main() -> int:
    """Print a table: time beyond an empty Python, and peak memory, for bundles of the given megabytes."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("sizes", nargs="*", type=int, metavar="MEGABYTES", help="default: 1 10 60")
    sizes = parser.parse_args().sizes or [1, 10, 60]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        bundles = {f"{size} MB": large_bundle(place / f"{size}.tar", size * 10**6) for size in sizes}
        bundles |= {
            "64 MiB, samples": large_bundle(place / "samples.tar", LARGEST, steps=3600),
            "64 MiB, 8 GPUs": large_gpu_bundle(place / "gpus.tar", LARGEST),
            "64 MiB, held back": large_gpu_bundle(place / "held-back.tar", LARGEST, held_back=True),
        }
        peaks = {name: peak_bytes(path) for name, path in bundles.items()}
        commands = {"python3 -c pass": [sys.executable, "-c", "pass"]}
        for name, path in bundles.items():
            commands[name] = [sys.executable, "-m", "bench", "verify", str(path)]
        costs = in_turn(commands, RUNS)
    empty = [statistics.median(column) for column in zip(*costs["python3 -c pass"], strict=True)]
    print(f"{'median of ' + str(RUNS):<22} {'wall':>9} {'beyond':>9} {'CPU':>9} {'beyond':>9} {'peak':>8}")
    for name, found in costs.items():
        wall, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        figures = [f"{1000 * seconds:.0f} ms" for seconds in (wall, wall - empty[0], cpu, cpu - empty[1])]
        peak = f"{peaks[name] >> 20} MiB" if name in peaks else ""
        print(f"{name:<22} {' '.join(f'{text:>9}' for text in figures)} {peak:>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
