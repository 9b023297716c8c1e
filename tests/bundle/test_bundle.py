"""The form of a bundle: the same files have exactly one sequence of bytes, and no other is read."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.base.errors import BadInput, EnvironmentCannot, VerificationFailed
from bench.bundle import pack as pack_module
from bench.bundle import tar_format as bundle_module
from bench.bundle.pack import StoredMember, pack, write_bundle
from bench.bundle.tar_format import Bundle, MemberRules, open_bundle, payload_fault
from tests.bundles import BLOCK, FILES, KEY, member, packed, predicate

END = bytes(2 * BLOCK)
NAMES = st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,20}(/[a-z0-9][a-z0-9._-]{0,20})?\Z")


def opened(data: bytes) -> Bundle:
    return Bundle(io.BytesIO(data))


def refused(data: bytes, why: str) -> None:
    with pytest.raises(VerificationFailed, match=why):
        opened(data)


def foreign(format: Any = tarfile.USTAR_FORMAT, **fields: Any) -> bytes:
    """Make a member as another writer may write it, otherwise as our writer does."""
    info = tarfile.TarInfo("manifest.json")
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(format) + END


# --- writing -------------------------------------------------------------------------------------------


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    first = packed(tmp_path / "first.tar")
    later = packed(tmp_path / "later.tar", dict(reversed(list(FILES.items()))))
    assert first.read_bytes() == later.read_bytes()


def test_files_on_the_disk_and_bytes_make_the_same_bundle(tmp_path: Path) -> None:
    on_disk: dict[str, bytes | Path] = {}
    for number, (name, data) in enumerate(FILES.items()):
        path = tmp_path / str(number)
        path.write_bytes(data)
        path.chmod(0o600)
        os.utime(path, (number, number))
        on_disk[name] = path
    a, b = packed(tmp_path / "a.tar", on_disk), packed(tmp_path / "b.tar")
    assert a.read_bytes() == b.read_bytes()


@given(st.dictionaries(NAMES, st.binary(max_size=1100), max_size=6))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folders = {name.partition("/")[0] for name in files if "/" in name}
    files = {name: data for name, data in files.items() if name not in folders}
    path = tmp_path_factory.getbasetemp() / "round-trip.tar"
    write_bundle(path, files)
    with open_bundle(path) as bundle:
        assert list(bundle.members) == sorted(files)
        assert {name: bundle.read(name) for name in files} == files


def test_plain_tar_reads_it(tmp_path: Path) -> None:
    path = packed(tmp_path / "b.tar")
    listed = subprocess.run(["tar", "-tvf", path], capture_output=True, text=True, check=True)
    assert listed.stderr == ""
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["-rw-r--r--"] * 7
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == [
        "logs/0123456789abcdef.txt",
        "manifest.json",
        "results.json",
        "samples.jsonl",
        "statement.dsse.json",
        "statement.json",
        "statement.json.sig",
    ]
    subprocess.run(["tar", "-xf", path, "-C", tmp_path], check=True)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES


def test_the_bundle_contains_no_time_owner_or_name_of_this_machine(tmp_path: Path) -> None:
    with tarfile.open(packed(tmp_path / "b.tar")) as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar} == {(0, 0, 0, "", "", 0o644)}


def test_a_bundle_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = packed(tmp_path / "b.tar")
    before = path.read_bytes()
    with pytest.raises(BadInput, match="allowed form"):
        write_bundle(path, {"a": b"", "../b": b""})
    with pytest.raises(EnvironmentCannot, match="cannot be read: No such file"):
        pack(path, {**FILES, "env.json": tmp_path / "absent"}, predicate(), KEY)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_bundle_and_its_folder_are_on_the_disk_and_no_file_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine after the run could otherwise leave no bundle, or one without content."""
    opened, synced, sizes = Path("/proc/self/fd"), [], []
    sync = os.fsync

    def recorded(file: int) -> None:
        synced.append((opened / str(file)).readlink())
        sizes.append(os.fstat(file).st_size)
        sync(file)

    monkeypatch.setattr(pack_module.os, "fsync", recorded)
    before = len(list(opened.iterdir()))
    path = packed(tmp_path / "b.tar")
    assert sizes[0] == path.stat().st_size
    assert [path.parent for path in synced] == [tmp_path, tmp_path.parent]
    assert synced[1] == tmp_path
    assert len(list(opened.iterdir())) == before


