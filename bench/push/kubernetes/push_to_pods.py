"""Push to nodes of a Kubernetes cluster: one Job with a pod for each node, and a `PodPush` for each pod.

The cluster brings the image and chooses the nodes; so the steps are preflight, start, run, fetch and clean.
"""

from __future__ import annotations

import dataclasses
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.base.errors import BenchError, EnvironmentCannot
from bench.base.names import ANY_PYTHON, IN_POD
from bench.images.container import NOBODY
from bench.node_check.check_manifest import data_folders, wanted_environment, wanted_image
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.push import mirror, run_script
from bench.push.hosts import Host
from bench.push.kubernetes.kubectl import ROLE_FILE, Cluster, Kubectl, NotThere
from bench.push.kubernetes.pod_job import DAY, GPU, NAME, START, PodJob, PodShare
from bench.push.kubernetes.pod_node import PodGone, PodNode
from bench.push.kubernetes.pod_state import (
    INDEX,
    ClusterNode,
    PodState,
    read_node,
    read_pod,
    refused_pods,
    short_quotas,
)
from bench.push.mirror import Status
from bench.push.push_record import PodPlace, Record, Records, now
from bench.push.push_to_node import NodePush, missing_bundle
from bench.push.remote import demand
from bench.push.request import HostPart, PushRequest, Result, Shared
from bench.push.training_group import Standing

_LOOK_SECONDS = 2.0  # between two questions about the pods of a job
_REFUSED_SECONDS = 10.0  # after which a job without a pod is asked for its reason
_FETCH_SECONDS = 2 * 3600  # for which a bundle waits in its pod, if somebody watches
_SHARE = 0.8  # of a node's processors and memory that a pod reserves; the rest is for the node's own pods


@dataclass(frozen=True, slots=True)
class PodsWanted:
    """What the user asks of the cluster."""

    cluster: Cluster
    image: str
    nodes: tuple[str, ...]  # names; empty: any
    count: int
    gpus_per_node: int | None
    queue: str | None
    pull_secret: str | None
    place: str

    def hosts(self) -> tuple[Host, ...]:
        """Return one host for each pod. Its address keeps one push's runs apart from another cluster's."""
        where = f"{self.cluster.server}/{self.cluster.namespace}"
        names = self.nodes or tuple(f"{self.cluster.context or 'cluster'}-{n}" for n in range(self.count))
        return tuple(Host(name, f"{where}/{name}") for name in names)


# --- preflight --------------------------------------------------------------------------------------------


def refuse_manifest(request: PushRequest) -> None:
    """Refuse a manifest that asks for what a pod does not have."""
    if folders := data_folders(request.manifest):
        advice = "use made-up data; or push to the node over SSH"
        raise EnvironmentCannot(f"the manifest reads {folders[0]}, which no pod has", advice=advice)
    if wanted := wanted_image(request.manifest) or wanted_environment(request.manifest):
        advice = "remove it from the manifest: --image names the image by its digest"
        raise EnvironmentCannot(f"the manifest asks for {wanted}, which no pod can prove", advice=advice)


def preflight(wanted: PodsWanted, request: PushRequest) -> tuple[PodJob, tuple[str, ...]]:
    """Inspect the cluster; return the job to create, and warnings. EnvironmentCannot if it cannot run."""
    kubectl = Kubectl(wanted.cluster.context, wanted.cluster.namespace)
    for verb, resource in (("create", "jobs.batch"), ("get", "pods"), ("create", "pods/exec")):
        if not kubectl.may(verb, resource):
            what = f"this user may not {verb} {resource} in the namespace {wanted.cluster.namespace}"
            raise EnvironmentCannot(what, advice=f"ask for the role in bench/data/{ROLE_FILE}")
    nodes = _nodes(kubectl)
    share, warnings = choose_share(wanted, nodes, on_cpu=request.on_cpu, wanted_gpus=request.manifest.gpus)
    job = PodJob(
        name=f"{NAME}-{request.push}",
        image=wanted.image,
        pods=wanted.count,
        share=share,
        place=wanted.place,
        nodes=wanted.nodes,
        queue=wanted.queue,
        pull_secret=wanted.pull_secret,
        run_seconds=request.valid_seconds,
        keep_seconds=DAY if request.until == "start" else _FETCH_SECONDS,
    )
    for short in _short_quotas(kubectl, job):
        advice = "ask for more, push to fewer nodes, or name another --namespace"
        raise EnvironmentCannot(short, advice=advice)
    kubectl.create_job(job.to_object(), dry_run=True)
    return job, warnings


