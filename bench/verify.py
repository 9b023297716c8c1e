"""Is this bundle what it claims to be? Every check in order; the first that fails ends it.

The signature comes first: nothing of a bundle is interpreted before it is known who signed the statement.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.bundle import (
    MAX_MEMBER_BYTES,
    SIGNATURE,
    SIGNING,
    STATEMENT,
    Bundle,
    open_bundle,
    payload_fault,
)
from bench.errors import BadInput, VerificationFailed
from bench.signing import NAMESPACE, FormatError, PublicKey, parse_statement, verify

MAX_STATEMENT_BYTES = 4 * 2**20
MAX_SIGNATURE_BYTES = 4 * 2**10
MAX_TRUST_BYTES = 2**20

Read = Callable[[str], bytes]
Recompute = Callable[[Read], Mapping[str, object]]


# --- whom to trust -------------------------------------------------------------------------------------

# Patterns as text: compiled only when there is a file to read, since a verification is mostly start-up.
_KEY_TYPE = r"(ssh|ecdsa|sk-ssh|sk-ecdsa|webauthn-sk-ecdsa)-[A-Za-z0-9@.-]+"
_WORD = r'\s*((?:"(?:[^"\\]|\\.)*"|[^\s"])+)(?=\s|$)'
_OPTION = r'([A-Za-z-]+)(?:="((?:[^"\\]|\\.)*)")?(?:,|$)'
_OPTIONS = frozenset({"cert-authority", "namespaces", "valid-after", "valid-before"})
_TIME = r"([0-9]{4})([0-9]{2})([0-9]{2})(?:([0-9]{2})([0-9]{2})([0-9]{2})?)?([Zz]?)"


@dataclass(frozen=True, slots=True)
class AllowedSigner:
    """One key of an allowed_signers file (see ssh-keygen(1)), or the one of a .pub file."""

    key: PublicKey
    principals: str
    namespaces: str | None = None  # patterns; None allows all
    valid_after: float | None = None
    valid_before: float | None = None

    def refusal(self, namespace: str, now: float) -> str | None:
        """Why its signature does not count here and now."""
        if self.namespaces is not None and not _matches(namespace, self.namespaces):
            return f"is allowed for the namespaces {self.namespaces} only, not {namespace}"
        if self.valid_after is not None and now < self.valid_after:
            return "is not valid yet"
        if self.valid_before is not None and now > self.valid_before:
            return "is no longer valid"
        return None


def _matches(text: str, patterns: str) -> bool:
    """ssh's pattern lists: * and ?, and a match with ! in front refuses whatever else matches."""
    allowed = False
    for pattern in patterns.split(","):
        glob = re.escape(pattern.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(glob, text, re.DOTALL):
            if pattern.startswith("!"):
                return False
            allowed = True
    return allowed


@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """The keys whose bundles are trusted, as the user's file lists them."""

    source: str
    signers: tuple[AllowedSigner, ...]

    @classmethod
    def from_file(cls, path: Path) -> TrustPolicy:
        """A .pub file or an allowed_signers file."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_TRUST_BYTES + 1)
            text = data.decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise BadInput(f"the trusted keys cannot be read: {reason}", where=str(path)) from None
        if len(data) > MAX_TRUST_BYTES:
            raise BadInput(f"more than {MAX_TRUST_BYTES} bytes are no list of keys", where=str(path))
        return cls.from_text(text, str(path))

    @classmethod
    def from_text(cls, text: str, source: str) -> TrustPolicy:
        if "PRIVATE KEY-----" in text:
            raise BadInput("is a private key", where=source, advice="give the public one, the file with .pub")
        signers = []
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                signer = _parse_signer(line.strip())
            except FormatError as error:
                raise BadInput(str(error), where=f"{source}: line {number}") from None
            if signer:
                signers.append(signer)
        if not signers:
            advice = "give a .pub file, or an allowed_signers file as in ssh-keygen(1)"
            raise BadInput("lists no Ed25519 key", where=source, advice=advice)
        return cls(source, tuple(signers))

    def accept(self, key: PublicKey, now: float) -> str:
        """Where the key is listed, and as whom; VerificationFailed if it is not, or not for bundles now."""
        refusals = []
        for signer in self.signers:
            if signer.key == key:
                refusal = signer.refusal(NAMESPACE, now)
                if refusal is None:
                    return f"{self.source} as {signer.principals}" if signer.principals else self.source
                refusals.append(refusal)
        why = f"which {refusals[0]}" if refusals else "which is not among them"
        raise VerificationFailed(f"not trusted by {self.source}: signed by {key.fingerprint}, {why}")


def _parse_signer(line: str) -> AllowedSigner | None:
    """One line; None if it holds nothing that could sign a bundle."""
    if not line or line.startswith("#"):
        return None
    words: list[str] = []
    while len(words) < 4 and (match := re.match(_WORD, line)):
        words.append(match[1])
        line = line[match.end() :]
    words += [""] * (4 - len(words))
    at = next((i for i in range(3) if re.fullmatch(_KEY_TYPE, words[i])), None)
    if at is None:
        raise FormatError("is neither a public key nor a line of allowed_signers")
    principals, options = (*words[:at], "", "")[:2]
    kind, blob = words[at : at + 2]
    if kind != "ssh-ed25519":
        return None
    given = _parse_options(options)
    if "cert-authority" in given:  # it vouches for keys, and signs no bundle itself
        return None
    return AllowedSigner(
        PublicKey.from_line(f"{kind} {blob}"),
        principals.strip('"'),
        given.get("namespaces"),
        _parse_time(given.get("valid-after")),
        _parse_time(given.get("valid-before")),
    )


def _parse_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    while text:
        match = re.match(_OPTION, text)
        name = match[1].lower() if match else ""
        # An option that is not understood may be a restriction: better no trust than too much.
        if not match or name not in _OPTIONS or name in options:
            raise FormatError(f"has an option that bench does not understand: {text!r:.80}")
        options[name] = match[2] or ""
        text = text[match.end() :]
    return options


def _parse_time(text: str | None) -> float | None:
    """YYYYMMDD[HHMM[SS]], in local time unless a Z follows."""
    if text is None:
        return None
    from datetime import UTC, datetime  # rarely needed, and not free to import

    if match := re.fullmatch(_TIME, text):
        year, month, day, hour, minute, second = (int(n or 0) for n in match.groups()[:6])
        with suppress(ValueError, OverflowError):  # month 13, year 0
            zone = UTC if match[7] else None
            return datetime(year, month, day, hour, minute, second, tzinfo=zone).timestamp()
    raise FormatError(f"has a time that is not YYYYMMDD[HHMM[SS]][Z]: {text!r:.40}")


# --- the verdict ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was proven of a bundle. There is none of a bundle that failed: that is an error."""

    path: str
    files: int
    size_bytes: int
    run_id: str
    fingerprint: str
    trusted: bool
    trusted_by: str | None  # the file that lists the key, and as whom
    level: str
    complete: bool
    started_at: str
    ended_at: str
    recomputed: Mapping[str, object]

    def to_lines(self) -> list[str]:
        samples = self.recomputed.get("samples")
        counted = f", {samples:,} samples" if isinstance(samples, int) else ""
        voucher = f"trusted by {self.trusted_by}" if self.trusted else "which --trust has not vouched for"
        proven = "integrity and origin are" if self.trusted else "integrity is"
        unproven = "freshness" if self.trusted else "origin, freshness"
        lines = [
            f"valid      {self.files:,} files{counted}; every summary recomputed and equal",
            f"signed     run {self.run_id} by {self.fingerprint}, {voucher}",
            f"level      {self.level}: {proven} proven; {unproven} and the node's honesty are not",
        ]
        if not self.complete:
            lines.append("incomplete the run ended before its plan did")
        return lines


def verify_bundle(path: Path, trust: TrustPolicy | None, recompute: Recompute) -> Verdict:
    """The verdict, or VerificationFailed with the file and the reason.

    `recompute` gets a function that reads one payload file, and derives every summary once more from the
    raw samples; it raises VerificationFailed if one differs. What it returns goes into the verdict.
    """
    with open_bundle(path) as bundle:
        statement_bytes = bundle.read(STATEMENT, MAX_STATEMENT_BYTES)
        key = verify(statement_bytes, bundle.read(SIGNATURE, MAX_SIGNATURE_BYTES))
        trusted_by = trust.accept(key, time.time()) if trust else None
        statement = parse_statement(statement_bytes)
        _check_files(bundle, statement.subjects)
        recomputed = recompute(_reader(bundle, statement.subjects))
    run = statement.predicate
    return Verdict(
        path=str(path),
        files=len(bundle.members),
        size_bytes=bundle.size,
        run_id=run.run_id,
        fingerprint=key.fingerprint,
        trusted=trust is not None,
        trusted_by=trusted_by,
        level=run.level,
        complete=run.complete,
        started_at=run.started_at,
        ended_at=run.ended_at,
        recomputed=recomputed,
    )


def _check_files(bundle: Bundle, subjects: Mapping[str, str]) -> None:
    """Exactly the files that were signed for, each with the digest that was signed."""
    payload = bundle.members.keys() - SIGNING
    if extra := sorted(payload - subjects.keys()):
        raise VerificationFailed("is not in the statement: it was added", where=extra[0])
    if missing := sorted(subjects.keys() - payload):
        raise VerificationFailed("the statement lists it, the bundle lacks it", where=missing[0])
    if fault := payload_fault(payload):
        raise VerificationFailed(fault)
    for name, sha256 in subjects.items():
        if bundle.digest(name) != sha256:
            raise VerificationFailed("its sha256 is not the signed one: it was changed", where=name)


def _reader(bundle: Bundle, subjects: Mapping[str, str]) -> Read:
    def read(name: str) -> bytes:
        data = bundle.read(name, MAX_MEMBER_BYTES)
        # Again, on the very bytes that will be used: the file on the disk may have changed since.
        if hashlib.sha256(data).hexdigest() != subjects.get(name):
            raise VerificationFailed("changed while it was verified", where=name)
        return data

    return read
