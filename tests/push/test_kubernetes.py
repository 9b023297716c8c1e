"""The Job of a push, by the schemas of Kubernetes; and what bench makes of a cluster's answers."""

from __future__ import annotations

import copy
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, BenchError, EnvironmentCannot
from bench.push import run_script
from bench.push.connection import Unreachable
from bench.push.kubernetes.cluster_preflight import PodsWanted, choose_share
from bench.push.kubernetes.created_job import choose_pod
from bench.push.kubernetes.kubectl import Cluster, NotThere, find_cluster, refusal
from bench.push.kubernetes.kueue import read_workloads
from bench.push.kubernetes.pod_job import PodJob, PodShare
from bench.push.kubernetes.pod_node import check_same
from bench.push.kubernetes.pod_state import (
    ClusterNode,
    PodState,
    quantity,
    read_node,
    read_pod,
    refused_pods,
    short_quotas,
    why_killed,
)
from bench.push.push_record import PodPlace
from tests.push.kubernetes_schemas import VERSIONS, mistakes
from tests.push.pod_security import violations

DIGEST = f"sha256:{'0' * 64}"
IMAGE = f"registry.example:5000/team/bench@{DIGEST}"
JOB = PodJob("bench-abc123", IMAGE, 2, PodShare(8, 64_000, 2**40))
JOBS = {
    "GPUs of any node": JOB,
    "named nodes": replace(JOB, nodes=("gpu-a", "gpu-b")),
    "no GPU": replace(JOB, share=PodShare(0)),
    "queue and secret": replace(JOB, queue="team-a", pull_secret="registry"),
}
CLUSTER = Cluster("prod", "https://api.example:6443", "team")


# --- the job ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_one_of_each_version_of_kubernetes(name: str, version: str) -> None:
    assert mistakes(JOBS[name].to_object(), version) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_notice_a_wrong_field_and_a_wrong_type(version: str) -> None:
    wrong = copy.deepcopy(JOB.to_object())
    wrong["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    wrong["spec"]["completions"] = "two"
    found = mistakes(wrong, version)
    assert any("imagePolicy" in text for text in found)
    assert any("'two'" in text for text in found)


@pytest.mark.parametrize("name", JOBS)
def test_every_pod_keeps_to_the_level_restricted(name: str) -> None:
    assert violations(pod_of(JOBS[name])) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hostPID",), True),
        (("securityContext", "runAsNonRoot"), False),
        (("securityContext", "runAsUser"), 0),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}),
        (("containers", 0, "securityContext", "capabilities"), {"drop": ["NET_RAW"]}),
        (("containers", 1, "securityContext", "allowPrivilegeEscalation"), True),
        (("volumes", 0), {"name": "out", "hostPath": {"path": "/"}}),
    ],
)
def test_the_level_restricted_notices_each_thing_that_it_forbids(path: tuple[Any, ...], value: Any) -> None:
    pod = copy.deepcopy(pod_of(JOB))
    holder: Any = pod
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    assert violations(pod) != []


def test_pods_take_whole_nodes_and_share_none_with_another_pod_of_bench() -> None:
    pod = pod_of(JOB)
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "64000m", "memory": str(2**40), "nvidia.com/gpu": "8"},
        "limits": {"nvidia.com/gpu": "8"},
    }
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = JOB.to_object()["spec"]["template"]["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"].items() <= labels.items()
    assert (rule["topologyKey"], rule["namespaceSelector"]) == ("kubernetes.io/hostname", {})


def test_a_pod_that_ends_ends_no_other_and_is_not_replaced() -> None:
    spec = JOB.to_object()["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (0, 2)


def test_named_nodes_are_alternatives_because_the_api_takes_one_name_in_each() -> None:
    affinity = pod_of(JOBS["named nodes"])["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["gpu-a"], ["gpu-b"]]


def test_the_run_writes_to_its_volumes_alone() -> None:
    pod = pod_of(JOB)
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {"/out", "/cache", "/tmp", "/dev/shm"}
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in pod["containers"])
    assert [mount["mountPath"] for mount in pod["containers"][1]["volumeMounts"]] == ["/out"]


@pytest.mark.parametrize(
    "image", ["bench", "registry.example/bench:1.0", f"registry.example/bench@{DIGEST[:-1]}", f"a b@{DIGEST}"]
)
def test_an_image_without_a_digest_is_refused(image: str) -> None:
    with pytest.raises(BadInput, match="does not name an image by its digest"):
        replace(JOB, image=image)


@pytest.mark.parametrize("changes", [{"queue": "a b"}, {"pull_secret": "-x"}])
def test_names_that_kubernetes_does_not_know_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="is no name of Kubernetes"):
        replace(JOB, **changes)


