"""Measure what a node that is checked every five minutes pays: one passive check, and a year of history.

python benchmarks/passive_check.py [CHECKS]     default: 105,120, one every five minutes for a year

The check is of eight simulated GPUs, in a folder whose index has CHECKS checks. Processor time is compared
with that of an empty Python, measured in turn. Memory is the most that the check and its children had
together, each page counted once, so that other Pythons on the machine do not matter.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.runner.check.check_index import FILE_NAME, IndexedCheck, add
from benchmarks.command_cost import cost, in_turn

RUNS = 5
PARTS = ("the check", "its fork server", "their workers", "code")
YEAR = 365 * 24 * 12
KEPT = 300  # bundles, as docs/monitoring.md recommends
READ = "from bench.runner.check import history; from pathlib import Path; history.read([Path({!r})])"
IMPORT = "from bench.runner.check import history"


def peak_bytes(command: list[str], environment: Mapping[str, str]) -> Mapping[str, int]:
    """Return the memory that a command and its descendants have when they have most, in parts."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    peak: Mapping[str, int] = {}
    while process.poll() is None:
        now = memory_bytes(list(descendants(process.pid)))
        peak = max(peak, now, key=lambda parts: sum(parts.values()))
        time.sleep(0.01)
    return peak


def memory_bytes(processes: list[int]) -> Mapping[str, int]:
    """Return the memory of a process (the first) and of its descendants in parts, as if they ran alone.

    A page that forks share counts once, and so does a page of a file, even if other programs have it too.
    """
    parts = dict.fromkeys(PARTS, 0)
    files: dict[str, int] = {}
    for number, process in enumerate(processes):
        with suppress(OSError):  # it has ended
            rollup = sizes(Path(f"/proc/{process}/smaps_rollup").read_text())
            parts[PARTS[min(number, 2)]] += rollup.get("Pss_Anon", 0)
            for text in re.split(r"^(?=[0-9a-f]+-)", Path(f"/proc/{process}/smaps").read_text(), flags=re.M)[
                1:
            ]:
                _, _, offset, device, inode, *_ = text.partition("\n")[0].split()
                size, place = sizes(text), f"{device} {inode} {offset}"
                files[place] = max(files.get(place, 0), size["Rss"] - size["Anonymous"])
    return parts | {"code": sum(files.values())}


def sizes(text: str) -> dict[str, int]:
    """Parse lines of smaps such as "Rss:  12 kB" into bytes by name."""
    found = re.findall(r"^(\w+): +(\d+) kB$", text, flags=re.M)
    return {name: 1024 * int(amount) for name, amount in found}


def descendants(root: int) -> Iterator[int]:
    """Yield a process and all that descend from it, itself first."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    yield from found


def year_of_checks(checks: int) -> Iterator[IndexedCheck]:
    """Yield checks of eight GPUs: passive ones, and once a day a quick one with figures."""
    uuids = [f"GPU-{gpu}a7c1e52-9d3b-4f60-8b1e-2f6d5c4b3a29" for gpu in range(8)]
    figures = {"matmul-bf16": 7.41e14, "memory": 4.28e12, "host-to-device": 5.55e10, "device-to-host": 5.5e10}
    first = IndexedCheck("", "", 0.0, "passive", "pass", "", False, dict.fromkeys(uuids, 0), {})
    first = replace(first, machine="0123456789abcdef", corrected_errors=3)
    for number in range(checks):
        run = f"{number:012x}"
        check = replace(first, bundle=f"{run}.tar", run=run, ended_at=1.79e9 + 300 * number)
        quick = number % 288 == 0
        yield replace(check, level="quick", figures=dict.fromkeys(uuids, figures)) if quick else check


def main() -> int:
    """Print time, memory and disk space of a passive check beside an index of many checks."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument(
        "checks", nargs="?", type=int, default=YEAR, metavar="CHECKS", help=f"default: {YEAR}"
    )
    checks = parser.parse_args().checks
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "machine.json").write_text(json.dumps({"count": 8}))
        environment = {**os.environ, "BENCH_FAKE_NVML": str(place / "machine.json"), "HOME": temporary}
        environment |= {"XDG_CONFIG_HOME": temporary, "PYTHONPATH": str(Path(__file__).parents[1])}
        out = place / "out"
        out.mkdir()
        add(out, list(year_of_checks(checks)))
        index_bytes = (out / FILE_NAME).stat().st_size
        check = [sys.executable, "-m", "bench", "check", "--level", "passive", "--nagios", "--out", str(out)]
        check += ["--keep-last", str(KEPT)]
        cost(check, environment)  # the first makes the key
        peaks = [peak_bytes(check, environment) for _ in range(RUNS)]
        peak = max(peaks, key=lambda parts: sum(parts.values()))
        commands = {
            "python3 -c pass": [sys.executable, "-c", "pass"],
            "a passive check": check,
            "import": [sys.executable, "-c", IMPORT],
            "read": [sys.executable, "-c", READ.format(str(out))],
        }
        costs = in_turn(commands, RUNS, environment)
        seconds = {
            name: statistics.median(each.cpu_seconds for each in found) for name, found in costs.items()
        }
        kept = list(out.glob("*.tar"))
        folders = sum(file.lstat().st_size for bundle in kept for file in bundle.with_suffix("").rglob("*"))
        bundle_bytes = (sum(bundle.stat().st_size for bundle in kept) + folders) / len(kept)
    empty, whole = seconds["python3 -c pass"], seconds["a passive check"]
    read = seconds["read"] - seconds["import"]
    lines = {
        "a passive check of 8 GPUs": f"{whole:.2f} s, {whole / empty:.0f} times an empty Python",
        "its memory at most": f"{sum(peak.values()) / 1e6:.0f} MB, children included",
        "in parts": ", ".join(f"{name} {size / 1e6:.0f}" for name, size in peak.items()),
        "its bundle and folder": f"{bundle_bytes / 1e3:.0f} kB",
        f"{checks:,} checks are read in": f"{read:.2f} s, {read / empty:.0f} times an empty Python",
        "their index": f"{index_bytes / 1e6:.1f} MB, {index_bytes / checks:.0f} bytes a check",
        f"with {KEPT} bundles": f"{(index_bytes + KEPT * bundle_bytes) / 1e6:.0f} MB in all",
    }
    for name, value in lines.items():
        print(f"{name:<30} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
