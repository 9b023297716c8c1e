"""The list of an image's contents is valid CycloneDX, complete, and the same for the same software."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import uuid
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


def test_a_package_file_is_known_by_its_name_without_folders() -> None:
    assert sbom.file_hashes(json.dumps(PACKAGES).encode()) == {
        "thing-of-mine": "a" * 64, "libstdc++6_12.2.0-14_amd64.deb": "b" * 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "upstream"),
    [
        (None, ""), ("openssl", "&upstream=openssl"), ("gcc (1.2)", "&upstream=gcc%401.2"),
        ("g++ (1:2)", "&upstream=g%2B%2B%401%3A2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("release", "distro"), [(None, ""), ("12", "&distro=debian-12"), ("a/b", "&distro=debian-a%2Fb")]
)
def test_a_package_url_names_package_release_and_source(
    source: str | None, upstream: str, release: str | None, distro: str
) -> None:
    status = "Package: a/b\nStatus: install ok installed\nArchitecture: all\nVersion: 1/2\n"
    status += f"Source: {source}\n" if source else ""
    (found,) = sbom.debian(status, release)
    purl = f"pkg:deb/debian/a%2Fb@1%2F2?arch=all{distro}{upstream}"
    assert found == {"type": "library", "name": "a/b", "version": "1/2", "purl": purl, "bom-ref": purl}


def test_only_packages_that_are_installed_are_read_and_lines_of_a_description_are_no_fields() -> None:
    first, second = sbom.paragraphs(f"\n{STATUS}\n\n")
    assert (first["Package"], second["Package"]) == ("libc6", "libstdc++6")
    assert first["Description"] == "GNU C Library"


@pytest.mark.parametrize(
    ("release", "name", "version"),
    [({}, "linux", "unknown"), ({"ID": "a"}, "a", "unknown"), ({"VERSION_ID": "1"}, "linux", "1")],
)
def test_an_operating_system_without_a_name_is_linux(
    release: dict[str, str], name: str, version: str
) -> None:
    assert sbom.operating_system(release) == {
        "type": "operating-system", "name": name, "version": version, "bom-ref": "operating-system",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("file", "is_library"),
    [
        ("libquad-1a2b.so.0.1", True), ("libx.so", True), ("lib.so", True), ("libx.sobig", False),
        ("xlib.so", False), ("lib.x.so", False), ("libx.a", False),
        ("module.cpython-311-x86_64-linux-gnu.so", False),
    ],
)  # fmt: skip
def test_shared_libraries_are_told_from_extension_modules(file: str, is_library: bool) -> None:
    assert bool(sbom._LIBRARY.fullmatch(file)) == is_library


@pytest.mark.parametrize(
    ("path", "is_sbom"),
    [
        ("a-1.dist-info/sboms/x.json", True), ("a-1.dist-info/sboms/y/x.json", False),
        ("a-1.dist-info/x.json", False), ("b/a-1.dist-info/sboms/x.json", False), ("a/sboms/x.json", False),
    ],
)  # fmt: skip
def test_an_sbom_of_a_wheel_is_in_its_own_folder(path: str, is_sbom: bool) -> None:
    assert bool(sbom._EMBEDDED.fullmatch(path)) == is_sbom


def installed(folder: Path, name: str, fields: str = "", files: dict[str, bytes] | None = None) -> Path:
    """Install a distribution with these files, whose digests are recorded, into a folder of its own.

    The digest of a file *.so.9 is of another kind, and *.so.0 has none.
    """
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    rows = []
    for path, data in (files or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        algorithm = "md5" if path.endswith(".so.9") else "sha256"
        recorded = "" if path.endswith(".so.0") else f"{algorithm}={digest}"
        rows.append(f"{path},{recorded},{len(data)}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{fields}\n")
    (info / "RECORD").write_text("".join(rows))
    return folder


def python_packages(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> list[dict[str, Any]]:
    monkeypatch.setattr(sys, "path", [str(folder) for folder in folders])
    return list(sbom.python())


def test_the_first_copy_of_a_package_on_the_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = installed(tmp_path / "1", "A_b", "License-Expression: MIT")
    second = installed(tmp_path / "2", "a.b", "License: Apache")
    purl = "pkg:pypi/a-b@1.0"
    bare = {"type": "library", "name": "a-b", "version": "1.0", "purl": purl, "bom-ref": purl}
    assert python_packages(monkeypatch, first, second) == [bare | {"licenses": [{"expression": "MIT"}]}]
    assert python_packages(monkeypatch, second, first) == [bare]


def test_a_library_has_the_digest_that_is_recorded_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are sorted, and a part of a wheel's own SBOM keeps only what names it."""
    parts = [
        {"type": "library", "name": "b", "hashes": []},
        {"type": "library", "purl": "pkg:cargo/a@1", "version": "1"},
    ]
    files = {
        "a/libz.so.9": b"z", "a/liby.so.0": b"y", "a/liba.so": b"a", "a/other.py": b"",
        "a-1.0.dist-info/sboms/y.json": b"{}",
        "a-1.0.dist-info/sboms/x.json": json.dumps({"components": parts}).encode(),
    }  # fmt: skip
    (found,) = python_packages(monkeypatch, installed(tmp_path, "a", "", files))
    purl = "pkg:pypi/a@1.0"
    inner = f"{purl}#a-1.0.dist-info/sboms/x.json"
    hashes = [{"alg": "SHA-256", "content": hashlib.sha256(b"a").hexdigest()}]
    assert found["components"] == [
        {"type": "library", "name": "b", "bom-ref": f"{inner}/0"},
        {"type": "library", "version": "1", "purl": "pkg:cargo/a@1", "bom-ref": f"{inner}/1"},
        {"type": "file", "name": "a/liba.so", "bom-ref": f"{purl}#a/liba.so", "hashes": hashes},
        {"type": "file", "name": "a/liby.so.0", "bom-ref": f"{purl}#a/liby.so.0"},
        {"type": "file", "name": "a/libz.so.9", "bom-ref": f"{purl}#a/libz.so.9"},
    ]  # fmt: skip


def test_the_document_names_the_image_and_sorts_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text(STATUS)
    monkeypatch.setattr(sbom, "DPKG", status)
    monkeypatch.setattr(sbom, "PACKAGES", tmp_path / "absent.json")
    monkeypatch.setattr(sbom, "__version__", "9.8")
    monkeypatch.setattr(sbom.platform, "freedesktop_os_release", lambda: {"ID": "debian", "VERSION_ID": "12"})
    monkeypatch.setattr(sys, "path", [str(installed(tmp_path / "site", "a"))])
    document = json.loads(sbom.sbom())
    assert [c.get("purl", "").partition("@")[0] for c in document["components"]] == [
        "", "pkg:deb/debian/libc6", "pkg:deb/debian/libstdc%2B%2B6", "pkg:pypi/a",
    ]  # fmt: skip
    assert "distro=debian-12" in document["components"][1]["purl"]
    assert document["metadata"] == {
        "component": {"type": "container", "name": "bench", "version": "9.8", "bom-ref": "image"}
    }
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert document["$schema"] == "http://cyclonedx.org/schema/bom-1.6.schema.json"
    serial = document["serialNumber"]
    assert serial.startswith("urn:uuid:") and uuid.UUID(serial.removeprefix("urn:uuid:")).version == 5
    (status).write_text(STATUS.replace("2.36", "2.37"))
    assert json.loads(sbom.sbom())["serialNumber"] != serial
    assert sbom.python_versions(document) == {"a": "1.0"}
