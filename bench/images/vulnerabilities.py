"""Scan an image's software bill of materials for known vulnerabilities, without a network.

In: a CycloneDX document as `bench.images.sbom` writes it, a feed in OSV's format, OpenVEX statements.
Out: one `FoundVulnerability` for each vulnerability of each package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote

from bench.base.errors import BadInput
from bench.base.strict_json import DecodeError, strict_loads
from bench.images.osv import Package, affects, key_of, read_feed
from bench.images.vex import VexStatement
from bench.packages.package_index import normal

_SBOM = "bench image sbom IMAGE writes one"
MAX_SBOM_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class FoundVulnerability:
    """A vulnerability that affects a package of an image."""

    id: str
    aliases: tuple[str, ...]
    purl: str
    name: str
    version: str
    severity: str
    summary: str
    fixed: tuple[str, ...]  # versions that fix it
    undecided: str | None  # why its version could not be compared
    dismissed: str | None  # why it does not apply, by a VEX document


def packages_of(sbom: bytes, where: str) -> Mapping[str, Package]:
    """Return the packages of a CycloneDX document by purl; BadInput if there is none, or one without purl.

    Components that a wheel's own SBOM lists count as packages too.
    """
    try:
        document = strict_loads(sbom)
        if not isinstance(document, dict) or document.get("bomFormat") != "CycloneDX":
            raise DecodeError("it is not CycloneDX")
        packages = [item for item in document["components"] if item.get("type") != "operating-system"]
        purls = [component["purl"] for component in packages]
        inside = [part for item in packages for part in item.get("components", ())]
        purls += [part["purl"] for part in inside if "purl" in part]  # a library that is only a file has none
        found = {purl: package for purl in purls if (package := _package(purl)) is not None}
    except (DecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        message = f"is not a list of packages that can be scanned: {error}"
        raise BadInput(message, where=where, advice=_SBOM) from None
    if not found:
        raise BadInput("lists no package of Debian or PyPI", where=where, advice=_SBOM)
    return found


def _package(purl: str) -> Package | None:
    """Return the package of a purl; None without a version, and for a kind that the scan does not know."""
    path, _, qualifiers = purl.partition("?")
    kind, _, rest = path.removeprefix("pkg:").partition("/")
    name, _, version = rest.rpartition("@")
    more = {key: values[0] for key, values in parse_qs(qualifiers).items()}
    if not name:
        return None
    if kind == "cargo":
        return Package("crates.io", unquote(name), unquote(version))
    if kind == "pypi":
        return Package("PyPI", normal(unquote(name)), unquote(version))
    if kind == "deb" and name.startswith("debian/"):
        release = more.get("distro", "").removeprefix("debian-")
        source, _, source_version = more.get("upstream", "").partition("@")
        own = unquote(name.removeprefix("debian/"))
        return Package(
            f"Debian:{release}" if release else "Debian", source or own, source_version or unquote(version)
        )
    return None


def scan(
    packages: Mapping[str, Package], feed: Path, statements: Sequence[VexStatement] = ()
) -> Iterator[FoundVulnerability]:
    """Yield the vulnerabilities that affect the packages, in the order of the feed."""
    by_key: dict[tuple[str, str], list[tuple[str, Package]]] = {}
    for purl, package in packages.items():
        by_key.setdefault(package.key, []).append((purl, package))
    for vulnerability in read_feed(feed, frozenset(by_key)):
        keys = dict.fromkeys(map(key_of, vulnerability.affected))
        for purl, package in (pair for key in keys if key in by_key for pair in by_key[key]):
            try:
                found = affects(vulnerability, package)
            except (TypeError, AttributeError, KeyError) as error:
                message = f"{vulnerability.id:.60} is a malformed OSV record: {error!r:.80}"
                raise BadInput(message, where=str(feed)) from None
            if found is None:
                continue
            yield FoundVulnerability(
                id=vulnerability.id,
                aliases=vulnerability.aliases,
                purl=purl,
                name=package.name,
                version=package.version,
                severity=vulnerability.severity,
                summary=vulnerability.summary,
                fixed=found.fixed,
                undecided=found.undecided,
                dismissed=_dismissed(vulnerability.names, purl, statements),
            )


def _dismissed(names: frozenset[str], purl: str, statements: Sequence[VexStatement]) -> str | None:
    """Return why a vulnerability does not apply; the last statement about it decides."""
    about = [statement for statement in statements if statement.is_about(names, purl)]
    if not about or not about[-1].dismisses:
        return None
    return f"{about[-1].reason} ({about[-1].source})"
