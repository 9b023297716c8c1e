"""A run from its start to its end: watched, certified, mirrored; its bundle fetched; its node left clean."""

from __future__ import annotations

import shlex
import time

from bench.base.errors import BadInput, BenchError, EnvironmentCannot, Incomplete, VerificationFailed
from bench.node_check.recompute_any import AnyVerdict, recompute
from bench.operator import certify_and_receive
from bench.push import mirror
from bench.push.push_record import Record, now
from bench.push.remote import Unreachable, plain
from bench.push.training_group import LeftAlone
from bench.push.visit import Stopped, Visit
from bench.records.text import seconds_text

_LOOK_SECONDS = 1.0
_LONGEST_LOOK_SECONDS = 5.0  # between two looks at a run that has been going on for a while
_DEAD_LOOKS = 4  # in a row; one may come before the run has noted its process


def to_the_end(t: Visit, record: Record) -> None:
    record.mirror.mkdir(parents=True, exist_ok=True)
    t.but(run_id=record.run_id, engine=record.engine, image=record.image)
    t.phase("run", record.run_id)
    ended = _watch(t, record)
    if ended is None:
        t.end("running")
        return
    if record.follows:
        _finish(t, record, ended)
        return
    if ended.request is not None and ended.bundle_bytes is not None:
        t.shared.records.move(record, "incomplete")
        raise Incomplete(
            "the run ended before its key was certified",
            advice="push again: it is signed anew, and measures nothing twice",
        )
    if ended.bundle_bytes is None:
        if _fetched_meanwhile(t, record):
            return
        t.shared.records.move(record, "failed")
        raise _no_bundle(ended, record)
    t.phase("fetch")
    try:
        verdict = _fetched(t, record)
    except EnvironmentCannot:
        if _fetched_meanwhile(t, record):
            return
        raise
    t.but(bundle=record.bundle, verdict=verdict, code=ended.code)
    record = t.shared.records.move(record, "fetched" if verdict.complete else "incomplete")
    _finish(t, record, ended)


def _fetched_meanwhile(t: Visit, record: Record) -> bool:
    """Somebody else watches, too, and was faster: the node has been left clean."""
    there = any(r.run_id == record.run_id and r.state == "fetched" for r in t.shared.records.all())
    if not (there and record.bundle.exists()):
        return False
    was_fetched(t, record)
    return True


def was_fetched(t: Visit, record: Record) -> None:
    """Its bundle is here already."""
    t.but(run_id=record.run_id, bundle=record.bundle, engine=record.engine, image=record.image)
    if t.order.checks:  # a node that failed its check is not well because that was before
        key, revoked = t.order.key, t.shared.revoked
        t.but(verdict=certify_and_receive.read_received(key, record.bundle, now(), recompute, revoked))
    t.end("unchanged")


def _fetched(t: Visit, record: Record) -> AnyVerdict:
    try:
        return mirror.fetch(t.node, record, t.order.key, t.shared.revoked, t.sent)
    except VerificationFailed as error:  # a certificate that never came, or that expired on the way
        t.shared.records.move(record, "incomplete")
        again = "push again: the run is signed anew, and measures nothing twice"
        raise VerificationFailed(error.message, where=error.where, advice=again) from None


def _finish(t: Visit, record: Record, ended: mirror.Status) -> None:
    company = t.part.company
    if record.follows and (ended.code or ended.state != "exit") and not (company and company.over):
        if company and company.lost and ended.state == "exit":
            raise LeftAlone(f"ended, because of {company.lost}", advice="push again: to all of them")
        raise _no_bundle(ended, record)
    if company and not record.follows:
        if record.state == "incomplete":
            company.lose(record.host, "its run ended before its plan did")
        else:
            company.over = True
    if record.state != "incomplete":
        t.phase("clean")
        mirror.clean(t.node, record)
        if record.follows:
            t.shared.records.forget(record)
    t.end("incomplete" if record.state == "incomplete" else "done")


def _watch(t: Visit, record: Record) -> mirror.Status | None:
    """Until it ends; None where nobody waits for that. A node out of reach is asked again for a while."""
    certified: str | None = None
    heard, dead, pause = time.monotonic(), 0, _LOOK_SECONDS
    asked_to_end = False
    while True:
        try:
            status = mirror.look(t.node, record)
            if status.request is not None and status.request != certified and status.state == "alive":
                until = mirror.certify(t.node, record, t.order.key)
                certified = status.request
                t.phase(
                    "run",
                    f"{record.run_id}  certified for {seconds_text(until - now())}; Ctrl-C leaves it running",
                )
            _mirror(t, record, status)
            heard = time.monotonic()
            if (why := _needless(t)) and not asked_to_end and status.state in ("alive", "waiting"):
                t.phase("run", f"{record.run_id}  is asked to end, because of {why}")
                mirror.cancel(t.node, record)
                asked_to_end = True
        except Unreachable as error:
            _wait_for(t, record, error, heard)
            continue
        dead = dead + 1 if status.state in ("dead", "gone") else 0
        if status.state == "exit" or dead >= _DEAD_LOOKS:
            return status
        settled = certified or status.certified or record.follows or status.state == "waiting"
        if t.order.until == "start" and settled:
            return None
        if t.shared.stop.wait(pause):
            raise Stopped("interrupted")
        pause = min(_LONGEST_LOOK_SECONDS, pause * 1.1)


def _needless(t: Visit) -> str | None:
    """Of those that it trains with, the one that came to grief, or that has all that was asked for."""
    company = t.part.company
    if company is None:
        return None
    return company.lost or ("the leader: it is done" if company.over else None)


def _mirror(t: Visit, record: Record, status: mirror.Status) -> None:
    if lines := mirror.mirror(t.node, record, status.files):
        t.but(last=lines[-1])
        t.shared.view.log(t.result, lines)


def _wait_for(t: Visit, record: Record, error: Unreachable, heard: float) -> None:
    silent = time.monotonic() - heard
    if silent > t.order.patience_seconds:
        raise Unreachable(
            f"{error.message}; nothing heard for {seconds_text(silent)}",
            advice=f"what came before is in {record.mirror}; bench attach {record.run_id} asks again",
        ) from None
    t.phase("run", f"{record.run_id}  {error.message}; asking again")
    if t.shared.stop.wait(min(15.0, 1.0 + silent / 4)):
        raise Stopped("interrupted")


def _no_bundle(ended: mirror.Status, record: Record) -> BenchError:
    log = record.mirror / mirror.LOG
    last = (
        [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-2:]
        if log.exists()
        else []
    )
    said = f": {plain(' '.join(line.strip() for line in last))[:400]}" if last else ""
    if ended.state != "exit":
        why = (
            "the run was killed there" if ended.state == "dead" else "the run's folder is gone from the node"
        )
        return EnvironmentCannot(f"{why}{said}", advice="push again: it goes on with what its journal has")
    kinds: dict[int | None, type[BenchError]] = {2: BadInput, 5: Incomplete}
    kind = kinds.get(ended.code, EnvironmentCannot)
    return kind(
        f"the run ended with exit code {ended.code}{said}", advice=f"its log: {shlex.quote(str(log))}"
    )
