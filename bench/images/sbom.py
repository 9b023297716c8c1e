"""Write an SBOM of the installed Debian and Python packages in CycloneDX (`python -m bench.images.sbom`).

Runs once, while an image is built. Equal software gives equal bytes: the document holds no time, and its
serial number follows from the content. Scanners find packages by purl, the operating system by its component.
"""

from __future__ import annotations

import platform
import re
import sys
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from bench import __version__
from bench.base.strict_json import canonical_json, pretty_json, strict_loads
from bench.images.debian_packages import deb_name
from bench.packages.package_index import normal

DPKG = Path("/var/lib/dpkg/status")
PACKAGES = Path("/usr/share/bench/packages.json")  # the files that the packages were installed from
_LIBRARY = re.compile(r"lib[^/.]*\.so[.0-9]*")  # a shared library's name; extension modules have others
_EMBEDDED = re.compile(r"[^/]+\.dist-info/sboms/[^/]+\.json")  # a wheel's own SBOM (PEP 770)


def sbom() -> bytes:
    """Return the SBOM of the machine, in practice an image that is being built, as pretty JSON."""
    system = platform.freedesktop_os_release()
    release = system.get("VERSION_ID")
    files = file_hashes(PACKAGES.read_bytes()) if PACKAGES.exists() else {}
    components = [*debian(DPKG.read_text(encoding="utf-8"), release, files), *python(files)]
    components.sort(key=lambda component: str(component["purl"]))
    components.insert(0, operating_system(system))
    name = {"type": "container", "name": "bench", "version": __version__, "bom-ref": "image"}
    return cyclonedx(name, components, components)


def cyclonedx(subject: Mapping[str, Any], components: Sequence[Any], identity: Any) -> bytes:
    """Return the CycloneDX list of a subject's parts, as pretty JSON; equal identities have equal serials."""
    serial = uuid.uuid5(uuid.NAMESPACE_OID, canonical_json(identity).decode())
    return pretty_json(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{serial}",
            "version": 1,
            "metadata": {"component": subject},
            "components": components,
        }
    )


def file_hashes(packages: bytes) -> Mapping[str, str]:
    """Return the sha256 of each package file in packages.json, by the key that `_hashes` looks for."""
    hashes = {}
    for path, sha256, _ in strict_loads(packages)["files"]:
        name = PurePosixPath(path).name
        key = name if name.endswith(".deb") else normal(name.partition("-")[0])
        hashes[key] = sha256
    return hashes


def _hashes(sha256: str | None) -> dict[str, Any]:
    return {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}


def operating_system(release: Mapping[str, str]) -> dict[str, Any]:
    """Return the component of the operating system, from the fields of /etc/os-release."""
    name, version = release.get("ID", "linux"), release.get("VERSION_ID", "unknown")
    return {"type": "operating-system", "name": name, "version": version, "bom-ref": "operating-system"}


def paragraphs(status: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each installed package in dpkg's status file; removed ones may still be listed."""
    for paragraph in status.strip().split("\n\n"):
        lines = (line for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
        fields = dict(line.split(": ", 1) for line in lines)
        if fields.get("Status") == "install ok installed":
            yield fields


def debian(
    status: str, release: str | None = None, files: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the components of the packages in dpkg's status file, with the sha256 of their .deb if known.

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
        component = {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}
        yield component | _hashes((files or {}).get(deb_name(name, version, fields["Architecture"])))


def python(files: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the components of the installed distributions, with the sha256 of their wheel if known.

    Inside a distribution are the shared libraries of its wheel, and what an SBOM in the wheel lists.
    """
    seen = set()
    for distribution in metadata.distributions():
        name = normal(distribution.metadata["Name"])
        if name in seen:  # shadowed by another copy earlier on the path
            continue
        seen.add(name)
        purl = f"pkg:pypi/{quote(name)}@{quote(distribution.version, safe='')}"
        component: dict[str, Any] = {"type": "library", "name": name, "version": distribution.version}
        component |= {"purl": purl, "bom-ref": purl} | _licence(distribution.metadata)
        inside = sorted(_inside(distribution, purl), key=lambda part: str(part["bom-ref"]))
        yield component | _hashes((files or {}).get(name)) | ({"components": inside} if inside else {})


def _inside(distribution: metadata.Distribution, purl: str) -> Iterator[dict[str, Any]]:
    """Yield a wheel's shared libraries with their sha256, and the components of its own SBOMs."""
    for file in distribution.files or ():
        path = file.as_posix()
        if _LIBRARY.fullmatch(file.name):
            recorded = file.hash if file.hash and file.hash.mode == "sha256" else None
            sha256 = urlsafe_b64decode(f"{recorded.value}=").hex() if recorded else None
            yield {"type": "file", "name": path, "bom-ref": f"{purl}#{path}"} | _hashes(sha256)
        elif _EMBEDDED.fullmatch(path):
            for number, part in enumerate(strict_loads(file.read_binary()).get("components", ())):
                named = {key: part[key] for key in ("type", "name", "version", "purl") if key in part}
                yield named | {"bom-ref": f"{purl}#{path}/{number}"}


def _licence(fields: Any) -> dict[str, Any]:
    """Return the licence if the package declares an SPDX expression; other fields would need guesses."""
    expression = fields.get("License-Expression")
    return {"licenses": [{"expression": expression}]} if expression else {}


def python_versions(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the versions of the Python packages in an SBOM that `sbom` wrote."""
    return {
        c["name"]: c["version"] for c in document["components"] if c.get("purl", "").startswith("pkg:pypi/")
    }


if __name__ == "__main__":
    sys.stdout.buffer.write(sbom())
