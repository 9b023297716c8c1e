"""The in-toto statement of a bundle: the digests of its files, and the facts of its run. Pure.

In and out: canonical JSON. A statement is read only if `build_statement` would write the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from bench.base.errors import VerificationFailed
from bench.base.frozen import dataclass
from bench.base.stamps import is_nonce, is_run_id, is_sha256
from bench.base.strict_json import DecodeError, canonical_json, from_json, strict_loads, to_json
from bench.records.trial import NodeFacts

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# in-toto asks for a globally unique URI. A random UUID is unique, and needs no domain that must be kept.
_PREDICATE_URN = "urn:uuid:96ed7b46-ed52-4e43-99b8-c7ff1d48d57f#"
# The first version: one signature, by a key without a certificate. It is read, but no longer written.
FIRST: Literal["bench/run/v1"] = "bench/run/v1"
PREDICATE_SCHEMA: Literal["bench/run/v2"] = "bench/run/v2"
Level = Literal["self", "operator"]

_SUBJECT = re.compile(r"[a-z0-9._/-]{1,100}")
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


@dataclass(frozen=True, slots=True)
class Predicate:
    """The signer's claims about the run as a whole."""

    run_id: str
    manifest_sha256: str
    node: Mapping[str, Any]  # identifies the machine: GPU UUIDs, driver; never an address
    started_at: str  # RFC 3339 in UTC, to the second: see utc()
    ended_at: str
    complete: bool  # false: interrupted, or out of budget
    level: Level = "self"  # claimed assurance; a verifier decides which level is proven
    nonce: str | None = None  # of the operator's challenge; None: there was no challenge
    schema: Literal["bench/run/v1", "bench/run/v2"] = PREDICATE_SCHEMA


class Statement(NamedTuple):
    """A parsed statement: the digests of the signed files, and the signer's claims about the run."""

    subjects: Mapping[str, str]  # file name -> sha256
    predicate: Predicate


def build_statement(subjects: Mapping[str, str], predicate: Predicate) -> bytes:
    """Build the bytes to sign, of files given by name and sha256: canonical JSON, subjects sorted by name."""
    if fault := _statement_fault(subjects, predicate):
        raise ValueError(fault)
    fields = to_json(predicate)
    if predicate.schema == FIRST:
        del fields["nonce"]  # the first version had no nonce
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": n, "digest": {"sha256": d}} for n, d in sorted(subjects.items())],
            "predicateType": _PREDICATE_URN + predicate.schema,
            "predicate": fields,
        }
    )


def parse_statement(data: bytes) -> Statement:
    """Parse a statement; VerificationFailed unless build_statement would write the same bytes."""
    try:
        document = strict_loads(data)
        _check_versions(document)
        subjects = _read_subjects(document.get("subject"))
        predicate = from_json(Predicate, document["predicate"])
    except DecodeError as error:
        raise VerificationFailed(f"the statement is malformed: {error}") from None
    if fault := _statement_fault(subjects, predicate):
        raise VerificationFailed(f"the statement is malformed: {fault}")
    # Writing it again refuses repeated or unsorted subjects, spaces, missing fields, and anything else.
    if build_statement(subjects, predicate) != data:
        raise VerificationFailed("the statement is not in its canonical form")
    return Statement(subjects, predicate)


def _read_subjects(listed: Any) -> dict[str, str]:
    with suppress(TypeError, KeyError):
        subjects = {subject["name"]: subject["digest"]["sha256"] for subject in listed}
        if all(isinstance(text, str) for pair in subjects.items() for text in pair):
            return subjects
    raise DecodeError("/subject: expected a list of names with their sha256")


def _check_versions(document: Any) -> None:
    """Refuse other versions before the shape is checked, so that a newer bundle does not count as broken."""
    outer = document if isinstance(document, dict) else {}
    predicate = outer.get("predicate")
    inner = predicate if isinstance(predicate, dict) else {}
    schema = FIRST if inner.get("schema") == FIRST else PREDICATE_SCHEMA
    known = {"_type": STATEMENT_TYPE, "predicateType": _PREDICATE_URN + schema, "schema": schema}
    for name, value in known.items():
        actual = (inner if name == "schema" else outer).get(name)
        if actual != value:
            message = f"the statement's {name} is {actual!r:.80}; this version of bench knows only {value}"
            raise VerificationFailed(message)


def _statement_fault(subjects: Mapping[str, str], predicate: Predicate) -> str | None:
    """Say why these parts do not make a statement; None if they do."""
    for name, sha256 in subjects.items():
        if not _SUBJECT.fullmatch(name) or not is_sha256(sha256):
            return f"the subject {name!r:.80} has a bad name or sha256"
    if subjects.get("manifest.json") != predicate.manifest_sha256:
        return "manifest_sha256 is not the digest of manifest.json"
    if not is_run_id(predicate.run_id):
        return f"{predicate.run_id!r:.80} is not a run id"
    # The order of the two times is not checked: a clock may be set back during a run.
    if not (_UTC.fullmatch(predicate.started_at) and _UTC.fullmatch(predicate.ended_at)):
        return "started_at or ended_at is not a time in UTC"
    if (predicate.level == "operator") != (predicate.nonce is not None):
        return "the level operator and the nonce of a challenge belong together"
    if predicate.nonce is not None and (predicate.schema == FIRST or not is_nonce(predicate.nonce)):
        return "its nonce does not have the form of one"
    return None


def identity_of(node: NodeFacts, gpus: Sequence[str] | None = None) -> dict[str, Any]:
    """Describe a machine as statements do; `gpus` are the UUIDs on all machines, for a run on several."""
    return {
        "gpus": [gpu.uuid for gpu in node.gpus] if gpus is None else list(gpus),
        "driver": node.driver,
        "cpu": node.cpu,
        "image": node.image.config if node.image else None,
        **({"environment": node.environment.digest} if node.environment else {}),
    }
