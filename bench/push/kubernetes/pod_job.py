"""The Job of a push: one pod for each node, as objects of the API. Pure.

Pods keep to the pod security level "restricted". They take all GPUs of a node and half of its processors and
memory, and no two pods of bench share a node, also in different namespaces. Pods write to their volumes
alone: /out for results, and /cache and /tmp in memory, as in bench's containers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from bench.base.errors import BadInput
from bench.base.names import GIB
from bench.images.container import CACHE, NOBODY, OUT, Container
from bench.push.kubernetes.kueue import QUEUE
from bench.push.request import DAY

GPU = "nvidia.com/gpu"
NAME = "bench"  # of what bench makes in a cluster, by its label app.kubernetes.io/name
# Files at the place: the first says that the bundle was taken, the second names the run that may start.
TAKEN, START = "taken", "start"
RUN_CONTAINER, KEEPER = "bench", "keeper"
UNFIT = "bench/unfit"  # label and taint of a node that failed its check
START_SECONDS = 600  # a pod that gets no manifest within this time ends
DRAIN_SECONDS = 150  # from the order to end a pod to its end: the run is packed, and its bundle fetched
_OUT_BYTES = 8 * GIB  # of a pod's results; a pod that writes more is evicted
_PINNED = re.compile(r"[\w.-]+(?::\d+)?(?:/[\w.-]+)*(?::[\w.-]+)?@sha256:[0-9a-f]{64}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_SELF = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": NAME}


@dataclass(frozen=True, slots=True)
class PodShare:
    """The resources of its node that a pod takes."""

    gpus: int
    cpu_milli: int = 0  # thousandths of a processor; 0: nothing is reserved
    memory_bytes: int = 0


def refuse_names(image: str, queue: str | None, pull_secret: str | None) -> None:
    """Refuse an image without a digest, and names that no object of Kubernetes can have."""
    if not _PINNED.fullmatch(image):
        advice = "REGISTRY/NAME@sha256:DIGEST: a tag may name another image on each node"
        raise BadInput(f"--image {image} does not name an image by its digest", advice=advice)
    for option, name in (("--queue", queue), ("--pull-secret", pull_secret)):
        if name is not None and not _LABEL.fullmatch(name):
            raise BadInput(f"{option} {name} is no name of Kubernetes")


@dataclass(frozen=True, slots=True)
class PodJob:
    """A Job of bench before it is created."""

    name: str
    image: str
    pods: int
    share: PodShare
    place: str = OUT  # where the volume for results is mounted
    nodes: tuple[str, ...] = ()  # the nodes that the pods may use; empty: any
    queue: str | None = None  # of Kueue
    pull_secret: str | None = None
    run_seconds: int = DAY  # after which the cluster ends a pod, counted from its start
    keep_seconds: int = DAY  # for which a bundle waits in its pod to be taken

    def __post_init__(self) -> None:
        refuse_names(self.image, self.queue, self.pull_secret)

    def to_object(self) -> dict[str, Any]:
        """Return the Job as the API takes it."""
        queue = {QUEUE: self.queue} if self.queue else {}
        spec: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": self.pods,
            "parallelism": self.pods,
            # A pod that ends for any reason is not replaced, and ends no other: a new push continues it.
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": self.pods,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": DAY,
            "template": {"metadata": {"labels": dict(_SELF)}, "spec": self._pod()},
        }
        metadata = {"name": self.name, "labels": _SELF | queue}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}

    def _pod(self) -> dict[str, Any]:
        secrets = {"imagePullSecrets": [{"name": self.pull_secret}]} if self.pull_secret else {}
        return {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": self.run_seconds,
            "terminationGracePeriodSeconds": DRAIN_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,  # so that the keeper sees and ends the run's processes
            "securityContext": pod_security(),
            **secrets,
            "affinity": {"podAntiAffinity": _alone(), **_on_nodes(self.nodes)},
            "tolerations": [
                {"key": GPU, "operator": "Exists", "effect": "NoSchedule"},
                {"key": UNFIT, "operator": "Exists", "effect": "NoSchedule"},
            ],
            "containers": [self._run_container(), self._keeper()],
            "volumes": volumes(),
        }

    def _run_container(self) -> dict[str, Any]:
        command = ["sh", "-c", _WAIT_FOR_START, NAME, self.place, str(START_SECONDS)]
        paths = {"out": self.place, "tmp": "/tmp", "cache": CACHE, "shm": "/dev/shm"}
        return self._container(RUN_CONTAINER, command, paths, resources(self.share))

    def _keeper(self) -> dict[str, Any]:
        command = ["sh", "-c", _KEEP, NAME, self.place, str(START_SECONDS), str(self.keep_seconds)]
        little = {"requests": {"cpu": "10m", "memory": "64Mi"}}
        # Not /tmp, where the run keeps its key.
        return self._container(KEEPER, command, {"out": self.place}, little)

    def _container(
        self, name: str, command: Sequence[str], paths: Mapping[str, str], share: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "name": name,
            "image": self.image,
            "command": list(command),
            "env": [{"name": "XDG_CONFIG_HOME", "value": "/tmp"}, {"name": "USER", "value": "nobody"}],
            "resources": dict(share),
            "securityContext": container_security(),
            "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in paths.items()],
        }


# Both scripts get the place, the seconds until a start, and the keeper those for which a bundle waits.
_WAIT_FOR_START = """\
n=0
until [ -s "$1/start" ]; do
  n=$((n + 1)); [ $n -le "$2" ] || { echo "bench push did not start this pod" >&2; exit 3; }
  sleep 1