def test_members_of_a_bundle_are_copied_into_another(tmp_path: Path) -> None:
    large = {"log": bytes(range(256)) * 1024, "z": b""}
    write_bundle(tmp_path / "a.tar", large)
    with open_bundle(tmp_path / "a.tar") as bundle:
        copied = {name: StoredMember(bundle, name) for name in bundle.members}
        write_bundle(tmp_path / "b.tar", {**copied, "new": b"a file"})
    with open_bundle(tmp_path / "b.tar") as bundle:
        assert {name: bundle.read(name) for name in bundle.members} == large | {"new": b"a file"}


@pytest.mark.parametrize("place", ["no/such/b.tar", "file/b.tar", "folder"])
def test_a_place_where_no_bundle_can_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(EnvironmentCannot) as caught:
        packed(tmp_path / place)
    assert str(caught.value).startswith(f"{tmp_path / place}: the bundle cannot be written: ")


def test_a_file_that_grows_while_it_is_packed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one")
    monkeypatch.setattr(pack_module, "_chunks", lambda source: [b"one and more"])
    with pytest.raises(EnvironmentCannot, match="changed while it was packed"):
        write_bundle(tmp_path / "b.tar", {"log": log})


@pytest.mark.parametrize(
    "name", ["statement.json", "sbom.exe", "logs/a.bin", "logs/a.txt.sh", "logs/a/b.txt", "Results.json"]
)
def test_only_the_files_of_a_bundle_are_packed(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="is not a file of a bundle"):
        packed(tmp_path / "b.tar", {**FILES, name: b""})


@pytest.mark.parametrize("name", ["manifest.json", "results.json", "samples.jsonl"])
def test_a_payload_has_a_manifest_results_and_samples(name: str) -> None:
    assert payload_fault(FILES) is None
    assert payload_fault(FILES.keys() - {name}) == f"{name} is missing"


def test_a_payload_without_samples_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"samples\.jsonl is missing"):
        packed(tmp_path / "b.tar", {n: d for n, d in FILES.items() if n != "samples.jsonl"})


# --- reading: canonical or refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"type": tarfile.LNKTYPE, "linkname": "results.json"}, "holds a hard link"),
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "holds a symbolic link"),
        ({"type": tarfile.CHRTYPE}, "holds a device"),
        ({"type": tarfile.BLKTYPE}, "holds a device"),
        ({"type": tarfile.DIRTYPE}, "holds a directory"),
        ({"type": tarfile.FIFOTYPE}, "holds a named pipe"),
        ({"type": tarfile.CONTTYPE}, "is not as bench writes it"),
        ({"type": tarfile.GNUTYPE_SPARSE}, "holds a sparse file"),
        ({"type": tarfile.XHDTYPE}, "holds a pax extension"),
        ({"type": tarfile.XGLTYPE}, "holds a pax extension"),
        ({"type": tarfile.GNUTYPE_LONGLINK}, "holds a GNU extension"),
        ({"type": tarfile.GNUTYPE_LONGNAME}, "holds a GNU extension"),
        ({"type": tarfile.AREGTYPE}, "is not as bench writes it"),
        ({"mode": 0o755}, "is not as bench writes it"),
        ({"uid": 1000}, "is not as bench writes it"),
        ({"uname": "root"}, "is not as bench writes it"),
        ({"mtime": 1}, "is not as bench writes it"),
        ({"name": "/etc/passwd"}, "allowed form"),
        ({"name": "../manifest.json"}, "allowed form"),
        ({"name": "./manifest.json"}, "allowed form"),
        ({"name": "logs/../manifest.json"}, "allowed form"),
        ({"name": "logs//a.txt"}, "allowed form"),
        ({"name": "a/b/c"}, "allowed form"),
        ({"name": "c:\\a"}, "allowed form"),
        ({"name": "Manifest.json"}, "allowed form"),
        ({"name": "manifest.json\n"}, "allowed form"),
        ({"name": "-rf"}, "allowed form"),
        ({"name": ""}, "allowed form"),
    ],
)
def test_a_member_that_is_not_a_plain_file_of_ours_is_refused(fields: dict[str, Any], why: str) -> None:
    refused(foreign(**fields), why)


