"""The request of `bench.run` to the runner, and the value that it returns, without measuring anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bench
from bench.bundle.verify import verify_bundle
from bench.library import run as running
from bench.library.run import RunRequest, lead, refuse_lonely_move
from bench.node_check.recompute_any import AnyVerdict, recompute, trained_run
from bench.planning.manifest import parse_manifest
from bench.records.marks import Mark
from bench.records.run_results import Results
from bench.runner.processes.jobs import Nodes
from bench.runner.run.execute import FinishedRun
from bench.runner.run.seal import OwnKey, Seal
from bench.signing.ssh_keys import PublicKey
from bench.training.models.dry_build import Rehearsal
from tests.report.made import KEY, STRANGER, bundle

TINY: dict[str, Any] = {
    "schema": "bench/manifest/v1",
    "models": ["tiny-gpt-neox"],
    "methods": ["naive"],
    "micro_batch": 16,
}
MANIFEST = parse_manifest(json.dumps(TINY).encode(), "manifest")
FINGERPRINT = PublicKey.of(KEY).fingerprint


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> AnyVerdict:
    """The verdict on a certified and received bundle of a run that ended early."""
    path = bundle(tmp_path_factory.mktemp("made") / "a.tar", complete=False, hot=True)
    found = verify_bundle(path, recompute)
    return replace(found, certified_by="SHA256:operator", received_at="2026-11-27T00:00:00Z")


@pytest.fixture(scope="module")
def results(verdict: AnyVerdict) -> Results:
    return trained_run(verdict).results


class Runner:
    """The runner's functions, which note what they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, finished: FinishedRun) -> None:
        self.finished = finished
        self.executed: list[dict[str, Any]] = []
        self.sealed: list[tuple[Any, ...]] = []
        self.answered: list[tuple[Path, str | None]] = []
        self.sealer: Any = OwnKey(KEY)
        self.answer: Any = None
        monkeypatch.setattr("bench.runner.run.execute.execute", self._execute)
        monkeypatch.setattr("bench.runner.run.earlier_bundle.answered", self._answered)
        monkeypatch.setattr(running, "make_sealer", self._make_sealer)
        rehearsed: Any = Rehearsal({"counted": "as built"}, ("built without contents",))  # type: ignore[dict-item]
        monkeypatch.setattr(running, "rehearse", lambda models, where: rehearsed)

    def _execute(self, manifest: Any, out: Path, sealer: Any, progress: Any, **asked: Any) -> FinishedRun:
        progress.say("a line of the runner")
        assert sealer is self.sealer
        self.executed.append({"manifest": manifest.digest, "out": out, **asked})
        return self.finished

    def _answered(self, path: Path, nonce: str | None) -> Any:
        self.answered.append((path, nonce))
        return self.answer

    def _make_sealer(self, *given: Any) -> Any:
        self.sealed.append(given)
        return self.sealer


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, results: Results, tmp_path: Path) -> Runner:
    seal = Seal(KEY)
    marks = {"b": (Mark("LOADED", "load 9", 9.0),)}
    return Runner(monkeypatch, FinishedRun(results, tmp_path / "a.tar", seal, slowed={}, marks=marks))


def test_a_run_has_these_defaults(runner: Runner) -> None:
    bench.run(TINY)
    (asked,) = runner.executed
    assert asked == {
        "manifest": bench.plan(TINY, gpu="h100").to_json()["manifest"],  # type: ignore[index]
        "out": Path("out"), "resume": False, "budget_seconds": None, "on_cpu": False, "nodes": None,
        "moved": False, "counted": {"counted": "as built"},
    }  # fmt: skip
    ((digest, key, challenge, _),) = runner.sealed
    assert (digest, key, challenge) == (asked["manifest"], None, None)


def test_every_option_reaches_the_runner(runner: Runner, tmp_path: Path) -> None:
    options: dict[str, Any] = {"key": "my key", "challenge": "c.json", "resume": True, "moved": True}
    bench.run(TINY, out=str(tmp_path), budget="60m", device="cpu", **options)
    ((_, key, challenge, _),) = runner.sealed
    assert (key, challenge) == (Path("my key"), Path("c.json"))
    (asked,) = runner.executed
    found = {name: asked[name] for name in ("out", "budget_seconds", "on_cpu", "resume", "moved")}
    assert found == {
        "out": tmp_path, "budget_seconds": 3600.0, "on_cpu": True, "resume": True, "moved": True,
    }  # fmt: skip
    bench.run(TINY, budget=90)
    assert runner.executed[-1]["budget_seconds"] == 90.0


def test_a_run_returns_what_its_bundle_has(runner: Runner, results: Results, tmp_path: Path) -> None:
    measured = bench.run(TINY)
    assert (measured.bundle, measured.results) == (tmp_path / "a.tar", results)
    assert (measured.signed_by, measured.certified_by, measured.received_at) == (FINGERPRINT, None, None)
    assert (measured.earlier, measured.kept) == (False, False)
    assert measured.stopped == "the budget was spent"
    document: Any = measured.to_json()
    assert list(document) == ["bundle", "results", "slowed", "marks", "busy_shares"]
    assert document["bundle"] == str(tmp_path / "a.tar")
    assert document["results"]["run"]["id"] == results.run.id
    assert document["slowed"] == {}
    assert document["marks"] == {"b": [{"kind": "LOADED", "text": "load 9", "degree": 9.0}]}