def pod_of(job: PodJob) -> dict[str, Any]:
    pod: dict[str, Any] = job.to_object()["spec"]["template"]["spec"]
    return pod


# --- the scripts of both containers -----------------------------------------------------------------------


def script_of(container: int, place: Path, **changes: Any) -> list[str]:
    command: list[str] = pod_of(replace(JOB, place=str(place), **changes))["containers"][container]["command"]
    return command


def test_the_keeper_stays_until_the_bundle_was_taken(tmp_path: Path) -> None:
    keeper = subprocess.Popen(script_of(1, tmp_path))
    (tmp_path / "taken").touch()
    assert keeper.wait(30) == 0


def test_the_keeper_of_a_run_that_is_over_leaves_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "start").write_text(str(tmp_path / "runs/r"))
    assert subprocess.run(script_of(1, tmp_path, keep_seconds=1), check=False, timeout=30).returncode == 0


def test_the_run_begins_when_it_is_told_to_and_its_exit_code_is_the_containers(tmp_path: Path) -> None:
    folder = tmp_path / "runs/r"
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text("exit 7\n")
    container = subprocess.Popen(script_of(0, tmp_path))
    (tmp_path / "start").write_text(str(folder))
    assert container.wait(30) == 7


def test_a_run_in_a_pod_calls_the_images_bench_and_needs_a_gpu() -> None:
    job = run_script.Job(
        run_id="r1", place="/out", engine="kubernetes", runnable="", identity=None, python="python3",
        user=(65534, 65534), memory_bytes=0, gpus=None, on_cpu=False, moved=True,
    )  # fmt: skip
    words = "bench run manifest.json --device auto --out out --challenge challenge.json --resume --moved"
    assert run_script.argv(job, None) == words.split()
    assert "[ -c /dev/nvidiactl ]" in run_script.script(job)
    assert "nvidiactl" not in run_script.script(replace(job, on_cpu=True))
    assert "nvidiactl" not in run_script.script(replace(job, checks=True))


# --- what a pod is ----------------------------------------------------------------------------------------


def shown(phase: str, *containers: tuple[str, dict[str, Any]], **status: Any) -> dict[str, Any]:
    states = [{"name": name, "state": state} for name, state in containers]
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n"},
        "status": {"phase": phase, "containerStatuses": states, **status},
    }


RUNNING: dict[str, Any] = {"running": {}}
ENDED: dict[str, Any] = {"terminated": {"reason": "Completed", "exitCode": 0}}
UNSCHEDULABLE = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes",
}  # fmt: skip
PODS = {
    "it runs": (shown("Running", ("bench", RUNNING), ("keeper", RUNNING)), "running", ""),
    "its run ended": (shown("Running", ("bench", ENDED), ("keeper", RUNNING)), "running", ""),
    "no node": (shown("Pending", conditions=[UNSCHEDULABLE]), "waiting", "Unschedulable: 0/3 nodes"),
    "it is pulled": (
        shown("Pending", ("keeper", {"waiting": {"reason": "ContainerCreating"}})),
        "waiting",
        "ContainerCreating",
    ),
    "no image": (
        shown("Pending", ("bench", {"waiting": {"reason": "ImagePullBackOff", "message": "denied"}})),
        "gone",
        "container bench: ImagePullBackOff: denied",
    ),
    "evicted": (
        shown("Failed", reason="Evicted", message="The node was low on resource: memory."),
        "gone",
        "Evicted: The node was low on resource: memory.",
    ),
    "its node was drained": (
        shown("Failed", conditions=[{"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI",
                                     "message": "Eviction API: evicting"}]),
        "gone",
        "EvictionByEvictionAPI: Eviction API: evicting",
    ),
    "its time is over": (shown("Failed", reason="DeadlineExceeded"), "gone", "DeadlineExceeded"),
    "it is over": (
        shown("Succeeded", ("bench", ENDED), ("keeper", ENDED)),
        "gone",
        "container bench: Completed: container keeper: Completed",
    ),
    "nothing is known": ({}, "waiting", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_running_waiting_or_gone_and_says_why(name: str) -> None:
    pod, state, why = PODS[name]
    read = read_pod(pod)
    assert (read.state, read.why) == (state, why)


def test_a_text_of_the_cluster_cannot_write_to_the_terminal() -> None:
    assert read_pod(shown("Failed", reason="\x1b[2J")).why == "?[2J"


def test_a_run_that_was_killed_for_memory_is_told_from_one_that_failed() -> None:
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    assert why_killed(shown("Running", ("bench", killed), ("keeper", RUNNING))) == "OOMKilled"
    failed = {"terminated": {"reason": "Error", "exitCode": 1}}
    assert why_killed(shown("Running", ("bench", failed), ("keeper", RUNNING))) == ""


def test_a_job_whose_pods_are_refused_says_why() -> None:
    events = [{"reason": "SuccessfulCreate", "message": "x"}, {"reason": "FailedCreate", "message": "quota"}]
    assert refused_pods(events) == "quota"
    assert refused_pods(events[:1]) == ""


def test_a_push_to_a_named_node_takes_the_pod_there() -> None:
    pods = {"0": PodState("running", node="b"), "1": PodState("running", node="a")}
    assert choose_pod(pods, 0, "a") == pods["1"]
    assert choose_pod(pods, 0, None) == pods["0"]
    unplaced = {"0": PodState("waiting", "Unschedulable")}
    assert choose_pod(unplaced, 0, "a") == unplaced["0"]
    assert choose_pod({}, 0, None) is None


# --- what a cluster offers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("8", 8000), ("7500m", 7500), ("1.5", 1500), ("16Gi", 16 * 2**30 * 1000), ("1k", 1_000_000),
        (None, 0), ("many", 0), ("-1", 0),
    ],
)  # fmt: skip
def test_quantities_are_read(text: str | None, thousandths: int) -> None:
    assert quantity(text) == thousandths


