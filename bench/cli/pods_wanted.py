"""The options of `bench push --kubernetes`: turn them into a request to the cluster, and refuse others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from bench.base.errors import BadInput
from bench.base.names import ANY_PYTHON
from bench.cli.push_arguments import PushArguments
from bench.images.container import OUT
from bench.push.kubernetes.cluster_preflight import PodsWanted
from bench.push.kubernetes.kubectl import find_cluster
from bench.push.kubernetes.pod_job import refuse_names


def options_of_kubernetes(request: PushArguments) -> Mapping[str, object]:
    """Return the options that need --kubernetes, and their values."""
    return {
        "--context": request.context,
        "--namespace": request.namespace,
        "--nodes": request.nodes,
        "--queue": request.queue,
        "--pull-secret": request.pull_secret,
    }


def _options_of_hosts(request: PushArguments) -> Mapping[str, object]:
    """Return the options that say how to reach or to prepare a host, and their values."""
    return {
        "--slurm": request.slurm,
        "--inventory": request.inventory,
        "--limit": request.limit,
        "--name": request.name,
        "--identity": request.identity,
        "--ssh-config": request.ssh_config,
        "--engine": request.engine != "auto",
        "--pull": request.pull,
        "--no-assemble": not request.assemble,
        "--index": request.index,
        "--mirror": request.mirror,
        "--python": request.python != ANY_PYTHON,
        "--variant": request.variant,
        "--wheelhouse": request.wheelhouse,
        "--source": request.source,
        "--together": request.together,
        "--meet-in-public": request.meet_in_public,
        "--no-run": request.no_run,
        "--keep": request.keep,
        "--continue": request.continued_run,
        "--anyway": request.despite_findings,
        "--partition": request.partition,
        "--account": request.account,
        "--constraint": request.constraint,
        "--slurm-nodes": request.slurm_nodes > 1,
        "--shared": request.shared,
        "--sbatch": request.sbatch,
    }


def pods_wanted(request: PushArguments) -> PodsWanted:
    """Return the options' request to a cluster; BadInput for options that contradict each other."""
    if option := next((name for name, value in _options_of_hosts(request).items() if value), None):
        raise BadInput(f"{option} is for hosts, and --kubernetes has pods", advice="leave it out")
    if request.image is None:
        advice = "--image REGISTRY/NAME@sha256:DIGEST, which the nodes can pull"
        raise BadInput("--kubernetes needs an image", advice=advice)
    refuse_names(request.image, request.queue, request.pull_secret)
    if request.nodes is not None and request.hosts:
        raise BadInput("--nodes counts any nodes, and HOST names them", advice="leave one of them out")
    if twice := sorted({name for name in request.hosts if request.hosts.count(name) > 1}):
        raise BadInput(f"the node {twice[0]} is named twice", advice="leave one out")
    if request.gpus_per_node is not None and not request.gpus_per_node.isdecimal():
        advice = "how many GPUs each node has"
        raise BadInput(f"--gpus-per-node {request.gpus_per_node} is no number", advice=advice)
    place = PurePosixPath(request.place or OUT)
    if not place.is_absolute() or ".." in place.parts or len(place.parts) < 2:
        raise BadInput(f"--place {place} is no folder of a pod", advice=f"an absolute path, such as {OUT}")
    return PodsWanted(
        cluster=find_cluster(request.context, request.namespace),
        image=request.image,
        nodes=request.hosts,
        count=len(request.hosts) or request.nodes or 1,
        gpus_per_node=int(request.gpus_per_node) if request.gpus_per_node else None,
        queue=request.queue,
        pull_secret=request.pull_secret,
        place=str(place),
    )
