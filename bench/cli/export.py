"""`bench export`: verify a bundle, choose a trial, and write it as a training script with its files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.base.errors import BadInput, nearest, one_line
from bench.base.stamps import file_sha256
from bench.bundle.stated_manifest import read_stated
from bench.bundle.tar_format import open_bundle
from bench.bundle.verdict import RunContents
from bench.export import Kind, TrialOrigin, write
from bench.node_check.recompute_any import recompute, trained_run
from bench.records.fastest import fastest, runner_up
from bench.records.marks import Mark, marked_text
from bench.records.run_results import TrialResult
from bench.records.text import interval_text
from bench.records.trial import NodeFacts, Trial
from bench.report.read_bundles import Lists, own_process, verify_one


@dataclass(frozen=True, slots=True)
class ExportArguments:
    """The options of `bench export`; `setting` None: the model's fastest; `model` None: the only one."""

    bundle: Path
    to: Kind
    folder: Path
    model: str | None
    setting: str | None
    trust: Path | None
    revoked: Path | None
    plain: bool = False


def export(request: ExportArguments) -> int:
    """Write the script and its files, and print their paths; BadInput if the bundle lacks the setting."""
    own_process()
    run = trained_run(verify_one(request.bundle, Lists(request.trust, request.revoked), recompute))
    results = run.results
    result = _choose(run, request.model, request.setting, str(request.bundle))
    trial = Trial(
        model=next(model for model in results.models if model.name == result.model),
        setting=result.setting,
        micro_batch=result.micro_batch,
        gpus=result.gpus,
        seed=results.seed,
        timing=results.timing,
        memory_cap_bytes=results.memory_cap_bytes,
        data=result.data,
    )
    device = results.node.gpus[0].name if results.node.gpus else results.node.cpu
    node = _with_trained_gpus(request.bundle, results.node)
    marks = run.marks.get(result.id, ())
    origin = TrialOrigin(request.bundle.name, file_sha256(request.bundle), results.run.id, device, marks)
    *_, last = paths = write(request.to, request.folder, trial, result, node, origin, plain=request.plain)
    for path in paths:
        print(path)
    guide = next((path for path in paths if path.name == "README.md"), last)
    print(one_line(f"{trial.model.name}, {result.label}: {guide} says how to start it"), file=sys.stderr)
    for warning in origin.warnings(one_line):
        print(warning, file=sys.stderr)
    if request.setting is None and (doubt := runner_up(result.model, results.trials, run.marks)):
        confidence, other = doubt
        print(one_line(_doubt_text(result, confidence, other, run.marks.get(other.id, ()))), file=sys.stderr)
    return 0


def _with_trained_gpus(bundle: Path, node: NodeFacts) -> NodeFacts:
    """Return the node with only the GPUs that trained: exporters compute the number of nodes from them."""
    with open_bundle(bundle) as opened:
        stated = read_stated(opened.read("manifest.json"))
    return replace(node, gpus=node.gpus[: stated.gpus_of(node)])


def _doubt_text(result: TrialResult, confidence: float, other: TrialResult, marks: Sequence[Mark]) -> str:
    """Say how sure the exported setting is, and name the runner-up with the marks of its figure."""
    assert other.estimate is not None
    days = marked_text(f"{interval_text(other.estimate.days)} days", (mark.kind for mark in marks))
    option = f'; --setting "{other.label}" exports that' if other.label != result.label else ""
    return (
        f"{result.label} is within 1% of the fastest measured with {confidence:.0%} confidence; "
        f"{other.label} at micro-batch {other.micro_batch}: {days}{option}"
    )


def _choose(run: RunContents, model: str | None, setting: str | None, where: str) -> TrialResult:
    """Return the model's fastest trial, of the setting with that label if one is given."""
    names = [m.name for m in run.results.models]
    if model is None and len(names) > 1:
        raise BadInput("holds several models", where=where, advice=f"--model: {', '.join(names)}")
    if model is not None and model not in names:
        raise BadInput(f'holds no model "{model}"', where=where, advice=nearest(model, names))
    of_model = run.results.trials_of(model or names[0])
    labels = dict.fromkeys(t.label for t in of_model)
    if setting is not None and setting not in labels:
        raise BadInput(f'holds no setting "{setting}"', where=where, advice=f"allowed: {'; '.join(labels)}")
    best = fastest((t for t in of_model if setting in (None, t.label)), run.marks)
    if best is None:
        advice = "bench compare BUNDLE --settings shows how each trial ended"
        raise BadInput(f"has no figure for {setting or model or names[0]}", where=where, advice=advice)
    return best
