"""The request of one push, which all its nodes share, and the result for each host. Pure, except `Shared`."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from bench.base.errors import BenchError
from bench.base.names import ANY_PYTHON
from bench.base.strict_json import to_json as to_object
from bench.bundle.verdict import RunContents
from bench.node_check.check_manifest import AnyManifest, CheckManifest
from bench.node_check.check_results import ALWAYS_SHOWN, CheckContents, CheckResults, shown_findings
from bench.node_check.judging import Depth
from bench.node_check.judging.finding import EXITS, worst
from bench.node_check.recompute_any import AnyVerdict
from bench.operator.ssh_keygen import OperatorKey
from bench.push.connection import plain
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.node_findings import PreflightFinding
from bench.push.push_record import Record, Records
from bench.push.slurm import Slurm
from bench.push.slurm_job import JobNode, with_names
from bench.push.training_group import TrainingGroup
from bench.records.marks import Mark, worst_marks
from bench.records.slowdown import slowed_text
from bench.signing.revocation import Revoked

DAY = 24 * 3600  # seconds
FETCH_SECONDS = 2 * 3600  # after a run's budget: its certificate stays valid, and its pod keeps the bundle
Phase = Literal["waiting", "connect", "preflight", "ship", "start", "run", "fetch", "clean"]
# would: a dry run succeeded; ready: image on the node; running: not waited for; lost: node out of reach
Outcome = Literal["done", "incomplete", "failed", "lost", "running", "ready", "would", "unchanged"]
GOOD: tuple[Outcome, ...] = ("done", "running", "ready", "would", "unchanged")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Options of `bench push` that apply to every host without a change."""

    out: Path
    engine: str
    image: str | None = None
    pull: str | None = None
    assemble: bool = True  # whether the node may assemble layers from package files that it downloads
    index: str | None = None  # URL of a package index for the node; None: those of the node's pip
    mirror: str | None = None  # URL of a Debian mirror for the node; None: those of the node's apt
    python: str = ANY_PYTHON
    variant: str | None = None  # of the environment; None: the one that fits the node's driver
    wheelhouse: Path | None = None  # folder on this machine with wheels that an index may lack
    source: Path | None = None  # bench's repository, which has the locks; None: the working folder
    place: str | None = None  # folder on the node; None: $HOME/.bench
    budget_seconds: float | None = None
    level: Depth | None = None  # depth of a node check; None: the manifest's level
    ledger: Path | None = None
    keep: bool = False
    once: bool = False  # skip a host whose bundle of this manifest was fetched already
    new_run: bool = False  # start another run even if one is unfinished
    despite_findings: bool = False  # run even if a preflight finding would stop the run
    together: str | None = None  # HOST:PORT to which all hosts connect, to train as one
    meet_in_public: bool = False  # whether that may be an address of the public internet
    ssh_config: Path | None = None


def _new_secret() -> bytes:
    return secrets.token_hex(32).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest(PushOptions):
    """The manifest, key and options with which `bench push` runs on every host."""

    manifest: AnyManifest
    key: OperatorKey
    push: str = ""
    meet_secret: bytes = field(default_factory=_new_secret, repr=False)  # of hosts that train together
    on_cpu: bool = False
    valid_seconds: int = 0
    until: Literal["preflight", "ship", "start", "fetch"] = "fetch"
    continued: Record | None = None  # resume this run, whose node is gone, on another node of the same kind
    slurm: Slurm | None = None
    patience_seconds: float = 600.0  # how long a node may be out of reach during its run

    @property
    def checks(self) -> bool:
        """Whether the manifest is a node check instead of training."""
        return isinstance(self.manifest, CheckManifest)

    @property
    def asked_level(self) -> Depth | None:
        """The depth of the node check that is asked for; None for training."""
        return (self.level or self.manifest.level) if isinstance(self.manifest, CheckManifest) else None

    @property
    def between_nodes(self) -> bool:
        """Whether the hosts check the fabric between them; the check goes on if one host is lost."""
        return self.asked_level == "nodes"


