"""The steps of a push around the pods of its job, with a simulated cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.node_check.check_manifest import SHIPPED, load_any
from bench.push.connection import Unreachable
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.kubernetes import push_to_pods
from bench.push.kubernetes.cluster_preflight import PodsWanted
from bench.push.kubernetes.kubectl import Cluster, Kubectl
from bench.push.kubernetes.pod_node import PodGone, PodNode
from bench.push.kubernetes.pod_state import PodState
from bench.push.kubernetes.push_to_pods import PodPush, give_pods, leave, take_away
from bench.push.mirror import Status
from bench.push.push_record import Record, Records
from bench.push.remote import CommandResult
from bench.push.request import HostPart, Result, Shared
from tests.push.test_pod_node import PLACE
from tests.push.test_push_record import R
from tests.push.test_push_to_node import Silent, request_of

AWAY = Unreachable("the connection to the server was refused")
WAITING = PodState("waiting", "Unschedulable: 0/3 nodes")
THERE = PodState("running", name="p", node="gpu-a")


@pytest.fixture
def record(tmp_path: Path) -> Record:
    made = dataclasses.replace(
        R, engine="kubernetes", out=str(tmp_path / "results"), state="running", pod=PLACE
    )
    made.mirror.mkdir(parents=True)
    return made


@pytest.fixture
def push(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PodPush:
    monkeypatch.setattr(push_to_pods, "LOOK_SECONDS", 0.001)
    shared = Shared(Records(tmp_path / "runs"), ImageStore(print), Silent())
    host = Host(record.host, record.address, port=record.port)
    return PodPush(HostPart(host), request_of(record), shared)


def job_that_says(*answers: PodState | Unreachable) -> Any:
    """Return a job whose pod is asked for several times."""
    left = list(answers)

    def pod(index: int, node: str) -> PodState:
        answer = left.pop(0)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    return SimpleNamespace(pod=pod)


def test_a_pod_is_waited_for_and_outages_of_the_api_server_too(push: PodPush) -> None:
    assert push._await_pod(job_that_says(WAITING, AWAY, AWAY, WAITING, THERE)) == THERE


def test_an_api_server_that_stays_away_is_given_up(push: PodPush) -> None:
    push.request = dataclasses.replace(push.request, patience_seconds=0.0)
    with pytest.raises(Unreachable, match="was refused"):
        push._await_pod(job_that_says(WAITING, *[AWAY] * 5))


def test_a_pod_that_cannot_run_ends_the_push_with_the_clusters_reason(push: PodPush) -> None:
    with pytest.raises(PodGone, match="ImagePullBackOff"):
        push._await_pod(job_that_says(WAITING, PodState("gone", "ImagePullBackOff: denied", "look")))


def standing(state: str, bundle_bytes: int | None = None) -> Callable[..., Status]:
    return lambda node, record: Status(state, 0 if state == "exit" else None, {}, None, bundle_bytes)


@pytest.mark.parametrize(
    ("look", "needs"),
    [(standing("alive"), False), (standing("exit", 10), False), (standing("dead"), True)],
)
def test_only_a_run_that_has_to_start_needs_a_pod(
    push: PodPush, record: Record, look: Any, needs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "_unfinished_run", lambda: record)
    monkeypatch.setattr(push_to_pods.mirror, "look", look)
    assert push.needs_pod() is needs


def test_a_run_whose_pod_is_gone_needs_another(
    push: PodPush, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> Status:
        raise PodGone("it was evicted")

    assert push.needs_pod()  # no run at all
    monkeypatch.setattr(push, "_unfinished_run", lambda: record)
    monkeypatch.setattr(push_to_pods.mirror, "look", gone)
    assert push.needs_pod()
    monkeypatch.setattr(push, "_unfinished_run", lambda: dataclasses.replace(record, pod=None))
    assert push.needs_pod()


def test_ctrl_c_while_the_job_is_created_leaves_none(push: PodPush, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    deleted: list[str] = []
    cluster = Cluster("prod", PLACE.server, "team")
    wanted = PodsWanted(cluster, "image", (), 1, None, None, None, "/out")
    monkeypatch.setattr(push_to_pods, "preflight", lambda *_: SimpleNamespace(name="bench-1"))
    monkeypatch.setattr(push_to_pods, "CreatedJob", interrupted)
    monkeypatch.setattr(push_to_pods, "delete_job", lambda kubectl, name: deleted.append(name))
    with pytest.raises(KeyboardInterrupt):
        give_pods([push], wanted, push.request, print)
    assert deleted == ["bench-1"]


@pytest.mark.parametrize(("outcome", "deleted"), [("done", 1), ("failed", 1), ("running", 0), ("lost", 0)])
def test_a_job_is_deleted_unless_one_of_its_runs_goes_on(outcome: Any, deleted: int) -> None:
    calls: list[int] = []
    created: Any = SimpleNamespace(delete=lambda: calls.append(1), job=SimpleNamespace(name="bench-1"))
    take_away(created, [Result("a", outcome="done"), Result("b", outcome=outcome)], print)
    assert len(calls) == deleted


def test_a_job_that_cannot_be_deleted_costs_no_result() -> None:
    def delete() -> None:
        raise EnvironmentCannot("jobs is forbidden")

    said: list[str] = []
    created: Any = SimpleNamespace(delete=delete, job=SimpleNamespace(name="bench-1"))
    take_away(created, [Result("a", outcome="done")], said.append)
    assert said == ["the job bench-1 stays in the cluster: jobs is forbidden"]


def test_the_last_run_of_a_job_takes_the_job_away(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []
    monkeypatch.setattr(push_to_pods, "delete_job", lambda kubectl, name: deleted.append(name))
    monkeypatch.setattr(PodNode, "release", lambda self, folder: None)
    records, two = Records(tmp_path / "runs"), dataclasses.replace(PLACE, pods=2)
    first = records.save(dataclasses.replace(record, pod=two, run_id="a" * 12))
    second = records.save(dataclasses.replace(record, pod=two, run_id="b" * 12))
    leave(PodNode.of(first), records.move(first, "fetched"), records)
    assert deleted == []
    leave(PodNode.of(second), records.move(second, "fetched"), records)
    assert deleted == [PLACE.job]


# --- each step by itself ------------------------------------------------------------------------------------


class Created:
    """A job whose pod runs, or says why not; `asked` are the pods that were asked for."""

    def __init__(self, pod: PodState = THERE) -> None:
        self._pod = pod
        self.asked: list[tuple[int, str]] = []
        self.job = SimpleNamespace(name="bench-9", place="/results")

    def pod(self, index: int, node: str) -> PodState:
        self.asked.append((index, node))
        return self._pod

    def place(self, pod: str) -> Any:
        return dataclasses.replace(PLACE, job="bench-9", pod=pod)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every pod run scripts without a cluster; return the scripts, and the places that were released."""
    asked: list[str] = []

    def ask(self: PodNode, script: str, pieces: Any = (), **_: Any) -> CommandResult:
        asked.append(script)
        return CommandResult(0, b"", b"")

    monkeypatch.setattr(PodNode, "ask", ask)
    monkeypatch.setattr(PodNode, "release", lambda self, folder: asked.append(f"release {folder}"))
    return asked