def node(name: str, gpus: int, *, ready: bool = True, cordoned: bool = False) -> ClusterNode:
    return ClusterNode(name, gpus, 100_000, 10**12, ready, cordoned)


def test_a_node_is_read_from_the_api() -> None:
    found = read_node(
        {
            "metadata": {"name": "n"},
            "spec": {"unschedulable": True},
            "status": {
                "allocatable": {"cpu": "95500m", "memory": "1Ti", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": "Unknown"}],
            },
        },
        "nvidia.com/gpu",
    )
    assert found == ClusterNode("n", 8, 95_500, 2**40, ready=False, cordoned=True)


def wanted(*nodes: str, count: int = 1, gpus: int | None = None) -> PodsWanted:
    return PodsWanted(CLUSTER, IMAGE, nodes, len(nodes) or count, gpus, None, None, "/out")


def test_a_pod_takes_all_gpus_and_half_of_the_rest() -> None:
    share, warnings = choose_share(wanted(), [node("a", 8), node("c", 0)], on_cpu=False, wanted_gpus=None)
    assert share == PodShare(8, 50_000, 500_000_000_000)
    assert warnings == ()


def test_nodes_that_cannot_take_a_pod_now_are_told() -> None:
    nodes = [node("a", 8, cordoned=True), node("b", 8, ready=False), node("d", 8)]
    _, warnings = choose_share(wanted(count=2), nodes, on_cpu=False, wanted_gpus=None)
    assert warnings == ("1 of 3 such nodes can take a pod now: pods wait for the others",)


def test_without_the_right_to_list_nodes_the_number_of_gpus_is_given_or_the_manifests() -> None:
    share, warnings = choose_share(wanted(gpus=8), None, on_cpu=False, wanted_gpus=None)
    assert (share, len(warnings)) == (PodShare(8), 1)
    assert choose_share(wanted(), None, on_cpu=False, wanted_gpus=4)[0] == PodShare(4)
    assert choose_share(wanted(), None, on_cpu=True, wanted_gpus=None)[0] == PodShare(0)


UNFIT: dict[str, tuple[PodsWanted, list[ClusterNode] | None, str]] = {
    "no GPU": (wanted(), [node("c", 0)], "no node offers a GPU"),
    "nodes of two kinds": (wanted(), [node("a", 8), node("b", 4)], "nodes have 4 or 8 GPUs"),
    "an unknown node": (wanted("z"), [node("a", 8)], "the cluster has no node z"),
    "a node with fewer": (wanted("a", gpus=8), [node("a", 4)], "the node a has no 8 GPUs"),
    "one of two with fewer": (wanted("a", "b", gpus=8), [node("a", 8), node("b", 4)], "the node b has no 8"),
    "no node with as many": (wanted(gpus=16), [node("a", 8)], "no node has 16 GPUs"),
    "unknown nodes": (wanted(), None, "may not list nodes"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_cluster_that_cannot_have_the_pods_is_refused_with_advice(name: str) -> None:
    asked, nodes, expected = UNFIT[name]
    with pytest.raises(EnvironmentCannot, match=expected) as error:
        choose_share(asked, nodes, on_cpu=False, wanted_gpus=None)
    assert error.value.advice


def test_quotas_that_leave_too_little_are_named() -> None:
    quota = {
        "metadata": {"name": "small"},
        "status": {"hard": {"pods": "10", "requests.nvidia.com/gpu": "0"}, "used": {"pods": "8"}},
    }
    asked = {"pods": 2000, "requests.nvidia.com/gpu": 16_000, "count/jobs.batch": 1000}
    found = list(short_quotas([quota], asked))
    assert found == ["the quota small leaves too little requests.nvidia.com/gpu: 0 of 0 used, 16 needed"]
    assert list(short_quotas([quota], {"pods": 3000}))


# --- Kueue ------------------------------------------------------------------------------------------------


def workload(*conditions: dict[str, str], **status: Any) -> dict[str, Any]:
    return {"status": {"conditions": [*conditions], **status}}


WAITS = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "no room\x1b[2J"}
RESERVED = {"type": "QuotaReserved", "status": "True", "message": "Quota reserved"}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([], ""),
        ([{"status": None}], ""),
        ([workload(RESERVED)], ""),
        ([workload(WAITS)], "no room"),
        ([workload({"type": "QuotaReserved", "status": "False", "reason": "Inadmissible"})], "Inadmissible"),
        (
            [workload(RESERVED, admissionChecks=[{"name": "more-nodes", "state": "Pending", "message": ""}])],
            "admission check more-nodes: Pending",
        ),
        ([workload(RESERVED, admissionChecks=[{"name": "more-nodes", "state": "Ready"}])], ""),
    ],
)
def test_kueue_says_why_a_job_waits(found: list[dict[str, Any]], why: str) -> None:
    said = read_workloads(found)
    assert "\x1b" not in said
    assert said.startswith(why) and bool(said) == bool(why)


