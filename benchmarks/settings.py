"""Print every setting that bundles tried, as one Markdown table for each model and number of GPUs.

python benchmarks/settings.py BUNDLE_OR_FOLDER...
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from bench.base.sizes import bytes_text
from bench.node_check.recompute_any import trained_run
from bench.records.run_results import Results, TrialResult
from bench.records.text import failure_text, interval_text
from bench.report.read_bundles import check_all

LEFT_OUT = "·"
HEAD = f"""\
This page is for people who choose settings: it shows how fast and how large every measured setting is.
Each cell gives the seconds of a whole step of the recipe with their 95% interval, and the peak GPU memory.
A cell contains {LEFT_OUT} if the plan predicts that the setting does not fit, or if it was not requested.
Settings were timed briefly, by `benchmarks/gpu/every_setting.sh`. `make settings` prints this file.

The last column is the largest relative difference between the losses of the first steps and naive's, at the
micro-batch at which naive was measured. Two effects explain the larger differences:

- With dropout (roberta-large, vit-l), compiled code draws other random numbers; zero-3 is not compiled.
- ZeRO's fp32 copies start from its half-precision weights, and the first updates of a warm-up (2e-7 for
  weights of 0.02) are smaller than the rounding of those weights. ZeRO's losses stay constant at first while
  naive's move.

If several of the named bundles contain a trial, the latest bundle is shown. Trials that an interrupted run
did not reach have no row. The way in which gradients are added up under FSDP2 with offloading has changed
(docs/adr/0006-several-devices.md): bundles with fsdp in their name and those of H100 use the new way, and
the other figures of FSDP2 with offloading are older.
"""
Key = tuple[str, int, str]  # model, number and kind of GPUs


@dataclass
class Table:
    """The trials of one model on one kind of machine, from all of its bundles."""

    paths: dict[Path, None] = field(default_factory=dict)  # an ordered set
    trials: dict[tuple[str, int], TrialResult] = field(default_factory=dict)  # by label and micro-batch
    skipped: dict[str, str] = field(default_factory=dict)  # reason by label


def main() -> int:
    """Print a page of all trials of these bundles."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("paths", nargs="+", type=Path, metavar="BUNDLE_OR_FOLDER")
    print(document(parser.parse_args().paths))
    return 0


def document(paths: Iterable[Path]) -> str:
    """Return the page: one section for each model, number and kind of GPUs."""
    tables = tables_of(paths)
    title = "# Every setting, every outcome\n"
    return "\n".join(
        [title, HEAD, *(line for key in sorted(tables) for line in section(key, tables[key]))]
    ).rstrip()


def tables_of(paths: Iterable[Path]) -> dict[Key, Table]:
    """Read the bundles in the order in which they were measured; a later trial replaces an equal one."""
    tables: dict[Key, Table] = {}
    for path, results in sorted(_read(paths), key=lambda read: read[1].run.started_at):
        device = results.node.gpus[0].name if results.node.gpus else "CPU"
        for trial in results.trials:
            table = tables.setdefault((trial.model, trial.gpus, device), Table())
            table.paths[path] = None
            table.trials[trial.label, trial.micro_batch] = trial
            table.skipped |= {
                skip.label: skip.reason for skip in results.skipped if skip.model == trial.model
            }
    return tables


def _read(paths: Iterable[Path]) -> Iterator[tuple[Path, Results]]:
    for path, verdict in check_all(paths):
        if isinstance(verdict, Exception):
            raise SystemExit(str(verdict))
        yield path, trained_run(verdict).results


def section(key: Key, table: Table) -> Iterator[str]:
    """Yield the lines of a section: settings down, micro-batches across, the largest first."""
    model, gpus, device = key
    sizes = sorted({size for _, size in table.trials}, reverse=True)
    labels = list(dict.fromkeys(label for label, _ in sorted(table.trials, key=_shortest)))
    rows = [(label, *_cells(table, label, sizes), _drift(table, label)) for label in labels]
    yield f"## {model}, {gpus} x {device}\n"
    yield ", ".join(path.as_posix() for path in table.paths) + "\n"
    heads = ("setting", *(f"micro-batch {size}, s/step" for size in sizes), "loss vs naive")
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
            failed.setdefault(failure_text(trial.failure), []).append(f"{label}, micro-batch {size}")
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
    differences = [t.loss_difference for (name, _), t in table.trials.items() if name == label]
    sizes = [abs(difference) for difference in differences if difference is not None]
    return f"{100 * max(sizes):.2g}%" if sizes else ""


if __name__ == "__main__":
    raise SystemExit(main())
