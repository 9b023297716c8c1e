"""Two commands that watch the same run: one fetches the bundle, and neither loses it."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.cli import pushed_runs
from bench.operator import certify_and_receive
from bench.planning.manifest import load_manifest
from bench.push import host_push, mirror
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.node_preflight import ChosenEngine
from bench.push.push_record import Record, Records
from bench.push.push_to_node import NodePush
from bench.push.remote import CommandResult, Here
from bench.push.request import HostPart, PushRequest, Result, Shared
from bench.push.ship import Shipped
from tests.push.strange_nodes import Answers
from tests.push.test_mirror import KEY
from tests.push.test_push_record import R

QUICKSTART = Path(__file__).parents[2] / "manifests/quickstart.json"
BUNDLE = bytes(range(256)) * 64


class Silent:
    def show(self, result: Result, text: str = "") -> None: ...
    def sent(self, result: Result, done: int, total: int) -> None: ...
    def log(self, result: Result, lines: Sequence[str]) -> None: ...
    def say(self, text: str) -> None: ...


@pytest.fixture
def record(tmp_path: Path) -> Record:
    made = dataclasses.replace(
        R, local=True, place=str(tmp_path / "place"), out=str(tmp_path / "results"), engine="none",
        state="running", ledger=str(tmp_path / "ledger.jsonl"),
    )  # fmt: skip
    made.mirror.mkdir(parents=True)
    return made


def request_of(record: Record) -> PushRequest:
    return PushRequest(manifest=load_manifest(QUICKSTART), engine="none", out=Path(record.out), key=KEY)


def attach(record: Record, records: Records) -> Result:
    shared = Shared(records, ImageStore(print), Silent())
    return NodePush(HostPart(record.to_host(), local=True), request_of(record), shared).attach(record)


def test_a_run_fetched_by_another_command_counts_as_done(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.01)
    records = Records(tmp_path / "runs")
    records.save(dataclasses.replace(record, state="fetched"))  # and its folder is gone from the node
    record.bundle.write_bytes(BUNDLE)
    result = attach(record, records)
    assert (result.outcome, result.bundle, result.exit_code) == ("unchanged", record.bundle, 0)
    assert [r.state for r in records.all()] == ["fetched"]


def test_a_run_whose_folder_is_gone_and_whose_bundle_is_not_here_failed(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.01)
    records = Records(tmp_path / "runs")
    records.save(record)
    assert attach(record, records).outcome == "failed"
    assert [r.state for r in records.all()] == ["failed"]


@pytest.mark.parametrize(("state", "outcome"), [("alive", "lost"), ("waiting", "failed")])
def test_a_run_long_past_its_budget_is_no_longer_watched_unless_it_waits_in_a_queue(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, outcome: str
) -> None:
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(host_push, "_LONGEST_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(host_push, "_OVERDUE_SECONDS", 0.05)
    looks = itertools.count()

    def look(*_: object) -> mirror.Status:
        now = state if next(looks) < 50 else "gone"
        return mirror.Status(state=now, code=None, files={}, request=None, bundle_bytes=None)

    monkeypatch.setattr(mirror, "look", look)
    records = Records(tmp_path / "runs")
    records.save(record)
    shared = Shared(records, ImageStore(print), Silent())
    request = dataclasses.replace(request_of(record), budget_seconds=0.05)
    result = NodePush(HostPart(record.to_host(), local=True), request, shared).attach(record)
    assert result.outcome == outcome
    if state == "alive":
        assert result.error is not None
        assert result.error.message.startswith(f"run {record.run_id} still runs after ")
        assert result.error.advice and f"bench cancel {record.run_id} ends it" in result.error.advice
        assert [r.state for r in records.all()] == ["running"], (
            "it can be attached to, cancelled, and fetched"
        )


def test_a_job_that_slurm_ended_says_so(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.01)
    ended = mirror.Status("dead", None, {}, None, None, reason="CANCELLED by 1000", on="n3")
    monkeypatch.setattr(mirror, "look", lambda *_: ended)
    records = Records(tmp_path / "runs")
    job = records.save(dataclasses.replace(record, slurm_job="17"))
    error = attach(job, records).error
    assert error is not None
    assert error.message == "Slurm's job 17 ended without a bundle (CANCELLED by 1000)"
    assert [(r.state, r.slurm_nodes) for r in records.all()] == [("failed", "n3")]


def test_a_job_whose_nodes_do_not_see_its_folder_says_so(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.sh first writes on which nodes it is."""
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(
        mirror, "look", lambda *_: mirror.Status("dead", None, {}, None, None, reason="FAILED")
    )
    records = Records(tmp_path / "runs")
    error = attach(records.save(dataclasses.replace(record, slurm_job="17")), records).error
    assert error is not None and error.advice is not None
    assert error.message == "Slurm's job 17 ended without a bundle (FAILED), and wrote nothing"
    assert error.advice.startswith(f"can its nodes write to {record.place}? --place DIR")


