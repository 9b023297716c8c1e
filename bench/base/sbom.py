"""Write an SBOM of the installed Debian and Python packages in CycloneDX (`python -m bench.base.sbom`).

Runs once, while an image is built. Equal software gives equal bytes: the document holds no time, and its
serial number follows from the content.
"""

from __future__ import annotations

import platform
import sys
import uuid
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench import __version__
from bench.base.strict_json import canonical_json, pretty_json

DPKG = Path("/var/lib/dpkg/status")
PLACE = Path("/usr/share/bench/sbom.cdx.json")  # path of the SBOM in an image


def sbom() -> bytes:
    components = [
        *debian(DPKG.read_text(encoding="utf-8"), platform.freedesktop_os_release().get("VERSION_ID")),
        *python(),
    ]
    components.sort(key=lambda component: str(component["purl"]))
    name = {"type": "container", "name": "bench", "version": __version__, "bom-ref": "image"}
    serial = uuid.uuid5(uuid.NAMESPACE_OID, canonical_json(components).decode())
    return pretty_json(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{serial}",
            "version": 1,
            "metadata": {"component": name},
            "components": components,
        }
    )


def paragraphs(status: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each installed package in dpkg's status file; removed ones may still be listed."""
    for paragraph in status.strip().split("\n\n"):
        lines = (line for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
        fields = dict(line.split(": ", 1) for line in lines)
        if fields.get("Status") == "install ok installed":
            yield fields


def debian(status: str, release: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the components of the packages in dpkg's status file.

    Their purls name the release of Debian and the source package, by which vulnerabilities are known.
    """
    for fields in paragraphs(status):
        name, version = fields["Package"], fields["Version"]
        package = f"{quote(name, safe='')}@{quote(version, safe='')}"
        purl = f"pkg:deb/debian/{package}?arch={fields['Architecture']}"
        purl += f"&distro=debian-{quote(release, safe='')}" if release else ""
        if source := fields.get("Source"):  # absent if it has the package's own name and version
            own, _, of_source = source.partition(" (")
            purl += f"&upstream={quote('@'.join(filter(None, (own, of_source.rstrip(')')))), safe='')}"
        yield {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def python() -> Iterator[dict[str, Any]]:
    seen = set()
    for distribution in metadata.distributions():
        # The name as the package index normalises it, so that scanners find the package.
        name = distribution.metadata["Name"].lower().replace("_", "-").replace(".", "-")
        if name in seen:  # shadowed by another copy earlier on the path
            continue
        seen.add(name)
        purl = f"pkg:pypi/{quote(name)}@{quote(distribution.version, safe='')}"
        component: dict[str, Any] = {"type": "library", "name": name, "version": distribution.version}
        yield component | {"purl": purl, "bom-ref": purl} | _licence(distribution.metadata)


def _licence(fields: Any) -> dict[str, Any]:
    """Return the licence if the package declares an SPDX expression; other fields would need guesses."""
    expression = fields.get("License-Expression")
    return {"licenses": [{"expression": expression}]} if expression else {}


def python_versions(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the versions of the Python packages in an SBOM that `sbom` wrote."""
    return {c["name"]: c["version"] for c in document["components"] if c["purl"].startswith("pkg:pypi/")}


if __name__ == "__main__":
    sys.stdout.buffer.write(sbom())
