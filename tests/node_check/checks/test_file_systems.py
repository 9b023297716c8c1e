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
from tests.node_check.checks.answers import answers

SECONDS = 0.05
READ_AT_RANDOM_SECONDS = file_systems.LEAST_RANDOM_SECONDS


def budget(*paths: Path) -> CheckBudget:
    return CheckBudget("quick", 0.0, SECONDS, 0.0, "/nowhere", True, tuple(map(str, paths)))


def measured(*paths: Path) -> tuple[tuple[MeasuredFileSystem, ...], Any]:
    data = measure(None, budget(*paths))  # type: ignore[arg-type]
    return from_json(tuple[MeasuredFileSystem, ...], data["file_systems"]), data


def judged(data: Any, expect: Expectations | None = None) -> list[Finding]:
    evidence = Evidence("quick", "cpu", (), {"file-systems": Reading("file-systems", data)})
    return answers("file-systems", judge(evidence, Standards(None, expect or Expectations())))


@pytest.fixture(autouse=True)
def few_random_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python read at random as long as the budget says, and not at least a second."""
    monkeypatch.setattr(file_systems, "LEAST_RANDOM_SECONDS", 0.0)


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


ANSWER = {
    "fio version": "fio-3.33",
    "jobs": [{
        "error": 0,
        "write": {"io_bytes": (10 << 20) + 5, "runtime": 2000, "clat_ns": {}},
        "read": {"io_bytes": 40960, "runtime": 1000, "clat_ns": {"percentile": {"99.000000": 7e6}}},
    }],
}  # fmt: skip


def fio(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program in place of fio."""
    (folder / "bin").mkdir()
    (folder / "bin/fio").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin/fio").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")


@pytest.mark.parametrize(("seconds", "runtime"), [(0.05, 1), (0.3, 1), (2.5, 10)])
@pytest.mark.parametrize("direct", [False, True])
def test_fio_is_asked_for_three_loads_that_go_past_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, runtime: int, direct: bool
) -> None:
    fio(
        tmp_path,
        f"echo $LC_ALL $* >>{tmp_path}/asked; echo a warning; echo '{json.dumps(ANSWER)}'",
        monkeypatch,
    )
    monkeypatch.setattr(file_systems, "allows_direct", lambda _: direct)
    with (tmp_path / "file").open("w+b") as file:
        transfers, facts = file_systems.by_fio(file.fileno(), 16 << 20, seconds)
        assert os.fstat(file.fileno()).st_size == 16 << 20
        path = f"/proc/self/fd/{file.fileno()}"
    assert facts == {"tool": "fio-3.33", "direct": direct}
    assert transfers == [
        MovedBytes("write", (10 << 20) + 5, 2.0), MovedBytes("read", 40960, 1.0),
        MovedBytes("random read", 40960, 1.0, late_seconds=0.007),
    ]  # fmt: skip
    asked = [set(line.split()) for line in (tmp_path / "asked").read_text().splitlines()]
    for_all = {
        "C", f"--filename={path}", "--ioengine=libaio", "--iodepth=16", f"--direct={int(direct)}",
        f"--runtime={runtime}", "--output-format=json", "--end_fsync=1", "--allow_file_create=0",
        "--invalidate=1", "--randrepeat=0", "--fallocate=none",
    }  # fmt: skip
    # What was not written in time is a hole, so the reads stay within the written blocks.
    assert asked == [
        for_all | {"--name=write", "--rw=write", "--size=16777216", "--bs=1048576"},
        for_all | {"--name=read", "--rw=read", "--size=10485760", "--bs=1048576"},
        for_all | {"--name=random-read", "--rw=randread", "--size=10485760", "--bs=4096", "--time_based=1"},
    ]


def test_fio_that_does_not_end_is_left_for_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fio(tmp_path, "exec sleep 60", monkeypatch)
    monkeypatch.setattr(file_systems, "SPARE_SECONDS", 0.1)
    (one,), _ = measured(tmp_path)
    assert one.why_not_fio == f"fio took more than {4 * SECONDS + 0.1:g} s"
    assert one.tool == "Python"


def test_fio_that_cannot_be_started_is_left_for_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: str(tmp_path / "gone"))
    (one,), _ = measured(tmp_path)
    assert one.why_not_fio == f"fio: [Errno 2] No such file or directory: '{tmp_path}/gone'"


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
    fio(tmp_path, script, monkeypatch)
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


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "pass"), (0.9999, "warn")])
def test_a_rate_at_its_limit_passes(share: float, verdict: str) -> None:
    found = judged(rates(100 * share, 100 * share, 1000 * share))
    assert [f.verdict for f in found] == [verdict] * 3
    assert [f.expected for f in found] == [
        "at least 100 MB/s", "at least 100 MB/s", "at least 1,000 reads/s",
    ]  # fmt: skip
    assert [(f.subject, f.figure, f.unit, f.reference) for f in found] == [
        ("/d write", "disk /d write", "B/s", 100e6),
        ("/d read", "disk /d read", "B/s", 100e6),
        ("/d random read", "disk /d random read", "B/s", 4096e3),
    ]
    assert [f.value for f in found] == [100e6 * share, 100e6 * share, 4096e3 * share]


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "pass"), (0.9999, "fail")])
def test_a_rate_at_the_manifests_limit_passes_and_one_under_it_fails(share: float, verdict: str) -> None:
    expect = Expectations(disks={"/d": FileSystemRates(2.0, 3.0, 5000)})
    found = judged(rates(2000 * share, 3000 * share, 5000 * share), expect)
    assert [f.verdict for f in found] == [verdict] * 3
    assert {f.source for f in found} == {"the manifest"}
    other = Expectations(disks={"/e": FileSystemRates(2.0, 3.0, 5000)})
    assert {f.source for f in judged(rates(2000, 3000, 5000), other)} == {"bench"}


