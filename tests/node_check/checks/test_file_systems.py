"""File systems that are measured for real: this machine's, a tmpfs, a full and a read-only one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import from_json, to_json
from bench.node_check.checks import CheckBudget, file_systems
from bench.node_check.checks.file_systems import (
    KINDS,
    MeasuredFileSystem,
    MovedBytes,
    judge,
    measure,
    transfer_of,
)
from bench.node_check.judging.evidence import Evidence, Figure, Reading, figures_of
from bench.node_check.judging.finding import Finding
from bench.node_check.judging.standards import Expectations, FileSystemRates, Standards

SECONDS = 0.05


def budget(*paths: Path) -> CheckBudget:
    return CheckBudget("quick", 0.0, SECONDS, 0.0, "/nowhere", True, tuple(map(str, paths)))


def measured(*paths: Path) -> tuple[tuple[MeasuredFileSystem, ...], Any]:
    data = measure(None, budget(*paths))  # type: ignore[arg-type]
    return from_json(tuple[MeasuredFileSystem, ...], data["file_systems"]), data


def judged(data: Any, expect: Expectations | None = None) -> list[Finding]:
    evidence = Evidence("quick", "cpu", (), {"file-systems": Reading("file-systems", data)})
    return list(judge(evidence, Standards(None, expect or Expectations())))


@pytest.fixture
def no_fio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 40 MiB."""
    if os.geteuid() != 0:
        raise AssertionError("needs root: it mounts a file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_fio_measures_where_it_is_installed(tmp_path: Path) -> None:
    assert shutil.which("fio"), "apt-get install fio"
    (one,), data = measured(tmp_path)
    assert (one.tool.startswith("fio-3"), one.why, one.why_not_fio) == (True, "", "")
    assert [figure["name"] for figure in data["figures"]] == [f"disk {tmp_path} {kind}" for kind in KINDS]
    assert one.file_bytes == 16 << 20 and (one.late_seconds or 0) > 0
    assert list(tmp_path.iterdir()) == []
    assert len(figures_of(Reading("file-systems", data))) == 3


@pytest.mark.usefixtures("no_fio")
def test_without_fio_python_measures_and_says_so(tmp_path: Path) -> None:
    (one,), data = measured(tmp_path)
    assert (one.tool, one.why_not_fio, one.why) == ("Python", "fio is not installed", "")
    assert [figure["kind"] for figure in data["figures"]] == [f"disk {kind}" for kind in KINDS]
    assert list(tmp_path.iterdir()) == []
    assert all(", by Python on " in finding.found for finding in judged(data))


OLD = {
    "fio version": "fio-2.2.10",
    "jobs": [{"error": 0, "write": {"io_bytes": 1024, "runtime": 5, "clat": {}}}],
}


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"echo '{json.dumps(OLD)}'", "fio-2.2.10 answers in another form than fio 3"),
        ("echo warning; echo '{\"jobs\": []}'", "fio answers in another form than fio 3"),
        ("echo no JSON", "fio printed no JSON"),
        (
            "echo 'engine libaio not loadable' >&2; exit 1",
            "fio ended with exit code 1: engine libaio not loadable",
        ),
        ("kill -9 $$", "fio ended with exit code -9: no message"),
    ],
)
def test_another_fio_is_told_and_python_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fio").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin/fio").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (one,), data = measured(tmp_path)
    assert (one.tool, one.why_not_fio, len(data["figures"])) == ("Python", why, 3)


@pytest.mark.parametrize(
    ("kind", "transfer"),
    [
        ("write", MovedBytes("write", 8_000_000, 4.0)),
        ("read", MovedBytes("read", 4_096_000, 2.5)),
        ("random read", MovedBytes("random read", 4_096_000, 2.5, late_seconds=0.003)),
    ],
)
def test_fios_milliseconds_and_nanoseconds_are_seconds(kind: str, transfer: MovedBytes) -> None:
    late = {"percentile": {"50.000000": 1_000, "99.000000": 3_000_000}}
    read = {"io_bytes": 4_096_000, "runtime": 2_500, "clat_ns": late}
    write = {"io_bytes": 8_000_000, "runtime": 4_000, "clat_ns": late}
    document = {"fio version": "fio-3.33", "jobs": [{"error": 0, "read": read, "write": write}]}
    assert transfer_of(document, kind) == transfer
    document["jobs"][0]["read"] = read | {"clat_ns": {}}  # type: ignore[index]
    assert transfer_of(document, kind).late_seconds is None


def test_an_error_that_fio_reports_in_its_json_is_no_figure() -> None:
    with pytest.raises(Exception, match="error 28"):
        transfer_of({"jobs": [{"error": 28, "write": {}}]}, "write")


def test_a_file_takes_a_quarter_of_the_free_space_at_most(small: Path) -> None:
    (one,), data = measured(small)
    assert one.file_bytes == 10 << 20
    assert max(figure["work"] for figure in data["figures"] if "random" not in figure["kind"]) <= 10 << 20
    (small / "taken").write_bytes(b"x" * (20 << 20))
    (one,), data = measured(small)
    assert (one.why, data["figures"]) == (
        "20 MiB are free: a quarter of them is too little to measure with",
        [],
    )
    assert [path.name for path in small.iterdir()] == ["taken"]


