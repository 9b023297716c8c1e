"""The push to one host, step by step: which run it takes up, how it watches it, and how it ends."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot, Incomplete, VerificationFailed
from bench.base.names import CONTAINER_ENGINES
from bench.node_check.check_manifest import load_any
from bench.operator import certify_and_receive
from bench.push import host_push, mirror, slurm_job
from bench.push.connection import Unreachable
from bench.push.host_push import HostPush, Interrupted
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.mirror import Status
from bench.push.push_record import PushAsked, Record, Records
from bench.push.remote import Here, Remote
from bench.push.request import HostPart, PushRequest, Result, Shared
from bench.push.shared_place import PlaceClaim
from bench.push.slurm import Slurm
from bench.push.slurm_job import JobNode
from bench.push.training_group import GroupFailed, TrainingGroup
from bench.records.text import seconds_text
from tests.push.test_mirror import KEY
from tests.push.test_push_record import R
from tests.push.test_push_to_node import QUICKSTART

CHECK = QUICKSTART.with_name("node-check.json")
TOGETHER = "10.0.0.1:29500"


class Shown:
    """A view that notes what it is told."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str, str | None]] = []  # phase, text, outcome
        self.said: list[str] = []
        self.lines: list[str] = []
        self.bytes: list[tuple[int, int]] = []

    def show(self, result: Result, text: str = "") -> None:
        self.shown.append((result.phase, text, result.outcome))

    def sent(self, result: Result, done: int, total: int) -> None:
        self.bytes.append((done, total))

    def log(self, result: Result, lines: Sequence[str]) -> None:
        self.lines += lines

    def say(self, text: str) -> None:
        self.said.append(text)


class Followed(HostPush):
    """A push whose naps take no time, and that notes which run it is to start."""

    def __init__(self, part: HostPart, request: PushRequest, shared: Shared) -> None:
        super().__init__(part, request, shared)
        self.seconds, self.naps = 0.0, list[float]()
        self.started: list[Record | None] = []

    @property
    def told(self) -> Shown:
        view = self.shared.view
        assert isinstance(view, Shown)
        return view

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.seconds += seconds

    def _start_run(self, unfinished: Record | None) -> None:
        self.started.append(unfinished)


