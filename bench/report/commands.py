"""`bench export` and `reproduce`: a verified bundle to files, or to another run here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.commands import sealer, signed_text
from bench.errors import BadInput, BenchError, EnvironmentCannot, nearest
from bench.manifest import parse_manifest
from bench.report.bundles import Lists, check_all, results_of
from bench.result import Trial
from bench.summary import Results, TrialResult
from bench.winner import fastest

if TYPE_CHECKING:
    from bench.report.reproducing import Subject


def export(bundle: Path, to: str, folder: Path, model: str | None, setting: str | None, lists: Lists) -> int:
    """Verifies, chooses a trial, writes its files."""
    from bench import export as exporting

    results = _verified(bundle, lists)
    found = _choose(results, model, setting, str(bundle))
    trained = next(m for m in results.models if m.name == found.model)
    trial = Trial(
        trained, found.setting, found.micro_batch, found.gpus,
        results.seed, results.timing, results.memory_cap_bytes,
    )  # fmt: skip
    kind = next(known for known in exporting.KINDS if known == to)
    source = f"run {results.run.id} on {results.node.gpus[0].name if results.node.gpus else results.node.cpu}"
    for path in exporting.write(kind, folder, trial, found, results.node, source):
        print(path)
    print(f"{trial.model.name}, {found.label}: {folder / 'README.md'} says how to start it", file=sys.stderr)
    return 0


def reproduce(
    bundle: Path,
    again: Path | None,
    out: Path,
    *,
    lists: Lists,
    tolerance: float,
    budget_seconds: float | None,
    key: Path | None,
    on_cpu: bool,
    any_stack: bool,
    as_json: bool,
) -> int:
    """Runs a bundle's manifest here, unless `again` is that run already, and holds one against the other."""
    from bench.report.reproducing import read_subject, show
    from bench.reproduce import reproduce as compare

    there = read_subject(bundle, lists)
    stopped = None
    if again is None:
        again, stopped = _run_again(there, out, budget_seconds, key, on_cpu, any_stack, str(bundle))
    here = read_subject(again, None)
    if here.manifest != there.manifest:
        raise BadInput("ran another manifest", where=str(again), advice="bench compare shows what differs")
    verdict = show(compare(here.run, there.run, tolerance), as_json=as_json)
    if stopped:
        print(f"incomplete: {stopped}", file=sys.stderr)
        return 5
    return verdict


def _run_again(
    there: Subject, out: Path, budget_seconds: float | None, key: Path | None, on_cpu: bool,
    any_stack: bool, where: str,
) -> tuple[Path, str | None]:  # fmt: skip
    from bench.reproduce import stack_differences
    from bench.runner.probe import probe
    from bench.runner.progress import Progress
    from bench.runner.run import execute

    others = list(stack_differences(probe(gpus_too=not on_cpu), there.run.results.node))
    if others and not any_stack:
        node = there.run.results.node
        image = f"image {node.image.config}" if node.image else "the versions in its env.json"
        raise EnvironmentCannot(
            f"another software stack: {'; '.join(others)}",
            where=where,
            advice=f"use {image}, or --any-stack to run here all the same",
        )
    manifest = parse_manifest(there.manifest, f"{where}: manifest.json")
    finished = execute(
        manifest, out, sealer(manifest, key, None), Progress(),
        resume=False, budget_seconds=budget_seconds, on_cpu=on_cpu,
    )  # fmt: skip
    print(f"bundle {finished.bundle}   {signed_text(finished.seal)}", file=sys.stderr)
    return finished.bundle, finished.results.run.stopped


def _verified(bundle: Path, lists: Lists) -> Results:
    ((_, verdict),) = check_all([bundle], lists)
    if isinstance(verdict, BenchError):
        raise verdict
    return results_of(verdict)


def _choose(results: Results, model: str | None, setting: str | None, where: str) -> TrialResult:
    """The fastest of the model, or of one of its settings by its label."""
    names = [m.name for m in results.models]
    if model is None and len(names) > 1:
        raise BadInput("holds several models", where=where, advice=f"--model: {', '.join(names)}")
    if model is not None and model not in names:
        raise BadInput(f'holds no model "{model}"', where=where, advice=nearest(model, names))
    of_model = [t for t in results.trials if t.model == (model or names[0])]
    labels = dict.fromkeys(t.label for t in of_model)
    if setting is not None and setting not in labels:
        raise BadInput(f'holds no setting "{setting}"', where=where, advice=f"allowed: {'; '.join(labels)}")
    best = fastest(t for t in of_model if setting in (None, t.label))
    if best is None:
        raise BadInput(f"has no figure for {setting or model or names[0]}", where=where)
    return best
