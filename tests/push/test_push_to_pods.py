"""The steps of a push around the pods of its job, with a simulated cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import EnvironmentCannot
from bench.push.connection import Unreachable
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.kubernetes import push_to_pods
from bench.push.kubernetes.cluster_preflight import PodsWanted
from bench.push.kubernetes.kubectl import Cluster
from bench.push.kubernetes.pod_node import PodGone, PodNode
from bench.push.kubernetes.pod_state import PodState
from bench.push.kubernetes.push_to_pods import PodPush, give_pods, leave, take_away
from bench.push.mirror import Status
from bench.push.push_record import Record, Records
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
