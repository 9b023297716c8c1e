"""`bench verify`: verify bundles; print the contents of each bundle, as lines or as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.base.errors import one_line
from bench.base.frozen import dataclass
from bench.base.terminal import print_json, wrapped
from bench.bundle.verdict import RunContents
from bench.cli.stdio import show
from bench.library.verify import verify as verify_bundles
from bench.node_check.recompute_any import AnyVerdict
from bench.records.fastest import fastest, wrong_settings
from bench.records.marks import marked_text
from bench.records.switches import in_words
from bench.records.text import count_text, interval_text, software_line
from bench.records.trial import NodeFacts
from bench.report.read_bundles import own_process


@dataclass(frozen=True, slots=True)
class VerifyArguments:
    """The options of `bench verify`: files, folders and patterns; `trust` must vouch for every bundle."""

    bundles: tuple[Path, ...]
    trust: Path | None
    revoked: Path | None
    as_json: bool


def verify(request: VerifyArguments) -> int:
    """Verify every bundle; return 0 if all are valid, else the highest of the exit codes."""
    own_process()
    checked = verify_bundles(request.bundles, trust=request.trust, revoked=request.revoked)
    if request.as_json:
        print_json([bundle.to_json() for bundle in checked])
    for bundle in checked:
        if bundle.refusal is not None:
            print(bundle.refusal, file=sys.stderr)
        if (verdict := bundle.verdict) and not request.as_json:
            lines = [f"{bundle.path}", *verdict.to_lines(), *_about(verdict)]
            show(wrapped(map(one_line, lines), " " * 11))
    refused = [bundle.refusal for bundle in checked if bundle.refusal is not None]
    if len(checked) > 1 and not request.as_json:
        alert = f", {len(refused)} REFUSED" if refused else ""
        show(f"{len(checked)} bundles: {len(checked) - len(refused)} valid{alert}")
    return max((error.exit_code for error in refused), default=0)


def environment_lines(node: NodeFacts, verdict: AnyVerdict) -> Iterator[str]:
    """Yield lines on machine, time and software as the bundle states them, which no signature proves."""
    names = Counter(gpu.name for gpu in node.gpus)
    gpus = " + ".join(f"{count}x {name}" for name, count in names.items())
    machine = f"{gpus}, driver {node.driver}" if gpus else f"{node.cpu}, {node.cpu_cores} cores"
    yield f"machine    {machine} (as stated)"
    yield f"ran        {verdict.started_at} to {verdict.ended_at} (by the machine's clock)"
    kind, software = software_line(node)
    yield f"{kind:<10} {software}"
    if node.switches:
        yield f"set        {in_words(node.switches)}"


def _about(verdict: AnyVerdict) -> Iterator[str]:
    """Yield lines on a bundle's contents: environment, and each model's result or a node check's verdict."""
    contents = verdict.contents
    yield from environment_lines(contents.results.node, verdict)
    if isinstance(contents, RunContents):
        yield f"measured   by {contents.results.measured_by}, with stack {contents.results.node.stack}"
        for model in contents.results.models:
            yield f"result     {_result(model.name, contents)}"
        return
    simulated = ", SIMULATED: not a real node" if contents.results.simulated else ""
    readings = f"judged again from {len(contents.evidence.readings)} readings"
    depth = f"at level {contents.results.level}"
    yield f"check      {contents.results.verdict} {depth}, {readings}{simulated}"
    from bench.node_check.check_results import LEFT_OUT  # imported already, by the recomputation

    yield from (f"           {one.found}" for one in contents.results.findings if one.check == LEFT_OUT)
    if contents.claimed != contents.results.verdict:
        yield f"           it states {contents.claimed}, by other rules or another profile"
    if not contents.shipped_profile:
        yield "           its own GPU profile was not used: this version of bench does not ship it"


def _result(model: str, run: RunContents) -> str:
    """Return the fastest plausible figure of a model, without marks if possible, on one line."""
    trials = run.results.trials_of(model)
    best, tried = fastest(trials, run.marks), count_text(len(trials), "trial")
    implausible = sum(t.estimate is not None and not t.estimate.plausible for t in trials)
    warning = f"; {implausible} IMPLAUSIBLE: faster than the machine's limit" if implausible else ""
    if wrong := wrong_settings(trials):
        warning += f"; {count_text(len(wrong), 'setting')} with WRONG GRADIENTS"
    if best is None or best.estimate is None:
        return f"{model}: no figure, of {tried}{warning}"
    kinds = (mark.kind for mark in run.marks.get(best.id, ()))
    days = marked_text(f"{interval_text(best.estimate.days)} days", kinds)
    on = count_text(best.gpus, "device")
    return f"{model}: {days} on {on}, {best.label}, the fastest of {tried}{warning}"
