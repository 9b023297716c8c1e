"""Hold published throughputs against what bench predicts of itself on the same machine, at the same setting.

    PYTHONPATH=. python benchmarks/published.py [--rows]

No fit uses these rows. Their software is other software than bench, so the ratio of a source says how far
that software was from bench; the spread of ratios within a source says how well predictions carry over
between cards, numbers of GPUs, and models. Counts every model: takes some minutes.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tabulate import tabulate

from bench.base.strict_json import to_json
from bench.planning.prediction.published_rate import predicted_per_gpu
from bench.planning.prediction.step_time import shipped_fit
from bench.planning.published import PublishedRow, manifest_of, shipped_rows
from bench.training.models import Counted, counts_by_formula
from bench.training.models.dry_build import rehearse


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A published row, and its rate over the predicted one."""

    row: PublishedRow
    ratio: float


def held_rows(rows: Iterable[PublishedRow]) -> list[HeldRow]:
    """Return the published rows that can be predicted, each with its prediction."""
    known: dict[str, Counted | None] = {}
    held = []
    for row in rows:
        (model,) = manifest_of(row).models
        key = str(to_json(model))
        if key not in known:
            counted = rehearse([model], row.name).counted
            known[key] = counted.get(model.name) or counts_by_formula(model)
        counts = known[key]
        predicted = predicted_per_gpu(row, counts, shipped_fit()) if counts else None
        if predicted is not None:
            held.append(HeldRow(row, row.per_second_per_gpu / predicted))
    return held


def line(name: str, held: list[HeldRow]) -> tuple[object, ...]:
    """Return a line of the table: how many rows, their median ratio and their spread."""
    logs = [math.log(each.ratio) for each in held]
    middle = statistics.median(logs)
    spread = math.sqrt(sum((each - middle) ** 2 for each in logs) / len(logs))
    cards = sorted({each.row.card.removeprefix("NVIDIA ") for each in held})
    gpus = [each.row.gpus for each in held]
    span = f"{min(gpus)}" if min(gpus) == max(gpus) else f"{min(gpus)} to {max(gpus)}"
    return name, len(held), ", ".join(cards), span, f"{math.exp(middle):.2f}", f"{100 * spread:.0f}%"


def main() -> None:
    """Print for each source how its rates compare with their predictions."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rows", action="store_true", help="print every row")
    asked = parser.parse_args()
    published = shipped_rows()
    by_source: dict[str, list[HeldRow]] = defaultdict(list)
    for each in held_rows(published.rows):
        by_source[each.row.source].append(each)
        if asked.rows:
            print(f"{each.ratio:6.2f}  {each.row.name}")
    headers = ("source", "rows", "cards", "GPUs", "published over predicted", "spread")
    table = [line(name, held) for name, held in by_source.items()]
    print(tabulate(table, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
