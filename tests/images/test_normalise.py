"""A layer and a configuration keep what every build has, and lose the traces of one."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import pytest

from bench.images.normalise import Hashing, configuration, normalise

EPOCH = 1_700_000_000


def entry(name: str, **fields: Any) -> tarfile.TarInfo:
    """Describe an empty file, with other fields if they are given."""
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def after(*entries: tarfile.TarInfo, content: bytes = b"") -> list[tarfile.TarInfo]:
    """Return the members that are left of a layer of these; regular files have this content."""
    before, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=before, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info in entries:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    before.seek(0)
    digest = normalise(before, out, EPOCH)
    assert digest == f"sha256:{hashlib.sha256(out.getvalue()).hexdigest()}"
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        return archive.getmembers()


def test_time_owner_s_name_and_extensions_are_those_of_every_build() -> None:
    (found,) = after(
        entry("a", mtime=5, uname="me", gname="us", uid=7, gid=8, mode=0o750, pax_headers={"comment": "x"})
    )
    assert (found.mtime, found.uname, found.gname, found.pax_headers) == (EPOCH, "", "", {})
    assert (found.uid, found.gid, found.mode) == (7, 8, 0o750)


def test_files_keep_their_contents_and_links_and_folders_have_none() -> None:
    link = entry("usr/link", type=tarfile.SYMTYPE, linkname="a")
    folder, file = entry("usr", type=tarfile.DIRTYPE), entry("usr/a")
    found = after(folder, file, link, content=b"content")
    assert [(one.name, one.type, one.size) for one in found] == [
        ("usr", tarfile.DIRTYPE, 0), ("usr/a", tarfile.REGTYPE, 7), ("usr/link", tarfile.SYMTYPE, 0),
    ]  # fmt: skip


def test_a_name_begins_with_its_folder_and_the_root_itself_is_left_out() -> None:
    folder = {"type": tarfile.DIRTYPE}
    found = after(entry("./", **folder), entry(".", **folder), entry("./usr/", **folder), entry("./usr/a"))
    assert [one.name for one in found] == ["usr", "usr/a"]


def test_a_layer_is_read_as_a_stream() -> None:
    """A layer may come out of another archive, or from a program."""
    before, out = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=before, mode="w") as archive:
        archive.addfile(entry("a"))
    before.seek(0)
    normalise(cast(BinaryIO, SimpleNamespace(read=before.read)), out, EPOCH)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        assert archive.getnames() == ["a"]


def test_a_long_name_is_written_as_pax_does() -> None:
    name = "usr/" + "ü" * 150
    (found,) = after(entry(name))
    assert found.name == name and found.pax_headers == {"path": name}


@pytest.mark.parametrize(
    "name",
    ["dev/x", "proc/x", "sys/x", "run/x", "tmp/x", "root/x", "build/x", "build", "var/log/x", "var/cache/x",
     "var/tmp/x", "var/lib/apt/lists/x", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/machine-id",
     "etc/mtab", "a/__pycache__", "a/__pycache__/b", "a.pyc"],
)  # fmt: skip
def test_a_trace_of_the_build_is_left_out(name: str) -> None:
    assert [one.name for one in after(entry(name), entry("kept"))] == ["kept"]


@pytest.mark.parametrize(
    "name", ["dev", "usr/dev/x", "var/lib/x", "etc/hosts.d", "etc/resolvXconf", "__pycache__", "a.pyc.txt"]
)
def test_another_name_is_kept(name: str) -> None:
    assert [one.name for one in after(entry(name))] == [name]


def test_a_stream_that_hashes_passes_all_bytes_on() -> None:
    out = io.BytesIO()
    stream = Hashing(out)
    assert stream.writable()
    assert (stream.write(b"ab"), stream.write(b"c")) == (2, 1)
    assert out.getvalue() == b"abc"
    assert stream.total.hexdigest() == hashlib.sha256(b"abc").hexdigest()


def test_a_configuration_has_the_dockerfile_s_settings_and_one_line_of_history_for_each_layer() -> None:
    kept = {"User": "1:1", "Env": ["A=b"], "Entrypoint": ["bench"], "Cmd": ["run"], "WorkingDir": "/out"}
    built = {"config": {**kept, "Hostname": "builder", "Labels": {"theirs": "x"}}, "created": "now"}
    found = json.loads(configuration(built, ["sha256:1", "sha256:2"], {"own": "y"}, ["a", "b"], "then"))
    assert found == {
        "architecture": "amd64",
        "os": "linux",
        "created": "then",
        "config": {**kept, "Labels": {"own": "y"}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:1", "sha256:2"]},
        "history": [{"created": "then", "created_by": "a"}, {"created": "then", "created_by": "b"}],
    }


@pytest.mark.parametrize("built", [{}, {"config": None}, {"config": {"User": "", "Cmd": None}}])
def test_settings_that_are_empty_are_left_out(built: dict[str, Any]) -> None:
    assert json.loads(configuration(built, [], {}, [], "then"))["config"] == {"Labels": {}}
