"""Inspect a cluster before a push, and choose what its pods take of their nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.base.errors import EnvironmentCannot
from bench.node_check.check_manifest import data_folders, wanted_environment, wanted_image
from bench.push.hosts import Host
from bench.push.kubernetes.kubectl import ROLE_FILE, Cluster, Kubectl
from bench.push.kubernetes.kueue import check_queue
from bench.push.kubernetes.pod_job import GPU, NAME, PodJob, PodShare
from bench.push.kubernetes.pod_state import ClusterNode, read_node, short_quotas
from bench.push.request import DAY, FETCH_SECONDS, PushRequest

NEEDED = (
    ("create", "jobs.batch"), ("get", "jobs.batch"), ("delete", "jobs.batch"),
    ("get", "pods"), ("list", "pods"), ("create", "pods/exec"),
)  # fmt: skip
_SHARE = 0.5  # of a node's processors and memory that a pod reserves; the node's own pods need the rest
_PLUGIN = "install NVIDIA's device plugin or GPU operator; --device cpu needs no GPU"


@dataclass(frozen=True, slots=True)
class PodsWanted:
    """The user's request to the cluster."""

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
        names = self.nodes or tuple(f"pod-{number}" for number in range(self.count))
        return tuple(Host(name, f"{where}/{name}") for name in names)


def refuse_manifest(request: PushRequest) -> None:
    """Refuse a manifest with data, an image or an environment that a pod cannot have."""
    if folders := data_folders(request.manifest):
        advice = "use made-up data; or push to the node over SSH"
        raise EnvironmentCannot(f"the manifest reads {folders[0]}, which no pod has", advice=advice)
    if wanted := wanted_image(request.manifest) or wanted_environment(request.manifest):
        advice = "remove it from the manifest: --image names the image by its digest"
        raise EnvironmentCannot(f"the manifest asks for {wanted}, which no pod can prove", advice=advice)


def preflight(wanted: PodsWanted, request: PushRequest, say: Callable[[str], object]) -> PodJob:
    """Inspect the cluster, and return the job to create; EnvironmentCannot if it cannot run."""
    kubectl = Kubectl(wanted.cluster.context, wanted.cluster.namespace)
    for verb, resource in NEEDED:
        if not kubectl.may(verb, resource):
            what = f"this user may not {verb} {resource} in the namespace {wanted.cluster.namespace}"
            raise EnvironmentCannot(what, advice=f"ask for the role in bench/data/{ROLE_FILE}")
    nodes = _nodes(kubectl)
    share, warnings = choose_share(wanted, nodes, on_cpu=request.on_cpu, wanted_gpus=request.manifest.gpus)
    for warning in warnings:
        say(f"preflight  warn: {warning}")
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
        keep_seconds=DAY if request.until == "start" else FETCH_SECONDS,
    )
    for short in _short_quotas(kubectl, job):
        advice = "ask for more, push to fewer nodes, or name another --namespace"
        raise EnvironmentCannot(short, advice=advice)
    tried = kubectl.create_job(job.to_object(), dry_run=True)
    if job.queue is not None:
        check_queue(kubectl, job.queue, tried, say)
    return job


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

    EnvironmentCannot if no node can have the pods, or the nodes differ and the user names no number of GPUs.
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
    few = f"{len(usable)} of {len(fitting)} such nodes can take a pod now: pods wait for the others"
    warnings = (few,) if len(usable) < wanted.count else ()
    cpu, memory = (min(node.cpu_milli for node in fitting), min(node.memory_bytes for node in fitting))
    return PodShare(gpus, int(cpu * _SHARE), int(memory * _SHARE)), warnings


def _all_gpus(candidates: Sequence[ClusterNode]) -> int:
    """Return how many GPUs a whole node has; EnvironmentCannot if none has any, or they differ."""
    counts = sorted({node.gpus for node in candidates if node.gpus})
    if not counts:
        raise EnvironmentCannot(f"no node offers a GPU as {GPU}", advice=_PLUGIN)
    if len(counts) > 1:
        numbers = " or ".join(map(str, counts))
        advice = "--gpus-per-node N takes nodes of one kind; names of nodes do, too"
        raise EnvironmentCannot(f"nodes have {numbers} GPUs, not one number", advice=advice)
    return counts[0]