def test_the_last_lines_of_a_run_contain_no_terminal_control_characters(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.01)
    (record.mirror / mirror.LOG).write_text("killed\033[2J\033]0;mine\007\n")
    error = attach(record, Records(tmp_path / "runs")).error
    assert error is not None and "killed?[2J?]0;mine?" in error.message


def test_after_a_push_that_was_cancelled_there_is_nothing_to_attach_to(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Records().save(dataclasses.replace(record, state="cancelled"))
    with pytest.raises(BadInput, match="the newest push was cancelled"):
        pushed_runs.fetch(pushed_runs.PushedRunsArguments(runs=()))


def test_a_continued_run_records_how_its_node_was_reached(record: Record, tmp_path: Path) -> None:
    """Another user and another SSH key are recorded, so that bench attach logs in the same way."""
    records = Records(tmp_path / "runs")
    request = dataclasses.replace(request_of(record), ssh_config=Path("/here/config"))
    host = Host("gpu1", "10.0.0.1", "bob", None, Path("/here/bob"), "/there/python", ("-J", "door"))
    node_push = NodePush(HostPart(host), request, Shared(records, ImageStore(print), Silent()))
    survey = SimpleNamespace(place="/home/bob/.bench")
    chosen = ChosenEngine(survey, "none", None)  # type: ignore[arg-type]
    noted = node_push._record_run(chosen, Shipped("code", 0, changed=False), record)
    assert (noted.run_id, noted.place) == (record.run_id, "/home/bob/.bench")
    assert noted.to_host() == dataclasses.replace(host, name=record.host)
    assert noted.ssh_config == "/here/config"
    assert records.all() == [noted]


@pytest.mark.parametrize(("once", "found"), [(True, True), (False, False)])
def test_a_fetched_bundle_counts_only_for_a_push_that_asks_for_one_bundle(
    record: Record, tmp_path: Path, once: bool, found: bool
) -> None:
    request = dataclasses.replace(request_of(record), once=once)
    digest = request.manifest.digest.removeprefix("sha256:")
    records = Records(tmp_path / "runs")
    fetched = records.save(
        dataclasses.replace(
            record, state="fetched", manifest_sha256=digest, out=str(Path(record.out).resolve())
        )
    )
    fetched.bundle.write_bytes(BUNDLE)
    push = NodePush(
        HostPart(record.to_host(), local=True), request, Shared(records, ImageStore(print), Silent())
    )
    assert push._fetched_run() == (fetched if found else None)


def test_a_run_that_is_continued_elsewhere_is_taken_up_on_its_new_node(
    record: Record, tmp_path: Path
) -> None:
    manifest = request_of(record).manifest
    gone = dataclasses.replace(
        record, manifest_sha256=manifest.digest.removeprefix("sha256:"), slurm_job="17", state="failed"
    )
    host = Host("gpu1", "10.0.0.1", "bob", 2222, Path("/here/bob"), "/there/python")
    shared = Shared(Records(tmp_path / "runs"), ImageStore(print), Silent())

    def taken_up(run: Record) -> Record | None:
        request = dataclasses.replace(request_of(record), continued=run)
        return NodePush(HostPart(host), request, shared)._unfinished_run()

    found = taken_up(gone)
    assert found is not None
    assert (found.run_id, found.state, found.slurm_job) == (gone.run_id, "begun", None)
    assert found.to_host() == host
    with pytest.raises(BadInput, match=f"^run {gone.run_id} has another manifest"):
        taken_up(dataclasses.replace(gone, manifest_sha256="0" * 64))


PYTHON = """#!/bin/sh
case $1 in -c) echo 3.12; echo;; *) echo "nothing was measured" >&2; exit 5;; esac
"""


def test_a_failed_push_is_continued_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.01)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    records = Records(tmp_path / "runs")
    request = PushRequest(
        manifest=load_manifest(QUICKSTART),
        engine="none",
        out=tmp_path / "results",
        key=KEY,
        ledger=tmp_path / "ledger.jsonl",
        python=str(tmp_path / "python"),
        place=str(tmp_path / "place"),
        on_cpu=True,
        despite_findings=True,
    )

    def pushed(**changes: Any) -> Result:
        shared = Shared(records, ImageStore(print), Silent())
        part = HostPart(Host("here", "localhost"), local=True)
        return NodePush(part, dataclasses.replace(request, **changes), shared).run()

    dry = pushed(until="preflight")
    assert (dry.outcome, dry.engine, records.all()) == ("would", "none", [])
    first = pushed()
    assert first.error is not None
    assert (first.outcome, first.phase, first.changed) == ("failed", "run", True)
    assert first.error.message == "the run ended with exit code 5: nothing was measured"
    (record,) = records.all()
    assert (record.run_id, record.state) == (first.run_id, "failed")
    assert "bench run manifest.json" in (record.mirror / "run.sh").read_text()
    again = pushed()
    assert (again.run_id, again.outcome) == (first.run_id, "failed")
    assert pushed(new_run=True).run_id != first.run_id