def _nodes(kubectl: Kubectl) -> tuple[ClusterNode, ...] | None:
    """Return the cluster's nodes; None if this user may not list them."""
    if not kubectl.may("list", "nodes"):
        return None
    return tuple(read_node(item, GPU) for item in kubectl.items("nodes"))


def _short_quotas(kubectl: Kubectl, job: PodJob) -> list[str]:
    if not kubectl.may("list", "resourcequotas"):
        return []
    gpus = job.pods * job.share.gpus * 1000
    wanted = {"pods": job.pods * 1000, "count/pods": job.pods * 1000, "count/jobs.batch": 1000}
    wanted |= {f"requests.{GPU}": gpus, "requests.cpu": job.pods * job.share.cpu_milli}
    wanted |= {"requests.memory": job.pods * job.share.memory_bytes * 1000}
    return list(short_quotas(kubectl.items("resourcequotas"), wanted))


def choose_share(
    wanted: PodsWanted, nodes: Sequence[ClusterNode] | None, *, on_cpu: bool, wanted_gpus: int | None
) -> tuple[PodShare, tuple[str, ...]]:
    """Return what a pod takes of its node, all GPUs above all, and warnings. Pure.

    EnvironmentCannot if no node can have the pods, or the nodes differ and nobody says how many GPUs.
    """
    gpus = 0 if on_cpu else wanted.gpus_per_node
    if nodes is None:
        if gpus is None and wanted_gpus is None:
            advice = "--gpus-per-node N, all of a node's GPUs; or ask for the right to list nodes"
            raise EnvironmentCannot(
                "this user may not list nodes, so their GPUs are not known", advice=advice
            )
        what = "this user may not list nodes: pods reserve their GPUs, and neither processors nor memory"
        return PodShare(gpus if gpus is not None else wanted_gpus or 0), (what,)
    known = {node.name: node for node in nodes}
    if missing := [name for name in wanted.nodes if name not in known]:
        what = f"the cluster has no node {missing[0]}"
        raise EnvironmentCannot(what, advice=f"kubectl get nodes lists them: {', '.join(sorted(known)[:8])}")
    candidates = [known[name] for name in wanted.nodes] or list(nodes)
    if gpus is None:
        gpus = _all_gpus(candidates)
    fitting = [node for node in candidates if node.gpus >= gpus]
    if not fitting or (wanted.nodes and len(fitting) < len(candidates)):
        lacks = next(node.name for node in candidates if node.gpus < gpus)
        which = f"the node {lacks} has no" if wanted.nodes else "no node has"
        raise EnvironmentCannot(f"{which} {gpus} GPUs to offer as {GPU}", advice=_PLUGIN)
    usable = [node for node in fitting if node.ready and not node.cordoned]
    warnings = tuple(
        f"{len(usable)} of {len(fitting)} such nodes can take a pod now: pods wait for the others"
        for _ in range(len(usable) < wanted.count)
    )
    cpu, memory = (min(node.cpu_milli for node in fitting), min(node.memory_bytes for node in fitting))
    return PodShare(gpus, int(cpu * _SHARE), int(memory * _SHARE)), warnings


_PLUGIN = "install NVIDIA's device plugin or GPU operator; --device cpu needs no GPU"


def _all_gpus(candidates: Sequence[ClusterNode]) -> int:
    """Return how many GPUs a whole node has; EnvironmentCannot if none has any, or they differ."""
    counts = sorted({node.gpus for node in candidates if node.gpus})
    if not counts:
        raise EnvironmentCannot(f"no node offers a GPU as {GPU}", advice=_PLUGIN)
    if len(counts) > 1:
        numbers = " or ".join(map(str, counts))
        advice = "--gpus-per-node N takes nodes of one kind; names of nodes do, too"
        raise EnvironmentCannot(f"nodes have {numbers} GPUs: which are meant?", advice=advice)
    return counts[0]