# --- what kubectl says ------------------------------------------------------------------------------------

SAID: dict[str, tuple[str, type[BenchError], str]] = {
    "no context": ("error: current-context must exist in order to minify", BadInput, "KUBECONFIG"),
    "another context": ('error: context "x" does not exist', BadInput, "--context"),
    "refused": (
        "E1126 15:00:00.1 1 cache.go:265] x\nThe connection to the server 127.0.0.1:9 was refused - did you",
        Unreachable,
        "",
    ),
    "no route": ("Unable to connect to the server: dial tcp 192.0.2.1:6443: i/o timeout", Unreachable, ""),
    "no right": (
        'Error from server (Forbidden): jobs.batch is forbidden: User "u" cannot create resource "jobs"',
        EnvironmentCannot,
        "kubernetes/operator.yaml",
    ),
    "quota": (
        'Error from server (Forbidden): pods "p" is forbidden: exceeded quota: small, requested: pods=1',
        EnvironmentCannot,
        "kubectl describe resourcequota",
    ),
    "pod security": (
        'Error from server (Forbidden): pods "p" is forbidden: violates PodSecurity "restricted:latest": x',
        EnvironmentCannot,
        "restricted",
    ),
    "login": ("error: You must be logged in to the server (Unauthorized)", EnvironmentCannot, "log in again"),
    "gone": ('Error from server (NotFound): pods "p" not found', NotThere, ""),
    "certificate": (
        "Unable to connect to the server: x509: certificate signed by unknown authority",
        EnvironmentCannot,
        "fetch it again",
    ),
    "an old cluster": (
        'Error from server (BadRequest): strict decoding error: unknown field "spec.backoffLimitPerIndex"',
        EnvironmentCannot,
        "1.29",
    ),
    "conflict": (
        'Error from server (AlreadyExists): jobs.batch "bench-1" already exists',
        EnvironmentCannot,
        "push again",
    ),
    "nothing": ("", Unreachable, ""),
}


@pytest.mark.parametrize("name", SAID)
def test_what_kubectl_says_becomes_an_error_with_advice(name: str) -> None:
    said, kind, advice = SAID[name]
    error = refusal(said, "team")
    assert type(error) is kind
    assert advice in (error.advice or "")


def test_a_run_is_looked_for_in_its_own_cluster_alone() -> None:
    place = PodPlace("prod", CLUSTER.server, "team", "bench-1", 1, "bench-1-0-x")
    check_same(place, CLUSTER)
    with pytest.raises(BadInput, match=r"leads to https://other\.example, and the run is in https://api"):
        check_same(place, replace(CLUSTER, server="https://other.example"))


def test_without_kubectl_the_push_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentCannot, match="kubectl is not installed") as error:
        find_cluster(None, None)
    assert "kubernetes-client" in (error.value.advice or "")
