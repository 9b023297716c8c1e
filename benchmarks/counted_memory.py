"""Hold memory that is counted for any architecture against the peaks that the committed bundles measured.

    PYTHONPATH=. python benchmarks/counted_memory.py

Every measured trial of GPT-NeoX, RoBERTa and ViT is predicted twice: by the formulas of its family, and by
counts, as if the family had no file. Models without a family file are predicted by counts only. Prints the
ratio of prediction to measurement for each trial, how many are within 10%, and what most of them exceed their
prediction by.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.bundle.verdict import RunContents
from bench.bundle.verify import Verdict
from bench.planning.memory_prediction import predict_bytes, predict_counted_bytes
from bench.report.read_bundles import check_all
from bench.training.methods import known_methods
from bench.training.models import Counted, families, family_of
from bench.training.models.counted_operations import counted
from bench.training.models.paper_code import find_model
from tests.planning.test_memory import LOGITS_TWICE, counts_of_brought, named

RESULTS = Path(__file__).parents[1] / "results"
FAMILIES = ("gpt_neox", "roberta", "vit")
NOT_COUNTED = "masked-head"  # a method of families with a file


class Ratio(NamedTuple):
    """Predicted by measured memory of a trial, by formulas and by counting."""

    model: str
    setting: str
    micro_batch: int
    gpus: int
    formula: float
    counted: float


@cache
def counts_of(name: str) -> Counted:
    """Count the memory of a known model by building it, although it has formulas."""
    model = find_model(name)
    return counted(replace(model, architecture=family_of(model).complete(model)))


def ratios() -> Iterator[Ratio]:
    """Yield the ratios of the trials in results/ whose memory can be predicted in both ways."""
    for path in sorted(RESULTS.rglob("*.tar")):
        ((_, verdict),) = check_all([path], None)
        if not isinstance(verdict, Verdict) or not isinstance(verdict.contents, RunContents):
            continue
        results = verdict.contents.results
        graphs = "TORCHINDUCTOR_CUDAGRAPHS" in (results.node.switches or {})  # their peaks lack memory
        for trial in results.trials:
            known = known_methods().keys() - {NOT_COUNTED} >= {*trial.setting}
            twice = named(path) in LOGITS_TWICE and "compile-blocks" in trial.setting
            if trial.estimate is None or graphs or twice or not known:
                continue
            model = next(one for one in results.models if one.name == trial.model)
            if model.family in families() and model.family not in FAMILIES:
                continue
            known = counts_of_brought(model, trial.setting)
            formula = predict_bytes(model, trial.setting, trial.micro_batch, trial.gpus, known)
            counts = known or counts_of(trial.model)
            own = predict_counted_bytes(model, trial.setting, trial.micro_batch, trial.gpus, counts)
            assert formula is not None
            peak = trial.estimate.peak_bytes
            yield Ratio(
                model.name,
                trial.label,
                trial.micro_batch,
                trial.gpus,
                formula / peak,
                (own or 0) / peak,
            )


def main() -> None:
    """Print the ratios of all trials, and to stderr how many are within 10% of 1."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.parse_args()
    rows = sorted({*ratios()})
    print(tabulate(rows, headers=Ratio._fields, floatfmt=".3f"))
    for name in ("formula", "counted"):
        near = sum(abs(getattr(row, name) - 1) < 0.1 for row in rows)
        print(f"{name}: {near} of {len(rows)} within 10% of the measured peak", file=sys.stderr)
    over = sorted(1 / row.formula - 1 for row in rows)
    most = over[int(0.95 * (len(over) - 1))]
    print(f"nineteen of twenty take at most {most:.1%} more than the plan predicts", file=sys.stderr)


if __name__ == "__main__":
    main()
