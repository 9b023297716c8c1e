"""Read the state of a pod from the API's objects: running, waiting for something, or gone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.push.kubernetes.fields import list_of, part_of, text_of
from bench.push.kubernetes.pod_job import KEEPER, RUN_CONTAINER

# Labels of a Job's pods.
JOB_NAME, INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
# Reasons of a waiting container that no waiting mends.
_HOPELESS = (
    "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
)  # fmt: skip
AGAIN = "push again: the run resumes from its journal"
_PULL = "is --image right, and may the namespace pull it? --pull-secret NAME names a secret of the registry"


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod's state, and why it has this state in the cluster's own words."""

    state: Literal["running", "waiting", "gone"]
    why: str = ""
    advice: str = ""
    name: str = ""
    node: str = ""


def read_pod(pod: Mapping[str, Any]) -> PodState:
    """Return the state of a pod: running once its keeper runs, gone once it does not any more."""
    status = part_of(pod, "status")
    name, node = text_of(part_of(pod, "metadata").get("name")), text_of(part_of(pod, "spec").get("nodeName"))
    containers = {
        str(each.get("name")): part_of(each, "state") for each in list_of(status, "containerStatuses")
    }
    keeper = containers.get(KEEPER, {})
    if "running" in keeper:
        return PodState("running", name=name, node=node)
    if "terminated" in keeper or status.get("phase") in ("Succeeded", "Failed"):
        return PodState("gone", _end(status, containers), AGAIN, name, node)
    for container, state in containers.items():
        reason = text_of(part_of(state, "waiting").get("reason"))
        if reason in _HOPELESS:
            message = text_of(part_of(state, "waiting").get("message"))
            advice = _PULL if "Image" in reason else f"kubectl describe pod {name}"
            return PodState("gone", f"container {container}: {reason}: {message}", advice, name, node)
    return PodState("waiting", _waits_for(status, containers), name=name, node=node)


def why_killed(pod: Mapping[str, Any]) -> str:
    """Return how the run's container ended, if the cluster ended it; empty if it did not."""
    for each in list_of(part_of(pod, "status"), "containerStatuses"):
        ended = part_of(part_of(each, "state"), "terminated")
        if each.get("name") == RUN_CONTAINER and ended.get("reason") not in (None, "Completed", "Error"):
            return text_of(ended.get("reason"))
    return ""


def _end(status: Mapping[str, Any], containers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why a pod ended: the cluster's reason, else that of its containers."""
    disrupted = next((c for c in list_of(status, "conditions") if c.get("type") == "DisruptionTarget"), {})
    words = [text_of(status.get("reason")), text_of(disrupted.get("reason"))]
    words += [text_of(status.get("message")) or text_of(disrupted.get("message"))]
    if not any(words):
        words = [
            f"container {name}: {text_of(part_of(state, 'terminated').get('reason'))}"
            for name, state in containers.items()
            if "terminated" in state
        ]
    return ": ".join(filter(None, words)) or text_of(status.get("phase"))


def _waits_for(status: Mapping[str, Any], containers: Mapping[str, Mapping[str, Any]]) -> str:
    for condition in list_of(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{text_of(condition.get('reason'))}: {text_of(condition.get('message'))}"
    reasons = (text_of(part_of(state, "waiting").get("reason")) for state in containers.values())
    return next(filter(None, reasons), "") or text_of(status.get("phase"))


def refused_pods(events: Sequence[Mapping[str, Any]]) -> str:
    """Return why the cluster makes no pod for a Job, from the Job's events; empty if none says so."""
    refused = [event for event in events if event.get("reason") == "FailedCreate"]
    return text_of(refused[-1].get("message")) if refused else ""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster, and the resources that it offers to pods."""

    name: str
    gpus: int
    cpu_milli: int
    memory_bytes: int
    ready: bool
    cordoned: bool


def read_node(node: Mapping[str, Any], gpu: str) -> ClusterNode:
    """Return a node with what it offers to pods; `gpu` is the resource by which its GPUs are counted."""
    status = part_of(node, "status")
    offered = part_of(status, "allocatable")
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in list_of(status, "conditions"))
    return ClusterNode(
        name=text_of(part_of(node, "metadata").get("name")),
        gpus=quantity(offered.get(gpu)) // 1000,
        cpu_milli=quantity(offered.get("cpu")),
        memory_bytes=quantity(offered.get("memory")) // 1000,
        ready=ready,
        cordoned=part_of(node, "spec").get("unschedulable") is True,
    )


_QUANTITY = re.compile(r"(\d{1,15})(?:\.(\d{1,3})\d*)?(m|k|[KMGTPE]i?)?", re.ASCII)
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def quantity(value: object) -> int:
    """Return a quantity of the API, such as 8, 7500m or 16Gi, in thousandths; 0 for another text."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return 0
    thousandths = int(match[1]) * 1000 + int((match[2] or "0").ljust(3, "0"))
    unit = match[3] or ""
    if unit == "m":
        return thousandths // 1000
    base = 1024 if unit.endswith("i") else 1000
    return int(thousandths * base ** _POWERS.get(unit[:1], 0))


def short_quotas(quotas: Sequence[Mapping[str, Any]], wanted: Mapping[str, int]) -> Iterator[str]:
    """Yield resources that the namespace's quotas forbid; `wanted` is in thousandths, like `quantity`."""
    for quota in quotas:
        status = part_of(quota, "status")
        hard, used = part_of(status, "hard"), part_of(status, "used")
        for name, count in wanted.items():
            if name in hard and quantity(used.get(name)) + count > quantity(hard[name]):
                of = text_of(part_of(quota, "metadata").get("name"))
                left = f"{text_of(used.get(name)) or 0} of {text_of(hard[name])} used"
                yield f"the quota {of} leaves too little {name}: {left}, {count // 1000} needed"
