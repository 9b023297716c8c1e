"""`bench push`: send a run to nodes over SSH, to Slurm or to Kubernetes, and print each node's outcome."""

from __future__ import annotations

import dataclasses
import secrets
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.base.errors import BadInput
from bench.base.names import ENGINES_WITH_STORE, IN_POD
from bench.cli.meeting import is_host_and_port, refuse_public_meeting
from bench.cli.pods_wanted import options_of_kubernetes, pods_wanted
from bench.cli.push_arguments import PushArguments
from bench.node_check.check_manifest import AnyManifest, CheckManifest, load_any
from bench.node_check.check_results import CheckResults
from bench.node_check.checks.ports import MOST_NODES
from bench.operator.ssh_keygen import OperatorKey
from bench.push.all_hosts import PushTask, run_all
from bench.push.assembly import refuse_login
from bench.push.hosts import Host, find_hosts
from bench.push.image_store import ImageStore
from bench.push.kubernetes.cluster_preflight import PodsWanted, preflight, refuse_manifest
from bench.push.kubernetes.push_to_pods import PodPush, give_pods, take_away
from bench.push.push_record import Record, Records
from bench.push.push_to_node import NodePush
from bench.push.remote import refuse_twins
from bench.push.request import GOOD, HostPart, PushOptions, PushRequest, Result, Shared, exit_code, to_json
from bench.push.screen import Screen, ended
from bench.push.slurm import GRACE_SECONDS, Slurm
from bench.push.slurm_job import with_names
from bench.push.terminal import tell, tell_block, tell_json, tell_table
from bench.push.training_group import TrainingGroup
from bench.records.text import seconds_text
from bench.signing.key_file import default_key_path, load_or_make_key
from bench.signing.revocation import own_revocations

THIS_MACHINE = Host("this machine", "localhost")
MEETING_PORT = 29400  # of the first host, for a check between nodes without --together
START_MINUTES = 30  # of a job in addition to the budget: to start, to end its last trial, and for proofs
_WIDEST_REASON = 100  # characters of a line in the table of many nodes


def push(request: PushArguments) -> int:
    """Push a manifest to hosts, Slurm or a cluster; return one exit code for all nodes."""
    manifest = load_any(request.manifest)
    if request.kubernetes:
        _refuse_options_of_other_kind(request, manifest)
        wanted = pods_wanted(request)
        return _push_to_cluster(
            wanted, _push_request(request, manifest, engine=IN_POD), as_json=request.as_json
        )
    if option := _first_given(options_of_kubernetes(request)):
        raise BadInput(f"{option} needs --kubernetes", advice="leave it out")
    hosts = find_hosts(request.hosts, request.inventory, request.limit, request.identity)
    if request.name is not None:
        hosts = (_renamed(request.name, hosts, request.inventory),)
    request = _with_meeting(request, manifest, hosts)
    _refuse_contradictions(request, len(hosts))
    _refuse_options_of_other_kind(request, manifest)
    push_request = _push_request(
        request,
        manifest,
        continued=_record_of(request.continued_run, hosts) if request.continued_run else None,
        slurm=_slurm(request) if request.slurm else None,
    )
    return _push_to(hosts, push_request, request.parallel, as_json=request.as_json)


def _push_request(request: PushArguments, manifest: AnyManifest, **changes: Any) -> PushRequest:
    options = {field.name: getattr(request, field.name) for field in dataclasses.fields(PushOptions)}
    return PushRequest(
        manifest=manifest,
        key=_certifying_key(request.key),
        push=secrets.token_hex(3),
        on_cpu=request.device == "cpu",
        valid_seconds=request.certificate_seconds,
        until=request.until,
        **options | changes,
    )


def _with_meeting(request: PushArguments, manifest: AnyManifest, hosts: Sequence[Host]) -> PushArguments:
    """Let the hosts of a check between nodes meet at the first of them, unless --together names a place."""
    if not _is_between_nodes(request, manifest) or request.together or request.slurm or not hosts:
        return request
    address = f"[{hosts[0].address}]" if ":" in hosts[0].address else hosts[0].address
    return dataclasses.replace(request, together=f"{address}:{MEETING_PORT}")