# --- the job ----------------------------------------------------------------------------------------------


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

    def pod(self, index: int, node: str) -> PodState:
        """Return the state of the pod on a node that the job names, else of the pod with this index.

        PodGone if the job is gone; EnvironmentCannot if the cluster refuses to make its pods.
        """
        with self._lock:
            if time.monotonic() - self._asked_at >= _LOOK_SECONDS:
                self._look()
            return choose_pod(self._seen, index, node if self.job.nodes else None)

    def _look(self) -> None:
        pods = self._kubectl.items("pods", f"--selector=job-name={self.job.name}")
        self._asked_at = time.monotonic()
        self._seen = {index_of(pod): read_pod(pod) for pod in pods}
        if not pods and self._asked_at - self._made_at > _REFUSED_SECONDS:
            self._ask_why()

    def _ask_why(self) -> None:
        try:
            job = self._kubectl.get("job", self.job.name)
        except NotThere:
            raise PodGone(f"the job {self.job.name} is gone", advice="push again") from None
        if job.get("spec", {}).get("suspend") is True:
            return  # a queue has not admitted it yet
        selector = f"--field-selector=involvedObject.uid={self._uid}"
        if not self._kubectl.may("list", "events"):
            return
        if refused := refused_pods(self._kubectl.items("events", selector)):
            raise EnvironmentCannot(
                f"the cluster makes no pod: {refused}", advice=f"kubectl describe job {self.job.name}"
            )

    def place(self, pod: str) -> PodPlace:
        own = self.cluster
        return PodPlace(own.context, own.server, own.namespace, self.job.name, self.job.pods, pod)

    def delete(self) -> None:
        delete_job(self._kubectl, self.job.name)


def index_of(pod: dict[str, Any]) -> str:
    """Return the index of a job's pod, which Kubernetes keeps in an annotation and since 1.28 in a label."""
    metadata = pod.get("metadata", {})
    found = metadata.get("annotations", {}).get(INDEX)
    return str(found if found is not None else metadata.get("labels", {}).get(INDEX, ""))


def choose_pod(pods: Mapping[str, PodState], index: int, node: str | None) -> PodState:
    """Return the pod of one push: the one on its node, or with its index. Pure."""
    if node is None:
        return pods.get(str(index), _NOT_MADE)
    there = [pod for pod in pods.values() if pod.node == node]
    unplaced = [pod for pod in pods.values() if not pod.node]
    return next(iter((*there, *unplaced)), _NOT_MADE)


_NOT_MADE = PodState("waiting", "the cluster has not made the pod yet")


def delete_job(kubectl: Kubectl, name: str) -> None:
    kubectl.run("delete", "job", name, "--ignore-not-found", "--wait=false")


# --- one pod ----------------------------------------------------------------------------------------------


