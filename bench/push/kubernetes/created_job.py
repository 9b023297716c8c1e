"""A Job that was created in the cluster, and the states of its pods."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from bench.base.errors import EnvironmentCannot
from bench.push.kubernetes.kubectl import Cluster, Kubectl, NotThere
from bench.push.kubernetes.kueue import is_suspended, why_not_admitted
from bench.push.kubernetes.pod_job import PodJob
from bench.push.kubernetes.pod_node import PodGone
from bench.push.kubernetes.pod_state import INDEX, JOB_NAME, PodState, read_pod, refused_pods
from bench.push.push_record import PodPlace

LOOK_SECONDS = 2.0  # between two questions about the pods of a job
_REFUSED_SECONDS = 10.0  # after which a job without a pod is asked for its reason
_NOT_YET = "the cluster has not made the pod yet"


class CreatedJob:
    """A Job in the cluster, whose pods are asked for together by all pushes that wait for one."""

    def __init__(self, cluster: Cluster, job: PodJob) -> None:
        self.cluster, self.job = cluster, job
        self._kubectl = Kubectl(cluster.context, cluster.namespace)
        self._lock = threading.Lock()
        self._seen: dict[str, PodState] = {}
        self._asked_at = 0.0
        self._uid = str(self._kubectl.create_job(job.to_object()).get("metadata", {}).get("uid", ""))
        self._made_at = time.monotonic()
        self._not_made = _NOT_YET

    def pod(self, index: int, node: str) -> PodState:
        """Return the state of the pod on a node that the job names, else of the pod with this index.

        PodGone if the job is gone; EnvironmentCannot if the cluster refuses to make its pods.
        """
        with self._lock:
            if time.monotonic() - self._asked_at >= LOOK_SECONDS:
                self._look()
            pod = choose_pod(self._seen, index, node if self.job.nodes else None)
            return pod or PodState("waiting", self._not_made)

    def _look(self) -> None:
        pods = self._kubectl.items("pods", f"--selector={JOB_NAME}={self.job.name}")
        self._asked_at = time.monotonic()
        self._seen = {index_of(pod): read_pod(pod) for pod in pods}
        late = self._asked_at - self._made_at > _REFUSED_SECONDS
        if not pods and (late or self.job.queue is not None):
            self._ask_why()

    def _ask_why(self) -> None:
        try:
            job = self._kubectl.get("job", self.job.name)
        except NotThere:
            raise PodGone(f"the job {self.job.name} is gone", advice="push again") from None
        if is_suspended(job):
            queue = f"the queue {self.job.queue}" if self.job.queue else "its queue"
            why = why_not_admitted(self._kubectl, self._uid)
            self._not_made = f"{queue} has not admitted the job yet{why and f': {why}'}"
            return
        self._not_made = _NOT_YET
        selector = f"--field-selector=involvedObject.uid={self._uid}"
        if not self._kubectl.may("list", "events"):
            return
        if refused := refused_pods(self._kubectl.items("events", selector)):
            raise EnvironmentCannot(
                f"the cluster makes no pod: {refused}", advice=f"kubectl describe job {self.job.name}"
            )

    def place(self, pod: str) -> PodPlace:
        """Return where a pod of this Job is, as push records it."""
        own = self.cluster
        return PodPlace(own.context, own.server, own.namespace, self.job.name, self.job.pods, pod)

    def delete(self) -> None:
        """Delete the job and its pods, without waiting until they have ended."""
        delete_job(self._kubectl, self.job.name)


def index_of(pod: dict[str, Any]) -> str:
    """Return the number of a pod in its indexed Job; "" for a pod without one."""
    return str(pod.get("metadata", {}).get("labels", {}).get(INDEX, ""))


def choose_pod(pods: Mapping[str, PodState], index: int, node: str | None) -> PodState | None:
    """Return the pod of one push: the one on its node, or with its index; None if there is none yet. Pure."""
    if node is None:
        return pods.get(str(index))
    there = [pod for pod in pods.values() if pod.node == node]
    unplaced = [pod for pod in pods.values() if not pod.node]
    return next(iter((*there, *unplaced)), None)


def delete_job(kubectl: Kubectl, name: str) -> None:
    """Delete a job and its pods, if it is there, without waiting until they have ended."""
    kubectl.run("delete", "job", name, "--ignore-not-found", "--wait=false")