done
exec sh "$(cat "$1/start")/run.sh"
"""
# It stays when the pod is told to end, as by a drain: what the run packs then can still be taken.
_KEEP = """\
trap : TERM
idle=0 most=$2
while [ ! -e "$1/taken" ] && [ $idle -lt "$most" ]; do
  idle=$((idle + 1))
  if [ -s "$1/start" ]; then
    most=$3
    kill -0 "$(cat "$(cat "$1/start")/pid" 2>/dev/null)" 2>/dev/null && idle=0
  fi
  sleep 1
done
"""


def pod_security() -> dict[str, Any]:
    """Return what the level "restricted" demands of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": NOBODY,
        "runAsGroup": NOBODY,
        "fsGroup": NOBODY,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Return the security context of the level "restricted", with a read-only root file system."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def resources(share: PodShare) -> dict[str, Any]:
    """Return requests and limits: GPUs are limited; of other resources, a pod may use all that is free."""
    gpus = {GPU: str(share.gpus)} if share.gpus else {}
    requests = {"cpu": f"{share.cpu_milli}m"} if share.cpu_milli else {}
    requests |= {"memory": str(share.memory_bytes)} if share.memory_bytes else {}
    return {"requests": requests | gpus, **({"limits": gpus} if gpus else {})}


def volumes() -> list[dict[str, Any]]:
    """Return the volumes of a pod, with the sizes that bench's containers have elsewhere."""
    sizes = Container(image="", command=(), manifest=PurePath(), out=PurePath(), memory_bytes=0)
    in_memory = {"cache": sizes.cache_bytes, "tmp": sizes.scratch_bytes, "shm": sizes.shared_bytes}
    return [
        {"name": "out", "emptyDir": {"sizeLimit": str(_OUT_BYTES)}},
        *(
            {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
            for name, size in in_memory.items()
        ),
    ]


def _alone() -> dict[str, Any]:
    """Return the rule that no two pods of bench share a node."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
        "namespaceSelector": {},
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _on_nodes(names: Sequence[str]) -> dict[str, Any]:
    """Return the rule that pods use these nodes alone; the API takes one name in each alternative."""
    if not names:
        return {}
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in names
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
