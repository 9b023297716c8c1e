"""The list of an image's contents is valid CycloneDX, complete, and the same for the same software."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from bench.images import sbom
from tests.images.odd_packages import make_wheel

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


PACKAGES = {
    "schema": "bench/packages/v1",
    "files": [
        ["thing_of_mine-1.0-py3-none-any.whl", "a" * 64, 5],
        ["g/gcc-12/libstdc++6_12.2.0-14_amd64.deb", "b" * 64, None],
    ],
}
CRATES = {"bomFormat": "CycloneDX", "components": [
    {"type": "library", "name": "ring", "version": "0.17.8", "purl": "pkg:cargo/ring@0.17.8"}
]}  # fmt: skip


@pytest.fixture
def thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Install a distribution with two libraries and an SBOM of its own; return its component."""
    members = {
        "thing_of_mine.libs/libquad-1a2b.so.0.1": (b"a library", 0o644),
        "thing/libodd.cpython-311-x86_64-linux-gnu.so": (b"an extension module", 0o644),
        "thing_of_mine-1.0.dist-info/sboms/thing.cyclonedx.json": (json.dumps(CRATES).encode(), 0o644),
    }
    wheel = make_wheel(tmp_path, "thing_of_mine", members)
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    files = sbom.file_hashes(json.dumps(PACKAGES).encode())
    return next(component for component in sbom.python(files) if component["name"] == "thing-of-mine")


def test_a_package_has_the_sha256_of_the_file_that_it_was_installed_from(thing: dict[str, Any]) -> None:
    files = sbom.file_hashes(json.dumps(PACKAGES).encode())
    assert thing["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    first, second = sbom.debian(STATUS, "12", files)
    assert "hashes" not in first  # packages.json lacks libc6
    assert second["hashes"] == [{"alg": "SHA-256", "content": "b" * 64}]  # an epoch is in no file's name


def test_libraries_inside_a_wheel_are_listed_with_what_its_own_sbom_says(thing: dict[str, Any]) -> None:
    crate, library = thing["components"]
    assert (library["type"], library["name"]) == ("file", "thing_of_mine.libs/libquad-1a2b.so.0.1")
    assert library["hashes"][0]["content"] == hashlib.sha256(b"a library").hexdigest()
    assert (crate["name"], crate["version"], crate["purl"]) == ("ring", "0.17.8", "pkg:cargo/ring@0.17.8")
    assert crate["bom-ref"].startswith("pkg:pypi/thing-of-mine@1.0#")


def test_the_operating_system_is_a_component_without_a_purl() -> None:
    found = sbom.operating_system({"ID": "debian", "VERSION_ID": "12", "PRETTY_NAME": "Debian"})
    assert (found["type"], found["name"], found["version"]) == ("operating-system", "debian", "12")
    assert "purl" not in found


def test_it_is_valid_and_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, packages = tmp_path / "status", tmp_path / "packages.json"
    status.write_text(STATUS)
    packages.write_text(json.dumps(PACKAGES))
    monkeypatch.setattr(sbom, "DPKG", status)
    monkeypatch.setattr(sbom, "PACKAGES", packages)
    text = sbom.sbom()
    assert text == sbom.sbom()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode()) is None
    document = json.loads(text)
    assert document["components"][0]["type"] == "operating-system"
    assert sbom.python_versions(document)["jsonschema"] == metadata.version("jsonschema")
    assert "libc6" not in sbom.python_versions(document)
