"""`bench.run`: measure a manifest's models on this machine, and write the signed bundle."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO, cast

from bench.base import quantities
from bench.base.errors import BadInput, EnvironmentCannot
from bench.base.operating_system import ELSEWHERE, require_linux
from bench.base.paths import making_folders
from bench.base.strict_json import to_json
from bench.library.given import AnyPath, choice, path_of, quantity
from bench.library.given_manifest import GivenManifest, manifest_of
from bench.library.sealer import make_sealer
from bench.node_check.recompute_any import AnyVerdict, trained_run
from bench.planning.manifest import Manifest
from bench.records.marks import Mark
from bench.records.run_results import Results
from bench.records.slowdown import Slowed
from bench.signing.ssh_keys import PublicKey
from bench.training.models.dry_build import rehearse

if TYPE_CHECKING:
    from bench.runner.processes.jobs import Nodes
    from bench.runner.run.execute import FinishedRun
    from bench.runner.run.progress import Progress

Device = Literal["auto", "cpu"]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run's bundle, with the results in it."""

    bundle: Path
    results: Results
    slowed: Mapping[str, Slowed]  # trials in which a GPU was held back, by id
    marks: Mapping[str, tuple[Mark, ...]]  # of the trials that have any, by id
    busy_shares: Mapping[str, float]  # of the time in which GPUs ran kernels, by trial, if telemetry has it
    signed_by: str  # fingerprint of the key
    certified_by: str | None = None  # fingerprint of the operator's key that certified that key
    received_at: str | None = None  # when the operator countersigned an earlier bundle
    earlier: bool = False  # a bundle that is here answers the challenge: nothing was measured
    kept: bool = False  # the bundle is an earlier attempt's, which is certified and was not replaced

    @property
    def stopped(self) -> str | None:
        """The reason why the run ended before its plan did; None for a complete run."""
        return self.results.run.stopped

    def to_json(self) -> dict[str, object]:
        """Return the document of `bench run --json`."""
        return {
            "bundle": str(self.bundle),
            "results": to_json(self.results),
            "slowed": to_json(self.slowed),
            "marks": to_json(self.marks),
            "busy_shares": to_json(self.busy_shares),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The arguments of `bench.run` and of the command, checked and converted, without the manifest."""

    out: Path
    key: Path | None
    challenge: Path | None
    budget_seconds: float | None
    resume: bool
    moved: bool
    on_cpu: bool


def refuse_lonely_move(*, moved: bool, challenge: Path | None, resume: bool) -> None:
    """Refuse to continue another machine's run that no operator challenged."""
    if moved and not (challenge and resume):
        advice = "only a run that answers an operator's challenge can move to another machine"
        raise BadInput("--moved without --challenge and --resume", advice=advice)


def run(
    manifest: GivenManifest,
    *,
    out: AnyPath = "out",
    key: AnyPath | None = None,
    challenge: AnyPath | None = None,
    budget: float | str | None = None,
    resume: bool = False,
    moved: bool = False,
    device: Device = "auto",
    say: Say | None = None,
) -> MeasuredRun:
    """Measure a manifest's models on this machine, in separate processes, and write the signed bundle.

    `manifest`   a file or a dictionary
    `out`        folder for runs
    `key`        Ed25519 SSH key that signs (default: bench's own, made at first use); a passphrase is asked
                 for on the terminal
    `challenge`  an operator's challenge: the run signs with a new key, which the operator certifies. The key
                 is in this process, which nobody but root can debug from then on
    `budget`     start no trial after this time: seconds, or a text such as "60m"
    `resume`     continue the newest unfinished run of this manifest; start one if there is none
    `moved`      with `challenge` and `resume`: continue a run that another machine of the kind started
    `device`     "cpu": use no GPU
    `say`        called with each line that the command would show: `say=print`

    Ctrl-C and a spent budget raise nothing: `stopped` of the result says why it is incomplete. Raises
    BadInput for a manifest with mistakes, and EnvironmentCannot if nothing in it can run here, or outside of
    the main thread, because only that thread receives signals.

    >>> manifest = {
    ...     "schema": "bench/manifest/v1",
    ...     "models": ["tiny-gpt-neox"], "methods": ["naive"], "micro_batch": 16,
    ...     "timing": {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1},
    ... }
    >>> measured = bench.run(manifest, out="out", device="cpu")
    >>> [trial.outcome for trial in measured.results.trials], measured.stopped
    (['measured'], None)
    >>> [checked] = bench.verify(measured.bundle)
    >>> checked.valid
    True
    """
    require_linux("measuring", ELSEWHERE)
    if threading.current_thread() is not threading.main_thread():
        advice = "call bench.run there, or start the command bench run"
        raise EnvironmentCannot("a run takes signals, which only the main thread can", advice=advice)
    choice("device", device, Device)
    request = RunRequest(
        out=Path(out),
        key=path_of(key),
        challenge=path_of(challenge),
        budget_seconds=None if budget is None else quantity("budget", budget, quantities.duration),
        resume=resume,
        moved=moved,
        on_cpu=device == "cpu",
    )
    refuse_lonely_move(moved=moved, challenge=request.challenge, resume=resume)
    loaded, where = manifest_of(manifest)
    return lead(loaded, where, request, _quiet_progress(say or _nothing), say or _nothing)


def lead(
    manifest: Manifest,
    where: str,
    request: RunRequest,
    progress: Progress,
    say: Say,
    nodes: Nodes | None = None,
) -> MeasuredRun:
    """Measure the manifest, alone or with other nodes, and write the bundle.

    `progress` shows the run, and `say` gets what is known before it begins. Raises BundleNotWritten, with
    the results, if the bundle cannot be written.
    """
    # These imports are slow: mistakes in the options or the manifest are reported before.
    from bench.runner.run.check_data import check_data
    from bench.runner.run.earlier_bundle import answered
    from bench.runner.run.execute import execute

    sealer = make_sealer(manifest.digest, request.key, request.challenge, say)
    # With several nodes, node 0 must still tell the other nodes that the run is over.
    if request.resume and sealer.run_id and nodes is None:
        bundle = request.out / f"{sealer.run_id}.tar"
        with making_folders(request.out):
            verdict = answered(bundle, sealer.nonce)
        if verdict is not None:
            return _earlier_run(bundle, verdict)
    check_data(manifest, where)
    rehearsal = rehearse(manifest.models, where)
    for remark in (*manifest.remarks, *rehearsal.remarks):
        say(f"remark   {remark}")
    finished = execute(
        manifest,
        request.out,
        sealer,
        progress,
        resume=request.resume,
        budget_seconds=request.budget_seconds,
        on_cpu=request.on_cpu,
        nodes=nodes,
        moved=request.moved,
        counted=rehearsal.counted,
    )
    return _measured_run(finished)


def _measured_run(finished: FinishedRun) -> MeasuredRun:
    seal = finished.seal
    return MeasuredRun(
        bundle=finished.bundle,
        results=finished.results,
        slowed=finished.slowed,
        marks=finished.marks,
        busy_shares=finished.busy_shares,
        signed_by=PublicKey.of(seal.key).fingerprint,
        certified_by=seal.certificate.authority.fingerprint if seal.certificate else None,
        kept=finished.kept,
    )


def _earlier_run(bundle: Path, verdict: AnyVerdict) -> MeasuredRun:
    """Return the certified bundle that already answers this challenge."""
    trained = trained_run(verdict)
    return MeasuredRun(
        bundle=bundle,
        results=trained.results,
        slowed=trained.slowed,
        marks=trained.marks,
        busy_shares=trained.busy_shares,
        signed_by=verdict.fingerprint,
        certified_by=verdict.certified_by,
        received_at=verdict.received_at,
        earlier=True,
    )


class _Lines(io.TextIOBase):
    """A text stream that passes on each whole line."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun = ""

    def write(self, text: str) -> int:
        """Pass on every line that this text completes; the beginning of the next one is kept."""
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            self._say(line)
        return len(text)


def _quiet_progress(say: Say) -> Progress:
    """Return progress that goes only to `say`, line by line."""
    from bench.base.live_line import LiveLine
    from bench.runner.run.progress import Progress

    return Progress(LiveLine(cast(TextIO, _Lines(say)), environment={}))


def _nothing(_line: str) -> None:
    """Ignore a line of progress, for callers that give no `say`."""
