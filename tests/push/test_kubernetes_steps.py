"""Each step of a push to pods by itself: what is asked of a cluster, and what follows from its answers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.push.connection import ConnectionBroke, Unreachable
from bench.push.hosts import Host
from bench.push.kubernetes import cluster_preflight, created_job, kubectl, pod_node
from bench.push.kubernetes.cluster_preflight import PodsWanted, choose_share, preflight, refuse_manifest
from bench.push.kubernetes.created_job import CreatedJob, choose_pod, index_of
from bench.push.kubernetes.fields import list_of, part_of, text_of
from bench.push.kubernetes.kubectl import Cluster, Kubectl, NotThere, find_cluster, refusal
from bench.push.kubernetes.kueue import check_queue, is_suspended, read_workloads, why_not_admitted
from bench.push.kubernetes.pod_job import PodJob, PodShare, refuse_names
from bench.push.kubernetes.pod_node import PodConnection, PodGone, PodNode
from bench.push.kubernetes.pod_state import PodState, quantity, read_node, read_pod, short_quotas, why_killed
from bench.push.push_record import PodPlace
from tests.push.test_kubernetes import CLUSTER, ENDED, IMAGE, JOB, RUNNING, node, shown, wanted

NOT_FOUND = NotThere("not found")
Answer = Callable[[str], object]


class Api:
    """The API server behind kubectl, which answers a command with what `answer` returns, as JSON."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.forbidden: set[str] = set()
        self.asked: list[str] = []
        self.sent: list[Any] = []

    def run(self, client: Kubectl, *arguments: str, data: bytes = b"") -> str:
        asked = " ".join(arguments)
        self.asked.append(asked)
        self.sent.append(json.loads(data) if data else None)
        if "selfsubjectaccessreviews" in asked:
            wish = self.sent[-1]["spec"]["resourceAttributes"]
            group, sub = (
                wish["group"] and f".{wish['group']}",
                wish["subresource"] and f"/{wish['subresource']}",
            )
            name = f"{wish['verb']} {wish['resource']}{group}{sub}"
            return json.dumps({"status": {"allowed": name not in self.forbidden}})
        found = next((found for part, found in self.answers.items() if part in asked), {})
        if isinstance(found, Exception):
            raise found
        return json.dumps(found)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    monkeypatch.setattr(
        Kubectl, "run", lambda self, *arguments, data=b"": made.run(self, *arguments, data=data)
    )
    return made


CLIENT = Kubectl("prod", "team")


# --- fields ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, [], "a", 7, {}, {"b": {}}, {"a": []}, {"a": "x"}, {"a": None}])
def test_a_part_that_is_no_object_is_empty(value: object) -> None:
    assert part_of(value, "a") == {}
    assert part_of({"a": {"b": 1}}, "a") == {"b": 1}


@pytest.mark.parametrize("value", [None, [], "a", {}, {"b": [{}]}, {"a": {"b": 1}}, {"a": "xy"}, {"a": None}])
def test_a_list_that_is_none_is_empty(value: object) -> None:
    assert list_of(value, "a") == []
    assert list_of({"a": [{"b": 1}, "x", None, {}]}, "a") == [{"b": 1}, {}]


def test_a_text_of_the_cluster_has_300_characters_that_a_terminal_can_show() -> None:
    assert (text_of(None), text_of(0), text_of(False), text_of("a\x1b")) == ("", "0", "False", "a?")
    assert (text_of("a" * 300), text_of("a" * 301)) == ("a" * 300, "a" * 300)