Make = Callable[..., Followed]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a push, whose clock goes on only while it naps."""

    def made(part: dict[str, Any] | None = None, **options: Any) -> Followed:
        given = {"manifest": load_any(QUICKSTART), "engine": "docker", "push": "0011", "out": tmp_path}
        request = PushRequest(**{"key": KEY, "ledger": tmp_path / "ledger.jsonl"} | given | options)
        shared = Shared(Records(tmp_path / "runs"), ImageStore(print), Shown())
        push = Followed(HostPart(**{"host": HOST} | (part or {})), request, shared)
        monkeypatch.setattr(host_push, "time", SimpleNamespace(monotonic=lambda: push.seconds))
        return push

    return made


HOST = Host("gpu1", "10.0.0.1")
FOLLOWER = {"node": 1, "nodes": 3}


def record_of(push: Followed, **changes: Any) -> Record:
    """Save the record of a run that an earlier push of the same manifest started."""
    made = dataclasses.replace(
        R, manifest_sha256=push.manifest_sha256, out=str(push.request.out.resolve()),
        ledger=str(push.request.ledger), state="running",
    )  # fmt: skip
    made = dataclasses.replace(made, **changes)
    made.mirror.mkdir(parents=True, exist_ok=True)
    return push.shared.records.save(made)


def status(state: str, code: int | None = None, **more: Any) -> Status:
    given = {"state": state, "code": code, "files": {}, "request": None, "bundle_bytes": None} | more
    return Status(**given)


Node = list[tuple[Any, ...]]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """List all that is done to the run on its node, in order."""
    did: Node = []
    monkeypatch.setattr(mirror, "cancel", lambda _, record: did.append(("cancel", record.run_id)))
    monkeypatch.setattr(mirror, "clean", lambda _, record: did.append(("clean", record.run_id)))
    monkeypatch.setattr(mirror, "mirror", lambda _, record, files: did.append(("mirror", files)) or [])
    monkeypatch.setattr(mirror, "certify", lambda _, record, key: did.append(("certify", key)) or 0)
    return did


def looks(monkeypatch: pytest.MonkeyPatch, *seen: Status | Exception) -> None:
    """Let the node answer with these states of a run, the last one from then on."""
    left = list(seen)

    def look(_node: object, _record: Record) -> Status:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(mirror, "look", look)


# --- what a push is asked for -----------------------------------------------------------------------------


def test_a_host_is_reached_over_ssh_or_is_this_machine(make: Make, tmp_path: Path) -> None:
    push = make(ssh_config=tmp_path / "config")
    assert isinstance(push.node, Remote)
    assert (push.node._host, push.node._ssh_config) == (HOST, tmp_path / "config")
    assert push.result == Result("gpu1")
    assert isinstance(make({"local": True}).node, Here)


def test_the_nodes_of_a_run_are_those_of_its_group_or_of_its_job(make: Make) -> None:
    assert (make().nodes, make().slurm_where) == (1, None)
    job = make(slurm=Slurm(partition="gpu", nodes=4))
    assert (job.nodes, job.slurm_where) == (4, "--partition=gpu")
    assert make(FOLLOWER, together=TOGETHER).nodes == 3
    assert make(FOLLOWER).nodes == 1


def test_a_host_follows_the_first_one_of_its_group(make: Make) -> None:
    assert make(FOLLOWER, together=TOGETHER).follows
    assert not make(FOLLOWER).follows
    assert not make({"node": 0, "nodes": 3}, together=TOGETHER).follows


def test_each_host_of_a_push_has_a_claim_of_its_own(make: Make) -> None:
    assert make(FOLLOWER).claim("/place") == PlaceClaim("/place", "0011-1")


def test_the_engines_that_may_be_chosen(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make(engine="podman").engines == ("podman",)
    assert make(engine="auto").engines == (*CONTAINER_ENGINES, "venv")
    monkeypatch.setattr(host_push, "wanted_environment", lambda manifest: "sha256:1")
    assert make(engine="auto").engines == ("venv",)
    assert make(engine="podman").engines == ("podman",)


# --- state ------------------------------------------------------------------------------------------------


def test_a_push_tells_its_phases_and_its_end(make: Make) -> None:
    push = make()
    push.enter("ship", "slowly")
    push.say_phase("more slowly")
    push.say("a line")
    push.progress(1, 2)
    push.end("ready")
    told = push.told
    assert told.shown == [("ship", "slowly", None), ("ship", "more slowly", None), ("ship", "", "ready")]
    assert (told.said, told.bytes) == (["gpu1: a line"], [(1, 2)])


def test_every_step_heeds_the_wish_to_stop(make: Make) -> None:
    push = make()
    HostPush.sleep(push, 0)
    push.shared.stop.set()
    steps: list[Callable[[], object]] = [
        lambda: push.enter("ship"),
        lambda: push.progress(1, 2),
        lambda: HostPush.sleep(push, 0),
        push.heed_stop,
    ]
    for step in steps:
        with pytest.raises(Interrupted, match="interrupted"):
            step()
    assert (push.result.phase, push.told.bytes) == ("waiting", [])


class Closes(Here):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def guarded(push: Followed, error: BaseException | None, phase: str = "run") -> Result:
    """Let a push fail in a phase."""
    push.node = Closes()

    def fails() -> None:
        push.update(phase=phase)
        if error is not None:
            raise error

    found = push._guarded(fails)
    assert push.node.closed == 1  # type: ignore[attr-defined]
    assert found is push.result
    return found


GONE = Unreachable("no answer for 60 s")
OVERDUE = host_push._OverdueError("it hangs")


@pytest.mark.parametrize(
    ("error", "phase", "outcome", "message", "lost"),
    [
        (Interrupted("interrupted"), "run", "running", "interrupted", None),
        (Interrupted("interrupted"), "fetch", "running", "interrupted", None),
        (Interrupted("interrupted"), "ship", "failed", "interrupted", None),
        (GONE, "run", "lost", "no answer for 60 s", None),
        (GONE, "fetch", "lost", "no answer for 60 s", None),
        (GONE, "ship", "failed", "no answer for 60 s", "gpu1: no answer for 60 s"),
        (OVERDUE, "run", "lost", "it hangs", "gpu1: it hangs"),
        (BadInput("no such model"), "run", "failed", "no such model", "gpu1: no such model"),
        (KeyError("x"), "run", "failed", "KeyError: 'x'", "gpu1: KeyError: 'x'"),
    ],
)
def test_every_error_of_a_push_is_its_hosts_outcome(
    make: Make, error: Exception, phase: str, outcome: str, message: str, lost: str | None
) -> None:
    group = TrainingGroup(2)
    found = guarded(make({"group": group}), error, phase)
    assert found.error is not None
    assert (found.outcome, found.error.message, group.lost) == (outcome, message, lost)
    assert guarded(make(), error, phase).outcome == outcome


def test_a_defect_asks_to_be_reported_and_a_push_without_error_has_none(make: Make) -> None:
    error = guarded(make(), KeyError("x")).error
    assert isinstance(error, EnvironmentCannot)
    assert error.advice == "a defect of bench: please report it"
    assert guarded(make(), None) == Result("gpu1", phase="run")


@pytest.mark.parametrize(
    ("node", "level", "phase", "goes_on"),
    [
        (1, "nodes", "run", True),
        (0, "nodes", "run", False),
        (1, "quick", "run", False),
        (1, "nodes", "ship", False),
    ],
)
def test_a_check_of_the_fabric_goes_on_without_a_node_that_follows(
    make: Make, node: int, level: str, phase: str, goes_on: bool
) -> None:
    group = TrainingGroup(2)
    part = {"node": node, "nodes": 2, "group": group}
    guarded(make(part, manifest=load_any(CHECK), level=level, together=TOGETHER), OVERDUE, phase)
    assert group.lost == (None if goes_on else "gpu1: it hangs")


def test_a_push_that_has_ended_is_not_interrupted(make: Make) -> None:
    push = make()
    push.end("ready")
    assert push.interrupt() == Result("gpu1", outcome="ready")
    running = make()
    running.update(phase="run")
    assert running.interrupt().outcome == "running"
    assert running.told.shown == [("run", "", "running")]


# --- is there a run already? ------------------------------------------------------------------------------


def test_a_run_is_looked_for_with_all_that_was_asked(make: Make, tmp_path: Path) -> None:
    host = Host("gpu1", "10.0.0.7", "me", 2222)
    push = make({"host": host}, ssh_config=tmp_path / "config", slurm=Slurm(partition="gpu", nodes=2))
    assert push._asked == PushAsked(
        "10.0.0.7", 2222, str(tmp_path / "config"), push.manifest_sha256, str(tmp_path.resolve()), 2,
        "--partition=gpu",
    )  # fmt: skip
    assert make()._asked.ssh_config is None
    assert push.manifest_sha256 == push.request.manifest.digest.removeprefix("sha256:")


def test_a_fetched_run_counts_for_the_leader_of_a_push_that_asks_for_one_bundle(make: Make) -> None:
    push = make(once=True)
    fetched = record_of(push, state="fetched")
    fetched.bundle.write_bytes(b"")
    assert push._fetched_run() == fetched
    assert make()._fetched_run() is None
    together = record_of(make(), state="fetched", nodes=3)
    assert make({"node": 0, "nodes": 3}, together=TOGETHER, once=True)._fetched_run() == together
    assert make(FOLLOWER, together=TOGETHER, once=True)._fetched_run() is None


def test_an_unfinished_run_of_any_engine_that_may_be_chosen_is_taken_up(make: Make) -> None:
    push = make(engine="auto")
    assert push._unfinished_run() is None
    found = record_of(push, engine="venv")
    assert push._unfinished_run() == found
    assert make(engine="docker")._unfinished_run() is None
    assert make(engine="auto", new_run=True)._unfinished_run() is None
    for until, taken in (("preflight", None), ("ship", None), ("start", found), ("fetch", found)):
        assert make(engine="auto", until=until)._unfinished_run() == taken


def test_a_follower_takes_up_its_own_run(make: Make) -> None:
    push = make(FOLLOWER, together=TOGETHER)
    record_of(push, nodes=3)
    assert push._unfinished_run() is None
    own = record_of(push, nodes=3, run_id="bbbb00000000", follows=True)
    assert push._unfinished_run() == own


def test_a_run_moves_to_another_node_with_all_that_reaches_it(make: Make) -> None:
    host = Host("gpu2", "10.0.0.2", "bob", 2222, Path("/here/bob"), "/there/python")
    run = record_of(make(), slurm_job="17", state="failed")
    moved = make({"host": host}, continued=run)._unfinished_run()
    assert moved == dataclasses.replace(
        run, host="gpu2", address="10.0.0.2", user="bob", port=2222, identity="/here/bob",
        python="/there/python", slurm_job=None, state="begun",
    )  # fmt: skip
    plain = make(continued=run)._unfinished_run()
    assert plain is not None and plain.identity is None
    with pytest.raises(BadInput, match=f"^run {R.run_id} has another manifest") as refused:
        make(continued=dataclasses.replace(run, manifest_sha256="0" * 64))._unfinished_run()
    assert refused.value.advice == f"push its own: {run.mirror}/manifest.json"


@pytest.mark.parametrize(
    ("seen", "record", "standing"),
    [
        (status("alive"), {}, "running"),
        (status("waiting"), {"state": "incomplete"}, "running"),
        (status("dead"), {}, "new"),
        (status("gone", bundle_bytes=1), {}, "new"),
        (status("exit", 0, bundle_bytes=1), {}, "ended"),
        (status("exit", 1, bundle_bytes=0), {}, "ended"),
        (status("exit", 0, bundle_bytes=1), {"state": "incomplete"}, "new"),
        (status("exit", 0), {}, "new"),
        (status("exit", 0), {"follows": True}, "ended"),
        (status("exit", 1), {"follows": True}, "new"),
    ],
)
def test_the_standing_of_an_earlier_run(
    make: Make, monkeypatch: pytest.MonkeyPatch, seen: Status, record: dict[str, Any], standing: str
) -> None:
    push = make()
    looks(monkeypatch, seen)
    run = record_of(push, **record)
    assert push._standing(run) == standing
    assert push.result.run_id == run.run_id


@pytest.mark.parametrize(("seen", "started"), [("dead", True), ("alive", False)])
def test_a_push_starts_its_run_again_or_watches_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, seen: str, started: bool
) -> None:
    push = make()
    run = record_of(push)
    watched: list[Record] = []
    looks(monkeypatch, status(seen))
    monkeypatch.setattr(push, "_watch_to_the_end", watched.append)
    push.run()
    assert (push.started, watched) == (([run], []) if started else ([], [run]))
    attached = f"gpu1: attached to run {run.run_id}, which an earlier push started"
    assert push.told.said == ([] if started else [attached])
    assert push.told.shown[0] == ("connect", "", None)


def test_a_push_without_an_earlier_run_starts_one(make: Make) -> None:
    push = make()
    assert push.run().error is None
    assert push.started == [None]


def test_a_push_of_one_bundle_reports_the_one_that_was_fetched(make: Make) -> None:
    push = make(once=True)
    fetched = record_of(push, state="fetched", environment="sha256:1")
    fetched.bundle.write_bytes(b"")
    assert push.run() == Result(
        "gpu1", phase="connect", outcome="unchanged", run_id=fetched.run_id, bundle=fetched.bundle,
        engine="docker", image=fetched.image, environment="sha256:1",
    )  # fmt: skip
    assert push.started == []
    assert make().report_fetched(fetched).bundle == fetched.bundle


def test_the_hosts_of_a_group_agree_on_a_standing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    group = TrainingGroup(2)
    asked: list[tuple[object, ...]] = []
    part = {"node": 1, "nodes": 2, "group": group}

    def gathered(*standings: str) -> Followed:
        monkeypatch.setattr(group, "gather", lambda *given: asked.append(given) or list(standings))
        push = make(part, together=TOGETHER)
        looks(monkeypatch, status("alive"))
        push.run()
        return push

    assert gathered("new", "new").started == [None]
    assert asked.pop()[:3] == ("connect", 1, "new")
    run = record_of(make(part, together=TOGETHER), nodes=2, follows=True)
    assert gathered("new", "running").started == [run]
    assert asked[0][:3] == ("connect", 1, "running")
    with pytest.raises(Interrupted):
        stopped = make(part)
        stopped.shared.stop.set()
        stopped._gather("ship")
        asked[-1][3]()  # type: ignore[operator]
    assert asked[-1][:3] == ("ship", 1, "new")
    assert make()._gather("ship") == ["new"]


@pytest.mark.parametrize("standing", ["fetched", "ended"])
def test_a_follower_leaves_where_the_leader_has_its_bundle(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node, standing: str
) -> None:
    push = make({"node": 1, "nodes": 2, "group": TrainingGroup(2)}, together=TOGETHER)
    run = record_of(push, nodes=2, follows=True)
    looks(monkeypatch, status("alive"))
    monkeypatch.setattr(push, "_gather", lambda step, own: [standing, own])
    assert push.run().outcome == "unchanged"
    assert (node, push.shared.records.all()) == ([("clean", run.run_id)], [])
    assert push.run().outcome == "unchanged"  # there is no run of its own any more
    assert push.started == []


@pytest.mark.parametrize(
    ("manifest", "verb"), [(QUICKSTART, "resumes"), (CHECK, "starts over")], ids=["training", "check"]
)
def test_a_run_that_starts_again_is_ended_first(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node, manifest: Path, verb: str
) -> None:
    push = make(manifest=load_any(manifest))
    run = record_of(push)
    looks(monkeypatch, status("alive"), status("waiting"), status("exit", 0))
    push._stop_for_restart(run)
    assert node == [("cancel", run.run_id)]
    assert push.naps == [1.0, 1.0]
    assert push.told.said == [f"gpu1: run {run.run_id} {verb}"]
    node.clear()
    looks(monkeypatch, status("dead"))
    push._stop_for_restart(run)
    assert node == []


def test_a_run_is_asked_to_end_at_the_first_look(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    push = make()
    looks(monkeypatch, status("alive"), status("exit", 0))
    push._stop_for_restart(record_of(push))
    assert node == [("cancel", R.run_id)]


def test_a_run_that_does_not_end_when_asked_stops_the_push(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    push = make()
    run = record_of(push)
    looks(monkeypatch, status("alive"))
    with pytest.raises(EnvironmentCannot, match=f"^run {run.run_id} does not end") as failed:
        push._stop_for_restart(run)
    assert failed.value.advice == f"bench cancel {run.run_id}"
    assert node == [("cancel", run.run_id)]
    assert push.naps == [1.0] * 121  # two minutes


# --- start ------------------------------------------------------------------------------------------------


MADE = {name: getattr(R, name) for name in ("host", "user", "port", "identity", "ssh_config", "place")}
MADE |= {"local": False, "engine": "docker", "image": None, "key": None, "valid_seconds": 60, "keep": True}


def test_a_run_is_recorded_before_it_starts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_push, "now", lambda: 1_790_000_000)
    push = make()
    choices: dict[str, Any] = dict.fromkeys(("user", "identity", "ssh_config", "key"))
    choices |= {"place": R.place, "engine": "docker", "valid_seconds": 60, "keep": True}
    made = push.save_run(None, choices, host="gpu1", port=22, local=False, image=None)
    assert made == Record(
        run_id=made.run_id, push="0011", host="gpu1", address="10.0.0.1", user=None, port=22, identity=None,
        ssh_config=None, local=False, place=R.place, engine="docker", image=None,
        manifest_sha256=push.manifest_sha256, out=str(push.request.out.resolve()), key=None,
        ledger=str(push.request.ledger), valid_seconds=60, keep=True, began_at=1_790_000_000,
    )  # fmt: skip
    assert (made.mirror / "manifest.json").read_bytes() == QUICKSTART.read_bytes()
    assert push.shared.records.all() == [made]
    again = push.save_run(made, choices | {"keep": False}, host="another")
    assert again == dataclasses.replace(made, keep=False)
    assert push.shared.records.all() == [again]
    (issued,) = [json.loads(line) for line in Path(made.ledger or "").read_text().splitlines()]
    assert issued["run_id"] == made.run_id


def test_the_folders_of_a_run_are_made_when_they_are_needed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle may be fetched long after its push, when the folder here is gone."""
    push = make(out=tmp_path / "deep" / "er")
    run = push.save_run(None, MADE)
    assert run.mirror.is_dir()
    monkeypatch.setattr(push, "_watch", lambda record: None)
    shutil.rmtree(tmp_path / "deep")
    for _ in range(2):
        push._watch_to_the_end(run)
        assert run.mirror.is_dir()