def _is_between_nodes(request: PushArguments, manifest: AnyManifest) -> bool:
    return isinstance(manifest, CheckManifest) and (request.level or manifest.level) == "nodes"


def _push_to(hosts: Sequence[Host], request: PushRequest, at_once: int, *, as_json: bool) -> int:
    """Push to all hosts; if there are none, push to this machine, which submits a job to Slurm."""
    records = Records()
    if request.until in ("start", "fetch"):
        records.refuse_read_only()
    refuse_twins(hosts, request.ssh_config)
    group = None
    if request.together:
        at_once = len(hosts)  # all, since the hosts of a group wait for each other
        group = TrainingGroup(len(hosts)) if request.until in ("start", "fetch") else None
    parts = [HostPart(host, node=node, nodes=len(hosts), group=group) for node, host in enumerate(hosts)]
    parts = parts or [HostPart(THIS_MACHINE, local=True)]
    with Screen([part.host.name for part in parts]) as screen:
        shared = shared_with(screen, records)
        shared.store.tidy(time.time())
        pushes = [NodePush(part, request, shared) for part in parts]
        results = run_all([PushTask(each, each.run) for each in pushes], at_once, shared.stop)
    return report_results(results, request.push, request, as_json=as_json)


def _push_to_cluster(wanted: PodsWanted, request: PushRequest, *, as_json: bool) -> int:
    """Push to nodes of a Kubernetes cluster: one Job, with a pod for each of them."""
    refuse_manifest(request)
    parts = [HostPart(host) for host in wanted.hosts()]
    with Screen([part.host.name for part in parts]) as screen:
        shared = shared_with(screen, Records())
        if request.until == "preflight":
            job = preflight(wanted, request, screen.say)
            results = [Result(part.host.name, "preflight", "would", engine=IN_POD) for part in parts]
        else:
            job = None
            pushes = [PodPush(part, request, shared) for part in parts]
            created = give_pods(pushes, wanted, request, screen.say)
            tasks = [PushTask(each, each.run) for each in pushes]
            results = run_all(tasks, len(parts), shared.stop)  # all: a pod waits for its start only so long
            if created is not None:
                take_away(created, results, screen.say)
    if job is not None and not as_json:
        tell_json(job.to_object())  # as kubectl create takes it
        return 0
    return report_results(results, request.push, request, as_json=as_json)


def _certifying_key(path: Path | None) -> OperatorKey:
    """Return the key that certifies runs: the key at `path`, or bench's own, which is made at first use."""
    if path is None and not default_key_path().exists():
        tell(f"new key to certify runs with: {load_or_make_key().path}", file=sys.stderr)
    return OperatorKey.find(path)


def _renamed(name: str, hosts: Sequence[Host], inventory: Path | None) -> Host:
    if len(hosts) != 1 or inventory is not None or not name.strip():
        raise BadInput(f"--name {name}: names a single HOST", advice="an inventory has names of its own")
    return dataclasses.replace(hosts[0], name=name)


def _refuse_contradictions(request: PushArguments, hosts: int) -> None:
    if not hosts and not request.slurm:
        raise BadInput("no host to push to", advice="a HOST, --inventory FILE, or --slurm on a login node")
    if request.parallel < 1:
        raise BadInput(f"--parallel {request.parallel} is not at least 1", advice="--parallel 8")
    refuse_login(request.index, "--index")
    refuse_login(request.mirror, "--mirror")
    if request.together and request.slurm:
        raise BadInput(
            "--together excludes --slurm",
            advice="use --slurm-nodes N: Slurm connects the nodes",
        )
    if not request.slurm and (option := _option_of_slurm(request)):
        raise BadInput(f"{option} needs --slurm", advice="without it, the run starts on HOST itself")
    _refuse_short_job(request)
    if request.together and hosts < 2:
        raise BadInput("hosts that work together must be at least two", advice="name another HOST")
    if request.together and not is_host_and_port(request.together):
        advice = "give a port of the first host that all hosts reach"
        raise BadInput(f"--together {request.together} is not HOST:PORT", advice=advice)
    if request.together:
        refuse_public_meeting("--together", request.together, allowed=request.meet_in_public)
    elif request.meet_in_public:
        raise BadInput("--meet-in-public without --together", advice="it says where hosts may meet")
    if request.pull and request.image:
        raise BadInput("--pull and --image name two images", advice="leave one out")
    if request.pull and request.engine not in ENGINES_WITH_STORE:
        advice = "name one of them; other engines get an image by --image, or from here"
        raise BadInput("--pull needs --engine docker or podman", advice=advice)
    _refuse_bad_environment(request)


