"""The lines that `bench reproduce` and `bench export` print for the committed bundles and for a CPU run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from bench.base.strict_json import from_json, strict_loads
from bench.bundle.tar_format import open_bundle
from bench.export import WITH_BENCH, TrialOrigin, refuse, write
from bench.records.fastest import fastest
from bench.records.run_results import SCHEMA, Results
from bench.records.trial import NodeFacts, Trial
from bench.report.reproduce.verdicts import pip_lines
from bench.training.methods import UnknownMethod
from tests.pip_lines.printed_lines import ROOT, PrintedLines, in_document

# Of `make quickstart` on 2026-11-26. No bundle of a CPU is committed: its figures are no results.
OF_A_CPU = {"accelerate": "1.15.0", "deepspeed": "0.19.8", "numpy": "2.4.6", "torch": "2.13.0+cpu",
            "transformers": "5.17.0"}  # fmt: skip
OTHERS = ("3.11", "3.13")  # a machine's Python, where the bundle's may be another one
REPOSITORY = "PATH/TO/bench"  # in a README.md of bench export, for the user to replace


@cache
def results() -> tuple[Results, ...]:
    """Return the results of every committed run."""
    found = []
    for path in sorted((ROOT / "results").rglob("*.tar")):
        with open_bundle(path) as bundle:
            document = strict_loads(bundle.read("results.json"))
        if document["schema"] == SCHEMA:
            found.append(from_json(Results, document))
    return tuple(found)


def stacks() -> list[NodeFacts]:
    """Return a node for each set of packages of committed runs, and one with those of a CPU."""
    nodes = {str((each.node.python, each.node.packages)): each.node for each in results()}
    first = next(iter(nodes.values()))
    return [*nodes.values(), replace(first, packages=OF_A_CPU, python="3.11.7", gpus=())]


def reproduced(there: NodeFacts, here: Mapping[str, str], python: str) -> PrintedLines:
    """Return the lines that `bench reproduce` prints on a machine with these packages."""
    ours = replace(there, packages=here, python=f"{python}.2")
    commands = tuple(pip_lines(ours, there))
    return PrintedLines("bench reproduce", commands, python=python, before=here, after=there.packages)


def all_reproduced() -> Iterator[PrintedLines]:
    """Yield the lines for every stack, on machines with another torch, and the same or another Python."""
    for there in stacks():
        measured = ".".join(there.python.split(".")[:2])
        here = {**there.packages, "torch": "2.9.0", "left": "1.0"}
        yield reproduced(there, here, measured)
        yield reproduced(there, here, next(each for each in OTHERS if each != measured))


def exported(folder: Path) -> Iterator[PrintedLines]:
    """Yield the lines of README.md that `bench export` writes for the fastest trials, each once."""
    seen = set()
    for number, run in enumerate(results()):
        for model in run.models:
            best = fastest((trial for trial in run.trials if trial.model == model.name), ())
            if best is None:
                continue
            trial = Trial(model, best.setting, best.micro_batch, best.gpus, run.seed, run.timing,
                          run.memory_cap_bytes, data=best.data)  # fmt: skip
            for kind in WITH_BENCH:
                made = folder / f"{number}-{model.name}-{kind}"
                with suppress(UnknownMethod):  # of methods that earlier versions of bench had
                    if refuse(kind, trial) is None:
                        write(kind, made, trial, best, run.node, TrialOrigin("a.tar", "", "1", "a run"))
                if made.exists():
                    lines = in_readme(made)
                    if str(lines) not in seen:
                        seen.add(str(lines))
                        yield lines


def in_readme(folder: Path) -> PrintedLines:
    """Return the lines of an exported README.md, with the repository where a user has it."""
    (lines,) = in_document("bench export", (folder / "README.md").read_text())
    commands = tuple(line.replace(REPOSITORY, ".") for line in lines.commands)
    files = {"requirements.txt": (folder / "requirements.txt").read_text()}
    return PrintedLines(lines.where, commands, files, python=OTHERS[0])
