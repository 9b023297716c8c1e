"""The in-toto statement of a bundle: which files, of which run. Written, and read in that one form only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from bench.base.errors import VerificationFailed
from bench.base.stamps import is_nonce, is_run_id, is_sha256
from bench.base.strict_json import DecodeError, canonical_json, from_json, strict_loads, to_json
from bench.records.trial import NodeFacts

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# in-toto asks for a URI that nobody else can mean. A random UUID is one without a host to own and keep.
_PREDICATE_URN = "urn:uuid:96ed7b46-ed52-4e43-99b8-c7ff1d48d57f#"
FIRST: Literal["bench/run/v1"] = (
    "bench/run/v1"  # signed once, by a key that nobody certified; read, but no longer written
)
PREDICATE_SCHEMA: Literal["bench/run/v2"] = "bench/run/v2"
PREDICATE_TYPE = _PREDICATE_URN + PREDICATE_SCHEMA
Level = Literal["self", "operator"]

_SUBJECT = re.compile(r"[a-z0-9._/-]{1,100}")
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


@dataclass(frozen=True, slots=True)
class Predicate:
    """What the signer says about the run as a whole."""

    run_id: str
    manifest_sha256: str
    node: Mapping[str, Any]  # what identifies it: GPU UUIDs, driver; never an address
    started_at: str  # RFC 3339 in UTC, to the second: see utc()
    ended_at: str
    complete: bool  # false: interrupted, or out of budget
    level: Level = "self"  # who is said to vouch for the signer; what is proven of it, a verifier decides
    nonce: str | None = None  # of the operator's challenge; None: nobody challenged
    schema: Literal["bench/run/v1", "bench/run/v2"] = PREDICATE_SCHEMA


class Statement(NamedTuple):
    subjects: Mapping[str, str]  # file name -> sha256
    predicate: Predicate


def build_statement(subjects: Mapping[str, str], predicate: Predicate) -> bytes:
    """The bytes to sign, for files given by name and sha256: canonical JSON, subjects sorted by name."""
    if fault := _statement_fault(subjects, predicate):
        raise ValueError(fault)
    fields = to_json(predicate)
    if predicate.schema == FIRST:
        del fields["nonce"]  # which that version did not have
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": n, "digest": {"sha256": d}} for n, d in sorted(subjects.items())],
            "predicateType": _PREDICATE_URN + predicate.schema,
            "predicate": fields,
        }
    )


def parse_statement(data: bytes) -> Statement:
    """The statement in these bytes, if they are what build_statement makes of it."""
    try:
        document = strict_loads(data)
        _check_versions(document)
        subjects = _read_subjects(document.get("subject"))
        predicate = from_json(Predicate, document["predicate"])
    except DecodeError as error:
        raise VerificationFailed(f"the statement is malformed: {error}") from None
    if fault := _statement_fault(subjects, predicate):
        raise VerificationFailed(f"the statement is malformed: {fault}")
    # Once more by our own writer: refuses repeated or unsorted subjects, spaces, missing fields, all else.
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
    """Before the shape is judged, so that a newer bundle is told from a broken one."""
    outer = document if isinstance(document, dict) else {}
    predicate = outer.get("predicate")
    inner = predicate if isinstance(predicate, dict) else {}
    schema = FIRST if inner.get("schema") == FIRST else PREDICATE_SCHEMA
    known = {"_type": STATEMENT_TYPE, "predicateType": _PREDICATE_URN + schema, "schema": schema}
    for name, value in known.items():
        found = (inner if name == "schema" else outer).get(name)
        if found != value:
            message = f"the statement's {name} is {found!r:.80}; this version of bench knows only {value}"
            raise VerificationFailed(message)


def _statement_fault(subjects: Mapping[str, str], predicate: Predicate) -> str | None:
    for name, sha256 in subjects.items():
        if not _SUBJECT.fullmatch(name) or not is_sha256(sha256):
            return f"the subject {name!r:.80} has a bad name or sha256"
    if subjects.get("manifest.json") != predicate.manifest_sha256:
        return "manifest_sha256 is not the digest of manifest.json"
    if not is_run_id(predicate.run_id):
        return f"{predicate.run_id!r:.80} is no run id"
    # Not their order: a clock may be set back during a run.
    if not (_UTC.fullmatch(predicate.started_at) and _UTC.fullmatch(predicate.ended_at)):
        return "started_at or ended_at is no time in UTC"
    if (predicate.level == "operator") != (predicate.nonce is not None):
        return "the level operator and the nonce of a challenge belong together"
    if predicate.nonce is not None and (predicate.schema == FIRST or not is_nonce(predicate.nonce)):
        return "its nonce is none"
    return None


def identity_of(node: NodeFacts, gpus: Sequence[str] | None = None) -> dict[str, Any]:
    """As a statement names a machine; `gpus` are those of all that the run was on, if there were several."""
    return {
        "gpus": [gpu.uuid for gpu in node.gpus] if gpus is None else list(gpus),
        "driver": node.driver,
        "cpu": node.cpu,
        "image": node.image.config if node.image else None,
    }