def _refuse_short_job(request: PushArguments) -> None:
    """Refuse a job of Slurm whose time is over before the run's budget is."""
    needed = (request.budget_seconds or 0) + GRACE_SECONDS
    if request.slurm and request.budget_seconds and needed > 60 * request.job_minutes:
        what = (
            f"--budget {seconds_text(request.budget_seconds)}: the job ends after {request.job_minutes} min"
        )
        raise BadInput(what, advice=f"--time {ceil(needed / 60) + START_MINUTES}, or a smaller budget")


def _refuse_bad_environment(request: PushArguments) -> None:
    """Refuse options of environments with another engine, and an index that is no URL."""
    given = {
        "--variant": request.variant,
        "--wheelhouse": request.wheelhouse,
        "--source": request.source,
    }
    if request.engine not in ("auto", "venv") and (option := _first_given(given)):
        raise BadInput(f"{option} needs --engine venv", advice="leave it out")
    if request.engine == "venv" and (option := _first_given({"--image": request.image})):
        raise BadInput(f"{option} names an image, and --engine venv uses none", advice="--variant NAME")
    if request.index and request.engine == "none":
        raise BadInput("--index: with --engine none the node downloads nothing", advice="leave it out")
    if request.index and urlsplit(request.index).scheme not in ("http", "https", "file"):
        raise BadInput(f"--index {request.index} is no URL", advice="https://HOST/simple")
    if request.wheelhouse and not request.wheelhouse.is_dir():
        advice = "--wheelhouse names a folder of wheels on this machine"
        raise BadInput("no such folder", where=str(request.wheelhouse), advice=advice)


def _first_given(options: Mapping[str, object]) -> str | None:
    return next((name for name, value in options.items() if value), None)


def _refuse_options_of_other_kind(request: PushArguments, manifest: AnyManifest) -> None:
    """Refuse options for training if the manifest is a node check, and options for checks otherwise."""
    checks = isinstance(manifest, CheckManifest)
    if request.level and not checks:
        raise BadInput("--level is for node checks, and the manifest has models", advice="leave it out")
    given = {
        "--budget": request.budget_seconds,
        "--together": request.together and not _is_between_nodes(request, manifest),
        "--slurm-nodes": request.slurm_nodes > 1 and not _is_between_nodes(request, manifest),
        "--continue": request.continued_run,
    }
    if checks and (option := _first_given(given)):
        advice = "leave it out; --level is how long a check takes, and each node checks itself"
        raise BadInput(f"{option} is for training, and the manifest is a node check", advice=advice)
    if not _is_between_nodes(request, manifest):
        return
    if request.slurm and not 2 <= request.slurm_nodes <= MOST_NODES:
        message = f"a check between nodes needs 2 to {MOST_NODES} nodes, not {request.slurm_nodes}"
        raise BadInput(message, advice="--slurm-nodes N says how many")
    if request.kubernetes:
        advice = "push to the nodes over SSH, or check each node: bench push manifests/node-check.json"
        raise BadInput("--kubernetes has no check between nodes", advice=advice)


def _option_of_slurm(request: PushArguments) -> str | None:
    """Return the first given option that requires --slurm; None if there is none."""
    given = {
        "--partition": request.partition,
        "--account": request.account,
        "--constraint": request.constraint,
        "--gpus-per-node": request.gpus_per_node,
        "--slurm-nodes": request.slurm_nodes > 1,
        "--shared": request.shared,
        "--sbatch": request.sbatch,
    }
    return _first_given(given)