def test_a_push_of_no_kind_starts_nothing(make: Make) -> None:
    push = make()
    with pytest.raises(NotImplementedError):
        HostPush._start_run(push, None)


def test_a_run_without_a_ledger_of_its_own_is_in_the_users(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = make(ledger=None).save_run(None, MADE)
    assert made.ledger is None


def test_each_start_of_a_run_has_a_challenge_of_its_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_push, "now", lambda: 1_790_000_000)
    push = make()
    run = push.save_run(None, MADE)
    first, second = (json.loads(push.challenge(run)) for _ in range(2))
    assert first["run_id"] == second["run_id"] == run.run_id
    assert first["manifest_sha256"] == run.manifest_sha256
    assert first["nonce"] != second["nonce"]


# --- watch ------------------------------------------------------------------------------------------------


def watched(
    push: Followed, monkeypatch: pytest.MonkeyPatch, *seen: Status | Exception, **run: Any
) -> Status | None:
    looks(monkeypatch, *seen)
    return push._watch(record_of(push, **run))


def test_a_run_is_mirrored_until_it_ends_and_looked_at_less_and_less_often(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    push = make()
    alive = status("alive", files={"log.txt": 1})
    assert watched(push, monkeypatch, *[alive] * 40, status("exit", 3)) == status("exit", 3)
    assert [each for each in node if each != ("mirror", {"log.txt": 1})] == [("mirror", {})]
    assert push.naps[:3] == pytest.approx([1.0, 1.1, 1.21])
    assert push.naps[-1] == 5.0 and max(push.naps) == 5.0 and len(push.naps) == 40


def test_a_run_is_dead_after_four_looks_without_life(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    """run.sh may not have written its process id yet."""
    push = make()
    dead, gone, alive = status("dead"), status("gone"), status("alive")
    assert watched(push, monkeypatch, dead, gone, dead, alive, dead, dead, dead, gone) == gone
    assert len(push.naps) == 7


def test_new_lines_of_a_log_are_shown(make: Make, monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    push = make()
    monkeypatch.setattr(mirror, "mirror", lambda *_: ["one", "two", "three"])
    watched(push, monkeypatch, status("exit", 0))
    assert (push.told.lines, push.result.last) == (["one", "two", "three"], "three")


@pytest.mark.parametrize(
    ("asks", "count"),
    [
        ("waiting 1, alive 1, alive 1, exit 2", 1),
        ("alive 1, alive 2, alive 2, alive 1, dead 3, exit 3", 3),
    ],
)
def test_each_request_of_a_run_that_is_alive_is_certified_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node, asks: str, count: int
) -> None:
    push = make()
    monkeypatch.setattr(host_push, "now", lambda: 1_000)
    monkeypatch.setattr(mirror, "certify", lambda *given: node.append(("certify", given[2])) or 8_200)
    seen = (status(state, request=request) for state, request in map(str.split, asks.split(", ")))
    watched(push, monkeypatch, *seen)
    assert [each for each in node if each[0] == "certify"] == [("certify", KEY)] * count
    text = f"{R.run_id}  certified for {seconds_text(7_200)}; Ctrl-C leaves it running"
    assert push.told.shown.count(("run", text, None)) == count


def test_a_run_gets_eight_certificates_of_a_push(make: Make, node: Node) -> None:
    push = make()
    run = record_of(push)
    push._certify(run, 7)
    with pytest.raises(EnvironmentCannot, match="the node asks for more than 8 certificates") as refused:
        push._certify(run, 8)
    assert refused.value.advice == f"if the run did start again so often: bench attach {run.run_id}"
    assert len(node) == 1


def test_each_reason_for_which_slurm_lets_a_job_wait_is_shown_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    push = make()
    reasons = (None, "None", "Priority", "Priority", "Resources", "Priority")
    waiting = [status("waiting", reason=reason) for reason in reasons]
    watched(push, monkeypatch, *waiting, status("alive", reason="Odd"), status("exit", 0, reason="DONE"))
    texts = [text for _, text, _ in push.told.shown]
    assert [text.partition(" (")[0].split("queue: ")[1] for text in texts] == [
        host_push.waiting_text(reason) for reason in ("Priority", "Resources", "Priority")
    ]
    assert all(text.startswith(f"{R.run_id}  waits in Slurm's queue: ") for text in texts)
    assert {phase for phase, _, _ in push.told.shown} == {"run"}


def test_a_run_that_ended_long_after_its_budget_has_ended(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    monkeypatch.setattr(host_push, "_OVERDUE_SECONDS", 0.5)
    end = status("exit", 0)
    assert watched(make(budget_seconds=0.0), monkeypatch, status("alive"), end) == end


@pytest.mark.parametrize(
    ("seen", "run", "watched_on"),
    [
        (status("alive"), {}, True),
        (status("alive", request="1 1"), {}, False),
        (status("alive", certified=True), {}, False),
        (status("alive"), {"follows": True}, False),
        (status("waiting"), {}, False),
        (status("dead"), {}, True),
    ],
)
def test_a_push_that_only_starts_a_run_leaves_it_once_it_is_certified(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    node: Node,
    seen: Status,
    run: dict[str, Any],
    watched_on: bool,
) -> None:
    end = status("exit", 0)
    assert watched(make(until="start"), monkeypatch, seen, end, **run) == (end if watched_on else None)
    assert watched(make(), monkeypatch, seen, end, **run) == end


@pytest.mark.parametrize("budget", [0.0, 100.0])
def test_a_run_may_go_on_for_an_hour_after_its_budget(make: Make, budget: float) -> None:
    push = make(budget_seconds=budget)
    run = record_of(push)
    push._refuse_to_wait_longer(run, budget + 3600)
    after = f"run {run.run_id} still runs after {seconds_text(budget + 3601)}, with a budget of"
    with pytest.raises(host_push._OverdueError, match=after) as overdue:
        push._refuse_to_wait_longer(run, budget + 3601)
    assert overdue.value.advice == (
        f"bench cancel {run.run_id} ends it, with --kill if it hangs; its log is in {run.mirror}"
    )
    make()._refuse_to_wait_longer(run, 1e9)


def test_the_time_of_a_run_counts_from_when_its_job_left_the_queue(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    push = make(budget_seconds=0.0)
    monkeypatch.setattr(host_push, "_OVERDUE_SECONDS", 10.0)
    queued = [status("waiting")] * 100
    with pytest.raises(host_push._OverdueError):
        watched(push, monkeypatch, *queued, status("alive"))
    assert 10 < push.seconds - sum(push.naps[:99]) < 16


def test_a_node_out_of_reach_is_asked_again_with_patience(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    push = make(patience_seconds=60.0)
    end = status("exit", 0)
    assert watched(push, monkeypatch, GONE, GONE, status("alive"), GONE, end) == end
    assert push.naps == [1.0, 1.25, 1.0, 1.25]  # a second, and a quarter of the time since it was heard
    assert push.told.shown[0] == ("run", f"{R.run_id}  no answer for 60 s; asking again", None)


def test_a_node_that_is_silent_for_too_long_is_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    push = make(patience_seconds=100.0)
    with pytest.raises(Unreachable) as lost:
        watched(push, monkeypatch, GONE)
    assert lost.value.message == f"no answer for 60 s; out of reach for {seconds_text(push.seconds)}"
    mirrored = push.request.out.resolve() / R.run_id
    assert lost.value.advice == (
        f"the run's files so far are in {mirrored}; bench attach {R.run_id} asks again"
    )
    assert max(push.naps) == 15.0 and 100 < push.seconds < 116
    run = record_of(push)
    push._wait_for_node(run, GONE, push.seconds - 100.0)  # the last moment of its patience
    with pytest.raises(Unreachable):
        push._wait_for_node(run, GONE, push.seconds - 100.1)


@pytest.mark.parametrize("seen", ["alive", "waiting"])
@pytest.mark.parametrize(
    ("lost", "over", "why"),
    [
        (None, False, None),
        ("gpu2: it broke", False, "gpu2: it broke"),
        (None, True, "the leader is done"),
        ("gpu2: it broke", True, "gpu2: it broke"),
    ],
)
def test_a_run_is_asked_once_to_end_with_its_group(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node, lost: Any, over: bool, why: Any, seen: str
) -> None:
    group = TrainingGroup(2)
    group.lost, group.over = lost, over
    push = make({"group": group})
    watched(push, monkeypatch, status(seen), status(seen), status("exit", 0))
    asked = [("run", f"{R.run_id}  is asked to end, because of {why}", None)] if why else []
    assert push.told.shown == asked
    assert [each for each in node if each[0] == "cancel"] == [("cancel", R.run_id)] * len(asked)
    assert not make()._end_if_group_ended(record_of(push))


@pytest.mark.parametrize("seen", ["dead", "gone", "exit"])
def test_a_run_that_has_ended_is_not_asked_to(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node, seen: str
) -> None:
    group = TrainingGroup(2)
    group.over = True
    watched(make({"group": group}), monkeypatch, status(seen))
    assert not [each for each in node if each[0] == "cancel"]


def test_a_mirror_that_is_full_is_told_once(make: Make, monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    push = make()
    monkeypatch.setattr(mirror, "room_bytes", lambda record: 1)
    run = record_of(push)
    push._mirror(run, status("alive"))
    assert push.told.said == []
    monkeypatch.setattr(mirror, "room_bytes", lambda record: 0)
    for _ in range(3):
        push._mirror(run, status("alive"))
    full = f"gpu1: run {run.run_id} has written more than is mirrored: its new lines are not shown"
    assert (push.told.said, len(node)) == ([full], 4)
    assert push.result.last == ""


# --- the end ----------------------------------------------------------------------------------------------


def fetches(monkeypatch: pytest.MonkeyPatch, complete: bool = True) -> Any:
    verdict = SimpleNamespace(complete=complete)
    monkeypatch.setattr(mirror, "fetch", lambda *given: verdict)
    return verdict


def ended(push: Followed, monkeypatch: pytest.MonkeyPatch, seen: Status | None, **run: Any) -> Record:
    """Let the run of a push end so, and watch it to its end; return its record."""
    monkeypatch.setattr(push, "_watch", lambda record: seen)
    record = record_of(push, **run)
    push._watch_to_the_end(record)
    return record


@pytest.mark.parametrize(
    ("complete", "outcome", "state"), [(True, "done", "fetched"), (False, "incomplete", "incomplete")]
)
def test_the_bundle_of_a_run_is_fetched_and_its_node_is_cleaned(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node, complete: bool, outcome: str, state: str
) -> None:
    push = make()
    verdict = fetches(monkeypatch, complete)
    run = ended(push, monkeypatch, status("exit", 0, bundle_bytes=9), environment="sha256:1")
    found = push.result
    assert (found.outcome, found.bundle, found.verdict, found.code) == (outcome, run.bundle, verdict, 0)
    assert (found.run_id, found.engine, found.image) == (run.run_id, run.engine, run.image)
    assert found.environment == "sha256:1"
    assert [r.state for r in push.shared.records.all()] == [state]
    assert node == [("clean", run.run_id)] * complete
    phases = [phase for phase, _, _ in push.told.shown]
    assert phases == (["run", "fetch", "clean", "clean"] if complete else ["run", "fetch", "fetch"])
    assert push.told.shown[0][1] == run.run_id


def test_a_run_is_fetched_with_the_key_and_the_revocation_lists_of_the_push(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = make()
    given: list[object] = []
    monkeypatch.setattr(mirror, "fetch", lambda *all_: given.extend(all_))
    run = record_of(push)
    push._fetch(run)
    assert given == [push.node, run, KEY, (), push.progress]


def test_a_bundle_that_does_not_verify_is_signed_again_by_the_next_push(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forged(*_: object) -> None:
        raise VerificationFailed("is forged", where="b.tar")

    push = make()
    monkeypatch.setattr(mirror, "fetch", forged)
    with pytest.raises(VerificationFailed) as failed:
        push._fetch(record_of(push))
    assert (failed.value.message, failed.value.where) == ("is forged", "b.tar")
    assert failed.value.advice == "push again: the run is signed again, and measures nothing twice"
    assert [r.state for r in push.shared.records.all()] == ["incomplete"]


def test_a_run_that_is_not_waited_for_is_left_running(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    push = make()
    run = ended(push, monkeypatch, None)
    assert (push.result.outcome, push.result.phase) == ("running", "run")
    assert push.shared.records.all() == [run]


def test_a_bundle_whose_key_was_not_certified_is_not_fetched(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = make()
    with pytest.raises(Incomplete, match="the run ended before its key was certified") as failed:
        ended(push, monkeypatch, status("exit", 0, request="1 1", bundle_bytes=9))
    assert failed.value.advice == "push again: the run is signed again, and measures nothing twice"
    assert [r.state for r in push.shared.records.all()] == ["incomplete"]


@pytest.mark.parametrize("seen", [status("exit", 7), status("exit", 7, request="1 1"), status("dead")])
def test_a_run_without_a_bundle_failed_unless_another_command_has_fetched_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, seen: Status
) -> None:
    push = make()
    with pytest.raises(EnvironmentCannot):
        ended(push, monkeypatch, seen)
    assert [r.state for r in push.shared.records.all()] == ["failed"]

    def fetched_meanwhile(record: Record) -> Status:
        other = push.shared.records.move(record, "fetched")
        other.bundle.write_bytes(b"")
        return seen

    monkeypatch.setattr(push, "_watch", fetched_meanwhile)
    push._watch_to_the_end(record_of(push))
    assert push.result.outcome == "unchanged"
    assert [r.state for r in push.shared.records.all()] == ["fetched"]


def test_a_fetch_that_fails_beside_another_command_is_no_failure(
    make: Make, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    push = make()

    def cannot(*_: object) -> None:
        raise EnvironmentCannot("the bundle changed while it was fetched")

    monkeypatch.setattr(mirror, "fetch", cannot)
    there = status("exit", 0, bundle_bytes=9)
    with pytest.raises(EnvironmentCannot, match="the bundle changed"):
        ended(push, monkeypatch, there)
    monkeypatch.setattr(push, "_fetched_by_other", lambda record: True)
    ended(push, monkeypatch, there)
    assert node == []


@pytest.mark.parametrize(
    ("state", "run_id", "exists", "fetched"),
    [
        ("fetched", R.run_id, True, True),
        ("fetched", R.run_id, False, False),
        ("running", R.run_id, True, False),
        ("fetched", "bbbb00000000", True, False),
    ],
)
def test_a_bundle_that_another_command_has_fetched_is_here(
    make: Make, state: str, run_id: str, exists: bool, fetched: bool
) -> None:
    push = make()
    other = record_of(push, state=state, run_id=run_id)
    if exists:
        other.bundle.write_bytes(b"")
    assert push._fetched_by_other(dataclasses.replace(other, run_id=R.run_id)) == fetched
    assert push.result.outcome == ("unchanged" if fetched else None)


def test_the_verdict_of_a_node_check_is_read_from_its_bundle(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings of a check count for the exit code, however often it is pushed."""
    given: list[object] = []
    monkeypatch.setattr(certify_and_receive, "read_received", lambda *all_: given.extend(all_) or "good")
    monkeypatch.setattr(host_push, "now", lambda: 17)
    nodes = (JobNode("n1"),)
    for manifest, verdict in ((QUICKSTART, None), (CHECK, "good")):
        push = make(manifest=load_any(manifest))
        run = record_of(push, job_nodes=nodes)
        push._end_unchanged(run)
        assert (push.result.verdict, push.result.job_nodes) == (verdict, nodes)
    assert given == [KEY, run.bundle, 17, host_push.recompute, ()]


def finished(push: Followed, seen: Status, **run: Any) -> Record:
    record = record_of(push, **run)
    push._finish(record, seen)
    return record


def test_a_leader_tells_its_group_how_it_ended(make: Make, node: Node) -> None:
    group = TrainingGroup(2)
    push = make({"group": group})
    finished(push, status("exit", 5), state="incomplete")
    assert (group.lost, group.over) == ("gpu1: its run ended before its plan did", False)
    assert (push.result.outcome, node) == ("incomplete", [])
    group = TrainingGroup(2)
    push = make({"group": group})
    run = finished(push, status("exit", 1), state="fetched")  # as a check that found a fault
    assert (group.lost, group.over, push.result.outcome) == (None, True, "done")
    assert (push.result.phase, node) == ("clean", [("clean", run.run_id)])
    assert push.shared.records.all() == [run]


def test_a_follower_that_ended_well_is_forgotten(make: Make, node: Node) -> None:
    group = TrainingGroup(2)
    push = make({"group": group})
    finished(push, status("exit", 0), follows=True)
    assert (group.over, push.result.outcome, push.shared.records.all()) == (False, "done", [])


@pytest.mark.parametrize(
    ("seen", "over", "lost", "error"),
    [
        (status("exit", 3), True, None, None),
        (status("dead"), True, "gpu2: it broke", None),
        (status("exit", 3), False, None, "exit code 3"),
        (status("dead"), False, None, "killed on the node"),
        (status("dead"), False, "gpu2: it broke", "killed on the node"),
        (status("exit", 3), False, "gpu2: it broke", "ended, because of gpu2: it broke"),
    ],
)
def test_a_follower_that_failed_is_an_error_unless_its_leader_is_done(
    make: Make, node: Node, seen: Status, over: bool, lost: str | None, error: str | None
) -> None:
    group = TrainingGroup(2)
    group.over, group.lost = over, lost
    push = make({"group": group})
    if error is None:
        finished(push, seen, follows=True)
        assert push.result.outcome == "done"
        return
    with pytest.raises(Incomplete if "because" in error else EnvironmentCannot, match=error) as failed:
        finished(push, seen, follows=True)
    if isinstance(failed.value, GroupFailed):
        assert failed.value.advice == "push again, to all hosts"
    assert node == []


def test_a_follower_without_a_group_that_failed_is_an_error(make: Make, node: Node) -> None:
    """A follower can be attached to by itself, after its push has ended."""
    with pytest.raises(EnvironmentCannot, match="exit code 3"):
        finished(make(), status("exit", 3), follows=True)


def test_a_follower_ends_without_a_bundle(make: Make, monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    push = make()
    ended(push, monkeypatch, status("exit", 0), follows=True)
    assert (push.result.outcome, push.result.bundle) == ("done", None)


def test_the_nodes_of_a_job_are_recorded_and_those_with_trouble_told(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = (JobNode("n1"), JobNode("n2", "down", "it was slow"))
    asked: list[object] = []
    monkeypatch.setattr(slurm_job, "ask_nodes", lambda node, folder: asked.append(folder) or nodes)
    push = make()
    run = record_of(push)
    assert push._note_nodes(run, status("exit", 0)) is run
    assert asked == []
    found = push._note_nodes(run, status("exit", 0, on="n[1-2]"))
    assert found == dataclasses.replace(run, slurm_nodes="n[1-2]", job_nodes=nodes)
    assert (asked, push.result.job_nodes) == ([run.folder], nodes)
    assert push.told.said == [f"gpu1: node {nodes[1].text}"]
    between = make(manifest=load_any(CHECK), level="nodes")
    between._note_nodes(run, status("exit", 0, on="n[1-2]"))
    assert between.told.said == []


def test_a_missing_bundle_of_a_check_says_that_it_starts_over(make: Make) -> None:
    kinds = ((QUICKSTART, "the run resumes from its journal"), (CHECK, "the check starts over"))
    for manifest, again in kinds:
        push = make(manifest=load_any(manifest))
        error = push._missing_bundle(status("dead"), record_of(push))
        assert error.advice == f"push again: {again}"
