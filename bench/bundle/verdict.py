"""The result of a successful verification, as lines for people and as a document for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from typing import Generic, TypeVar

from bench.base.frozen import dataclass
from bench.base.strict_json import field_values, to_json
from bench.bundle.stated_manifest import StatedManifest
from bench.bundle.statement import Level
from bench.records.marks import Mark, mark_lines
from bench.records.run_results import Results
from bench.records.slowdown import Slowed, slowed_lines

Assurance = tuple[bool, bool]  # (trusted, received by its operator); the greater one is the better


def assurance(level: str, *, trusted: bool) -> Assurance:
    """Return the key by which bundles are ordered: who vouches for them counts before what they state."""
    return trusted, level == "operator"


def level_text(level: str, *, trusted: bool) -> str:
    """Put the level of a bundle in words, as tables show it."""
    return f"{level} (trusted)" if trusted else level


TO_TRUST = "to trust its signer: bench keys trust FILE.pub --as NAME, or --trust with a list of keys"


@dataclass(frozen=True, slots=True)
class Note:
    """A claim of a bundle that a verifier cannot check, in words."""

    model: str | None  # None: about the whole run
    text: str

    def __str__(self) -> str:
        return f"{self.model}: {self.text}" if self.model else self.text


@dataclass(frozen=True, slots=True)
class Contents:
    """The recomputed contents of a bundle, which holds a training run or a node check."""

    _: KW_ONLY
    samples: int
    measured_seconds: float  # the sum of the times of all samples
    notes: tuple[Note, ...] = ()
    slowed: Mapping[str, Slowed] = field(default_factory=dict)  # trials in which a GPU was held back, by id
    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)  # of the trials that have any, by id
    not_recomputed: str = ""  # counts, in words, of figures without samples, which only the run itself states

    def facts(self) -> dict[str, object]:
        """Return the field "recomputed" of `bench verify --json`."""
        return {"samples": self.samples, "measured_seconds": self.measured_seconds}


@dataclass(frozen=True, slots=True)
class RunContents(Contents):
    """A run that trained models, recomputed from its samples."""

    results: Results
    stated: StatedManifest
    step_seconds: Mapping[str, tuple[tuple[float, ...], ...]]  # by trial, of each measurement
    busy_shares: Mapping[str, float]  # of the time in which GPUs ran kernels, by trial, if telemetry has it

    def facts(self) -> dict[str, object]:
        """Return the field "recomputed" with what only training runs have, such as marks."""
        return Contents.facts(self) | {
            "on_trust": self.notes,
            "not_recomputed": self.not_recomputed,
            "slowed": self.slowed,
            "marks": self.marks,
            "busy_shares": self.busy_shares,
        }


C = TypeVar("C", bound=Contents)
C_co = TypeVar("C_co", bound=Contents, covariant=True)


@dataclass(frozen=True, slots=True)
class Verdict(Generic[C_co]):
    """The proven facts of a valid bundle; an invalid bundle raises VerificationFailed and has no verdict."""

    path: str
    files: int
    size_bytes: int
    run_id: str
    fingerprint: str  # of the signing key
    certified_by: str | None  # fingerprint of the authority that certified that key
    certificate_sha256: str | None
    certified_until: str | None
    trusted: bool
    trusted_by: str | None  # the file that lists the key or its authority, and the name in that file
    doubt: str | None  # why no trusted key vouches for it, as a sentence
    level: Level  # proven to this verifier
    level_claimed: Level  # stated in the bundle
    nonce: str | None
    challenged_at: str | None  # like received_at, by the operator's clock
    received_at: str | None
    seen_seconds: int | None  # from challenge to receipt: the run cannot have taken longer
    complete: bool
    started_at: str
    ended_at: str
    manifest_sha256: str
    statement_sha256: str
    contents: C_co

    def to_lines(self) -> list[str]:
        """Return the lines of `bench verify` on the proven facts, each with a label in front."""
        counted = f"{self.files:,} files, {self.contents.samples:,} samples"
        lines = [
            f"valid      {counted}; every summary recomputed and equal",
            *self._signatures(),
            f"level      {self._level()}",
        ]
        if not self.complete:
            lines.append("incomplete the run ended before its plan did")
        lines += [f"on trust   {note}" for note in self.contents.notes]
        if figures := self.contents.not_recomputed:
            lines.append(f"as stated  {figures}: not recomputed, since the bundle has no samples of them")
        lines += [f"SLOWED     {line}" for line in slowed_lines(self.contents.slowed)]
        return lines + [f"{kind:10} {line}" for kind, line in mark_lines(self.contents.marks)]

    def to_json(self) -> dict[str, object]:
        """Return the document of `bench verify --json`, without its field "valid"."""
        named = field_values(self) | {"recomputed": self.contents.facts()}
        return {name: to_json(value) for name, value in named.items() if name != "contents"}

    def _signatures(self) -> list[str]:
        voucher = f", trusted by {self.trusted_by}" if self.trusted else ""
        if self.certified_by is None:
            lines = [f"signed     run {self.run_id} by {self.fingerprint}{voucher}"]
        else:
            lines = [
                f"signed     run {self.run_id} by a key made for it",
                f"certified  by {self.certified_by}{voucher}",
            ]
        if self.doubt is not None:
            lines += [f"doubt      {self.doubt}", f"           {TO_TRUST}"]
        if self.seen_seconds is not None:
            from bench.records.text import seconds_text  # only a receipt needs its imports

            after = f"{seconds_text(self.seen_seconds)} after its challenge"
            lines.append(f"received   and countersigned by the same key on {self.received_at}, {after}")
        return lines

    def _level(self) -> str:
        if self.level == "operator":
            return "operator: integrity, origin and freshness are proven; the node's honesty is not"
        proven = "integrity and origin are" if self.trusted else "integrity is"
        unproven = "freshness" if self.trusted else "origin, freshness"
        return f"self: {proven} proven; {unproven} and the node's honesty are not"