def test_the_same_member_by_another_writer_is_accepted_if_it_is_the_same_bytes() -> None:
    """This shows that the attacks in this file fail only because of the bytes that they change."""
    assert list(opened(foreign()).members) == ["manifest.json"]


def test_pax_and_gnu_extensions_are_refused() -> None:
    refused(foreign(tarfile.PAX_FORMAT, pax_headers={"path": "../evil"}), "holds a pax extension")
    refused(foreign(tarfile.GNU_FORMAT, name="logs/" + "a" * 120), "holds a GNU extension")
    refused(foreign(tarfile.GNU_FORMAT), "is not as bench writes it")


@pytest.mark.parametrize("names", [("caf\u00e9.json", "cafe\u0301.json"), ("a.json", "A.json")])
def test_names_that_collide_after_case_or_unicode_folding_are_invalid(names: tuple[str, str]) -> None:
    for first, second in (names, names[::-1]):
        refused(foreign(name=first)[:BLOCK] + foreign(name=second), "allowed form")


def test_members_are_sorted_and_unique(tmp_path: Path) -> None:
    a, b = (member(name, name.encode(), tmp_path) for name in ("a", "b"))
    assert list(opened(a + b + END).members) == ["a", "b"]
    refused(b + a + END, "a stands after b")
    refused(a + a + END, "a stands twice")


def test_a_name_is_a_file_or_a_directory(tmp_path: Path) -> None:
    parts = [member(name, b"", tmp_path) for name in ("logs", "logs-a", "logs/a")]
    refused(b"".join(parts) + END, "lies in a directory that is a file too")
    with pytest.raises(BadInput, match="lies in a directory"):
        write_bundle(tmp_path / "b.tar", {"logs": b"", "logs-a": b"", "logs/a": b""})


def test_nothing_follows_the_end_and_nothing_is_missing(tmp_path: Path) -> None:
    a = member("a", b"text", tmp_path)
    opened(a + END)
    refused(a + END + b"\0", "follows the end")
    refused(a + END + END, "follows the end")  # tar pads to 10,240 bytes
    refused(a + END + a + END, "follows the end")
    refused(a + bytes(BLOCK), "ends too early")
    refused(a, "ends too early")
    refused(a + bytes(BLOCK) + a + END, "follows the end")
    refused(a[:-1] + b"x" + END, "padding that is not zero")


@pytest.mark.parametrize("missing", [1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK])
def test_a_file_that_is_cut_short_names_the_member_that_does_not_fit(tmp_path: Path, missing: int) -> None:
    """Behind each member, there is room for the two blocks that end a bundle."""
    whole = member("a", b"text", tmp_path) + END
    with pytest.raises(VerificationFailed) as caught:
        opened(whole[:-missing])
    assert (caught.value.where, caught.value.message) == ("a", "the file ends too early: it is truncated")


def test_a_size_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    most = 4 * 2**20
    refused(foreign(size=most + 1), f"at most {most}")
    refused(foreign(size=most), "it is truncated")
    refused(foreign(size=8**11 - 1), "at most")
    refused(foreign(tarfile.GNU_FORMAT, size=2**60), "is not as bench writes it")  # GNU's base-256 numbers


KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("manifest.json", 4 * MIB),
        ("results.json", 8 * MIB),
        ("samples.jsonl", 64 * MIB),
        ("telemetry.jsonl", 64 * MIB),
        ("logs/a.txt", 64 * MIB),
        ("statement.json", 4 * MIB),
        ("statement.dsse.json", 6 * MIB),
        ("statement.json.sig", 4 * KIB),
        ("run-cert.pub", 4 * KIB),
        ("receipt.json", 4 * KIB),
        ("receipt.json.sig", 4 * KIB),
    ],
)
def test_each_file_has_a_largest_size(name: str, most: int) -> None:
    """A verifier reads the small ones in one piece."""
    assert MemberRules().fault(name, most) is None
    assert MemberRules().fault(name, most + 1) == f"{name} has {most + 1} bytes; it has at most {most}"


def test_a_bundle_has_at_most_a_gibibyte() -> None:
    rules = MemberRules()
    assert [rules.fault(f"logs/{i:02}.txt", 64 * MIB) for i in range(16)] == [None] * 16
    assert rules.fault("logs/empty.txt", 0) is None
    assert rules.fault("logs/one.txt", 1) == f"the members have more than {1024 * MIB} bytes in all"