def test_a_rate_says_how_it_was_measured() -> None:
    data = rates(200, 200, 2000)
    data["file_systems"] = to_json([MeasuredFileSystem("/d", "", tool="Python", direct=False)])
    assert [f.found for f in judged(data)] == [
        f"{rate}, by Python on an unknown type, through the page cache"
        for rate in ("200 MB/s", "200 MB/s", "2,000 reads/s")
    ]
    assert [f.found for f in judged(rates(200, 200, 2000))] == [
        "200 MB/s, by fio-3.33 on ext4", "200 MB/s, by fio-3.33 on ext4",
        "2,000 reads/s, 99% within 2.1 ms, by fio-3.33 on ext4",
    ]  # fmt: skip


def test_a_file_system_that_was_measured_in_part_has_both_answers() -> None:
    data = rates(200, 200, 2000)
    data["figures"] = data["figures"][:1]
    data["file_systems"][0]["why"] = "/d: Input/output error"
    assert [(f.subject, f.verdict, f.found) for f in judged(data)] == [
        ("/d", "not-run", "/d: Input/output error"), ("/d write", "pass", "200 MB/s, by fio-3.33 on ext4"),
    ]  # fmt: skip


def test_a_machine_whose_file_systems_were_not_read_has_no_answer() -> None:
    assert list(judge(Evidence("quick", "cpu", (), {}), Standards(None))) == []


def test_python_reads_what_it_wrote_and_nothing_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, float]] = []

    def at_random(opened: int, size: int, seconds: float) -> MovedBytes:
        asked.append((size, seconds))
        return MovedBytes("random read", 4096, 1.0, 0.1)

    monkeypatch.setattr(file_systems, "_at_random", at_random)
    with (tmp_path / "file").open("w+b") as file:
        os.truncate(file.fileno(), 64 << 20)
        wrote, read, last = file_systems.by_python(file.fileno(), 3 << 20, 900.0)
        assert file.read(3 << 20).count(0) < 3 << 15  # random bytes: no disk compresses them
        assert file.read().count(0) == 61 << 20
    assert [(one.kind, one.moved_bytes) for one in (wrote, read)] == [("write", 3 << 20), ("read", 3 << 20)]
    assert wrote.seconds > 0 < read.seconds
    assert (wrote.late_seconds, read.late_seconds, last.late_seconds) == (None, None, 0.1)
    assert asked == [(3 << 20, 900.0)]


def test_a_load_in_sequence_ends_after_four_times_a_figures_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock takes a second; the first and the last are the beginning and the end."""
    looks = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(looks)))
    with (tmp_path / "file").open("w+b") as file:
        found = file_systems._in_sequence(file.fileno(), 64 << 20, 1.0, 1 << 20, writing=True)
    assert found == MovedBytes("write", 3 << 20, 5.0)


def test_a_file_of_nothing_is_read_in_no_time(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        found = list(file_systems.by_python(file.fileno(), 0, 0.01))
    assert [(one.moved_bytes, one.late_seconds) for one in found] == [(0, None)] * 3


@pytest.mark.parametrize("answers_each", [1, 7])
@pytest.mark.parametrize(("seconds", "lasts"), [(2.5, 10.0), (0.2, 1.0)])
def test_99_percent_of_the_random_reads_were_answered_within_the_time_that_is_told(
    monkeypatch: pytest.MonkeyPatch, answers_each: int, seconds: float, lasts: float
) -> None:
    """16 readers at once, whose answers take 1, 2, 3 ... seconds. They read for a second at least."""
    monkeypatch.setattr(file_systems, "LEAST_RANDOM_SECONDS", READ_AT_RANDOM_SECONDS)
    clock = iter(range(1, 1000))

    def pieces(opened: int, count: int, deadline: float, own: list[float]) -> None:
        assert (opened, count, deadline) == (5, 25, 100.0 + lasts)
        own.extend(float(next(clock)) for _ in range(answers_each))

    monkeypatch.setattr(file_systems, "_read_pieces", pieces)
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    found = file_systems._at_random(5, 100 << 10, seconds)
    count = 16 * answers_each
    assert found == MovedBytes("random read", count * 4096, 0.0, float(count * 99 // 100 + 1))


@pytest.mark.parametrize(("line", "kind"), [
    ("x /m", ""), ("x /m ext4", "ext4"), ("x /m xfs\ny /m ext4", "ext4"), ("x /m/b xfs\ny /m ext4", "ext4"),
])  # fmt: skip
def test_the_later_of_two_mounts_of_one_folder_counts(tmp_path: Path, line: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(f"{line}\n")
    assert file_systems.file_system_of("/m/a", tmp_path / "mounts") == kind


def test_mounts_that_are_not_utf_8_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_bytes(b"x /\xff xfs rw\ny /m ext4 rw\n")
    assert file_systems.file_system_of("/m/a", tmp_path / "mounts") == "ext4"


def test_without_a_named_file_system_nothing_is_measured() -> None:
    (finding,) = judged({"figures": [], "file_systems": []})
    assert (finding.verdict, finding.counts, finding.found) == ("not-run", False, "no file system was named")
    assert finding.advice == "--disk PATH, or disks in the manifest"
