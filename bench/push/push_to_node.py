"""One node, from its first answer to its bundle. Nothing that goes wrong here stops another node.

connect -> preflight -> ship -> start -> run -> fetch -> clean

Every step can be taken again: a second push of the same run finds how far the first one came.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bench.base.errors import BadInput, BenchError, EnvironmentCannot, Incomplete
from bench.push import mirror
from bench.push.preflight_and_ship import ENGINES, preflight, report_dry_run, ship_image
from bench.push.push_record import Record
from bench.push.remote import Unreachable
from bench.push.request import HostPart, Outcome, PushRequest, Result, Shared
from bench.push.start_run import begin
from bench.push.training_group import Standing, Step, agreed
from bench.push.visit import Stopped, Visit
from bench.push.watch_and_fetch import to_the_end, was_fetched

_LOOKS = 120  # a second apart, at a run that was asked to end


class NodePush:
    def __init__(self, part: HostPart, order: PushRequest, shared: Shared) -> None:
        self.t = Visit(part, order, shared)

    def go(self) -> Result:
        """To its end, whatever that is."""
        return self._guarded(self._go)

    def attach(self, record: Record) -> Result:
        """To a run that was begun before."""
        return self._guarded(lambda: to_the_end(self.t, record))

    def fetched(self, record: Record) -> Result:
        """One whose bundle is here."""
        return self._guarded(lambda: was_fetched(self.t, record))

    def _guarded(self, walk: Callable[[], None]) -> Result:
        try:
            walk()
        except Stopped:
            self.t.end("running" if self._started else "failed", Incomplete("interrupted"))
        except Unreachable as error:
            # What runs there may run on: of that the node that leads knows more than we do.
            self._fail(error, "lost" if self._started else "failed", for_all=not self._started)
        except BenchError as error:
            self._fail(error)
        except Exception as error:  # one node's trouble, or a defect of ours, must not end the others
            what = f"{type(error).__name__}: {error}"
            self._fail(EnvironmentCannot(what, advice="a defect of bench: please report it"))
        finally:
            self.t.node.close()
        return self.t.result

    @property
    def _started(self) -> bool:
        return self.t.result.phase in ("run", "fetch")

    def _fail(self, error: BenchError, outcome: Outcome = "failed", *, for_all: bool = True) -> None:
        if for_all and (company := self.t.part.company):
            company.lose(self.t.part.host.name, error.message)
        self.t.end(outcome, error)

    def _go(self) -> None:
        self.t.phase("connect")
        done, before = self._fetched_before(), self._begun_before()
        standing: Standing = "done" if done else self._standing(before) if before else "new"
        standing = agreed(self._wait_for_all("begun", standing))
        match standing:
            case "done" | "over" if self.t.follows:
                self._depart(before)
            case "done":
                assert done is not None  # who leads has it; who follows has departed
                was_fetched(self.t, done)
            case "over" | "going":
                assert before is not None
                self.t.say(f"run {before.run_id} is there already: attached")
                to_the_end(self.t, before)
            case "new":
                self._begin(before)

    def _wait_for_all(self, step: Step, standing: Standing = "new") -> list[Standing]:
        """That train as one, if any do."""
        t = self.t
        return (
            t.part.company.gather(step, t.part.node, standing, t.heed_stop) if t.part.company else [standing]
        )

    def _begin(self, before: Record | None) -> None:
        if before is not None:
            self._end(before)
        chosen = preflight(self.t)
        if self.t.order.until == "preflight":
            report_dry_run(self.t, chosen)
            return
        self._wait_for_all("sound")
        landed = ship_image(self.t, chosen)
        if self.t.order.until == "ship":
            self.t.end("ready" if landed.changed else "unchanged")
            return
        self._wait_for_all("brought")
        record = begin(self.t, chosen, landed, before)
        to_the_end(self.t, record)

    def _fetched_before(self) -> Record | None:
        t = self.t
        if not t.order.once or t.follows:
            return None
        return t.shared.records.fetched(t.part.host, t.manifest_sha256, t.order.out, t.nodes)

    def _begun_before(self) -> Record | None:
        order = self.t.order
        if order.goes_on is not None:
            return self._moved(order.goes_on)
        if order.anew or order.until in ("preflight", "ship"):
            return None
        engines = ENGINES if order.engine == "auto" else (order.engine,)
        records, host, manifest = self.t.shared.records, self.t.part.host, self.t.manifest_sha256
        every = (
            records.unfinished(host, manifest, e, order.out, self.t.nodes, follows=self.t.follows)
            for e in engines
        )
        return next((record for record in every if record is not None), None)

    def _moved(self, record: Record) -> Record:
        """The same run, on this node from now on."""
        if record.manifest_sha256 != self.t.manifest_sha256:
            raise BadInput(
                f"run {record.run_id} is of another manifest",
                advice=f"its own: {record.mirror}/manifest.json",
            )
        host = self.t.part.host
        return dataclasses.replace(
            record, host=host.name, address=host.address, user=host.user, port=host.port, python=host.python,
            identity=str(host.identity) if host.identity else None, slurm_job=None, state="begun",
        )  # fmt: skip

    def _standing(self, record: Record) -> Standing:
        """Whether that run is alive there, or over: then it is followed, and nothing is started."""
        status = mirror.look(self.t.node, record)
        self.t.but(run_id=record.run_id)
        if status.state in ("alive", "waiting"):
            return "going"
        if status.state != "exit" or record.state == "incomplete":
            return "new"
        return "over" if status.bundle_bytes is not None or (record.follows and not status.code) else "new"

    def _end(self, record: Record) -> None:
        """Before it starts again with the others: they have lost each other."""
        self.t.say(f"run {record.run_id} goes on where it was")
        looks = 0
        while mirror.look(self.t.node, record).state in ("alive", "waiting"):
            if looks == 0:
                mirror.cancel(self.t.node, record)
            looks += 1
            if looks > _LOOKS:
                raise EnvironmentCannot(
                    f"run {record.run_id} does not end", advice=f"bench cancel {record.run_id}"
                )
            if self.t.shared.stop.wait(1.0):
                raise Stopped("interrupted")

    def _depart(self, before: Record | None) -> None:
        """The one that leads has the bundle: nothing is to be done here, and nothing is left."""
        if before is not None:
            mirror.clean(self.t.node, before)
            self.t.shared.records.forget(before)
        self.t.end("unchanged")
