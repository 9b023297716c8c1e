"""Compute the measured gain by each compiled kernel, from the bundles in results/ alone.

    python benchmarks/kernel_costs.py [--write]

A row is a model on a kind and number of GPUs on which settings were measured that need a kernel's wheel, and
settings that do not: how many times as long a step of the fastest one without it takes as one of the fastest
of all. Bundles that measured only some of the settings count together; unsteady figures do not count. --write
puts the rows into bench/data/kernel_costs.json, from which `bench plan` and `bench push` say what a missing
kernel costs.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from bench.base.kernel_list import MODULES
from bench.base.strict_json import from_json, pretty_json
from bench.planning.kernel_costs import lost_methods
from bench.records.estimate import Interval
from bench.records.gradients import GradientCheck
from bench.records.marks import unsteady
from bench.training.methods import Target
from bench.training.models import known_models

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "bench/data/kernel_costs.json"
ANY_GPU = Target("cuda", 2, 1 << 60, "a GPU", "9.0", elsewhere=True)


class MeasuredStep(NamedTuple):
    """The step of a setting, in a bundle."""

    seconds: float
    setting: tuple[str, ...]
    bundle: str


def rows() -> Iterator[dict[str, Any]]:
    """Yield the rows, by wheel, model and machine."""
    steps = measured_steps(ROOT / "results")
    for wheel in sorted(MODULES):
        for (model, gpus, gpu), own in sorted(steps.items()):
            lost = lost_methods(known_models()[model], ANY_GPU, [wheel])
            without = [step for step in own if lost.isdisjoint(step.setting)]
            if without and len(without) < len(own):
                fastest, other = min(own), min(without)
                times = round(other.seconds / fastest.seconds, 3)
                row = {"wheel": wheel, "model": model, "gpu": gpu, "gpus": gpus, "times": times}
                yield row | {"fastest": fastest.bundle, "without": other.bundle}


def measured_steps(folder: Path) -> dict[tuple[str, int, str], list[MeasuredStep]]:
    """Return the measured steps of all bundles of runs on GPUs, by model, number and kind of GPUs."""
    steps: dict[tuple[str, int, str], list[MeasuredStep]] = {}
    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as bundle:
            if "results.json" not in bundle.getnames():
                continue
            results = json.load(bundle.extractfile("results.json"))  # type: ignore[arg-type]
        if not results["schema"].startswith("bench/results/") or not results["node"]["gpus"]:
            continue
        for trial in results["trials"]:
            check = trial.get("gradient_check")
            right = check is None or from_json(GradientCheck, check).agrees
            measured = trial["outcome"] == "measured" and trial["estimate"]
            if measured and right and trial["model"] in known_models():
                step = from_json(Interval, trial["estimate"]["step_seconds"])
                if unsteady(step):
                    continue
                key = (trial["model"], trial["gpus"], results["node"]["gpus"][0]["name"])
                name = path.relative_to(folder).as_posix()
                steps.setdefault(key, []).append(MeasuredStep(step.value, tuple(trial["setting"]), name))
    return steps


def main() -> None:
    """Print the measured gain by each kernel; with --write, write the rows that bench ships."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--write", action="store_true", help="write bench/data/kernel_costs.json")
    write = parser.parse_args().write
    found = list(rows())
    for row in found:
        print(*row.values())
    if write:
        source = "benchmarks/kernel_costs.py, from the bundles in results/"
        dated = date.today().isoformat()
        document = {"schema": "bench/kernel-costs/v1", "source": source, "dated": dated, "rows": found}
        TARGET.write_bytes(pretty_json(document))


if __name__ == "__main__":
    main()