class Halves(Here):
    """A connection that sends the bundle in two halves, so that another command can start in between."""

    def __init__(self, between: Callable[[], object]) -> None:
        self._between = between

    def ask(
        self, script: str, pieces: Iterable[bytes] = (), *, seconds: float = 60.0, most_bytes: int = 2**20
    ) -> CommandResult:
        digest = hashlib.sha256(BUNDLE).hexdigest()
        return CommandResult(0, f"{digest}  -\n{len(BUNDLE)}\n".encode(), b"")

    def read(self, script: str, take: Callable[[bytes], object], *, seconds: float = 60.0) -> CommandResult:
        start = int(script.split("+")[1].split()[0]) - 1
        half = (start + len(BUNDLE)) // 2
        take(BUNDLE[start:half])
        self._between()
        take(BUNDLE[half:])
        return CommandResult(0, b"", b"")


def test_two_commands_that_fetch_the_same_bundle_both_get_it(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = object()
    monkeypatch.setattr(certify_and_receive, "receive", lambda *_, **__: verdict)
    begun, other = threading.Event(), threading.Event()

    def first_waits() -> None:
        begun.set()
        other.wait(0.5)  # time in which the other command must not read too

    def fetch(between: Callable[[], object]) -> object:
        return mirror.fetch(Halves(between), record, KEY, (), lambda done, total: None)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(fetch, first_waits)
        begun.wait()
        second = pool.submit(fetch, other.set)
        assert (first.result(), second.result()) == (verdict, verdict)
    assert record.bundle.read_bytes() == BUNDLE


def test_a_node_gets_a_limited_number_of_certificates(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each certificate is a signature, for some keys a touch of a token; a node can ask for one a second."""
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(host_push, "_LONGEST_LOOK_SECONDS", 0.0)
    looks, certified = itertools.count(), []

    def certify(*_: object) -> int:
        certified.append(1)
        return 0

    monkeypatch.setattr(mirror, "certify", certify)
    shared = Shared(Records(tmp_path / "runs"), ImageStore(print), Silent())
    push = NodePush(HostPart(record.to_host(), local=True), request_of(record), shared)
    push.node = Answers(lambda _: f"alive\nrequest {next(looks)} 1\n")
    result = push.attach(record)
    assert result.error is not None
    assert result.error.message == "the node asks for more than 8 certificates"
    assert result.error.advice is not None and f"bench attach {record.run_id}" in result.error.advice
    assert len(certified) == 8


def test_a_full_mirror_is_told_once(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_push, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(mirror, "_LARGEST_MIRROR", 10)
    (record.mirror / "log.txt").write_bytes(bytes(20))
    said: list[str] = []

    class Says(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    shared = Shared(Records(tmp_path / "runs"), ImageStore(print), Says())
    push = NodePush(HostPart(record.to_host(), local=True), request_of(record), shared)
    states = iter(["alive\nfile 50 log.txt\n"] * 3)
    push.node = Answers(lambda _: next(states, "exit 3\n"))
    push.attach(record)
    assert said == ["gpu1: run aaaa00000000 has written more than is mirrored: its new lines are not shown"]
    assert (record.mirror / "log.txt").stat().st_size == 20
