"""Print every setting that bundles tried, in Markdown: a table for each model and number of GPUs.

python benchmarks/settings.py BUNDLE_OR_FOLDER...
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from bench.node_check.recompute_any import results_of
from bench.records.run_results import Results, TrialResult
from bench.records.text import bytes_text, failure_text, interval_text
from bench.report.read_bundles import check_all

LEFT_OUT = "·"
HEAD = " ".join((
    "Seconds of a whole step of the recipe with their 95% interval, and the GPU memory at its height;",
    f"{LEFT_OUT} where the plan says that it does not fit, or where it was not asked for. The last column:",
    "how far the losses of the first steps lie from naive's, at the micro-batch at which naive was measured;",
    "with dropout (roberta-large, vit-l) compiled code, which zero-3 is not, draws other random numbers.",
    "ZeRO's fp32 copies begin as its half-precision weights, and the first updates of a warm-up (2e-7 for",
    "weights of 0.02) are less than those are rounded to: its losses stay at first where naive's move.",
    "What is in several of the bundles named is shown as the latest of them has it; what a run that was",
    "interrupted did not come to has no row.",
    "FSDP2 with offloading adds gradients up otherwise than it did (docs/adr/0006-several-devices.md): of",
    "now are the bundles with fsdp in their name and those of H100; the other figures of it are of before.",
    "Short timings: `benchmarks/gpu/every_setting.sh`. This file is what `make settings` prints.\n",
))  # fmt: skip
Key = tuple[str, int]  # model, GPUs


@dataclass
class Table:
    device: str
    paths: dict[Path, None] = field(default_factory=dict)  # each once, in order
    trials: dict[tuple[str, int], TrialResult] = field(default_factory=dict)  # by label and micro-batch
    skipped: dict[str, str] = field(default_factory=dict)  # labels, and why


def main() -> int:
    print(document(map(Path, sys.argv[1:])))
    return 0


def document(paths: Iterable[Path]) -> str:
    found = gathered(paths)
    title = "# Every setting, every outcome\n"
    return "\n".join(
        [title, HEAD, *(line for key in sorted(found) for line in section(key, found[key]))]
    ).rstrip()


def gathered(paths: Iterable[Path]) -> dict[Key, Table]:
    found: dict[Key, Table] = {}
    for path, results in sorted(_read(paths), key=lambda read: read[1].run.started_at):
        device = results.node.gpus[0].name if results.node.gpus else "CPU"
        for trial in results.trials:
            table = found.setdefault((trial.model, trial.gpus), Table(device))
            table.paths[path] = None
            table.trials[trial.label, trial.micro_batch] = trial
            table.skipped |= {
                skip.label: skip.reason for skip in results.skipped if skip.model == trial.model
            }
    return found


def _read(paths: Iterable[Path]) -> Iterator[tuple[Path, Results]]:
    for path, verdict in check_all(paths):
        if isinstance(verdict, Exception):
            raise SystemExit(str(verdict))
        yield path, results_of(verdict)


def section(key: Key, table: Table) -> Iterator[str]:
    model, gpus = key
    sizes = sorted({size for _, size in table.trials}, reverse=True)
    labels = list(dict.fromkeys(label for label, _ in sorted(table.trials, key=_shortest)))
    rows = [(label, *_cells(table, label, sizes), _drift(table, label)) for label in labels]
    yield f"## {model}, {gpus} x {table.device}\n"
    yield ", ".join(path.as_posix() for path in table.paths) + "\n"
    heads = ("setting", *(f"{size} a pass, s/step" for size in sizes), "loss vs naive")
    yield tabulate(rows, heads, tablefmt="github", disable_numparse=True) + "\n"
    if reasons := [*_reasons(table)]:
        yield "\n".join(f"- {reason}" for reason in reasons) + "\n"


def _reasons(table: Table) -> Iterator[str]:
    """Lines that say why settings have no figure: the plan left them out, or they failed."""
    tried = {label for label, _ in table.trials}
    for label, why in table.skipped.items():
        if label not in tried:
            yield f"{label}: unsupported: {why}"
    failed: dict[str, list[str]] = {}
    for (label, size), trial in table.trials.items():
        if trial.failure is not None:
            failed.setdefault(failure_text(trial.failure), []).append(f"{label}, {size} a pass")
    for why, trials in failed.items():
        yield f"{'; '.join(trials)}: {why}"


def _shortest(entry: tuple[str, int]) -> tuple[int, str]:
    """Sort key: naive first, then the free lunch, then settings that add methods to it."""
    return len(entry[0].split(" + ")) + (entry[0] != "naive"), entry[0]


def _cells(table: Table, label: str, sizes: Sequence[int]) -> Iterator[str]:
    for size in sizes:
        trial = table.trials.get((label, size))
        if trial is None:
            yield LEFT_OUT
        elif trial.failure is not None:
            yield failure_text(trial.failure).partition(": ")[0]
        elif trial.estimate is None:
            yield "too few samples"
        else:
            yield f"{interval_text(trial.estimate.step_seconds)}, {bytes_text(trial.estimate.peak_bytes)}"


def _drift(table: Table, label: str) -> str:
    """The largest loss difference from naive over all micro-batches."""
    found = [t.loss_difference for (name, _), t in table.trials.items() if name == label]
    known = [abs(value) for value in found if value is not None]
    return f"{100 * max(known):.2g}%" if known else ""


if __name__ == "__main__":
    raise SystemExit(main())