class PodPush(NodePush):
    """The push to one pod of a job, in a thread of its own; or the watch over a pod that is there."""

    def __init__(self, part: HostPart, request: PushRequest, shared: Shared) -> None:
        super().__init__(part, request, shared)
        self._created: CreatedJob | None = None
        self._index = 0

    def needs_pod(self) -> bool:
        """Whether this push will start a run, for what the records and the cluster say now."""
        if self._fetched_run() is not None:
            return False
        unfinished = self._unfinished_run()
        try:
            return unfinished is None or self._standing(unfinished) == "new"
        except BenchError:  # the push itself meets the same trouble, and reports it
            return False

    def given(self, job: CreatedJob, index: int) -> None:
        """Take a pod of a job."""
        self._created, self._index = job, index

    def attach(self, record: Record) -> Result:
        self.node = PodNode.of(record)
        return super().attach(record)

    def _standing(self, record: Record) -> Standing:
        if record.pod is None:  # recorded, and never started
            return "new"
        self.node = PodNode.of(record)
        try:
            return super()._standing(record)
        except PodGone:
            return "new"

    def _start_run(self, unfinished: Record | None) -> None:
        """Wait for the pod, and start the run there; a run that goes on keeps its id and its journal."""
        if self._created is None:
            advice = "push again, in a moment"
            raise EnvironmentCannot("its run has just ended without a bundle", advice=advice)
        if unfinished is not None and unfinished.pod is not None:
            release(self.node, unfinished)
        self._enter("start", f"job {self._created.job.name}")
        pod = self._await_pod(self._created)
        place = self._created.place(pod.name)
        self.node = PodNode(pod.node, place)
        self._say_phase(f"pod {pod.name} on the node {pod.node}")
        self._watch_to_the_end(self._start_in(place, pod.node, unfinished))

    def _await_pod(self, job: CreatedJob) -> PodState:
        told = ""
        while (pod := job.pod(self._index, self.part.host.name)).state == "waiting":
            if pod.why != told:
                self._enter("start", f"waits: {pod.why}")
                told = pod.why
            self._sleep(_LOOK_SECONDS)
        if pod.state == "gone":
            raise PodGone(pod.why, where=pod.node or None, advice=pod.advice)
        return pod

    def _start_in(self, place: PodPlace, node: str, unfinished: Record | None) -> Record:
        """Record the run, then start it; as on a node, so that it can be fetched whatever happens here."""
        record = self._record_of(place, node, unfinished)
        self._update(run_id=record.run_id, engine=IN_POD, changed=True)
        job = self._run_job(record)
        run_script.prepare(self.node, job, self.request.manifest.data, self._challenge(record))
        if unfinished and not job.checks and mirror.restore_journal(self.node, record, ""):
            self._say(f"the mirrored journal of run {record.run_id} was restored in the pod")
        (record.mirror / "run.sh").write_text(run_script.script(job), encoding="utf-8", newline="\n")
        began = "[ -e pid ] || [ -e exit ]"
        wait = f"n=0; until {began} || [ $n -gt 100 ]; do sleep 0.1; n=$((n + 1)); done; {began}"
        folder, start = shlex.quote(record.folder), shlex.quote(f"{record.place}/{START}")
        begin = f"cd {folder} && rm -f exit pid && printf %s {folder} >{start}"
        demand(self.node, f"{begin} && {{ {wait}; }}", "starting the run")
        return self.shared.records.move(record, "running")

    def _record_of(self, place: PodPlace, node: str, unfinished: Record | None) -> Record:
        request, host = self.request, self.part.host
        choices: dict[str, Any] = {
            "host": node,
            "place": self._created.job.place if self._created else "",
            "key": str(request.key.path),
            "valid_seconds": request.valid_seconds,
            "pod": place,
        }
        if unfinished is not None:
            return self.shared.records.save(dataclasses.replace(unfinished, **choices))
        with Ledger(request.ledger) as ledger:
            run_id = certify_and_receive.challenge(ledger, self.manifest_sha256, now()).run_id
        record = Record(
            run_id=run_id,
            push=request.push,
            address=host.address,
            user=None,
            port=None,
            identity=None,
            ssh_config=None,
            local=False,
            engine=IN_POD,
            image=None,
            manifest_sha256=self.manifest_sha256,
            out=str(request.out.resolve()),
            ledger=str(request.ledger) if request.ledger else None,
            keep=False,
            began_at=now(),
            **choices,
        )
        record.mirror.mkdir(parents=True, exist_ok=True)
        (record.mirror / "manifest.json").write_bytes(request.manifest.data)
        return self.shared.records.save(record)

    def _run_job(self, record: Record) -> run_script.Job:
        request = self.request
        return run_script.Job(
            run_id=record.run_id,
            place=record.place,
            engine=IN_POD,
            runnable="",
            identity=None,
            python=ANY_PYTHON,
            user=(NOBODY, NOBODY),
            memory_bytes=0,
            gpus=None,
            on_cpu=request.on_cpu,
            budget_seconds=request.budget_seconds,
            checks=request.checks,
            level=request.level,
            moved=True,  # the pod of a run that goes on may be on another node
        )

    def _finish(self, record: Record, status: Status) -> None:
        if record.state == "incomplete":
            release(self.node, record)  # a new push continues in a pod of its own, from the mirror
        super()._finish(record, status)

    def _clean(self, record: Record) -> None:
        leave(self.node, record, self.shared.records)

    def _missing_bundle(self, status: Status, record: Record) -> BenchError:
        killed = self.node.why_killed() if isinstance(self.node, PodNode) else ""
        release(self.node, record)
        return missing_bundle(dataclasses.replace(status, reason=killed or None), record)


def release(node: object, record: Record) -> None:
    """Let a run's pod end: what is in it was taken, or nobody wants it."""
    if isinstance(node, PodNode):
        node.release(record.place)


def leave(node: object, record: Record, records: Records) -> None:
    """Leave nothing of a run in its cluster: the pod, and after the last pod the job."""
    release(node, record)
    place = record.pod
    if place is None:
        return
    over = [r for r in records.all() if r.pod and r.pod.job == place.job and r.pod.server == place.server]
    if sum(r.state in ("fetched", "cancelled") or r.run_id == record.run_id for r in over) == place.pods:
        delete_job(Kubectl(place.context, place.namespace), place.job)


def give_pods(pushes: Sequence[PodPush], cluster: Cluster, job: PodJob) -> CreatedJob | None:
    """Create one job with a pod for each push that starts a run; return it, or None if none does."""
    starting = [push for push in pushes if push.needs_pod()]
    if not starting:
        return None
    names = tuple(push.part.host.name for push in starting) if job.nodes else ()
    created = CreatedJob(cluster, dataclasses.replace(job, pods=len(starting), nodes=names))
    for index, push in enumerate(starting):
        push.given(created, index)
    return created