@pytest.fixture
def watched(push: PodPush, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Let a run be started and watched without a node; return the records that were watched."""
    seen: list[Record] = []
    monkeypatch.setattr(push, "_watch_to_the_end", seen.append)
    return seen


def said_by(push: PodPush, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(push, "enter", lambda phase, text="": said.append((phase, text)))
    monkeypatch.setattr(push, "say_phase", lambda text: said.append(("", text)))
    monkeypatch.setattr(push, "say", lambda text: said.append(("say", text)))
    return said


def test_a_push_that_got_no_pod_starts_nothing(push: PodPush) -> None:
    with pytest.raises(EnvironmentCannot, match="its run has just ended without a bundle") as caught:
        push._start_run(None)
    assert caught.value.advice == "push again, in a moment"


def test_a_run_starts_in_the_pod_that_runs(
    push: PodPush, monkeypatch: pytest.MonkeyPatch, node: list[str], watched: list[Record]
) -> None:
    said, created = said_by(push, monkeypatch), Created()
    begun: list[tuple[Record, bool]] = []
    monkeypatch.setattr(
        push, "_start_in_pod", lambda record, resumes: begun.append((record, resumes)) or record
    )
    push.given(created, 3)  # type: ignore[arg-type]
    push._start_run(None)
    assert created.asked == [(3, push.part.host.name)]
    assert said == [("start", "job bench-9"), ("", "pod p on the node gpu-a")]
    ((record, resumes),) = begun
    assert (record, False) == (watched[0], resumes)
    assert record.pod == dataclasses.replace(PLACE, job="bench-9", pod="p")
    assert (record.host, record.place, record.engine, record.local, record.keep) == (
        "gpu-a", "/results", "kubernetes", False, False,
    )  # fmt: skip
    assert (record.user, record.port, record.identity, record.ssh_config, record.image) == (None,) * 5
    assert (record.key, record.valid_seconds) == (str(push.request.key.path), push.request.valid_seconds)
    assert isinstance(push.node, PodNode) and push.node._place == record.pod
    assert node == []


def test_a_run_that_goes_on_leaves_its_old_pod_and_keeps_its_id(
    push: PodPush, record: Record, monkeypatch: pytest.MonkeyPatch, node: list[str], watched: list[Record]
) -> None:
    monkeypatch.setattr(push, "_start_in_pod", lambda record, resumes: record)
    push.node = PodNode.of(record)
    push.given(Created(), 0)  # type: ignore[arg-type]
    push._start_run(record)
    assert node == [f"release {record.place}"]
    assert (watched[0].run_id, watched[0].place) == (record.run_id, "/results")
    node.clear()
    push._start_run(dataclasses.replace(record, pod=None))
    assert node == []


@pytest.mark.parametrize(
    ("resumes", "checks", "restores"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_a_run_in_a_pod_gets_its_files_and_the_sign_to_begin(
    push: PodPush, record: Record, monkeypatch: pytest.MonkeyPatch, node: list[str],
    resumes: bool, checks: bool, restores: bool,
) -> None:  # fmt: skip
    push.shared.records.save(record)
    said = said_by(push, monkeypatch)
    job = dataclasses.replace(push._run_job(record), checks=checks)
    monkeypatch.setattr(push, "_run_job", lambda _: job)
    prepared: list[Any] = []
    monkeypatch.setattr(push_to_pods.run_script, "prepare", lambda *given: prepared.append(given))
    monkeypatch.setattr(push, "challenge", lambda _: b"challenge")
    restored: list[Any] = []
    monkeypatch.setattr(push_to_pods.mirror, "restore_journal", lambda *given: restored.append(given) or True)
    push.node = PodNode.of(record)
    moved = push._start_in_pod(record, resumes=resumes)
    assert prepared == [(push.node, job, push.request.manifest.data, b"challenge")]
    assert restored == ([(push.node, record, "")] if restores else [])
    journal = f"the mirrored journal of run {record.run_id} was restored in the pod"
    assert said == ([("say", journal)] if restores else [])
    assert (record.mirror / "run.sh").read_text() == push_to_pods.run_script.script(job)
    (begin,) = node
    assert begin.startswith(
        f"cd {record.folder} && rm -f exit pid && printf %s {record.folder} >{record.place}/start && "
    )
    assert moved.state == "running" and [r.state for r in push.shared.records.all()] == ["running"]
    assert (push.result.run_id, push.result.engine, push.result.changed) == (
        record.run_id,
        "kubernetes",
        True,
    )


def test_a_run_that_does_not_begin_is_an_error(
    push: PodPush, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodNode, "ask", lambda *_, **__: CommandResult(1, b"", b"no space"))
    monkeypatch.setattr(push_to_pods.run_script, "prepare", lambda *_: None)
    monkeypatch.setattr(push, "challenge", lambda _: b"challenge")
    push.node = PodNode.of(record)
    with pytest.raises(EnvironmentCannot, match="starting the run failed: no space"):
        push._start_in_pod(record, resumes=False)


def test_the_job_of_a_pod_calls_the_images_bench_and_may_move(push: PodPush, record: Record) -> None:
    push.request = dataclasses.replace(push.request, on_cpu=True, level="quick")
    job = push._run_job(record)
    assert job.level == "quick"
    assert (job.run_id, job.place, job.engine) == (record.run_id, record.place, "kubernetes")
    assert (job.runnable, job.identity, job.python, job.user) == ("", None, "python3", (65534, 65534))
    assert (job.memory_bytes, job.gpus, job.on_cpu, job.moved) == (0, None, True, True)
    assert (job.budget_seconds, job.checks) == (push.request.budget_seconds, False)


def test_each_wait_is_told_once_and_an_outage_too(push: PodPush, monkeypatch: pytest.MonkeyPatch) -> None:
    said, slept = said_by(push, monkeypatch), list[float]()
    monkeypatch.setattr(push, "sleep", slept.append)
    pulling = PodState("waiting", "ContainerCreating")
    assert push._await_pod(job_that_says(WAITING, WAITING, AWAY, AWAY, pulling, THERE)) == THERE
    assert said == [
        ("start", "waits: Unschedulable: 0/3 nodes"),
        ("start", "the connection to the server was refused; asking again"),
        ("start", "waits: ContainerCreating"),
    ]
    assert slept == [push_to_pods.LOOK_SECONDS] * 5


def test_patience_with_the_api_server_begins_anew_with_each_answer(
    push: PodPush, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(push_to_pods.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(push, "sleep", lambda _: clock.__setitem__(0, clock[0] + 5))
    push.request = dataclasses.replace(push.request, patience_seconds=10.0)
    assert push._await_pod(job_that_says(WAITING, AWAY, AWAY, WAITING, AWAY, AWAY, THERE)) == THERE
    with pytest.raises(Unreachable):
        push._await_pod(job_that_says(WAITING, AWAY, AWAY, AWAY))


@pytest.mark.parametrize(("on", "where"), [("gpu-a", "gpu-a"), ("", None)])
def test_a_pod_that_cannot_run_names_its_node_and_what_to_do(
    push: PodPush, on: str, where: str | None
) -> None:
    gone = PodState("gone", "Evicted", "push again", "p", on)
    with pytest.raises(PodGone) as caught:
        push._await_pod(job_that_says(gone))
    assert (caught.value.message, caught.value.where, caught.value.advice) == ("Evicted", where, "push again")


def test_a_push_whose_bundle_is_here_needs_no_pod(
    push: PodPush, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "_fetched_run", lambda: record)
    assert not push.needs_pod()
    monkeypatch.setattr(push, "_fetched_run", lambda: None)
    monkeypatch.setattr(push, "_unfinished_run", lambda: record)
    monkeypatch.setattr(push, "_standing", lambda _: (_ for _ in ()).throw(AWAY))
    assert not push.needs_pod()  # the push itself reports it


def test_a_watched_run_is_in_its_pod(push: PodPush, record: Record, watched: list[Record]) -> None:
    push.attach(record)
    assert watched == [record]
    assert isinstance(push.node, PodNode) and push.node._place == PLACE
    with pytest.raises(EnvironmentCannot, match="is in no pod"):
        push.attach(dataclasses.replace(record, pod=None))


@pytest.mark.parametrize(("state", "is_released"), [("incomplete", True), ("running", False)])
def test_an_incomplete_run_leaves_its_pod_since_the_next_one_has_its_own(
    push: PodPush,
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
    node: list[str],
    state: Any,
    is_released: bool,
) -> None:
    cleaned: list[Record] = []
    monkeypatch.setattr(push, "_clean", cleaned.append)
    push.node = PodNode.of(record)
    push._finish(dataclasses.replace(record, state=state), Status("exit", 0, {}, None, None))
    assert node == ([f"release {record.place}"] if is_released else [])
    assert bool(cleaned) != is_released


def test_a_run_that_is_over_leaves_nothing_in_the_cluster(
    push: PodPush, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Any] = []
    monkeypatch.setattr(push_to_pods, "leave", lambda *given: left.append(given))
    push._clean(record)
    assert left == [(push.node, record, push.shared.records)]


def test_a_run_without_a_bundle_says_how_the_cluster_ended_it(
    push: PodPush, record: Record, monkeypatch: pytest.MonkeyPatch, node: list[str]
) -> None:
    push.node, dead = PodNode.of(record), Status("dead", None, {}, None, None)
    monkeypatch.setattr(PodNode, "why_killed", lambda _: "OOMKilled")
    assert "the run was killed on the node (OOMKilled)" in push._missing_bundle(dead, record).message
    assert node == [f"release {record.place}"]
    monkeypatch.setattr(PodNode, "why_killed", lambda _: "")
    assert push._missing_bundle(dead, record).message == "the run was killed on the node"
    monkeypatch.setattr(PodNode, "why_killed", lambda _: (_ for _ in ()).throw(PodGone("it is gone")))
    assert push._missing_bundle(dead, record).message == "the run was killed on the node"
    assert push._missing_bundle(dead, record).advice == "push again: the run resumes from its journal"
    push.request = dataclasses.replace(push.request, manifest=load_any(SHIPPED))
    assert push._missing_bundle(dead, record).advice == "push again: the check starts over"


def test_only_pods_are_released(record: Record, node: list[str]) -> None:
    push_to_pods.release(object(), record)
    push_to_pods.release(PodNode.of(record), record)
    assert node == [f"release {record.place}"]


@pytest.mark.parametrize(
    ("other", "state", "is_deleted"),
    [
        ({}, "fetched", True), ({}, "cancelled", True), ({}, "running", False), ({}, "incomplete", False),
        ({"job": "bench-2"}, "fetched", False), ({"server": "https://other"}, "fetched", False),
        (None, "fetched", False),
    ],
)  # fmt: skip
def test_a_job_is_deleted_after_the_last_of_its_own_runs(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: list[str],
    other: dict[str, Any] | None, state: Any, is_deleted: bool,
) -> None:  # fmt: skip
    deleted: list[tuple[Any, str]] = []
    monkeypatch.setattr(push_to_pods, "delete_job", lambda kubectl, name: deleted.append((kubectl, name)))
    records, two = Records(tmp_path / "runs"), dataclasses.replace(PLACE, pods=2)
    mine = records.save(dataclasses.replace(record, pod=two, run_id="a" * 12))
    its = None if other is None else dataclasses.replace(two, **other)
    records.save(dataclasses.replace(record, pod=its, run_id="b" * 12, state=state))
    leave(PodNode.of(mine), mine, records)
    assert deleted == ([(Kubectl("prod", "team"), "bench-1")] if is_deleted else [])
    leave(object(), dataclasses.replace(mine, pod=None), records)
    assert len(deleted) == is_deleted


@pytest.mark.parametrize(("named", "nodes"), [((), ()), (("n0", "n1", "n2"), ("n0", "n2"))])
def test_one_job_has_a_pod_for_each_push_that_starts_a_run(
    push: PodPush, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...], nodes: tuple[str, ...]
) -> None:
    given: list[tuple[str, Any, int]] = []
    pushes: list[Any] = [
        SimpleNamespace(
            needs_pod=lambda needs=number != 1: needs, part=SimpleNamespace(host=Host(f"n{number}", "x")),
            given=lambda job, index, number=number: given.append((f"n{number}", job, index)),
        )
        for number in range(3)
    ]  # fmt: skip
    cluster = Cluster("prod", PLACE.server, "team")
    wanted = PodsWanted(cluster, "image", named, 3, None, None, None, "/out")
    asked: list[Any] = []
    monkeypatch.setattr(push_to_pods, "preflight", lambda *words: asked.append(words) or "a job")
    monkeypatch.setattr(push_to_pods, "CreatedJob", lambda *words: words)
    created = give_pods(pushes, wanted, push.request, print)
    assert asked == [(dataclasses.replace(wanted, nodes=nodes, count=2), push.request, print)]
    assert created == (cluster, "a job")  # type: ignore[comparison-overlap]
    assert given == [("n0", created, 0), ("n2", created, 1)]
    assert give_pods(pushes[1:2], wanted, push.request, print) is None
    assert len(asked) == 1
