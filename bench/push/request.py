"""What one push asks for, of every node alike, and what came of it on each."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from bench.base.errors import BenchError
from bench.bundle.verdict import RunContents
from bench.node_check.any_manifest import AnyManifest
from bench.node_check.check_manifest import CheckManifest
from bench.node_check.check_results import CheckContents, CheckResults
from bench.node_check.judging import Depth
from bench.node_check.judging.finding import EXITS, worst
from bench.node_check.recompute_any import AnyVerdict
from bench.operator.ssh_keygen import OperatorKey
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.node_findings import PreflightFinding
from bench.push.push_record import Record, Records
from bench.push.remote import plain
from bench.push.slurm import Slurm
from bench.push.training_group import TrainingGroup
from bench.records.slowdown import slowed_text
from bench.signing.revocation import Revoked

Phase = Literal["waiting", "connect", "preflight", "ship", "start", "run", "fetch", "clean", "over"]
# would: a dry run; ready: the image is there; running: and we do not wait
Outcome = Literal["done", "incomplete", "failed", "lost", "running", "ready", "would", "unchanged"]
GOOD: tuple[Outcome, ...] = ("done", "running", "ready", "would", "unchanged")


@dataclass(frozen=True, slots=True)
class PushRequest:
    manifest: AnyManifest
    engine: str
    out: Path
    key: OperatorKey
    ledger: Path | None = None
    image: str | None = None
    pull: str | None = None
    python: str = "python3"
    place: str | None = None  # on the node; $HOME/.bench if left out
    on_cpu: bool = False
    budget_seconds: float | None = None
    level: Depth | None = None  # of a node check; None: the manifest's
    valid_seconds: int = 0
    keep: bool = False
    until: Literal["preflight", "ship", "start", "fetch"] = "fetch"
    once: bool = False  # a bundle of this manifest from that host, if it is here, is enough
    anew: bool = False  # another run, whatever was begun before
    goes_on: Record | None = None  # a run whose node is gone, for a node of the same kind
    anyway: bool = False  # what preflight finds is only said
    slurm: Slurm | None = None
    together: str | None = None  # where all hosts meet, to train as one
    patience_seconds: float = 600.0  # without an answer of a node that runs
    ssh_config: Path | None = None
    push: str = ""

    @property
    def checks(self) -> bool:
        """The nodes check themselves, instead of training."""
        return isinstance(self.manifest, CheckManifest)


@dataclass(frozen=True, slots=True)
class Result:
    """What is known of one host, at any time; at last, how it ended."""

    host: str
    phase: Phase = "waiting"
    outcome: Outcome | None = None
    run_id: str | None = None
    findings: tuple[PreflightFinding, ...] = ()
    error: BenchError | None = None
    image: str | None = None
    engine: str | None = None
    sent_bytes: int = 0
    to_send_bytes: int | None = None  # a dry run's
    code: int | None = None  # with which the run ended there
    bundle: Path | None = None
    verdict: AnyVerdict | None = None
    changed: bool = False
    last: str = ""  # the run's last word

    def but(self, **changes: Any) -> Result:
        return replace(self, **changes)

    @property
    def checked(self) -> CheckResults | None:
        """What a node check came to, judged here again."""
        contents = self.verdict.contents if self.verdict else None
        return contents.results if isinstance(contents, CheckContents) else None

    @property
    def trained(self) -> RunContents | None:
        """What a run that trained came to."""
        contents = self.verdict.contents if self.verdict else None
        return contents if isinstance(contents, RunContents) else None

    @property
    def slowed(self) -> str | None:
        """Of a run that trained: the GPU that was held back most, on one line."""
        found = self.verdict.contents.slowed if self.verdict else {}
        most = max(found.values(), key=lambda one: one.share, default=None)
        return slowed_text(most) if most else None

    @property
    def worst(self) -> str | None:
        """Of a node check that does not pass: what is the matter, on one line."""
        if self.checked is None or self.checked.verdict == "pass":
            return None
        said = worst([finding for finding in self.checked.findings if finding.counts])
        return plain(said.line) if said else None

    @property
    def exit_code(self) -> int:
        if self.outcome in GOOD:
            return EXITS[self.checked.verdict] if self.checked else 0
        if self.error is not None:
            return self.error.exit_code
        return 5


class View(Protocol):
    """What a person sees meanwhile; called from many threads."""

    def show(self, result: Result, text: str = "") -> None:
        """A phase began or ended; `text` says more of it."""

    def sent(self, result: Result, done: int, total: int) -> None: ...

    def log(self, result: Result, lines: Sequence[str]) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Shared:
    """What all nodes of one push have in common."""

    records: Records
    depot: ImageStore
    view: View
    revoked: tuple[Revoked, ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    # A hundred nodes at once would share one uplink, and each come to its end last.
    shipping: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(8))


@dataclass(frozen=True, slots=True)
class HostPart:
    """One host's part in the push."""

    host: Host
    local: bool = False
    node: int = 0
    nodes: int = 1
    company: TrainingGroup | None = None  # those that it trains with


def to_json(result: Result) -> Mapping[str, Any]:
    error = result.error
    return {
        "host": result.host,
        "outcome": result.outcome,
        "phase": result.phase,
        "run": result.run_id,
        "exit_code": result.exit_code,
        "run_exit_code": result.code,
        "error": None if error is None else {"message": error.message, "advice": error.advice},
        "findings": [{"level": f.level, "what": f.what, "advice": f.advice} for f in result.findings],
        "engine": result.engine,
        "image": result.image,
        "sent_bytes": result.sent_bytes,
        "to_send_bytes": result.to_send_bytes,
        "bundle": str(result.bundle) if result.bundle else None,
        "level": result.verdict.level if result.verdict else None,
        "check": result.checked.verdict if result.checked else None,
        "worst": result.worst,
        "slowed": result.slowed,
        "changed": result.changed,
    }