@pytest.mark.usefixtures("no_fio")
@pytest.mark.parametrize(
    ("depth", "tiny", "free_mib", "file_mib"),
    [
        ("quick", False, 2**20, 1024), ("standard", False, 2**20, 4096), ("soak", False, 2**20, 8192),
        ("soak", True, 2**20, 16), ("quick", False, 101, 25), ("quick", False, 32, 8),
        ("quick", False, 31, None),
    ],
)  # fmt: skip
def test_a_file_has_a_size_for_each_depth_and_never_more_than_a_quarter_of_the_free_space(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    depth: Any,
    tiny: bool,
    free_mib: int,
    file_mib: int | None,
) -> None:
    sizes: list[int] = []

    def noted(one: MeasuredFileSystem, *_: object) -> tuple[MeasuredFileSystem, list[Figure]]:
        sizes.append(one.file_bytes)
        return one, []

    usage = type(shutil.disk_usage(tmp_path))(2**60, 0, free_mib << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(file_systems, "_of_file", noted)
    asked = CheckBudget(depth, 0.0, SECONDS, 0.0, "/nowhere", tiny, (str(tmp_path),))
    (one,) = measure(None, asked)["file_systems"]  # type: ignore[arg-type]
    assert sizes == ([] if file_mib is None else [file_mib << 20])
    assert (one["why"] == "") is (file_mib is not None)


def test_requests_at_once_are_all_answered_and_the_error_of_one_is_raised() -> None:
    done: list[int] = []

    def slow() -> None:
        time.sleep(0.05)
        done.append(1)

    def fails() -> None:
        raise OSError(5, "Input/output error")

    file_systems._in_threads([slow] * 4)
    assert len(done) == 4
    with pytest.raises(OSError, match="Input/output error"):
        file_systems._in_threads([slow, fails, slow])
    assert len(done) == 6


def test_a_disk_that_fills_up_meanwhile_is_an_error_in_words(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the free space before the first block is written."""
    monkeypatch.setattr(file_systems, "FREE_SHARE", 1)
    usage = shutil.disk_usage(small)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    (small / "taken").write_bytes(b"x" * (39 << 20))
    (one,), data = measured(small)
    assert (one.why, data["figures"]) == (f"{small}: No space left on device", [])
    (finding,) = judged(data)
    assert (finding.verdict, finding.counts) == ("not-run", True)


def test_a_file_system_that_cannot_be_written_is_told(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    (one,), _ = measured(small)
    assert one.why == f"{small}: Read-only file system"


def test_a_folder_that_is_missing_does_not_keep_others_from_being_measured(tmp_path: Path) -> None:
    (missing, good), data = measured(tmp_path / "missing", tmp_path)
    assert missing.why == f"{tmp_path}/missing: No such file or directory"
    assert (good.why, len(data["figures"])) == ("", 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("tool", ["fio", "Python"])
def test_nothing_is_left_when_the_process_is_ended(tmp_path: Path, number: signal.Signals, tool: str) -> None:
    script = (
        "import shutil, sys; from bench.node_check.checks import CheckBudget, file_systems as f\n"
        "if sys.argv[2] == 'Python': shutil.which = lambda _: None\n"
        "print(flush=True); f.measure(None, CheckBudget('quick', 0, 30, 0, '/', True, (sys.argv[1],)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), tool],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        process.stdout.readline()
        deadline = time.monotonic() + 60
        while not _has_file_below(process.pid, tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _has_file_below(process.pid, tmp_path)
        os.killpg(process.pid, number)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


def _has_file_below(process: int, folder: Path) -> bool:
    try:
        names = [str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir()]
    except OSError:
        return False
    return any(name.startswith(str(folder)) for name in names)


def test_the_type_of_a_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nx {tmp_path}/a\\040b lustre rw 0 0\ny {tmp_path}/a nfs4 rw 0 0\nodd\n"
    )
    for folder, kind in (("a b/c", "lustre"), ("a/b", "nfs4"), ("ab", "ext4")):
        assert file_systems.file_system_of(str(tmp_path / folder), mounts) == kind
    assert file_systems.file_system_of("/x", tmp_path / "none") == ""


def rates(write: float, read: float, reads: float) -> dict[str, Any]:
    """Return the reading of /d with megabytes a second, and with small reads a second."""
    values = (write * 1e6, read * 1e6, reads * 4096)
    figures = [
        Figure(f"disk /d {kind}", None, "B/s", value, (1.0,), f"disk {kind}")
        for kind, value in zip(KINDS, values, strict=True)
    ]
    one = MeasuredFileSystem("/d", "ext4", tool="fio-3.33", direct=True, late_seconds=0.0021)
    return {"file_systems": to_json([one]), "figures": to_json(figures)}


def test_rates_are_judged_by_rules_and_by_the_manifest() -> None:
    assert [f.verdict for f in judged(rates(101, 101, 1001))] == ["pass"] * 3
    slow = judged(rates(99, 101, 999))
    assert [f.verdict for f in slow] == ["warn", "pass", "warn"]
    assert slow[2].found == "999 reads/s, 99% within 2.1 ms, by fio-3.33 on ext4"
    expect = Expectations(disks={"/d": FileSystemRates(2.5, None, 50_000)})
    owned = judged(rates(2499, 99, 50_001), expect)
    assert [(f.verdict, f.source) for f in owned] == [
        ("fail", "the manifest"), ("warn", "bench"), ("pass", "the manifest"),
    ]  # fmt: skip


def test_without_a_named_file_system_nothing_is_measured() -> None:
    (finding,) = judged({"figures": [], "file_systems": []})
    assert (finding.verdict, finding.counts) == ("not-run", False)