@dataclass(frozen=True, slots=True)
class Result:
    """The state of a push to one host, and in the end its outcome."""

    host: str
    phase: Phase = "waiting"
    outcome: Outcome | None = None
    run_id: str | None = None
    findings: tuple[PreflightFinding, ...] = ()
    error: BenchError | None = None
    image: str | None = None
    environment: str | None = None  # digest of the environment, if the engine is "venv"
    engine: str | None = None
    engine_reason: str = ""  # why this engine was chosen
    expected_seconds: float | None = None  # to bring the run's software there; None: not known
    sent_bytes: int = 0
    to_send_bytes: int | None = None  # that a push sends at most, known after preflight; None: not known
    code: int | None = None  # exit code of the run on the node
    bundle: Path | None = None
    verdict: AnyVerdict | None = None
    changed: bool = False
    last: str = ""  # last line of the run's log
    job_nodes: tuple[JobNode, ...] = ()  # of a job of Slurm that has ended

    @property
    def checked(self) -> CheckResults | None:
        """Results of a node check, judged again on this machine; None for training."""
        contents = self.verdict.contents if self.verdict else None
        return contents.results if isinstance(contents, CheckContents) else None

    @property
    def trained(self) -> RunContents | None:
        """Contents of a training run; None for a node check."""
        contents = self.verdict.contents if self.verdict else None
        return contents if isinstance(contents, RunContents) else None

    @property
    def slowed(self) -> str | None:
        """The GPU that was slowed down most, and the cause, on one line; None if no GPU was slowed down."""
        slowed = self.verdict.contents.slowed if self.verdict else {}
        most = max(slowed.values(), key=lambda trial: trial.share, default=None)
        return slowed_text(most) if most else None

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The worst mark of each kind over the trials of a training run."""
        return tuple(mark for mark, _ in worst_marks(self.verdict.contents.marks)) if self.verdict else ()

    @property
    def worst(self) -> str | None:
        """The most serious finding of a node check, and those that every summary shows; None without any."""
        every = shown_findings(self.checked.findings) if self.checked else ()
        most_serious = worst([finding for finding in every if finding.counts])
        lines = [most_serious.line] if most_serious else []
        lines += [finding.found for finding in every if finding.check in ALWAYS_SHOWN]
        return with_names(plain("; ".join(lines)), [node.name for node in self.job_nodes]) or None

    @property
    def exit_code(self) -> int:
        """The exit code if this were the only host: that of its check or of its error, else 0 or 5."""
        if self.outcome in GOOD:
            return EXITS[self.checked.verdict] if self.checked else 0
        if self.error is not None:
            return self.error.exit_code
        return 5


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 if all nodes succeeded, the exit code that all nodes share, 5 if some succeeded, else 3.

    If all pushes succeeded and nodes were checked: 1 if a check failed, else 3 if one was not completed.
    """
    codes = {result.exit_code for result in results}
    if len(codes) == 1:
        return codes.pop()
    if all(result.outcome in GOOD for result in results):
        return min(codes - {0})
    return 5 if any(result.outcome in (*GOOD, "incomplete") for result in results) else 3


class View(Protocol):
    """Shows the progress of a push to the user. Its methods are called from many threads."""

    def show(self, result: Result, text: str = "") -> None:
        """Report that a phase began or ended, with details in `text`."""

    def sent(self, result: Result, done: int, total: int) -> None:
        """Report how many bytes of a file have reached the host."""

    def log(self, result: Result, lines: Sequence[str]) -> None:
        """Report new lines of the run's log."""

    def say(self, text: str) -> None:
        """Show one line that stays, such as a warning about a host."""


@dataclass(frozen=True, slots=True)
class Shared:
    """State that the threads of one push share."""

    records: Records
    store: ImageStore
    view: View
    revoked: tuple[Revoked, ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    # Images are sent to eight nodes at a time: if a hundred shared one uplink, all would start late.
    shipping: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(8))


@dataclass(frozen=True, slots=True)
class HostPart:
    """One host of a push, and its place among the hosts that train together."""

    host: Host
    local: bool = False
    node: int = 0  # rank of the host in its group; rank 0 leads
    nodes: int = 1
    group: TrainingGroup | None = None  # the hosts that train together; None: the host trains alone


def to_json(result: Result) -> Mapping[str, Any]:
    """Return a node's entry in the document of `bench push --json`."""
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
        "engine_reason": result.engine_reason,
        "expected_seconds": result.expected_seconds,
        "image": result.image,
        "environment": result.environment,
        "sent_bytes": result.sent_bytes,
        "to_send_bytes": result.to_send_bytes,
        "bundle": str(result.bundle) if result.bundle else None,
        "level": result.verdict.level if result.verdict else None,
        "check": result.checked.verdict if result.checked else None,
        "worst": result.worst,
        "slowed": result.slowed,
        "marks": [{"kind": mark.kind, "text": mark.text} for mark in result.marks],
        "changed": result.changed,
        "job_nodes": to_object(result.job_nodes),
    }