# --- kubectl --------------------------------------------------------------------------------------------


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let a kubectl be installed that prints an object; return the calls of it."""
    calls: list[Any] = []

    def run(command: list[str], **options: Any) -> Any:
        calls.append((command, options))
        return SimpleNamespace(returncode=0, stdout=b'{"a": 1}', stderr=b"")

    monkeypatch.setattr(kubectl.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(kubectl.subprocess, "run", run)
    return calls


def test_kubectl_is_called_for_one_context_and_namespace_with_limits(program: list[Any]) -> None:
    assert CLIENT.run("get", "pods", data=b"x") == '{"a": 1}'
    command, options = program[0]
    assert command == [
        "/usr/bin/kubectl", "--context=prod", "--namespace=team", "--request-timeout=30s", "get", "pods",
    ]  # fmt: skip
    assert options == {
        "input": b"x", "capture_output": True, "timeout": 90, "check": False, "start_new_session": True,
    }  # fmt: skip
    assert Kubectl().words("get") == ["/usr/bin/kubectl", "get"]


def test_a_kubectl_that_is_silent_or_says_no_is_an_error(
    program: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 90)

    monkeypatch.setattr(kubectl.subprocess, "run", silent)
    with pytest.raises(Unreachable, match="kubectl has no answer after 90 s"):
        CLIENT.run("get")
    no = SimpleNamespace(returncode=1, stdout=b"", stderr=b"Error: \xff Forbidden")
    monkeypatch.setattr(kubectl.subprocess, "run", lambda *_, **__: no)
    with pytest.raises(EnvironmentCannot, match="lacks a right in the namespace team"):
        CLIENT.run("get")


def test_kubectl_needs_pipes_that_can_wait(program: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl, "PIPES_CAN_WAIT", False)
    with pytest.raises(EnvironmentCannot, match="cannot use kubectl on Windows") as caught:
        CLIENT.words("get")
    assert caught.value.advice == "use WSL"


def test_objects_are_asked_for_as_json(api: Api) -> None:
    api.answers = {"get pods": {"items": [{"a": 1}, "x"]}, "get job": {"b": 2}}
    assert CLIENT.items("pods", "--selector=x") == [{"a": 1}]
    assert CLIENT.get("job", "j") == {"b": 2}
    assert CLIENT.items("other") == []
    assert CLIENT.config() == {}
    assert api.asked == [
        "get pods --selector=x --output=json", "get job j --output=json", "get other --output=json",
        "config view --minify --output=json",
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [[], "text", 7, None])
def test_an_answer_that_is_no_object_names_the_command_that_tells_versions(api: Api, answer: object) -> None:
    api.answers = {"get": answer}
    with pytest.raises(EnvironmentCannot, match="no object of the API") as caught:
        CLIENT.get("x")
    assert caught.value.advice == "kubectl version"


def test_a_job_is_created_with_every_field_or_not_at_all(api: Api) -> None:
    CLIENT.create_job({"kind": "Job"})
    CLIENT.create_job({"kind": "Job"}, dry_run=True)
    url = "create --raw /apis/batch/v1/namespaces/team/jobs?fieldValidation=Strict"
    assert api.asked == [f"{url} --filename=-", f"{url}&dryRun=All --filename=-"]
    assert api.sent == [{"kind": "Job"}] * 2


@pytest.mark.parametrize(
    ("verb", "resource", "attributes"),
    [
        ("create", "jobs.batch", {"group": "batch", "resource": "jobs", "subresource": ""}),
        ("create", "pods/exec", {"group": "", "resource": "pods", "subresource": "exec"}),
        ("list", "nodes", {"group": "", "resource": "nodes", "subresource": ""}),
        ("get", "jobs.batch/status", {"group": "batch", "resource": "jobs", "subresource": "status"}),
    ],
)
def test_the_server_says_what_this_user_may_do(
    api: Api, verb: str, resource: str, attributes: dict[str, str]
) -> None:
    assert CLIENT.may(verb, resource)
    assert api.asked == ["create --raw /apis/authorization.k8s.io/v1/selfsubjectaccessreviews --filename=-"]
    assert api.sent == [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": "team", "verb": verb, **attributes}},
        }
    ]


@pytest.mark.parametrize(
    "answer", [{}, {"status": []}, {"status": {"allowed": "true"}}, {"status": {"allowed": 1}}]
)
def test_only_a_plain_yes_is_a_right(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setattr(Kubectl, "run", lambda *_, **__: json.dumps(answer))
    assert not CLIENT.may("list", "nodes")


OWN = {"clusters": [{"cluster": {"server": "https://s"}}], "contexts": [{"name": "c", "context": {}}]}


@pytest.mark.parametrize(
    ("given", "in_context", "namespace"),
    [(None, None, "default"), (None, "own", "own"), ("mine", "own", "mine"), ("mine", None, "mine")],
)
def test_the_namespace_is_the_given_one_or_the_contexts(
    api: Api, given: str | None, in_context: str | None, namespace: str
) -> None:
    context = {"name": "c", "context": {"namespace": in_context}}
    api.answers = {"config": {**OWN, "contexts": [context]}}
    assert find_cluster("x", given) == Cluster("c", "https://s", namespace)


@pytest.mark.parametrize(
    "config", [{}, {**OWN, "clusters": []}, {**OWN, "clusters": [{}]}, {**OWN, "contexts": None},
     {**OWN, "contexts": [{"name": "c", "context": []}]}],
)  # fmt: skip
def test_a_kubeconfig_without_a_cluster_says_how_to_name_one(api: Api, config: object) -> None:
    api.answers = {"config": config}
    with pytest.raises(BadInput, match="the kubeconfig has no cluster for this context") as caught:
        find_cluster(None, None)
    assert caught.value.advice is not None and "--context NAME" in caught.value.advice


def test_in_a_pod_its_service_account_names_namespace_and_server(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api.answers = {"config": BadInput("no context")}
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    with pytest.raises(BadInput, match="no context"):
        find_cluster(None, None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    account = tmp_path / "namespace"
    monkeypatch.setattr(kubectl, "_SERVICE_ACCOUNT", account)
    assert find_cluster(None, None) == Cluster(None, "https://10.0.0.1:443", "default")
    account.write_text(" \n")
    assert find_cluster(None, None).namespace == "default"
    account.write_text("bench\n")
    assert find_cluster(None, None).namespace == "bench"
    assert find_cluster(None, "mine").namespace == "mine"


@pytest.mark.parametrize(
    ("said", "kind", "message", "advice"),
    [
        ("error: current-context must exist", BadInput, "knows no such cluster", "--context NAME"),
        ("error: context x does not exist", BadInput, "knows no such cluster", "--context NAME"),
        ("error: context was not found for x", BadInput, "knows no such cluster", "--context NAME"),
        ("error: no context exists with the name x", BadInput, "knows no such cluster", "--context NAME"),
        ("error: cannot locate context x", BadInput, "knows no such cluster", "--context NAME"),
        ("pods is forbidden: exceeded quota: q", EnvironmentCannot, "pods is", "describe resourcequota"),
        ("forbidden: violates PodSecurity", EnvironmentCannot, "forbidden", "restricted"),
        ("Error (Forbidden)", EnvironmentCannot, "in the namespace team: Error", "operator.yaml"),
        ("pods is forbidden", EnvironmentCannot, "in the namespace team: pods", "operator.yaml"),
        ("error: Unauthorized", EnvironmentCannot, "the cluster accepts no login", "log in again"),
        ("you must be logged in", EnvironmentCannot, "the cluster accepts no login", "log in again"),
        ("getting credentials: exec", EnvironmentCannot, "the cluster accepts no login", "log in again"),
        ("Error (NotFound)", NotThere, "Error", None),
        ("pods x not found", NotThere, "pods", None),
        ("x509: unknown", EnvironmentCannot, "x509", "fetch it again"),
        ("bad certificate", EnvironmentCannot, "bad", "fetch it again"),
        ("strict decoding error: a", EnvironmentCannot, "this cluster is too old", "1.29"),
        ("Error (AlreadyExists)", EnvironmentCannot, "Error", "push again"),
        ("dial tcp: refused", Unreachable, "dial", None),
    ],
)  # fmt: skip
def test_each_thing_that_kubectl_says_has_its_error(
    said: str, kind: type[Exception], message: str, advice: str | None
) -> None:
    error = refusal(said, "team")
    assert type(error) is kind and message in error.message
    assert error.advice is None if advice is None else advice in str(error.advice)


def test_a_right_may_be_lacking_in_the_contexts_namespace() -> None:
    assert "in the namespace of the context: x" in refusal("x Forbidden", None).message.replace(
        " Forbidden", ""
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("first\nlast\n\n", "last"),
        ("the reason\nE1127 12:00:00 log\nW1127 a\nI1127 b\nWarning: c\n", "the reason"),
        ("E1127 only a log line", "E1127 only a log line"),
        ("E11 no log line\n", "E11 no log line"),
        ("\n", ""),
        ("a\x1b" + "a" * 600, "a?" + "a" * 498),
    ],
)
def test_the_reason_is_the_last_line_that_is_no_log_line(said: str, told: str) -> None:
    assert refusal(said, None).message == told


def test_nothing_is_said_so() -> None:
    assert refusal("", None).message == "no message"


# --- Kueue ----------------------------------------------------------------------------------------------


def test_only_a_job_that_says_so_is_suspended() -> None:
    assert is_suspended({"spec": {"suspend": True}})
    for spec in ({}, {"suspend": False}, {"suspend": "true"}, {"suspend": 1}):
        assert not is_suspended({"spec": spec})


HELD = {"spec": {"suspend": True}}


def condition(kind: str, status: str, **more: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Other", "status": "False", "message": "other"},
                                      {"type": kind, "status": status, **more}]}}  # fmt: skip


def told_of_queue(api: Api, found: object = None, tried: dict[str, Any] = HELD) -> list[str]:
    api.answers = {"get localqueues.kueue.x-k8s.io q": found or {}}
    said: list[str] = []
    check_queue(CLIENT, "q", tried, said.append)
    return said


def test_a_queue_that_nobody_serves_is_refused(api: Api) -> None:
    with pytest.raises(
        EnvironmentCannot, match="this one would start without waiting for the queue q"
    ) as caught:
        told_of_queue(api, tried={})
    assert caught.value.advice == "install Kueue with its integration batch/job, or leave --queue out"
    with pytest.raises(EnvironmentCannot, match="the namespace team has no local queue q") as caught:
        told_of_queue(api, NOT_FOUND)
    assert caught.value.advice == "kubectl get localqueues lists them"


def test_a_queue_that_admits_nothing_now_is_told(api: Api) -> None:
    why = "preflight  warn: the queue q admits nothing now: "
    assert told_of_queue(api, condition("Active", "False", message="m", reason="r")) == [f"{why}m"]
    assert told_of_queue(api, condition("Active", "False", reason="r")) == [f"{why}r"]
    assert told_of_queue(api, condition("Active", "True", message="m")) == []
    assert told_of_queue(api, {}) == []


def test_a_user_who_may_not_see_queues_is_told_nothing_of_them(api: Api) -> None:
    api.forbidden = {"get localqueues.kueue.x-k8s.io"}
    assert told_of_queue(api, NOT_FOUND) == []


def test_the_reason_that_holds_a_job_back_is_asked_for_by_its_id(api: Api) -> None:
    api.answers = {"workloads": {"items": [condition("QuotaReserved", "False", message="full")]}}
    assert why_not_admitted(CLIENT, "u1") == "full"
    assert api.asked[-1] == (
        "get workloads.kueue.x-k8s.io --selector=kueue.x-k8s.io/job-uid=u1 --output=json"
    )
    api.answers = {"workloads": Unreachable("x")}
    assert why_not_admitted(CLIENT, "u1") == ""
    api.forbidden, api.answers = (
        {"list workloads.kueue.x-k8s.io"},
        {"workloads": {"items": [condition("Admitted", "False", message="x")]}},
    )
    assert why_not_admitted(CLIENT, "u1") == ""


def test_quota_comes_before_admission_and_admission_before_checks() -> None:
    checks = [
        {"name": "a", "state": "Ready", "message": "x"},
        {"name": "b", "state": "Pending"},
        {"name": "c", "state": "Retry", "message": "later"},
    ]
    conditions = [
        {"type": "Admitted", "status": "False", "message": "not yet"},
        {"type": "QuotaReserved", "status": "False", "message": "no quota"},
    ]

    def why(some: list[dict[str, str]], checks: list[dict[str, str]] = checks) -> str:
        return read_workloads([{}, {"status": {"conditions": some, "admissionChecks": checks}}])

    assert why(conditions) == "no quota"
    assert why(conditions[:1]) == "not yet"
    assert why([]) == "admission check b: Pending"
    assert why([], checks[2:]) == "admission check c: later"
    assert why([], checks[:1]) == read_workloads([]) == ""


# --- the job that was created ------------------------------------------------------------------------------


@dataclasses.dataclass
class Clock:
    now: float = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(created_job.time, "monotonic", lambda: made.now)
    return made


def made_job(api: Api, **changes: Any) -> CreatedJob:
    api.answers["create --raw /apis/batch"] = {"metadata": {"uid": "u1"}}
    return CreatedJob(CLUSTER, dataclasses.replace(JOB, **changes))


def pod(index: int, on: str, state: dict[str, Any] = RUNNING) -> dict[str, Any]:
    made = shown("Running", ("keeper", state))
    made["metadata"]["labels"] = {"batch.kubernetes.io/job-completion-index": str(index)}
    made["spec"]["nodeName"] = on
    return made


def test_the_pods_of_a_job_are_asked_for_together_every_two_seconds(api: Api, clock: Clock) -> None:
    created = made_job(api)
    assert (api.asked[0].startswith("create --raw"), api.sent[0]) == (True, JOB.to_object())
    api.answers["get pods"] = {"items": [pod(0, "a"), pod(1, "b")]}
    question = "get pods --selector=batch.kubernetes.io/job-name=bench-abc123 --output=json"
    assert [created.pod(1, "a").node, created.pod(0, "b").node] == ["b", "a"]
    clock.now = 101.9
    created.pod(0, "")
    assert api.asked[1:] == [question]
    clock.now = 102.0
    created.pod(0, "")
    assert api.asked[1:] == [question] * 2


def test_a_job_of_named_nodes_gives_each_push_the_pod_on_its_node(api: Api, clock: Clock) -> None:
    api.answers["get pods"] = {"items": [pod(0, "gpu-b"), pod(1, "gpu-a")]}
    assert made_job(api, nodes=("gpu-a", "gpu-b")).pod(0, "gpu-a").node == "gpu-a"


def test_a_pod_without_an_index_is_nobodys(api: Api, clock: Clock) -> None:
    for found in ({}, {"metadata": {}}, {"metadata": {"labels": {}}}):
        assert index_of(found) == ""
    api.answers["get pods"] = {"items": [shown("Running", ("keeper", RUNNING))]}
    assert made_job(api).pod(0, "n") == PodState("waiting", "the cluster has not made the pod yet")


def test_a_job_without_a_pod_is_asked_for_its_reason_after_ten_seconds(api: Api, clock: Clock) -> None:
    created = made_job(api)
    api.answers["get events"] = {"items": [{"reason": "FailedCreate", "message": "no quota"}]}
    clock.now = 110.0
    assert created.pod(0, "n").why == "the cluster has not made the pod yet"
    clock.now = 112.1
    with pytest.raises(EnvironmentCannot, match="the cluster makes no pod: no quota") as caught:
        created.pod(0, "n")
    assert caught.value.advice == "kubectl describe job bench-abc123"
    assert "get events --field-selector=involvedObject.uid=u1 --output=json" in api.asked


def test_a_job_that_has_pods_is_not_asked_for_a_reason(api: Api, clock: Clock) -> None:
    created = made_job(api, queue="q")
    api.answers["get pods"], clock.now = {"items": [pod(1, "a")]}, 120.0
    assert created.pod(0, "n").why == "the cluster has not made the pod yet"
    assert not [asked for asked in api.asked if asked.startswith("get job")]


def test_a_user_who_may_not_see_events_waits(api: Api, clock: Clock) -> None:
    created = made_job(api)
    api.answers["get events"] = {"items": [{"reason": "FailedCreate", "message": "no quota"}]}
    api.forbidden, clock.now = {"list events"}, 120.0
    assert created.pod(0, "n") == PodState("waiting", "the cluster has not made the pod yet")


def test_a_job_that_is_gone_is_told(api: Api, clock: Clock) -> None:
    created = made_job(api, queue="q")
    api.answers["get job"] = NOT_FOUND
    with pytest.raises(PodGone, match="the job bench-abc123 is gone") as caught:
        created.pod(0, "n")
    assert caught.value.advice == "push again"


def test_a_job_in_a_queue_is_asked_for_its_reason_at_once_and_again(api: Api, clock: Clock) -> None:
    created = made_job(api, queue="q")
    api.answers |= {"get job": HELD, "get workloads": {"items": []}}
    assert created.pod(0, "n").why == "the queue q has not admitted the job yet"
    api.answers["get workloads"] = {"items": [condition("QuotaReserved", "False", message="full")]}
    clock.now += 2
    assert created.pod(0, "n").why == "the queue q has not admitted the job yet: full"
    api.answers["get job"] = {}
    clock.now += 2
    assert created.pod(0, "n").why == "the cluster has not made the pod yet"
    api.answers["get pods"] = {"items": [pod(0, "a")]}
    clock.now += 2
    assert created.pod(0, "n").state == "running"


def test_a_job_that_a_cluster_suspends_by_itself_waits_in_its_queue(api: Api, clock: Clock) -> None:
    created = made_job(api)
    api.answers["get job"], clock.now = HELD, 120.0
    assert created.pod(0, "n").why == "its queue has not admitted the job yet"


def test_a_job_is_deleted_without_waiting_and_its_pods_have_a_place(api: Api, clock: Clock) -> None:
    created = made_job(api)
    assert created.place("p") == PodPlace("prod", "https://api.example:6443", "team", "bench-abc123", 2, "p")
    created.delete()
    assert api.asked[-1] == "delete job bench-abc123 --ignore-not-found --wait=false"


def test_an_unplaced_pod_is_taken_only_where_none_is_on_the_node() -> None:
    pods = {"0": PodState("waiting"), "1": PodState("running", node="a"), "2": PodState("gone", node="b")}
    assert choose_pod(pods, 9, "a") == pods["1"]
    assert choose_pod(pods, 9, "z") == pods["0"]
    assert choose_pod({"1": pods["1"]}, 1, "z") is None
    assert choose_pod(pods, 9, None) is None


# --- the inspection of a cluster ----------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path) -> Any:
    manifest = SimpleNamespace(gpus=None)
    return SimpleNamespace(manifest=manifest, push="abc123", on_cpu=False, valid_seconds=7200, until="end")


NODES = {"items": [{"metadata": {"name": "a"}, "status": {
    "allocatable": {"cpu": "100", "memory": "1000k", "nvidia.com/gpu": "8"},
    "conditions": [{"type": "Ready", "status": "True"}]}}]}  # fmt: skip


def test_a_job_has_what_was_wanted_and_what_its_nodes_offer(api: Api, asked: Any) -> None:
    api.answers["get nodes"] = NODES
    wish = dataclasses.replace(wanted(count=1), queue=None, pull_secret="s", place="/results")
    said: list[str] = []
    job = preflight(wish, asked, said.append)
    assert job == PodJob(
        "bench-abc123", IMAGE, 1, PodShare(8, 50_000, 500_000), "/results", (), None, "s", 7200,
        cluster_preflight.FETCH_SECONDS,
    )  # fmt: skip
    assert said == []
    assert api.asked[-1].endswith("&dryRun=All --filename=-") and api.sent[-1] == job.to_object()
    asked.until = "start"
    assert preflight(wish, asked, said.append).keep_seconds == 24 * 3600


@pytest.mark.parametrize(
    "right",
    ["create jobs.batch", "get jobs.batch", "delete jobs.batch", "get pods", "list pods", "create pods/exec"],
)
def test_every_right_of_a_push_is_needed(api: Api, asked: Any, right: str) -> None:
    api.answers["get nodes"], api.forbidden = NODES, {right}
    with pytest.raises(EnvironmentCannot) as caught:
        preflight(wanted(), asked, pytest.fail)
    assert caught.value.message == f"this user may not {right} in the namespace team"
    assert caught.value.advice is not None and caught.value.advice.endswith(
        "bench/data/kubernetes/operator.yaml"
    )


def test_a_user_who_sees_neither_nodes_nor_quotas_is_warned_of_the_nodes(api: Api, asked: Any) -> None:
    api.forbidden = {"list nodes", "list resourcequotas"}
    said: list[str] = []
    job = preflight(wanted(gpus=4), asked, said.append)
    assert (job.share, len(said)) == (PodShare(4), 1)
    assert said[0].startswith("preflight  warn: this user may not list nodes")


@pytest.mark.parametrize(
    ("name", "enough", "short"),
    [
        ("pods", "2", "1"), ("count/pods", "2", "1"), ("count/jobs.batch", "1", "0"),
        ("requests.nvidia.com/gpu", "16", "15"), ("requests.cpu", "100", "99999m"),
        ("requests.memory", "1000000", "999999"),
    ],
)  # fmt: skip
def test_a_quota_may_be_used_up_and_not_exceeded(
    api: Api, asked: Any, name: str, enough: str, short: str
) -> None:
    api.answers["get nodes"] = NODES
    for hard, fits in ((enough, True), (short, False)):
        api.answers["get resourcequotas"] = {
            "items": [{"metadata": {"name": "q"}, "status": {"hard": {name: hard}}}]
        }
        if fits:
            assert preflight(wanted(count=2), asked, lambda _: None).pods == 2
            continue
        with pytest.raises(EnvironmentCannot, match=f"the quota q leaves too little {name}: 0 of") as caught:
            preflight(wanted(count=2), asked, lambda _: None)
        assert caught.value.advice is not None and "--namespace" in caught.value.advice


def test_only_a_job_for_a_queue_asks_for_one(api: Api, asked: Any) -> None:
    api.answers |= {"get nodes": NODES, "create --raw /apis/batch": {}}
    preflight(wanted(), asked, pytest.fail)
    with pytest.raises(EnvironmentCannot, match="without waiting for the queue q"):
        preflight(dataclasses.replace(wanted(), queue="q"), asked, pytest.fail)


def test_each_pod_has_a_host_in_the_namespace_of_its_cluster() -> None:
    where = "https://api.example:6443/team"
    assert wanted("a", "b").hosts() == (Host("a", f"{where}/a"), Host("b", f"{where}/b"))
    assert wanted(count=2).hosts() == (Host("pod-0", f"{where}/pod-0"), Host("pod-1", f"{where}/pod-1"))


@pytest.mark.parametrize(
    ("folders", "image", "environment", "message", "advice"),
    [
        (["/data"], None, None, "the manifest reads /data, which no pod has", "use made-up data"),
        ([], "sha256:1", None, "the manifest asks for sha256:1, which no pod can prove", "--image names"),
        ([], None, "sha256:2", "the manifest asks for sha256:2, which no pod can prove", "--image names"),
    ],
)
def test_a_manifest_with_what_no_pod_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, folders: list[str], image: str | None, environment: str | None,
    message: str, advice: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(cluster_preflight, "data_folders", lambda _: folders)
    monkeypatch.setattr(cluster_preflight, "wanted_image", lambda _: image)
    monkeypatch.setattr(cluster_preflight, "wanted_environment", lambda _: environment)
    with pytest.raises(EnvironmentCannot) as caught:
        refuse_manifest(SimpleNamespace(manifest=None))  # type: ignore[arg-type]
    assert caught.value.message == message and advice in str(caught.value.advice)


def test_a_manifest_without_any_of_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data_folders", "wanted_image", "wanted_environment"):
        monkeypatch.setattr(cluster_preflight, name, lambda _: None)
    refuse_manifest(SimpleNamespace(manifest=None))  # type: ignore[arg-type]


def share(wish: PodsWanted, nodes: Any, **changes: Any) -> tuple[PodShare, tuple[str, ...]]:
    return choose_share(wish, nodes, **{"on_cpu": False, "wanted_gpus": None} | changes)


def test_a_run_on_cpus_takes_no_gpu_whatever_was_named() -> None:
    assert share(wanted(gpus=8), [node("a", 8)], on_cpu=True)[0].gpus == 0
    assert share(wanted(gpus=8), None, on_cpu=True, wanted_gpus=4)[0] == PodShare(0)
    assert share(wanted(gpus=2), None, wanted_gpus=4)[0] == PodShare(2)
    assert share(wanted(), None, wanted_gpus=0)[0] == PodShare(0)


def test_pods_reserve_what_the_smallest_fitting_node_has() -> None:
    small = dataclasses.replace(node("s", 8), cpu_milli=40_001, memory_bytes=10**6)
    tiny = dataclasses.replace(node("t", 4), cpu_milli=1000, memory_bytes=1000)
    assert share(wanted(gpus=8), [node("a", 8), small, tiny]) == (PodShare(8, 20_000, 500_000), ())
    assert share(wanted("a", gpus=8), [node("a", 8), small])[0] == PodShare(8, 50_000, 500_000_000_000)


def test_named_nodes_count_and_no_others() -> None:
    nodes = [node("a", 8), node("b", 4), node("c", 8)]
    assert share(wanted("a", "c"), nodes) == (PodShare(8, 50_000, 500_000_000_000), ())
    away = [node("a", 8, ready=False), node("c", 8)]
    assert share(wanted("a", "c"), away)[1] == (
        "1 of 2 such nodes can take a pod now: pods wait for the others",
    )
    with pytest.raises(EnvironmentCannot) as caught:
        share(wanted("z"), [node(f"n{n}", 8) for n in range(9)])
    assert caught.value.advice == "kubectl get nodes lists them: n0, n1, n2, n3, n4, n5, n6, n7"


@pytest.mark.parametrize(
    ("wish", "nodes", "message", "advice"),
    [
        (wanted(), [node("a", 0)], "no node offers a GPU as nvidia.com/gpu", "--device cpu"),
        (wanted(), [node("a", 8), node("b", 4), node("c", 8)], "nodes have 4 or 8 GPUs, not one number",
         "--gpus-per-node"),
        (wanted(gpus=9), [node("a", 8)], "no node has 9 GPUs to offer as nvidia.com/gpu", "device plugin"),
        (wanted("b", "a", gpus=8), [node("a", 7), node("b", 8)],
         "the node a has no 8 GPUs to offer as nvidia.com/gpu", "device plugin"),
        (wanted(), None, "this user may not list nodes, so their GPUs are not known", "--gpus-per-node N"),
    ],
)  # fmt: skip
def test_each_reason_against_a_share_has_its_advice(
    wish: PodsWanted, nodes: Any, message: str, advice: str
) -> None:
    with pytest.raises(EnvironmentCannot) as caught:
        share(wish, nodes)
    assert caught.value.message == message and advice in str(caught.value.advice)


def test_enough_usable_nodes_give_no_warning() -> None:
    nodes = [node("a", 8), node("b", 8), node("c", 8, cordoned=True)]
    assert share(wanted(count=2), nodes)[1] == ()
    assert share(wanted(count=3), nodes)[1] != ()


# --- the job as an object -----------------------------------------------------------------------------------


def test_a_job_is_created_as_it_is_described() -> None:
    """Where docs/push.md says what a pod is, its fields are these."""
    made = dataclasses.replace(JOB, queue="q", pull_secret="s", run_seconds=7200, keep_seconds=60).to_object()
    labels = {"app.kubernetes.io/name": "bench", "app.kubernetes.io/managed-by": "bench"}
    assert (made["apiVersion"], made["kind"]) == ("batch/v1", "Job")
    assert made["metadata"] == {
        "name": "bench-abc123",
        "labels": {**labels, "kueue.x-k8s.io/queue-name": "q"},
    }
    spec = made["spec"]
    assert (spec["podReplacementPolicy"], spec["ttlSecondsAfterFinished"]) == ("Failed", 24 * 3600)
    assert spec["template"]["metadata"] == {"labels": labels}
    pod = spec["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "s"}]
    assert (pod["restartPolicy"], pod["activeDeadlineSeconds"]) == ("Never", 7200)
    assert pod["terminationGracePeriodSeconds"] == 150
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    assert pod["shareProcessNamespace"] is True
    assert pod["tolerations"] == [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        for key in ("nvidia.com/gpu", "bench/unfit")
    ]
    run, keeper = pod["containers"]
    assert (run["name"], keeper["name"], run["image"], keeper["image"]) == ("bench", "keeper", IMAGE, IMAGE)
    assert run["command"][3:] == ["bench", "/out", "600"]
    assert keeper["command"][3:] == ["bench", "/out", "600", "60"]
    assert keeper["resources"] == {"requests": {"cpu": "10m", "memory": "64Mi"}}
    assert run["env"] == [{"name": "XDG_CONFIG_HOME", "value": "/tmp"}, {"name": "USER", "value": "nobody"}]
    assert [mount["name"] for mount in run["volumeMounts"]] == ["out", "tmp", "cache", "shm"]
    assert pod["volumes"][0] == {"name": "out", "emptyDir": {"sizeLimit": str(8 * 2**30)}}
    assert [(each["name"], each["emptyDir"]["medium"]) for each in pod["volumes"][1:]] == [
        ("cache", "Memory"), ("tmp", "Memory"), ("shm", "Memory"),
    ]  # fmt: skip
    assert pod["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534, "fsGroup": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert run["securityContext"] == keeper["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_what_was_not_asked_for_is_no_field() -> None:
    bare = dataclasses.replace(JOB, share=PodShare(0)).to_object()
    pod = bare["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"requests": {}}
    assert "imagePullSecrets" not in pod and "nodeAffinity" not in pod["affinity"]
    assert "kueue.x-k8s.io/queue-name" not in bare["metadata"]["labels"]
    assert pod["activeDeadlineSeconds"] == 24 * 3600
    assert pod["containers"][1]["command"][-1] == str(24 * 3600)


@pytest.mark.parametrize("image", [f"b@{IMAGE[-71:]}", f"r.example/a/b:1@{IMAGE[-71:]}"])
def test_an_image_has_a_digest_and_may_have_a_registry_and_a_tag(image: str) -> None:
    refuse_names(image, "a", "a" * 63)


@pytest.mark.parametrize("image", [f"{IMAGE}0", f"@{IMAGE[-71:]}", f"a@@{IMAGE[-71:]}", f"{IMAGE}\n"])
def test_other_images_say_why_a_digest_is_needed(image: str) -> None:
    with pytest.raises(BadInput, match="does not name an image by its digest") as caught:
        refuse_names(image, None, None)
    assert caught.value.advice is not None and "REGISTRY/NAME@sha256:DIGEST" in caught.value.advice


@pytest.mark.parametrize("name", ["", "a" * 64, "a.", "-a", "a b", "é"])
@pytest.mark.parametrize("option", ["--queue", "--pull-secret"])
def test_each_name_of_kubernetes_is_checked(name: str, option: str) -> None:
    given = (name, None) if option == "--queue" else (None, name)
    with pytest.raises(BadInput, match=f"{option} {name} is no name of Kubernetes"):
        refuse_names(IMAGE, *given)


# --- the state of a pod -----------------------------------------------------------------------------------


def test_a_running_pod_has_its_name_and_node_and_needs_no_reason() -> None:
    assert read_pod(shown("Running", ("keeper", RUNNING))) == PodState("running", name="p", node="n")
    assert read_pod(shown("Failed", ("keeper", RUNNING))).state == "running"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_in_its_last_phase_is_gone_by_that_name_if_nothing_else_is_said(phase: str) -> None:
    assert read_pod(shown(phase)) == PodState(
        "gone", phase, "push again: the run resumes from its journal", "p", "n"
    )


def test_a_pod_whose_keeper_ended_is_gone_whatever_its_phase() -> None:
    assert (
        read_pod(shown("Running", ("bench", RUNNING), ("keeper", ENDED))).why == "container keeper: Completed"
    )


@pytest.mark.parametrize(
    "reason",
    ["ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
     "CreateContainerError", "RunContainerError", "CrashLoopBackOff"],
)  # fmt: skip
def test_a_container_that_no_waiting_mends_ends_its_pod(reason: str) -> None:
    found = read_pod(shown("Pending", ("bench", {"waiting": {"reason": reason, "message": "m"}})))
    assert (found.state, found.why) == ("gone", f"container bench: {reason}: m")
    assert ("--pull-secret" if "Image" in reason else "kubectl describe pod p") in found.advice
    assert (found.name, found.node) == ("p", "n")


def test_a_disruption_is_told_where_the_pod_itself_says_nothing() -> None:
    disrupted = {"type": "DisruptionTarget", "reason": "Preempted", "message": "by another"}
    other = {"type": "Ready", "reason": "PodFailed", "message": "other"}
    found = read_pod(shown("Failed", conditions=[other, disrupted]))
    assert found.why == "Preempted: by another"
    both = read_pod(shown("Failed", conditions=[disrupted], reason="Evicted", message="full"))
    assert both.why == "Evicted: Preempted: full"


def test_a_pod_waits_for_a_node_then_for_its_containers_then_in_its_phase() -> None:
    creating = ("bench", {"waiting": {"reason": "ContainerCreating"}})
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "r", "message": "m"}
    placed = {**unplaced, "status": "True"}
    other = {**unplaced, "type": "Ready", "message": "x"}
    assert read_pod(shown("Pending", creating, conditions=[other, unplaced])).why == "r: m"
    assert (
        read_pod(shown("Pending", ("keeper", {}), creating, conditions=[placed])).why == "ContainerCreating"
    )
    assert read_pod(shown("Pending", ("keeper", {}))).why == "Pending"


@pytest.mark.parametrize(
    ("container", "reason", "told"),
    [("bench", "OOMKilled", "OOMKilled"), ("bench", "Completed", ""), ("bench", "Error", ""),
     ("bench", None, ""), ("keeper", "OOMKilled", "")],
)  # fmt: skip
def test_only_the_runs_own_container_tells_how_it_was_killed(
    container: str, reason: str | None, told: str
) -> None:
    assert why_killed(shown("Running", (container, {"terminated": {"reason": reason}}))) == told


def test_a_node_is_ready_if_the_cluster_says_so() -> None:
    def found(kind: str, status: str, **spec: Any) -> Any:
        conditions = [{"type": "DiskPressure", "status": "False"}, {"type": kind, "status": status}]
        return read_node(
            {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions}}, "gpu"
        )

    assert found("Ready", "True").ready and not found("Ready", "True").cordoned
    assert not found("Ready", "False").ready and not found("MemoryPressure", "True").ready
    assert not found("Ready", "True", unschedulable="yes").cordoned
    offers = {"cpu": "1500m", "memory": "1999m", "gpu": "1999m"}
    offered = read_node({"status": {"allocatable": offers}}, "gpu")
    assert (offered.gpus, offered.cpu_milli, offered.memory_bytes) == (1, 1500, 1)


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("0", 0), ("9" * 15, int("9" * 15) * 1000), ("9" * 16, 0), ("1m", 1), ("0.5", 500), ("1.2345", 1234),
        ("1.05", 1050), ("1K", 10**6), ("1k", 10**6), ("1M", 10**9), ("1G", 10**12), ("1T", 10**15),
        ("1P", 10**18), ("1E", 10**21), ("1Ki", 1024_000), ("1Mi", 2**20 * 1000), ("1Gi", 2**30 * 1000),
        ("1Ti", 2**40 * 1000), ("1Pi", 2**50 * 1000), ("1Ei", 2**60 * 1000), ("1.5Ki", 1536_000),
        ("1.m", 0), ("1mi", 0), ("1ki", 0), (" 1", 0), ("1e3", 0), ("", 0), (8, 8000), (True, 0),
    ],
)  # fmt: skip
def test_each_unit_of_a_quantity_is_read(text: object, thousandths: int) -> None:
    assert quantity(text) == thousandths


def test_every_short_resource_of_every_quota_is_told() -> None:
    def quota(name: str, **hard: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"hard": hard, "used": {"pods": "3"}}}

    found = list(
        short_quotas([quota("a", pods="4"), quota("b", pods="5", gpus="1")], {"pods": 2000, "gpus": 2000})
    )
    assert found == [
        "the quota a leaves too little pods: 3 of 4 used, 2 needed",
        "the quota b leaves too little gpus: 0 of 1 used, 2 needed",
    ]


# --- a pod as a node --------------------------------------------------------------------------------------

PLACE = PodPlace("prod", "https://api.example:6443", "team", "bench-1", 1, "bench-1-0-x")


def test_a_run_is_in_the_cluster_that_its_context_led_to() -> None:
    pod_node.check_same(PLACE, CLUSTER)
    with pytest.raises(BadInput) as caught:
        pod_node.check_same(PLACE, dataclasses.replace(CLUSTER, server="https://b"))
    assert caught.value.message == (
        'the context "prod" leads to https://b, and the run is in https://api.example:6443'
    )
    assert caught.value.advice is not None and "KUBECONFIG=FILE" in caught.value.advice


def test_a_pod_that_is_gone_says_why_and_that_the_run_resumes(api: Api) -> None:
    found = PodNode("gpu-a", PLACE)
    api.answers["get pod bench-1-0-x"] = NOT_FOUND
    with pytest.raises(PodGone, match="the pod bench-1-0-x is gone: it was evicted or deleted") as caught:
        found.check()
    assert (caught.value.where, caught.value.advice) == (
        "gpu-a", "push again: the run resumes from its journal",
    )  # fmt: skip
    api.answers["get pod bench-1-0-x"] = shown("Failed", reason="Evicted")
    with pytest.raises(PodGone, match="the pod bench-1-0-x ended: Evicted") as caught:
        found.check()
    assert (caught.value.where, caught.value.advice) == (
        "gpu-a", "push again: the run resumes from its journal",
    )  # fmt: skip
    for pod_of_run in (shown("Running", ("keeper", RUNNING)), shown("Pending")):
        api.answers["get pod bench-1-0-x"] = pod_of_run
        found.check()


def test_the_reason_of_a_killed_run_is_asked_for(api: Api) -> None:
    killed = ("bench", {"terminated": {"reason": "OOMKilled"}})
    api.answers["get pod bench-1-0-x"] = shown("Running", killed, ("keeper", RUNNING))
    assert PodNode("gpu-a", PLACE).why_killed() == "OOMKilled"


@pytest.mark.parametrize(
    ("data", "size"),
    [(b"", 0), (b"abc", 0), (b"xb", 1), (b"xbenc", 4), (b"bench", 5), (b"benchx", 0), (b"bb", 1)],
)
def test_the_beginning_of_the_mark_is_held_back(data: bytes, size: int) -> None:
    assert pod_node._overlap(data, b"bench") == size


def channel(monkeypatch: pytest.MonkeyPatch, out: list[bytes], err: list[bytes]) -> pod_node.PodChannel:
    """Return a channel to a kubectl that prints these pieces; its mark is bench-m."""
    parent = pod_node.ProcessChannel
    monkeypatch.setattr(pod_node.secrets, "token_hex", lambda size: {8: "m"}[size])
    monkeypatch.setattr(parent, "__init__", lambda self, words: setattr(self, "words", words))
    monkeypatch.setattr(parent, "receive", lambda self, _: out.pop(0) if out else b"")
    monkeypatch.setattr(parent, "receive_errors", lambda self, _: err.pop(0) if err else b"")
    monkeypatch.setattr(parent, "exit_code", lambda self, _: 0)
    monkeypatch.setattr(parent, "close", lambda self: setattr(self, "closed", True))
    connection = PodConnection(["kubectl", "exec"])
    connection.close()  # nothing has begun
    made = connection.start("true", 5.0)
    assert connection.last is made and connection.is_open
    connection.close()
    assert made.closed  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]


def test_a_command_ends_with_its_mark_in_both_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = channel(monkeypatch, [b"a", b"b", b"en", b"d", b"ben", b"ch-m"], [b"said", b"\nbench-m 7\n"])
    assert made.words[:6] == ["kubectl", "exec", "--", "sh", "-c", made.words[5]]  # type: ignore[attr-defined]
    assert made.words[6:] == ["sh", "true"]  # type: ignore[attr-defined]
    pieces = list(iter(lambda: made.receive(1), b""))
    assert b"".join(pieces) == b"abend"
    assert [made.receive_errors(1), made.receive_errors(1)] == [b"said", b"\nbench-m 7\n"]
    assert (made.exit_code(1), made.said) == (7, b"said\nbench-m 7\n")


@pytest.mark.parametrize(
    ("out", "err"),
    [(b"bench-", b"\nbench-m 7"), (b"bench-m", b"bench-m 7"), (b"bench-m", b"\nbench-m 7777"),
     (b"bench-m", b""), (b"bench-mx", b"\nbench-m 7")],
)  # fmt: skip
def test_a_command_without_its_marks_has_no_end(
    monkeypatch: pytest.MonkeyPatch, out: bytes, err: bytes
) -> None:
    made = channel(monkeypatch, [out], [err])
    while made.receive(1):
        pass
    made.receive_errors(1)
    with pytest.raises(ConnectionBroke):
        made.exit_code(1)


def test_the_last_four_kilobytes_of_errors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = channel(monkeypatch, [], [b"a" * 4000, b"b" * 97])
    made.receive_errors(1)
    assert made.said == b"a" * 4000
    made.receive_errors(1)
    assert made.said == b"a" * 3999 + b"b" * 97