def test_a_bundle_has_at_most_ten_thousand_files() -> None:
    rules = MemberRules()
    assert {rules.fault(f"logs/{i:05}.txt", 0) for i in range(10_000)} == {None}
    assert rules.fault("logs/one.txt", 0) == "there are more than 10000 members"


def test_a_name_has_at_most_a_hundred_bytes() -> None:
    assert MemberRules().fault("a" * 100, 0) is None
    assert MemberRules().fault("a" * 101, 0) == f"the name '{'a' * 101}' is not of the allowed form"


def test_a_name_of_a_hundred_bytes_fills_its_field_and_is_read(tmp_path: Path) -> None:
    """Nothing in the header separates such a name from the field behind it."""
    name = "logs/" + "a" * 91 + ".txt"
    write_bundle(tmp_path / "b.tar", {name: b"said"})
    with open_bundle(tmp_path / "b.tar") as bundle:
        assert bundle.read(name) == b"said"


def test_the_longest_lines_and_the_most_of_them() -> None:
    assert (bundle_module.MAX_LINE_BYTES, bundle_module.MAX_LINES) == (8 * MIB, 100_000)


def test_the_caps_hold_for_writer_and_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a": bytes(600), "b": bytes(600), "c": b""}
    write_bundle(tmp_path / "b.tar", files)
    whole = (tmp_path / "b.tar").read_bytes()
    for cap, value, why in (
        ("MAX_TOTAL_BYTES", 1199, "more than 1199 bytes in all"),
        ("MAX_MEMBERS", 2, "more than 2 members"),
        ("MAX_MEMBER_BYTES", 599, "a has 600 bytes; it has at most 599"),
    ):
        with monkeypatch.context() as lower:
            lower.setattr(bundle_module, cap, value)
            refused(whole, why)
            with pytest.raises(BadInput, match=why):
                write_bundle(tmp_path / "b.tar", files)


def test_a_member_is_read_whole_or_is_missing(tmp_path: Path) -> None:
    bundle = opened(member("a", b"12345", tmp_path) + END)
    assert bundle.read("a") == b"12345"
    with pytest.raises(VerificationFailed, match="b: is missing in the bundle"):
        bundle.read("b")


def test_a_large_member_is_hashed_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    write_bundle(path, {"a": bytes(16 * 2**20)})
    tracemalloc.start()
    with open_bundle(path) as bundle:
        bundle.digest("a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends too early"),
        (b"\x1f\x8b\x08" + bytes(1000), "is compressed by gzip;"),
        (b"\x28\xb5\x2f\xfd" + bytes(1000), "is compressed by zstd;"),
        (b"\xfd7zXZ" + bytes(1000), "is compressed by xz;"),
        (b"BZh9" + bytes(1000), "is compressed by bzip2;"),
        (b"PK\x03\x04" + bytes(1000), "is compressed by zip;"),
        (b"\x7fELF" + bytes(2000), "is not a bundle"),
        (b"\xff" * 5000, "is not a bundle"),
    ],
)
def test_a_file_that_is_not_a_tar_is_refused(data: bytes, why: str) -> None:
    refused(data, why)


@pytest.mark.parametrize(
    ("where", "named"), [(None, "{path}"), ("a", "{path}: a"), ("{path}: a", "{path}: a")]
)
def test_a_refusal_while_a_bundle_is_open_names_its_path_once(
    tmp_path: Path, where: str | None, named: str
) -> None:
    path = packed(tmp_path / "b.tar")
    with pytest.raises(VerificationFailed) as caught, open_bundle(path):
        raise VerificationFailed("is wrong", where=where and where.format(path=path))
    assert (caught.value.message, caught.value.where) == ("is wrong", named.format(path=path))


UNREADABLE = Path("/proc/self/mem")  # a regular file that opens, and whose first page cannot be read


def test_a_disk_that_fails_while_a_bundle_is_read_is_no_verdict(tmp_path: Path) -> None:
    path = packed(tmp_path / "b.tar")
    with pytest.raises(EnvironmentCannot) as caught, open_bundle(path):
        raise OSError(5, "Input/output error")
    assert (caught.value.message, caught.value.where) == ("cannot be read: Input/output error", str(path))
    with pytest.raises(EnvironmentCannot, match="cannot be read: ") as caught, open_bundle(UNREADABLE):
        pass
    assert caught.value.where == str(UNREADABLE)
