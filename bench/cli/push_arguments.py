"""The arguments of `bench push`, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.push.request import DAY, FETCH_SECONDS, PushOptions

UNWATCHED_SECONDS = DAY  # additional validity of the certificate of a run that nobody watches


@dataclass(frozen=True, slots=True, kw_only=True)
class PushArguments(PushOptions):
    """The options of `bench push`: those that nodes get (`PushOptions`), where to push, and how far."""

    manifest: Path
    hosts: tuple[str, ...]
    inventory: Path | None
    limit: str | None
    name: str | None
    identity: Path | None
    device: str
    key: Path | None
    valid_seconds: float | None
    dry_run: bool
    no_run: bool
    detach: bool
    continued_run: str | None
    slurm: bool
    partition: str | None
    account: str | None
    constraint: str | None
    gpus_per_node: str | None
    slurm_nodes: int
    job_minutes: int
    shared: bool
    sbatch: tuple[str, ...]
    kubernetes: bool
    context: str | None
    namespace: str | None
    nodes: int | None
    queue: str | None
    pull_secret: str | None
    parallel: int
    as_json: bool

    @property
    def until(self) -> Literal["preflight", "ship", "start", "fetch"]:
        """The last stage of the push."""
        if self.dry_run:
            return "preflight"
        if self.no_run:
            return "ship"
        return "start" if self.detach else "fetch"

    @property
    def certificate_seconds(self) -> int:
        """Validity of a run's certificate: --valid, else a default of at most seven days."""
        if self.valid_seconds:
            return int(self.valid_seconds)
        watched = self.budget_seconds is not None and not self.detach
        seconds = (self.budget_seconds or 0) + FETCH_SECONDS + (0 if watched else UNWATCHED_SECONDS)
        return int(min(seconds, 7 * DAY))
