"""One node, from its first answer to its bundle. Nothing that goes wrong here stops another node.

connect -> preflight -> ship -> start -> run -> fetch -> clean

Every step can be taken again: a second push of the same run finds how far the first one came.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bench.control.push import follow
from bench.control.push.arrive import to_the_end
from bench.control.push.begin import begin
from bench.control.push.order import Order, Part, Result, Shared
from bench.control.push.ready import ENGINES, bring, preflight, would
from bench.control.push.record import Record
from bench.control.push.remote import Unreachable
from bench.control.push.traveller import Stopped, Traveller
from bench.errors import BadInput, BenchError, EnvironmentCannot, Incomplete


class Journey:
    def __init__(self, part: Part, order: Order, shared: Shared) -> None:
        self.t = Traveller(part, order, shared)

    def go(self) -> Result:
        """To its end, whatever that is."""
        return self._guarded(self._go)

    def attach(self, record: Record) -> Result:
        """To a run that was begun before."""
        return self._guarded(lambda: to_the_end(self.t, record))

    def _guarded(self, walk: Callable[[], None]) -> Result:
        try:
            walk()
        except Stopped:
            self.t.end(
                "running" if self.t.result.phase in ("run", "fetch") else "failed", Incomplete("interrupted")
            )
        except Unreachable as error:
            self.t.end("lost" if self.t.result.phase in ("run", "fetch") else "failed", error)
        except BenchError as error:
            self.t.end("failed", error)
        except Exception as error:  # one node's trouble, or a defect of ours, must not end the others
            self.t.end(
                "failed",
                EnvironmentCannot(
                    f"{type(error).__name__}: {error}", advice="a defect of bench: please report it"
                ),
            )
        finally:
            self.t.node.close()
        return self.t.result

    def _go(self) -> None:
        self.t.phase("connect")
        if self._was_done_before():
            return
        before = self._begun_before()
        if before is not None and self._goes_on(before):
            return
        chosen = preflight(self.t)
        if self.t.order.until == "preflight":
            would(self.t, chosen)
            return
        landed = bring(self.t, chosen)
        if self.t.order.until == "ship":
            self.t.end("ready" if landed.changed else "unchanged")
            return
        record = begin(self.t, chosen, landed, before)
        to_the_end(self.t, record)

    def _was_done_before(self) -> bool:
        order = self.t.order
        done = (
            self.t.shared.records.fetched(self.t.part.host, self.t.manifest_sha256, order.out)
            if order.once
            else None
        )
        if done is None:
            return False
        self.t.but(run_id=done.run_id, bundle=done.bundle, engine=done.engine, image=done.image)
        self.t.end("unchanged")
        return True

    def _begun_before(self) -> Record | None:
        order = self.t.order
        if order.goes_on is not None:
            return self._moved(order.goes_on)
        if order.anew or order.until in ("preflight", "ship") or order.together:
            return None
        engines = ENGINES if order.engine == "auto" else (order.engine,)
        every = (
            self.t.shared.records.unfinished(self.t.part.host, self.t.manifest_sha256, e, order.out)
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

    def _goes_on(self, record: Record) -> bool:
        """Whether that run is alive there, or done: then it is followed, and nothing is started."""
        status = follow.look(self.t.node, record)
        self.t.but(run_id=record.run_id)
        if status.state not in ("alive", "waiting", "exit") or record.state == "incomplete":
            self.t.say(f"run {record.run_id} goes on where it was")
            return False
        if status.state == "exit" and status.bundle_bytes is None:
            return False
        self.t.say(f"run {record.run_id} is there already: attached")
        to_the_end(self.t, record)
        return True
