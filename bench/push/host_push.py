"""The push to one host, by SSH or in a pod: find its run, follow the run to its end, fetch the bundle.

connect -> start -> run -> fetch -> clean

In:  the request, and one host's part in it. Out: a `Result`, which also reports errors, so no host stops
another. Subclasses start the run: push_to_node over SSH, kubernetes/push_to_pods in a pod. Every step can be
repeated: a second push of the same run continues where the first one ended.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from bench.base.errors import BadInput, BenchError, EnvironmentCannot, Incomplete, VerificationFailed
from bench.base.names import CONTAINER_ENGINES
from bench.bundle.handshake import write
from bench.node_check.check_manifest import wanted_environment
from bench.node_check.recompute_any import AnyVerdict, recompute
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.push import mirror, slurm_job
from bench.push.connection import Unreachable
from bench.push.mirror import Status
from bench.push.missing_bundle import missing_bundle
from bench.push.push_record import PushAsked, Record, login_of, now
from bench.push.remote import Here, Node, Remote
from bench.push.request import HostPart, Outcome, Phase, PushRequest, Result, Shared
from bench.push.shared_place import PlaceClaim
from bench.push.slurm import waiting_text
from bench.push.training_group import GroupFailed, Standing, Step, agree
from bench.records.text import seconds_text

_LOOK_SECONDS = 1.0  # between two looks at a run, at first
_LONGEST_LOOK_SECONDS = 5.0  # between two looks at a run that has been watched for a while
_DEAD_LOOKS = 4  # dead states in a row after which a run is dead: run.sh may not have written its pid yet
_MOST_CERTIFICATES = 8  # that one push signs for a run, which asks again when it starts again
_OVERDUE_SECONDS = 3600.0  # after the budget, for the last trial, proofs and floors to end
_END_LOOKS = 120  # looks, a second apart, at a run that was asked to end, before the push fails


class Interrupted(Incomplete):
    """The user pressed Ctrl-C; runs on nodes continue."""


class _OverdueError(Incomplete):
    """A run goes on long after its budget."""


class HostPush:
    """The push to one host, in a separate thread. `result` is its current state."""

    node: Node

    def __init__(self, part: HostPart, request: PushRequest, shared: Shared) -> None:
        self.part, self.request, self.shared = part, request, shared
        self.result = Result(part.host.name)
        self._mirror_is_full = False
        self.node = Here() if part.local else Remote(part.host, request.ssh_config)

    def run(self) -> Result:
        """Push the manifest or continue an unfinished run of it, up to the stage `request.until`."""
        return self._guarded(self._run)

    def attach(self, record: Record) -> Result:
        """Watch a run that was started before, and fetch its bundle."""
        return self._guarded(lambda: self._watch_to_the_end(record))

    def report_fetched(self, record: Record) -> Result:
        """Report a run whose bundle was fetched before."""
        return self._guarded(lambda: self._end_unchanged(record))

    @property
    def manifest_sha256(self) -> str:
        """The manifest's sha256 in hexadecimal, by which records name it."""
        return self.request.manifest.digest.removeprefix("sha256:")

    @property
    def nodes(self) -> int:
        """Number of nodes that train as one."""
        if self.request.together:
            return self.part.nodes
        return self.request.slurm.nodes if self.request.slurm else 1

    @property
    def slurm_where(self) -> str | None:
        """Options that decide where a Slurm job runs; None without --slurm."""
        return self.request.slurm.where if self.request.slurm else None

    @property
    def follows(self) -> bool:
        """Whether another host leads the training of this host, and will have the bundle."""
        return self.request.together is not None and self.part.node > 0

    def claim(self, place: str) -> PlaceClaim:
        """Return this push's claim of its node's folder; nodes that share a home have a claim each."""
        return PlaceClaim(place, f"{self.request.push}-{self.part.node}")

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that this push may use, the preferred one first."""
        if self.request.engine != "auto":
            return (self.request.engine,)
        if wanted_environment(self.request.manifest):
            return ("venv",)
        return (*CONTAINER_ENGINES, "venv")

    def update(self, **changes: Any) -> None:
        """Replace fields of `result`, which other threads may read at any time, without showing it."""
        self.result = dataclasses.replace(self.result, **changes)

    def enter(self, phase: Phase, text: str = "") -> None:
        """Begin a phase, or report on the current one; Interrupted if the user asked to stop."""
        self.heed_stop()
        self.update(phase=phase)
        self.shared.view.show(self.result, text)

    def heed_stop(self) -> None:
        """Raise Interrupted if the user has ended the push."""
        if self.shared.stop.is_set():
            raise Interrupted("interrupted")

    def sleep(self, seconds: float) -> None:
        """Wait; raise Interrupted as soon as the user ends the push."""
        if self.shared.stop.wait(seconds):
            raise Interrupted("interrupted")

    def progress(self, done: int, total: int) -> None:
        """Show how many bytes are sent; raise Interrupted if the user has ended the push."""
        self.heed_stop()
        self.shared.view.sent(self.result, done, total)

    def end(self, outcome: Outcome, error: BenchError | None = None) -> None:
        """Set the outcome, which ends the push in its present phase, and show it."""
        self.update(outcome=outcome, error=error)
        self.shared.view.show(self.result)

    def say(self, text: str) -> None:
        """Show one line about this host that stays on the screen."""
        self.shared.view.say(f"{self.part.host.name}: {text}")

    def say_phase(self, text: str) -> None:
        """Report on the present phase; Interrupted if the user has ended the push."""
        self.enter(self.result.phase, text)

    def _guarded(self, push: Callable[[], None]) -> Result:
        """Run a push and turn every exception into an outcome: one node's failure must not end the others."""
        try:
            push()
        except Interrupted:
            self.interrupt()
        except Unreachable as error:
            # A started run may continue on the node; its leader finds out if it does not.
            self._fail(error, "lost" if self._started else "failed", for_group=not self._started)
        except _OverdueError as error:
            self._fail(error, "lost")
        except BenchError as error:
            self._fail(error)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._fail(EnvironmentCannot(what, advice="a defect of bench: please report it"))
        finally:
            self.node.close()
        return self.result

    def interrupt(self) -> Result:
        """End the push in its present phase, unless it has ended; a run on the node continues."""
        if self.result.outcome is not None:
            return self.result
        outcome: Outcome = "running" if self._started else "failed"
        result = dataclasses.replace(self.result, outcome=outcome, error=Incomplete("interrupted"))
        self.result = result
        self.shared.view.show(result)
        return result

    @property
    def _started(self) -> bool:
        return self.result.phase in ("run", "fetch")

    def _fail(self, error: BenchError, outcome: Outcome = "failed", *, for_group: bool = True) -> None:
        # A check of the fabric goes on without a node that is lost, and names it.
        goes_on = self.request.between_nodes and self.follows and self._started
        if for_group and self.part.group and not goes_on:
            self.part.group.lose(self.part.host.name, error.message)
        self.end(outcome, error)

    def _run(self) -> None:
        self.enter("connect")
        fetched, unfinished = self._fetched_run(), self._unfinished_run()
        standing: Standing = "fetched" if fetched else self._standing(unfinished) if unfinished else "new"
        standing = agree(self._gather("connect", standing))
        match standing:
            case "fetched" | "ended" if self.follows:
                self._leave(unfinished)
            case "fetched":
                assert fetched is not None  # this host leads: only a leader's "fetched" is agreed on
                self._end_unchanged(fetched)
            case "ended" | "running":
                assert unfinished is not None
                self.say(f"attached to run {unfinished.run_id}, which an earlier push started")
                self._watch_to_the_end(unfinished)
            case "new":
                self._start_run(unfinished)

    def _gather(self, step: Step, standing: Standing = "new") -> list[Standing]:
        """Wait for the group at a step; a host without a group does not wait."""
        if self.part.group is None:
            return [standing]
        return self.part.group.gather(step, self.part.node, standing, self.heed_stop)

    def _fetched_run(self) -> Record | None:
        """Return a run of this manifest whose bundle was fetched, if --once accepts it; else None."""
        if not self.request.once or self.follows:
            return None
        return self.shared.records.fetched(self._asked)

    @property
    def _asked(self) -> PushAsked:
        request, host = self.request, self.part.host
        return PushAsked(
            host.address,
            host.port,
            str(request.ssh_config) if request.ssh_config else None,
            self.manifest_sha256,
            str(request.out.resolve()),
            self.nodes,
            self.slurm_where,
        )

    def _unfinished_run(self) -> Record | None:
        """Return an unfinished run of this manifest, if there is one and the request may continue it."""
        request = self.request
        if request.continued is not None:
            return self._moved_here(request.continued)
        if request.new_run or request.until in ("preflight", "ship"):
            return None
        asked, records = self._asked, self.shared.records
        found = (records.unfinished(asked, engine, follows=self.follows) for engine in self.engines)
        return next((record for record in found if record is not None), None)

    def _moved_here(self, record: Record) -> Record:
        """Return the record of a run whose node is gone, changed to this node."""
        if record.manifest_sha256 != self.manifest_sha256:
            advice = f"push its own: {record.mirror}/manifest.json"
            raise BadInput(f"run {record.run_id} has another manifest", advice=advice)
        host = self.part.host
        login = {"address": host.address, "port": host.port, **login_of(host)}
        return dataclasses.replace(record, host=host.name, slurm_job=None, state="begun", **login)

    def _standing(self, record: Record) -> Standing:
        """Return whether a run is running on the node, has ended, or has to be started again."""
        status = mirror.look(self.node, record)
        self.update(run_id=record.run_id)
        if status.state in ("alive", "waiting"):
            return "running"
        if status.state != "exit" or record.state == "incomplete":
            return "new"
        has_ended = status.bundle_bytes is not None or (record.follows and not status.code)
        return "ended" if has_ended else "new"

    def _stop_for_restart(self, record: Record) -> None:
        """End a run that has to start again, together with the other runs of its group."""
        self.say(f"run {record.run_id} {'starts over' if self.request.checks else 'resumes'}")
        for look in range(_END_LOOKS + 1):
            if mirror.look(self.node, record).state not in ("alive", "waiting"):
                return
            if look == 0:
                mirror.cancel(self.node, record)
            self.sleep(1.0)
        advice = f"bench cancel {record.run_id}"
        raise EnvironmentCannot(f"run {record.run_id} does not end", advice=advice)

    def _leave(self, unfinished: Record | None) -> None:
        """End a follower's push and delete its run from the node: the leader has the bundle."""
        if unfinished is not None:
            self._clean(unfinished)
            self.shared.records.forget(unfinished)
        self.end("unchanged")

    def _start_run(self, unfinished: Record | None) -> None:
        """Start a run, or an unfinished one again, and follow it to its end."""
        raise NotImplementedError

    def save_run(self, unfinished: Record | None, choices: dict[str, Any], **fields: Any) -> Record:
        """Save a run's record before the run starts: a run without a record could never be fetched.

        `choices` are set in the record of a new and of an unfinished run, `fields` only in that of a new run.
        """
        request = self.request
        choices = choices | {"level": request.asked_level, "on_cpu": request.on_cpu}
        if unfinished is not None:
            return self.shared.records.save(dataclasses.replace(unfinished, **choices))
        ledger = Ledger(request.ledger)
        run_id = certify_and_receive.challenge(ledger, self.manifest_sha256, now()).run_id
        record = Record(
            run_id=run_id,
            push=request.push,
            address=self.part.host.address,
            manifest_sha256=self.manifest_sha256,
            out=str(request.out.resolve()),
            ledger=str(request.ledger) if request.ledger else None,
            began_at=now(),
            **fields,
            **choices,
        )
        record.mirror.mkdir(parents=True)
        (record.mirror / "manifest.json").write_bytes(request.manifest.data)
        return self.shared.records.save(record)

    def challenge(self, record: Record) -> bytes:
        """Return a new challenge for the run: the nonce of an earlier one may have been consumed."""
        ledger = Ledger(self.request.ledger)
        return write(certify_and_receive.challenge(ledger, record.manifest_sha256, now(), record.run_id))

    def _watch_to_the_end(self, record: Record) -> None:
        """Watch a run until it ends, then fetch its bundle and clean the node."""
        record.mirror.mkdir(parents=True, exist_ok=True)
        self._show_run(record)
        self.enter("run", record.run_id)
        status = self._watch(record)
        if status is None:
            self.end("running")
            return
        record = self._note_nodes(record, status)
        if record.follows:
            self._finish(record, status)
            return
        if status.request is not None and status.bundle_bytes is not None:
            self.shared.records.move(record, "incomplete")
            advice = "push again: the run is signed again, and measures nothing twice"
            raise Incomplete("the run ended before its key was certified", advice=advice)
        if status.bundle_bytes is None:
            if self._fetched_by_other(record):
                return
            self.shared.records.move(record, "failed")
            raise self._missing_bundle(status, record)
        self.enter("fetch")
        try:
            verdict = self._fetch(record)
        except EnvironmentCannot:
            if self._fetched_by_other(record):
                return
            raise
        self.update(bundle=record.bundle, verdict=verdict, code=status.code)
        record = self.shared.records.move(record, "fetched" if verdict.complete else "incomplete")
        self._finish(record, status)

    def _show_run(self, record: Record) -> None:
        """Say in the result which run it is about, and what software that run has."""
        self.update(run_id=record.run_id, engine=record.engine)
        self.update(image=record.image, environment=record.environment)

    def _note_nodes(self, record: Record, status: Status) -> Record:
        """Record on which nodes a job of Slurm has run, and report nodes in trouble."""
        if status.on is None:
            return record
        nodes = slurm_job.ask_nodes(self.node, record.folder)
        self.update(job_nodes=nodes)
        if not self.request.between_nodes:  # a check between nodes reports each of its nodes itself
            for node in filter(lambda node: node.trouble, nodes):
                self.say(f"node {node.text}")
        return self.shared.records.move(record, record.state, slurm_nodes=status.on, job_nodes=nodes)

    def _watch(self, record: Record) -> Status | None:
        """Mirror and certify a run until it ends; return its status, or None if the request does not wait.

        A node out of reach is asked again for `patience_seconds` of the request.
        """
        certified: list[str] = []  # checksums of the certificate requests that were answered
        heard, dead_looks, pause = time.monotonic(), 0, _LOOK_SECONDS
        began = heard  # or when the job left Slurm's queue
        asked_to_end, shown_reason = False, None  # the last reason of Slurm that was shown
        while True:
            try:
                status = mirror.look(self.node, record)
                request = status.request
                if request is not None and request not in certified[-1:] and status.state == "alive":
                    self._certify(record, len(certified))
                    certified.append(request)
                self._mirror(record, status)
                heard = time.monotonic()
                began = heard if status.state == "waiting" else began
                reason = status.reason if status.state == "waiting" else None
                if reason not in (None, "None", shown_reason):
                    self.enter("run", f"{record.run_id}  waits in Slurm's queue: {waiting_text(reason)}")
                shown_reason = reason
                if status.state == "alive":
                    self._refuse_to_wait_longer(record, heard - began)
                if not asked_to_end and status.state in ("alive", "waiting"):
                    asked_to_end = self._end_if_group_ended(record)
            except Unreachable as error:
                self._wait_for_node(record, error, heard)
                continue
            dead_looks = dead_looks + 1 if status.state in ("dead", "gone") else 0
            if status.state == "exit" or dead_looks >= _DEAD_LOOKS:
                return status
            settled = certified or status.certified or record.follows or status.state == "waiting"
            if self.request.until == "start" and settled:
                return None
            self.sleep(pause)
            pause = min(_LONGEST_LOOK_SECONDS, pause * 1.1)

    def _refuse_to_wait_longer(self, record: Record, seconds: float) -> None:
        """Raise _OverdueError if a run goes on long after its budget: it hangs, and so would this command."""
        budget = self.request.budget_seconds
        if budget is not None and seconds > budget + _OVERDUE_SECONDS:
            run, after = record.run_id, seconds_text(seconds)
            message = f"run {run} still runs after {after}, with a budget of {seconds_text(budget)}"
            advice = f"bench cancel {run} ends it, with --kill if it hangs; its log is in {record.mirror}"
            raise _OverdueError(message, advice=advice)

    def _certify(self, record: Record, before: int) -> None:
        """Certify the run's key; EnvironmentCannot if this push has already signed too many, `before`."""
        if before >= _MOST_CERTIFICATES:
            advice = f"if the run did start again so often: bench attach {record.run_id}"
            raise EnvironmentCannot(f"the node asks for more than {before} certificates", advice=advice)
        seconds = mirror.certify(self.node, record, self.request.key) - now()
        text = f"{record.run_id}  certified for {seconds_text(seconds)}; Ctrl-C leaves it running"
        self.enter("run", text)

    def _end_if_group_ended(self, record: Record) -> bool:
        """Ask a run to end if its group lost a host or has its bundle; return whether the run was asked."""
        group = self.part.group
        why = None if group is None else group.lost or ("the leader is done" if group.over else None)
        if why is None:
            return False
        self.enter("run", f"{record.run_id}  is asked to end, because of {why}")
        mirror.cancel(self.node, record)
        return True

    def _mirror(self, record: Record, status: Status) -> None:
        if not self._mirror_is_full and mirror.room_bytes(record) == 0:
            self._mirror_is_full = True
            self.say(f"run {record.run_id} has written more than is mirrored: its new lines are not shown")
        if lines := mirror.mirror(self.node, record, status.files):
            self.update(last=lines[-1])
            self.shared.view.log(self.result, lines)

    def _wait_for_node(self, record: Record, error: Unreachable, heard: float) -> None:
        """Wait before the next try to reach a node; Unreachable if it has been silent for too long."""
        silent = time.monotonic() - heard
        if silent > self.request.patience_seconds:
            message = f"{error.message}; out of reach for {seconds_text(silent)}"
            advice = f"the run's files so far are in {record.mirror}; bench attach {record.run_id} asks again"
            raise Unreachable(message, advice=advice) from None
        self.enter("run", f"{record.run_id}  {error.message}; asking again")
        self.sleep(min(15.0, 1.0 + silent / 4))

    def _fetch(self, record: Record) -> AnyVerdict:
        try:
            return mirror.fetch(self.node, record, self.request.key, self.shared.revoked, self.progress)
        except VerificationFailed as error:  # the run had no certificate, or an expired one
            self.shared.records.move(record, "incomplete")
            advice = "push again: the run is signed again, and measures nothing twice"
            raise VerificationFailed(error.message, where=error.where, advice=advice) from None

    def _fetched_by_other(self, record: Record) -> bool:
        """End as unchanged if another command has fetched the bundle meanwhile; return whether it has."""
        same = (other for other in self.shared.records.all() if other.run_id == record.run_id)
        fetched = next((old for old in same if old.state == "fetched" and old.bundle.exists()), None)
        if fetched is not None:
            self._end_unchanged(fetched)
        return fetched is not None

    def _end_unchanged(self, record: Record) -> None:
        """End the push of a run whose bundle was fetched; a node check's verdict is read from the bundle."""
        self._show_run(record)
        self.update(bundle=record.bundle, job_nodes=record.job_nodes)
        if self.request.checks:
            key, revoked = self.request.key, self.shared.revoked
            verdict = certify_and_receive.read_received(key, record.bundle, now(), recompute, revoked)
            self.update(verdict=verdict)
        self.end("unchanged")

    def _finish(self, record: Record, status: Status) -> None:
        """Tell the group, clean the node, and end the push; raise an error if a follower's run failed."""
        group = self.part.group
        failed = status.code or status.state != "exit"
        if record.follows and failed and not (group and group.over):
            if group and group.lost and status.state == "exit":
                raise GroupFailed(f"ended, because of {group.lost}", advice="push again, to all hosts")
            raise self._missing_bundle(status, record)
        if group and not record.follows:
            if record.state == "incomplete":
                group.lose(record.host, "its run ended before its plan did")
            else:
                group.over = True
        if record.state == "incomplete":
            self.end("incomplete")
            return
        self.enter("clean")
        self._clean(record)
        if record.follows:
            self.shared.records.forget(record)
        self.end("done")

    def _clean(self, record: Record) -> None:
        """Leave nothing of a run on its node."""
        mirror.clean(self.node, record)

    def _missing_bundle(self, status: Status, record: Record) -> BenchError:
        """Return the error for a run that ended without a bundle."""
        return missing_bundle(status, record, checks=self.request.checks)
