"""The list of an image's contents is valid CycloneDX, complete, and the same for the same software."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from bench.base import sbom

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u14
Description: GNU C Library
 Package: nonsense in a description

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libstdc++6
Status: install ok installed
Architecture: amd64
Version: 1:12.2.0-14
"""


def test_debian_packages_are_listed_as_by_dpkg() -> None:
    found = list(sbom.debian(STATUS))
    assert [(c["name"], c["version"]) for c in found] == [
        ("libc6", "2.36-9+deb12u14"),
        ("libstdc++6", "1:12.2.0-14"),
    ]
    assert found[1]["purl"] == "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14?arch=amd64"


def test_a_debian_package_names_its_release_and_its_source() -> None:
    """Vulnerabilities of Debian are known by the source package."""
    status = """Package: libssl3
Status: install ok installed
Source: openssl
Architecture: amd64
Version: 3.0.17-1~deb12u2

Package: cpp
Status: install ok installed
Source: gcc-defaults (1.203)
Architecture: amd64
Version: 4:12.2.0-3
"""
    assert [component["purl"] for component in sbom.debian(status, "12")] == [
        "pkg:deb/debian/libssl3@3.0.17-1~deb12u2?arch=amd64&distro=debian-12&upstream=openssl",
        "pkg:deb/debian/cpp@4%3A12.2.0-3?arch=amd64&distro=debian-12&upstream=gcc-defaults%401.203",
    ]


def test_python_packages_are_those_that_are_installed() -> None:
    found = {component["name"]: component["version"] for component in sbom.python()}
    assert found["jsonschema"] == metadata.version("jsonschema")
    assert not [name for name in found if "_" in name or name != name.lower()]


def test_it_is_valid_and_the_same_each_time(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    status = Path(str(tmp_path)) / "status"
    status.write_text(STATUS)
    monkeypatch.setattr(sbom, "DPKG", status)
    text = sbom.sbom()
    assert text == sbom.sbom()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode()) is None
    document = json.loads(text)
    assert sbom.python_versions(document)["jsonschema"] == metadata.version("jsonschema")
    assert "libc6" not in sbom.python_versions(document)
