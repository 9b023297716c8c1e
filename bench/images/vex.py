"""Read OpenVEX documents: which vulnerabilities do not apply to which packages, and why.

Specification: https://github.com/openvex/spec (v0.2.0). A statement without a package, or one that says "not
affected" without a reason, is refused: it would silence a scan without saying why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from bench.base.errors import BadInput
from bench.base.files import read_bounded
from bench.base.strict_json import DecodeError, strict_loads

CONTEXT = "https://openvex.dev/ns/v0.2.0"
MAX_BYTES = 16 * 2**20
STATUSES = ("not_affected", "affected", "fixed", "under_investigation")
JUSTIFICATIONS = (
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
)


@dataclass(frozen=True, slots=True)
class VexStatement:
    """A statement about one vulnerability in some packages, by the author of the document."""

    vulnerability: frozenset[str]  # its name and aliases
    packages: frozenset[str]  # purls without qualifiers; without a version, of every version
    status: str
    reason: str
    source: str  # the document and its author

    @property
    def dismisses(self) -> bool:
        """Whether the statement says that the image is not affected."""
        return self.status in ("not_affected", "fixed")

    def is_about(self, names: Iterable[str], purl: str) -> bool:
        """Whether the statement is about a vulnerability, by any of its names, in a package."""
        bare = bare_purl(purl)
        return not self.vulnerability.isdisjoint(names) and not self.packages.isdisjoint(
            {bare, bare.rpartition("@")[0]}
        )


def bare_purl(purl: str) -> str:
    """Return a purl without qualifiers and subpath, decoded: architectures do not matter here."""
    return unquote(purl.partition("?")[0].partition("#")[0])


def read_vex(path: Path, image: str | None) -> tuple[VexStatement, ...]:
    """Return the statements of a document in their order; BadInput if it is malformed.

    `image` is the digest of the scanned image: statements about another image are left out.
    """
    data = read_bounded(
        path, MAX_BYTES, what="the VEX document", too_large=f"has more than {MAX_BYTES:,} bytes"
    )
    try:
        document = strict_loads(data)
        if not isinstance(document, dict) or not str(document.get("@context", "")).startswith(
            "https://openvex.dev/ns"
        ):
            raise DecodeError(f'its "@context" is not {CONTEXT}')
        source = f"{path.name}, {document['author']}"
        raw = [
            (str(entry.get("last_updated") or entry.get("timestamp") or document["timestamp"]), entry)
            for entry in document["statements"]
        ]
        ordered = [entry for _, entry in sorted(raw, key=lambda pair: pair[0])]  # the later one decides
        return tuple(
            s for number, entry in enumerate(ordered) for s in _statements(entry, source, image, number)
        )
    except (DecodeError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"is not an OpenVEX document: {error}", where=str(path)) from None


def _statements(
    entry: Mapping[str, Any], source: str, image: str | None, number: int
) -> Iterator[VexStatement]:
    status, where = entry["status"], f"statement {number + 1}"
    if status not in STATUSES:
        raise DecodeError(f"{where} has the status {status!r:.40}")
    justification = entry.get("justification")
    if justification is not None and justification not in JUSTIFICATIONS:
        raise DecodeError(f"{where} has the justification {justification!r:.60}")
    reason = "; ".join(str(text) for text in (justification, entry.get("impact_statement")) if text)
    if status == "not_affected" and not reason:
        raise DecodeError(f"{where} says not_affected without justification or impact_statement")
    vulnerability = entry["vulnerability"]
    names = frozenset((vulnerability["name"], *(vulnerability.get("aliases") or ())))
    packages = frozenset(_packages(entry["products"], image))
    if packages:
        yield VexStatement(names, packages, status, reason or status, source)


def _packages(products: Iterable[Mapping[str, Any]], image: str | None) -> Iterator[str]:
    """Yield the packages of a statement: products, or the parts that it names of the scanned image."""
    for product in products:
        parts = product.get("subcomponents") or ()
        if not parts:
            yield bare_purl(product["@id"])
        elif image is not None and image.removeprefix("sha256:") in unquote(product["@id"]):
            yield from (bare_purl(part["@id"]) for part in parts)