def _record_of(name: str, hosts: Sequence[Host]) -> Record:
    records = Records().find([name])
    if len(records) != 1 or len(hosts) != 1:
        advice = "bench push MANIFEST HOST --continue RUN; bench status lists runs"
        raise BadInput("--continue takes one run and one host", advice=advice)
    return records[0]


def _slurm(request: PushArguments) -> Slurm:
    return Slurm(
        partition=request.partition,
        account=request.account,
        constraint=request.constraint,
        gpus=request.gpus_per_node,
        nodes=request.slurm_nodes,
        minutes=request.job_minutes,
        exclusive=not request.shared,
        options=request.sbatch,
    )


def shared_with(screen: Screen, records: Records) -> Shared:
    """Return the state that the nodes of one push share; `screen` shows its progress."""
    return Shared(records, ImageStore(screen.say), screen, own_revocations())


def report_results(
    results: Sequence[Result], push_id: str, push_request: PushRequest | None, *, as_json: bool
) -> int:
    """Print every node's outcome; return one exit code for all. `push_request`: None for an earlier push."""
    code = exit_code(results)
    if as_json:
        manifest = {"manifest": push_request.manifest.digest} if push_request else {}
        changed = any(result.changed for result in results)
        document = {"schema": "bench/push/v1", "push": push_id, "exit_code": code, "changed": changed}
        document |= manifest | {"nodes": [to_json(result) for result in results]}
        tell_json(document)
        return code
    if push_request is not None and push_request.together and push_request.between_nodes:
        _show_numbers(results)
    if len(results) == 1:
        _show_one(results[0])
    else:
        _show_many(results)
    return code


def _show_one(result: Result) -> None:
    if (trained := result.trained) is not None:
        from bench.report.text.run_table import results_table

        tell_block(results_table(trained.results, trained.slowed, trained.marks, trained.busy_shares))
    if result.checked is not None:
        from bench.report.text.check_text import text

        tell_block(text(_named(result.checked, [node.name for node in result.job_nodes])))
    if result.checked is not None and result.checked.level == "nodes" and result.job_nodes:
        tell_block(_numbers([node.text for node in result.job_nodes]))
    if result.verdict is not None:
        tell(f"bundle {result.bundle}   level: {result.verdict.level}", file=sys.stderr)


def _show_numbers(results: Sequence[Result]) -> None:
    """Print the findings of a check between hosts, and the number that each host has in them."""
    hosts = [result.host for result in results]
    for checked in (result.checked for result in results if result.checked is not None):
        from bench.report.text.check_text import text

        tell_block(text(_named(checked, hosts)))
    tell_block(_numbers(hosts))


def _numbers(names: Sequence[str]) -> str:
    return "\n".join(f"node {number} is {name}" for number, name in enumerate(names))


def _named(checked: CheckResults, names: Sequence[str]) -> CheckResults:
    """Return a check between nodes with the name of each node after its number in the findings."""
    if checked.level != "nodes":
        return checked
    findings = [
        dataclasses.replace(one, subject=with_names(one.subject, names), found=with_names(one.found, names))
        for one in checked.findings
    ]
    return dataclasses.replace(checked, findings=tuple(findings))


def _show_many(results: Sequence[Result]) -> None:
    trouble_first = sorted(results, key=lambda result: result.exit_code == 0)
    rows = [(r.host, r.outcome, r.run_id or "", ended(r)) for r in trouble_first]
    tell_table(("host", "state", "run", ""), rows, widest=_WIDEST_REASON)
    good = sum(result.outcome in GOOD for result in results)
    verdicts = Counter(result.checked.verdict for result in results if result.checked)
    counts = "".join(f", {count} {verdict}" for verdict, count in verdicts.items())
    tell(f"{good} of {len(results)} nodes as requested{counts}", file=sys.stderr)
    bundles = [str(result.bundle) for result in results if result.bundle]
    if len(bundles) > 1:
        tell(f"bench compare {Path(bundles[0]).parent} ranks them", file=sys.stderr)