def test_a_certified_run_names_the_operator_and_may_keep_an_earlier_bundle(runner: Runner) -> None:
    certificate: Any = SimpleNamespace(authority=PublicKey.of(STRANGER))
    runner.finished = replace(runner.finished, seal=Seal(KEY, certificate), kept=True)
    measured = bench.run(TINY)
    assert measured.certified_by == PublicKey.of(STRANGER).fingerprint != FINGERPRINT
    assert measured.kept


def test_the_lines_of_a_run_are_said_one_by_one(runner: Runner) -> None:
    told: list[str] = []
    bench.run(TINY, say=told.append)
    assert told[-1].endswith("a line of the runner")
    assert all("\n" not in line for line in told)
    bench.run(TINY)


def test_remarks_on_the_manifest_come_before_the_run(runner: Runner) -> None:
    told: list[str] = []
    remarked = replace(MANIFEST, remarks=("be careful",))
    lead(remarked, "manifest", request(), running._quiet_progress(told.append), told.append)
    assert told[:2] == ["remark   be careful", "remark   built without contents"]


def test_data_that_is_missing_is_refused_before_the_run(runner: Runner, tmp_path: Path) -> None:
    with pytest.raises(bench.BadInput, match="missing"):
        bench.run(TINY | {"models": [{"name": "tiny-vit", "data": str(tmp_path / "missing")}]})
    assert runner.executed == []


def request(**changes: Any) -> RunRequest:
    plain = RunRequest(
        out=Path("out"), key=None, challenge=None, budget_seconds=None, resume=False, moved=False, on_cpu=True
    )
    return replace(plain, **changes)


# --- a challenge that was answered before ---------------------------------------------------------------


def led(runner: Runner, asked: RunRequest, nodes: Nodes | None = None) -> running.MeasuredRun:
    say: Callable[[str], None] = [].append
    return lead(MANIFEST, "manifest", asked, running._quiet_progress(say), say, nodes)


def test_a_bundle_that_answers_the_challenge_is_returned_without_measuring(
    runner: Runner, verdict: AnyVerdict, tmp_path: Path
) -> None:
    runner.sealer, runner.answer = OwnKey(KEY, "run-7", "nonce-9"), verdict
    found = led(runner, request(out=tmp_path, resume=True))
    assert runner.answered == [(tmp_path / "run-7.tar", "nonce-9")]
    assert runner.executed == []
    assert (found.bundle, found.earlier) == (tmp_path / "run-7.tar", True)
    assert found.results == trained_run(verdict).results
    assert found.slowed == verdict.contents.slowed != {}
    assert found.marks == verdict.contents.marks != {}
    assert found.busy_shares == trained_run(verdict).busy_shares
    assert (found.signed_by, found.certified_by) == (FINGERPRINT, "SHA256:operator")
    assert (found.received_at, found.kept) == ("2026-11-27T00:00:00Z", False)


def test_a_run_is_measured_if_nothing_answers_its_challenge(runner: Runner, tmp_path: Path) -> None:
    runner.sealer = OwnKey(KEY, "run-7", "nonce-9")
    assert not led(runner, request(out=tmp_path, resume=True)).earlier
    assert len(runner.answered) == len(runner.executed) == 1


@pytest.mark.parametrize("why", ["not resumed", "no challenge", "several nodes"])
def test_an_earlier_bundle_is_looked_for_only_where_a_challenge_is_resumed_alone(
    why: str, runner: Runner, verdict: AnyVerdict, tmp_path: Path
) -> None:
    runner.sealer, runner.answer = OwnKey(KEY, None if why == "no challenge" else "run-7", "n"), verdict
    nodes = Nodes(2, 0, "10.0.0.1:5000", "sha256:aa") if why == "several nodes" else None
    found = led(runner, request(out=tmp_path, resume=why != "not resumed"), nodes)
    assert not found.earlier
    assert runner.answered == []
    assert runner.executed[0]["nodes"] == nodes


@pytest.mark.parametrize(
    ("moved", "challenge", "resume", "refused"),
    [
        (True, None, False, True),
        (True, Path("c.json"), False, True),
        (True, None, True, True),
        (True, Path("c.json"), True, False),
        (False, None, False, False),
    ],
)
def test_only_a_resumed_run_with_a_challenge_moves(
    moved: bool, challenge: Path | None, resume: bool, refused: bool
) -> None:
    if not refused:
        refuse_lonely_move(moved=moved, challenge=challenge, resume=resume)
        return
    with pytest.raises(bench.BadInput) as caught:
        refuse_lonely_move(moved=moved, challenge=challenge, resume=resume)
    assert caught.value.message == "--moved without --challenge and --resume"
    assert caught.value.advice == (
        "only a run that answers an operator's challenge can move to another machine"
    )


def test_lines_are_passed_on_when_they_are_whole() -> None:
    told: list[str] = []
    stream = running._Lines(told.append)
    assert stream.write("one\ntw") == 6
    assert told == ["one"]
    assert stream.write("o\n\nthree") == 8
    assert told == ["one", "two", ""]
