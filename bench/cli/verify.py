"""`bench verify`: what a verification found, as lines or as JSON, and the exit code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.base.errors import BenchError, one_line
from bench.base.strict_json import pretty_json
from bench.bundle.verdict import RunContents
from bench.node_check.recompute_any import AnyVerdict
from bench.records.fastest import fastest
from bench.records.run_results import Results
from bench.records.switches import in_words
from bench.records.text import count_text, image_text, interval_text
from bench.records.trial import NodeFacts
from bench.report.read_bundles import Lists, check_all


def verify(paths: list[Path], lists: Lists, as_json: bool) -> int:
    """0 if all are valid; otherwise the exit code of the worst, after all were looked at."""
    checked = list(check_all(paths, lists))
    if as_json:
        sys.stdout.write(pretty_json([_verdict_json(path, verdict) for path, verdict in checked]).decode())
    for path, verdict in checked:
        if isinstance(verdict, BenchError):
            print(verdict, file=sys.stderr)
        elif not as_json:
            print(*map(one_line, [f"{path}", *verdict.to_lines(), *_about(verdict)]), sep="\n")
    if len(checked) > 1 and not as_json:
        print(_counted([verdict for _, verdict in checked]))
    return _exit_code(checked)


def _counted(verdicts: list[AnyVerdict | BenchError]) -> str:
    """Who looks at the end of many sees whether one among them was refused."""
    refused = sum(isinstance(verdict, BenchError) for verdict in verdicts)
    alert = f", {refused} REFUSED" if refused else ""
    return f"{len(verdicts)} bundles: {len(verdicts) - refused} valid{alert}"


def _environment(node: NodeFacts, verdict: AnyVerdict) -> Iterator[str]:
    """By its own word: a signature proves none of it."""
    names = Counter(gpu.name for gpu in node.gpus)
    gpus = " + ".join(f"{count}x {name}" for name, count in names.items())
    machine = f"{gpus}, driver {node.driver}" if gpus else f"{node.cpu}, {node.cpu_cores} cores"
    yield f"machine    {machine}, it says"
    yield f"ran        {verdict.started_at} to {verdict.ended_at}, by its own clock"
    yield f"image      {image_text(node.image)}"
    if node.switches:
        yield f"set        {in_words(node.switches)}"


def _about(verdict: AnyVerdict) -> Iterator[str]:
    """What was run, and what its figures say."""
    contents = verdict.contents
    yield from _environment(contents.results.node, verdict)
    if isinstance(contents, RunContents):
        for model in contents.results.models:
            yield f"result     {_result(model.name, contents.results)}"
        return
    simulated = ", SIMULATED: of no real node" if contents.results.simulated else ""
    readings = f"judged again from {len(contents.evidence.readings)} readings"
    yield f"check      {contents.results.verdict}, {readings}{simulated}"
    if contents.claimed != contents.results.verdict:
        yield f"           {contents.claimed}, it says itself, by the rules of another version of bench"
    if not contents.shipped_profile:
        yield "           against another profile of its GPUs than this bench has"


def _result(model: str, results: Results) -> str:
    """What the bundle is about, in a line: the figure that would be ranked."""
    trials = [trial for trial in results.trials if trial.model == model]
    best, tried = fastest(trials), count_text(len(trials), "trial")
    doubtful = sum(t.estimate is not None and not t.estimate.plausible for t in trials)
    beyond = f"; {doubtful} IMPLAUSIBLE: more arithmetic than the machine reached" if doubtful else ""
    if best is None or best.estimate is None:
        return f"{model}: no figure, of {tried}{beyond}"
    figure = f"{interval_text(best.estimate.days)} days on {count_text(best.gpus, 'device')}, {best.label}"
    return f"{model}: {figure}, the fastest of {tried}{beyond}"


def _verdict_json(path: Path, verdict: AnyVerdict | BenchError) -> object:
    if isinstance(verdict, BenchError):
        inside = (verdict.where or "").removeprefix(str(path)).removeprefix(": ") or None
        return {
            "path": str(path), "valid": False, "where": inside, "reason": verdict.message,
            "exit_code": verdict.exit_code,
        }  # fmt: skip
    return {"valid": True} | verdict.to_json()


def _exit_code(checked: Iterable[tuple[Path, object]]) -> int:
    return max((v.exit_code for _, v in checked if isinstance(v, BenchError)), default=0)
