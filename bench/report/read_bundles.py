"""`bench verify`: bundles in, verdicts out. Nothing here imports torch."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench.base.errors import BadInput, BenchError, one_line
from bench.base.paths import ALLOWED_SIGNERS, REVOKED, config_path
from bench.base.strict_json import pretty_json, to_json
from bench.bundle.held_to_manifest import Note
from bench.bundle.recompute_run import recompute
from bench.bundle.verdict import Verdict
from bench.bundle.verify import Recompute, Rules, verify_bundle
from bench.node_check.check_results import judged
from bench.records.fastest import fastest
from bench.records.run_results import Results
from bench.records.slowdown import slowed_of
from bench.records.switches import in_words
from bench.records.text import count_text, image_text, interval_text
from bench.records.trial import NodeFacts

MANY = 64  # bundles, from which on several processes are worth their start
T = TypeVar("T")
Checked = tuple[Path, Verdict | BenchError]


class Lists(NamedTuple):
    """The files that the user named; without them, those that `bench keys` keeps count, if there are any."""

    trust: Path | None = None
    revoked: Path | None = None


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


def _counted(verdicts: list[Verdict | BenchError]) -> str:
    """Who looks at the end of many sees whether one among them was refused."""
    refused = sum(isinstance(verdict, BenchError) for verdict in verdicts)
    alert = f", {refused} REFUSED" if refused else ""
    return f"{len(verdicts)} bundles: {len(verdicts) - refused} valid{alert}"


def _environment(node: NodeFacts, verdict: Verdict) -> Iterator[str]:
    """By its own word: a signature proves none of it."""
    names = Counter(gpu.name for gpu in node.gpus)
    gpus = " + ".join(f"{count}x {name}" for name, count in names.items())
    machine = f"{gpus}, driver {node.driver}" if gpus else f"{node.cpu}, {node.cpu_cores} cores"
    yield f"machine    {machine}, it says"
    yield f"ran        {verdict.started_at} to {verdict.ended_at}, by its own clock"
    yield f"image      {image_text(node.image)}"
    if node.switches:
        yield f"set        {in_words(node.switches)}"


def _about(verdict: Verdict) -> Iterator[str]:
    """What was run, and what its figures say."""
    check = judged(verdict)
    if check is None:
        results = results_of(verdict)
        yield from _environment(results.node, verdict)
        for model in results.models:
            yield f"result     {_result(model.name, results)}"
        return
    yield from _environment(check.results.node, verdict)
    simulated = ", SIMULATED: of no real node" if check.results.simulated else ""
    readings = f"judged again from {len(check.evidence.readings)} readings"
    yield f"check      {check.results.verdict}, {readings}{simulated}"
    if check.claimed != check.results.verdict:
        yield f"           {check.claimed}, it says itself, by the rules of another version of bench"
    if not check.shipped_profile:
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


def section(path: Path, verdict: Verdict) -> str:
    """One bundle: its machine, who signed it, and every setting that was tried."""
    from bench.report.text.run_table import results_table  # tabulate is slow to import, and verify needs none

    results = results_of(verdict)
    node = results.node
    device = f"{len(node.gpus)} x {node.gpus[0].name}, driver {node.driver}" if node.gpus else node.cpu
    signed = f"run {verdict.run_id}, level {verdict.level}, signed by {verdict.fingerprint}"
    return f"{path}   {device}\n{signed}\n\n{results_table(results, slowed_of(verdict))}"


def results_of(verdict: Verdict) -> Results:
    results = verdict.recomputed.get("results")
    if not isinstance(results, Results):
        raise BadInput("is a node check, without models", where=verdict.path, advice="bench compare shows it")
    return results


def notes_of(verdict: Verdict) -> tuple[Note, ...]:
    """What of its results nothing here could be held against."""
    notes: Any = verdict.recomputed["on_trust"]
    return tuple(notes)


def check_all(paths: Iterable[Path], lists: Lists | None = None) -> Iterator[Checked]:
    return look_at_all(paths, lists, recompute, _whole)


def look_at_all(
    paths: Iterable[Path], lists: Lists | None, gather: Recompute, look: Callable[[Path, Verdict], T]
) -> Iterator[tuple[Path, T | BenchError]]:
    """Verifies every bundle, and of each good one keeps what `look` sees: in the process that verified it."""
    gc.freeze()  # what is there stays, and samples are freed as they are read: little of it is worth a look
    gc.set_threshold(50_000)
    rules = _rules(lists or Lists())  # once: a wrong file is one mistake, not one a bundle
    every = list(_bundles(paths))
    work = partial(_checked, rules, gather, look)
    if len(every) < MANY:
        yield from map(work, every)
        return
    from concurrent.futures import ProcessPoolExecutor  # slow to import, and one bundle needs none
    from multiprocessing import get_context

    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        yield from pool.map(work, every, chunksize=MANY // 4)


def _whole(_path: Path, verdict: Verdict) -> Verdict:
    return verdict


def _checked(
    rules: Rules, gather: Recompute, look: Callable[[Path, Verdict], T], path: Path
) -> tuple[Path, T | BenchError]:
    try:
        return path, look(path, verify_bundle(path, gather, rules))
    except BenchError as error:
        error.where = error.where if error.where and str(path) in error.where else _place(path, error.where)
        return path, error


def _rules(lists: Lists) -> Rules:
    """A list that was named must vouch for every bundle. The user's own only adds to what is known of it."""
    own = config_path(ALLOWED_SIGNERS)
    known = lists.trust or (own if own and own.exists() else None)
    listed = (path for path in (lists.revoked, config_path(REVOKED)) if path)
    revoked = [path for path in listed if path == lists.revoked or path.exists()]
    if not known and not revoked:
        return Rules()
    from bench.signing.allowed_signers import TrustPolicy
    from bench.signing.revocation import Revoked  # who has no lists need not wait for what reads them

    return Rules(
        trust=TrustPolicy.from_file(known) if known else None,
        demanded=lists.trust is not None,
        revoked=tuple(map(Revoked.from_file, revoked)),
    )


def _place(path: Path, inside: str | None) -> str:
    return f"{path}: {inside}" if inside else str(path)


def _bundles(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are named or match; of a directory, every .tar in it."""
    for path in paths:
        if any(sign in str(path) for sign in "*?[") and not path.exists():
            matching = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
            if not matching:
                raise BadInput("matches no file", where=str(path))
            yield from _bundles(map(Path, matching))
            continue
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.rglob("*.tar"))
        if not found:
            raise BadInput("holds no .tar, so no bundle", where=str(path))
        yield from found


def _verdict_json(path: Path, verdict: Verdict | BenchError) -> object:
    if isinstance(verdict, BenchError):
        inside = (verdict.where or "").removeprefix(str(path)).removeprefix(": ") or None
        return {
            "path": str(path), "valid": False, "where": inside, "reason": verdict.message,
            "exit_code": verdict.exit_code,
        }  # fmt: skip
    counted = {name: value for name, value in verdict.recomputed.items() if name not in ("results", "check")}
    if check := judged(verdict):
        counted |= {"check_verdict": check.results.verdict, "claimed_verdict": check.claimed}
        counted |= {"shipped_profile": check.shipped_profile}
    return {"valid": True} | to_json(replace(verdict, recomputed=counted))


def _exit_code(checked: Iterable[tuple[Path, object]]) -> int:
    return max((v.exit_code for _, v in checked if isinstance(v, BenchError)), default=0)
