"""Who goes to one node: what was asked of him, what he knows by now, and whom he tells."""

from __future__ import annotations

from typing import Any

from bench.base.errors import BenchError, Incomplete
from bench.push.remote import Here, Node, Remote
from bench.push.request import HostPart, Outcome, Phase, PushRequest, Result, Shared


class Stopped(Incomplete):
    """The user has seen enough; what runs, runs on."""


class Visit:
    def __init__(self, part: HostPart, order: PushRequest, shared: Shared) -> None:
        self.part, self.order, self.shared = part, order, shared
        self.result = Result(part.host.name)
        self.node: Node = Here() if part.local else Remote(part.host, order.ssh_config)

    @property
    def manifest_sha256(self) -> str:
        return self.order.manifest.digest.removeprefix("sha256:")

    @property
    def nodes(self) -> int:
        """That train as one."""
        if self.order.together:
            return self.part.nodes
        return self.order.slurm.nodes if self.order.slurm else 1

    @property
    def follows(self) -> bool:
        """Another host leads, and has the bundle."""
        return self.order.together is not None and self.part.node > 0

    def but(self, **changes: Any) -> None:
        self.result = self.result.but(**changes)

    def phase(self, phase: Phase, text: str = "") -> None:
        self.heed_stop()
        self.but(phase=phase)
        self.shared.view.show(self.result, text)

    def heed_stop(self) -> None:
        if self.shared.stop.is_set():
            raise Stopped("interrupted")

    def sent(self, done: int, total: int) -> None:
        self.heed_stop()
        self.shared.view.sent(self.result, done, total)

    def end(self, outcome: Outcome, error: BenchError | None = None) -> None:
        self.but(outcome=outcome, error=error)
        self.shared.view.show(self.result)

    def say(self, text: str) -> None:
        self.shared.view.say(f"{self.part.host.name}: {text}")
