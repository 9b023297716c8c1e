"""Known vulnerabilities of an image's packages: OSV's records, the versions that they affect, and VEX."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.cli import image_trust
from bench.cli.main import main
from bench.images import osv
from bench.images.osv import Package, Vulnerability, affects
from bench.images.vex import read_vex
from bench.images.vulnerabilities import FoundVulnerability, packages_of, scan

TORCH, OPENSSL = "pkg:pypi/torch@2.10.0%2Bcu128", (
    "pkg:deb/debian/libssl3@3.0.15-1~deb12u1?arch=amd64&distro=debian-12&upstream=openssl"
)  # fmt: skip
CPP = "pkg:deb/debian/cpp@4%3A12.2.0-3?arch=amd64&distro=debian-12&upstream=gcc-defaults%401.203"


def component(purl: str) -> dict[str, str]:
    return {"type": "library", "name": "x", "version": "1", "purl": purl}


def sbom(path: Path, *purls: str) -> Path:
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [component(p) for p in purls]}
    path.write_text(json.dumps(document))
    return path


def events(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"type": "ECOSYSTEM", "events": [{kind: text} for kind, text in pairs]}]


def record(
    name: str = "GHSA-1", ecosystem: str = "PyPI", package: str = "torch", **more: Any
) -> dict[str, Any]:
    about = {
        "package": {"ecosystem": ecosystem, "name": package},
        "ranges": more.pop("ranges", events(("introduced", "0"))),
    }
    about |= {"versions": more.pop("versions")} if "versions" in more else {}
    fields = {"id": name, "modified": "2026-01-01T00:00:00Z", "summary": "a remote attacker reads memory"}
    return {**fields, "affected": [about], **more}


def feed(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text(json.dumps(list(records)))
    return path


def found(
    tmp_path: Path, *records: dict[str, Any], purls: Sequence[str] = (TORCH, OPENSSL)
) -> list[FoundVulnerability]:
    packages = packages_of(sbom(tmp_path / "sbom.json", *purls).read_bytes(), "sbom.json")
    return list(scan(packages, feed(tmp_path / "feed.json", *records)))


# --- packages --------------------------------------------------------------------------------------------


def test_packages_are_named_as_the_feed_names_them() -> None:
    purls = (
        TORCH,
        OPENSSL,
        CPP,
        "pkg:pypi/Foo_Bar.baz@1",
        "pkg:deb/debian/bash@5.2?arch=amd64",
        "pkg:oci/x@1",
        "pkg:deb/ubuntu/bash@5",
        "pkg:oci/debian/x@1",
    )
    document = json.dumps({"bomFormat": "CycloneDX", "components": [component(purl) for purl in purls]})
    assert list(packages_of(document.encode(), "x").values()) == [
        Package("PyPI", "torch", "2.10.0+cu128"),
        Package("Debian:12", "openssl", "3.0.15-1~deb12u1"),
        Package("Debian:12", "gcc-defaults", "1.203"),
        Package("PyPI", "foo-bar-baz", "1"),
        Package("Debian", "bash", "5.2"),
    ]


def test_what_a_wheel_says_that_it_contains_counts_as_packages() -> None:
    """A library that is only a file has no purl, and the operating system none; neither can be looked up."""
    inside = [
        component("pkg:cargo/ring@0.17.8?download_url=x"),
        component("pkg:pypi/pip@26.0.1"),
        component("pkg:pypi/filelock"),  # without a version
        {"type": "file", "name": "thing.libs/libz.so.1"},
    ]
    listed = [{"type": "operating-system", "name": "debian"}, component(TORCH) | {"components": inside}]
    document = json.dumps({"bomFormat": "CycloneDX", "components": listed})
    assert list(packages_of(document.encode(), "x").values()) == [
        Package("PyPI", "torch", "2.10.0+cu128"),
        Package("crates.io", "ring", "0.17.8"),
        Package("PyPI", "pip", "26.0.1"),
    ]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("{}", "it is not CycloneDX"),
        ("[]", "it is not CycloneDX"),
        ("{", "not JSON"),
        ('{"bomFormat": "CycloneDX"}', "components"),
        ('{"bomFormat": "CycloneDX", "components": [{"name": "a"}]}', "purl"),
        ('{"bomFormat": "CycloneDX", "components": []}', "lists no package of Debian or PyPI"),
    ],
)
def test_a_list_that_cannot_be_scanned_is_refused(document: str, why: str) -> None:
    """A scan of nothing would find nothing."""
    with pytest.raises(BadInput, match=why):
        packages_of(document.encode(), "x")


# --- which versions are affected --------------------------------------------------------------------------


def is_affected(version: str, entry: dict[str, Any], ecosystem: str = "PyPI") -> bool:
    about = {"package": {"ecosystem": ecosystem, "name": "x"}, **entry}
    vulnerability = Vulnerability("V", (), "", "", (about,))
    return affects(vulnerability, Package(ecosystem, "x", version)) is not None


def test_semantic_versions_have_the_order_of_their_specification() -> None:
    ordered = ["1.0.0-0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2",
               "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0"]  # fmt: skip
    shuffled = random.Random(0).sample(ordered, len(ordered))
    assert sorted(shuffled, key=osv.semantic_version) == ordered
    assert osv.semantic_version("1.0.0+build.5") == osv.semantic_version("1.0.0")
    for text in ("1.0", "v1.0.0", "1.0.0-", "\u0661.0.0", ""):
        with pytest.raises(ValueError, match="is not a semantic version"):
            osv.semantic_version(text)


@pytest.mark.parametrize(
    ("version", "affected"),
    [("0.17.11", True), ("0.17.12", False), ("0.17.12-alpha", True), ("0.9.0", False)],
)
def test_a_crate_is_affected_between_two_versions(version: str, affected: bool) -> None:
    span = [{"type": "SEMVER", "events": [{"introduced": "0.10.0"}, {"fixed": "0.17.12"}]}]
    assert is_affected(version, {"ranges": span}, "crates.io") == affected


@pytest.mark.parametrize(
    ("ranges", "inside", "outside"),
    [
        (events(("introduced", "0"), ("fixed", "2.6.0")), ["0.1", "2.5.1", "2.6.0rc1"],
         ["2.6.0", "2.6.0+cu124", "3"]),
        (events(("introduced", "2.0"), ("fixed", "2.6")), ["2.0", "2.5.9"], ["1.9", "2.6", "2.0rc1"]),
        (events(("introduced", "0"), ("last_affected", "2.6")), ["2.6", "2.6+cu124", "2.6.0"],
         ["2.6.1", "2.7"]),
        (events(("introduced", "2"), ("fixed", "1.5"), ("introduced", "1"), ("fixed", "2.5")), ["1.2", "2.3"],
         ["0.9", "1.5", "1.9", "2.5"]),
        (events(("introduced", "0")), ["0", "99"], []),
        (events(("introduced", "0"), ("limit", "2")), ["1.9"], ["2", "3"]),
        (events(("introduced", "0"), ("limit", "*")), ["1.9", "3"], []),
        ([{"type": "GIT", "repo": "x", "events": [{"introduced": "0"}]}], [], ["1"]),
        ([], [], ["1"]),
    ],
)  # fmt: skip
def test_events_are_walked_in_the_order_of_versions(
    ranges: Any, inside: list[str], outside: list[str]
) -> None:
    assert [is_affected(version, {"ranges": ranges}) for version in inside] == [True] * len(inside)
    assert [is_affected(version, {"ranges": ranges}) for version in outside] == [False] * len(outside)


def test_listed_versions_are_affected_however_they_are_spelt() -> None:
    entry = {"versions": ["1.0", "2.0rc1", "no version"]}
    for version, expected in (("1.0.0", True), ("1.0+cpu", True), ("2.0RC1", True), ("2.0", False)):
        assert is_affected(version, entry) == expected


def test_debian_versions_are_ordered_by_dpkg_s_rules() -> None:
    entry = {"ranges": events(("introduced", "0"), ("fixed", "3.0.15-1~deb12u2"))}
    assert is_affected("3.0.15-1~deb12u1", entry, "Debian:12")
    assert not is_affected("3.0.15-1~deb12u2", entry, "Debian:12")
    assert not is_affected("3.0.15-1", entry, "Debian:12")


def test_a_version_that_cannot_be_compared_counts_as_affected(tmp_path: Path) -> None:
    ranges = events(("introduced", "0"), ("fixed", "2.0"))
    (one,) = found(tmp_path, record(ranges=ranges), purls=["pkg:pypi/torch@2.0-built-here-1"])
    assert one.undecided == "Invalid version: '2.0-built-here-1'"
    (one,) = found(tmp_path, record(ranges=events(("introduced", "0"), ("fixed", "soon"))))
    assert one.undecided == "Invalid version: 'soon'"


@pytest.mark.parametrize(
    ("ecosystem", "package", "hits"),
    [
        ("Debian:12", "openssl", 1), ("Debian", "openssl", 1), ("Debian:11", "openssl", 0),
        ("Debian:12", "libssl3", 0), ("PyPI", "openssl", 0), ("PyPI", "Torch", 1), ("npm", "torch", 0),
    ],
)  # fmt: skip
def test_a_record_is_about_a_package_of_its_own_ecosystem_and_release(
    tmp_path: Path, ecosystem: str, package: str, hits: int
) -> None:
    assert len(found(tmp_path, record(ecosystem=ecosystem, package=package))) == hits


def test_of_an_image_that_does_not_name_its_release_every_record_counts(tmp_path: Path) -> None:
    bare = "pkg:deb/debian/openssl@3.0.15-1?arch=amd64"
    assert len(found(tmp_path, record(ecosystem="Debian:11", package="openssl"), purls=[bare])) == 1


def test_a_finding_has_all_names_the_severity_and_what_mends_it(tmp_path: Path) -> None:
    told = record(
        "DEBIAN-CVE-2026-1", "Debian:12", "openssl", upstream=["CVE-2026-1"], aliases=["GHSA-2"],
        ranges=events(("introduced", "0"), ("fixed", "3.0.16-1")),
        severity=[{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N"}], database_specific={"severity": "HIGH"},
    )  # fmt: skip
    (one,) = found(tmp_path, told)
    assert (one.id, one.aliases, one.severity) == ("DEBIAN-CVE-2026-1", ("GHSA-2", "CVE-2026-1"), "HIGH")
    assert (one.name, one.version, one.purl, one.fixed) == (
        "openssl",
        "3.0.15-1~deb12u1",
        OPENSSL,
        ("3.0.16-1",),
    )


def test_a_withdrawn_record_does_not_count(tmp_path: Path) -> None:
    assert found(tmp_path, record(withdrawn="2026-02-01T00:00:00Z")) == []


# --- the feed --------------------------------------------------------------------------------------------


def test_a_feed_is_a_file_a_folder_or_an_archive(tmp_path: Path) -> None:
    packages = {TORCH: Package("PyPI", "torch", "2.10.0+cu128")}
    one, two = record("A"), record("B")
    folder = tmp_path / "feed"
    (folder / "PyPI").mkdir(parents=True)
    (folder / "PyPI" / "A.json").write_text(json.dumps(one))
    (folder / "README.txt").write_text("not a record")
    (folder / "more.jsonl").write_text(f"{json.dumps(two)}\n\n{json.dumps(record('C'))}\n")
    assert sorted(v.id for v in scan(packages, folder)) == ["A", "B", "C"]
    assert [v.id for v in scan(packages, folder / "more.jsonl")] == ["B", "C"]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("A.json", json.dumps(one))
        archive.writestr("B.json", json.dumps(two))
    assert [v.id for v in scan(packages, tmp_path / "all.zip")] == ["A", "B"]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("absent.json", None, "cannot be read: No such file"),
        ("a.json", b"{", "is not an OSV record"),
        ("a.json", b'{"name": "x"}', "it has no id"),
        ("a.json", b"[]", "holds no OSV record"),
        ("a.json", b'{"id": "A", "affected": 3}', "is a malformed OSV record"),
        ("a.json", b'{"id": "A", "affected": [{"package": {"name": "torch"}}]}', "is a malformed OSV record"),
        ("a.json", json.dumps(record("A", ranges=[3])).encode(), "A is a malformed OSV record"),
        ("a.zip", b"no archive", "cannot be read: File is not a zip file"),
    ],
)  # fmt: skip
def test_a_feed_that_cannot_be_read_whole_is_refused(
    tmp_path: Path, name: str, data: bytes | None, why: str
) -> None:
    """Half of a feed would look like a clean image."""
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput, match=why):
        list(scan({TORCH: Package("PyPI", "torch", "2")}, tmp_path / name))


def test_a_feed_has_at_most_two_million_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert osv.MAX_RECORDS == 2_000_000
    monkeypatch.setattr(osv, "MAX_RECORDS", 2)
    assert len(found(tmp_path, record("A"), record("B"))) == 2
    with pytest.raises(BadInput, match="has more than 2 records"):
        found(tmp_path, record("A"), record("B"), record("C"))


def test_a_document_of_a_feed_has_at_most_32_mebibytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert osv.MAX_RECORD_BYTES == 32 * 2**20
    size = len(json.dumps([record()]))
    monkeypatch.setattr(osv, "MAX_RECORD_BYTES", size)
    assert len(found(tmp_path, record())) == 1
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("A.json", json.dumps([record(details="x" * 10**6)]))
    for path in (tmp_path / "all.zip", feed(tmp_path / "more.json", record("GHSA-11"))):
        with pytest.raises(BadInput, match=f"has more than {size:,} bytes"):
            list(scan({TORCH: Package("PyPI", "torch", "2")}, path))


def test_a_record_may_have_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "feed.json"
    path.write_text(json.dumps(record(), indent=2))
    assert [v.id for v in scan({TORCH: Package("PyPI", "torch", "2")}, path)] == ["GHSA-1"]


def test_a_record_may_hold_numbers_that_bench_itself_never_writes(tmp_path: Path) -> None:
    assert len(found(tmp_path, record(database_specific={"hash": 2**80}))) == 1


# --- VEX -------------------------------------------------------------------------------------------------

IMAGE = "sha256:" + "ab" * 32


def vex(path: Path, *statements: dict[str, Any], **document: Any) -> Path:
    fields = {"@context": "https://openvex.dev/ns/v0.2.0", "@id": "urn:x", "author": "lab", "version": 1}
    path.write_text(
        json.dumps(
            {**fields, "timestamp": "2026-01-01T00:00:00Z", "statements": list(statements), **document}
        )
    )
    return path


def says(
    status: str = "not_affected", product: Any = "pkg:pypi/torch@2.10.0+cu128", **more: Any
) -> dict[str, Any]:
    products = [product if isinstance(product, dict) else {"@id": product}]
    reason = {"justification": "vulnerable_code_not_in_execute_path"} if status == "not_affected" else {}
    return {"vulnerability": {"name": "CVE-1"}, "products": products, "status": status, **reason, **more}


def dismissed(tmp_path: Path, *statements: dict[str, Any], image: str | None = IMAGE) -> str | None:
    packages = packages_of(sbom(tmp_path / "sbom.json", TORCH).read_bytes(), "sbom.json")
    known = feed(tmp_path / "feed.json", record("GHSA-1", aliases=["CVE-1"]))
    (one,) = scan(packages, known, read_vex(vex(tmp_path / "a.vex.json", *statements), image))
    return one.dismissed


@pytest.mark.parametrize(
    "statement",
    [
        says(),
        says("fixed"),
        says(product="pkg:pypi/torch"),  # of every version
        says(product=TORCH),
        says(product={"@id": f"pkg:oci/bench@{IMAGE}", "subcomponents": [{"@id": TORCH}]}),
        says(
            product={"@id": f"urn:image:{IMAGE.removeprefix('sha256:')}", "subcomponents": [{"@id": TORCH}]}
        ),
        says(vulnerability={"name": "X-1", "aliases": ["GHSA-1"]}),
        *(
            says(justification=why)
            for why in (
                "component_not_present",
                "vulnerable_code_not_present",
                "vulnerable_code_cannot_be_controlled_by_adversary",
                "inline_mitigations_already_exist",
            )
        ),
        says(justification=None, impact_statement="it is never called"),
    ],
)
def test_what_does_not_apply_is_dismissed_with_its_reason(tmp_path: Path, statement: dict[str, Any]) -> None:
    why = dismissed(tmp_path, statement)
    assert why is not None
    assert why.endswith("(a.vex.json, lab)")


@pytest.mark.parametrize(
    "statement",
    [
        says("affected"),
        says("under_investigation"),
        says(product="pkg:pypi/torch@2.9.0"),
        says(product="pkg:pypi/torchvision"),
        says(product={"@id": "pkg:oci/bench@sha256:" + "cd" * 32, "subcomponents": [{"@id": TORCH}]}),
        says(vulnerability={"name": "CVE-2"}),
    ],
)
def test_what_a_statement_is_not_about_still_applies(tmp_path: Path, statement: dict[str, Any]) -> None:
    assert dismissed(tmp_path, statement) is None


def test_the_last_statement_decides(tmp_path: Path) -> None:
    later = {"timestamp": "2026-03-01T00:00:00Z"}
    assert dismissed(tmp_path, says("affected", **later), says()) is None
    assert dismissed(tmp_path, says(**later), says("affected")) is not None
    updated = {"timestamp": "2025-01-01T00:00:00Z", "last_updated": "2026-04-01T00:00:00Z"}
    assert dismissed(tmp_path, says("affected", **updated), says(**later)) is None


def test_a_part_of_an_image_says_nothing_where_only_a_list_is_scanned(tmp_path: Path) -> None:
    part = says(product={"@id": f"pkg:oci/bench@{IMAGE}", "subcomponents": [{"@id": TORCH}]})
    assert dismissed(tmp_path, part, image=None) is None


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (says(justification=None), "not_affected without justification or impact_statement"),
        (says(justification="because"), "has the justification 'because'"),
        (says("harmless"), "has the status 'harmless'"),
        ({"status": "fixed"}, "vulnerability"),
        (says(product={"name": "x"}), "@id"),
        ({"vulnerability": {"name": "CVE-1"}, "status": "fixed"}, "products"),
    ],
)
def test_a_statement_that_silences_without_saying_why_is_refused(
    tmp_path: Path, statement: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        read_vex(vex(tmp_path / "a.json", statement), None)


@pytest.mark.parametrize(
    "wrong",
    [{"@context": "x"}, {"statements": 3}, {"statements": [3]}, {"timestamp": None, "statements": [{}]}],
)
def test_a_document_that_is_no_openvex_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="is not an OpenVEX document") as caught:
        read_vex(vex(tmp_path / "a.json", **wrong), None)
    if "@context" in wrong:
        assert caught.value.message.endswith('"@context" is not https://openvex.dev/ns/v0.2.0')


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_tells_what_applies_first_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = sbom(tmp_path / "sbom.json", TORCH, OPENSSL)
    evil = record("Z-1", summary="x\x1b[2J\nvalid", aliases=["CVE-9"])
    known = feed(tmp_path / "feed.json", record("GHSA-1", aliases=["CVE-1"]), evil)
    command = [
        "image",
        "scan",
        str(contents),
        "--feed",
        str(known),
        "--vex",
        str(vex(tmp_path / "v.json", says())),
    ]
    assert main(command) == 1
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert first.startswith("torch 2.10.0+cu128   Z-1 CVE-9   no severity   no fixed version   x\\x1b[2J")
    assert "GHSA-1 CVE-1   does not apply: vulnerable_code_not_in_execute_path (v.json, lab)" in second
    assert captured.err == "packages: 2, vulnerabilities: 1, not applicable: 1\n"
    assert main([*command, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in shown["vulnerabilities"]] == ["Z-1", "GHSA-1"]


def test_a_clean_image_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = sbom(tmp_path / "sbom.json", TORCH)
    known = feed(tmp_path / "feed.json", record(package="numpy"))
    assert main(["image", "scan", str(contents), "--feed", str(known)]) == 0
    assert capsys.readouterr() == ("", "packages: 1, vulnerabilities: 0\n")


def test_a_list_has_at_most_64_mebibytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert image_trust.MAX_SBOM_BYTES == 64 * 2**20
    contents, known = sbom(tmp_path / "sbom.json", TORCH), feed(tmp_path / "feed.json", record(package="x"))
    command = ["image", "scan", str(contents), "--feed", str(known)]
    for most, code in ((contents.stat().st_size, 0), (contents.stat().st_size - 1, 2)):
        monkeypatch.setattr(image_trust, "MAX_SBOM_BYTES", most)
        assert main(command) == code
    assert f"has more than {most:,} bytes" in capsys.readouterr().err
