"""The arguments of `bench push` and of what follows it; the side itself is imported when called."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import BadInput
from bench.cli.arguments import Commands, Mixed, duration, is_host_and_port
from bench.node_check.judging import DEPTHS

if TYPE_CHECKING:
    from bench.push.hosts import Host
    from bench.push.push_record import Record
    from bench.push.slurm import Slurm

AT_ONCE = 64
_LONG = 24 * 3600  # to come back and fetch, with nobody watching
_SHORT = 2 * 3600


def add_push(commands: Commands[argparse.ArgumentParser]) -> None:
    push = commands.add_parser("push", help="measure or check other machines, over SSH", allow_abbrev=False)
    push.__class__ = Mixed  # add_parser() takes no class
    add = push.add_argument
    add("manifest", type=Path, metavar="MANIFEST", help="of models, or a node check")
    add("hosts", metavar="HOST", nargs="*", help="HOST, USER@HOST, HOST:PORT, or a name in ~/.ssh/config")
    _add_hosts(push)
    _add_run(push)
    _add_stages(push)
    _add_slurm(push)
    add("--parallel", type=int, default=AT_ONCE, metavar="N", help=f"nodes at a time (default: {AT_ONCE})")
    add("--json", action="store_true", help="what became of every node as JSON on stdout")
    push.set_defaults(call=_push)

    for name, words, call in (
        ("status", "what was pushed, and how it goes", _status),
        ("attach", "watch a run again, and fetch it", _attach),
        ("fetch", "the bundles of runs that are over", _fetch),
        ("cancel", "end runs; what was measured is kept", _cancel),
        ("clean", "leave nothing of a run on its node", _clean),
    ):
        verb = commands.add_parser(name, help=words, allow_abbrev=False)
        verb.add_argument(
            "runs",
            metavar="RUN",
            nargs="*",
            help="a run's id or its beginning, a push's, or a host (default: the newest push)",
        )
        if name in ("status", "attach", "fetch"):
            verb.add_argument("--json", action="store_true", help="as JSON on stdout")
        verb.set_defaults(call=call)


def _add_hosts(push: argparse.ArgumentParser) -> None:
    add = push.add_argument_group("hosts").add_argument
    add("-i", "--inventory", type=Path, metavar="FILE", help="of Ansible's: every host in it")
    add("--limit", metavar="PATTERN", help="of these alone, as Ansible has it")
    add("--name", metavar="NAME", help="what to call the one HOST, in tables and in its bundle's name")
    add(
        "--identity",
        type=Path,
        metavar="FILE",
        help="the SSH key to log in with; an agent's are tried anyway",
    )
    add("--ssh-config", type=Path, metavar="FILE", help="instead of ~/.ssh/config")
    add("--place", metavar="DIR", help="where to work there (default: $HOME/.bench)")


def _add_run(push: argparse.ArgumentParser) -> None:
    add = push.add_argument_group("the run").add_argument
    add(
        "-o",
        "--out",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="bundles go here (default: results)",
    )
    add("--budget", type=duration, metavar="TIME", help="start no trial after this long: 90s, 60m, 2h")
    add("--level", choices=DEPTHS, help="of a node check: 2, 10 or 60 minutes (default: the manifest's)")
    add("--engine", choices=("auto", "docker", "podman", "apptainer", "none"), default="auto",
        help="there (default: auto, the first that answers); none: an environment of Python's")  # fmt: skip
    add("--image", metavar="REF", help="a file of bench image build or save, or a name in the engine here "
        "(default: the variant that fits the node's driver)")  # fmt: skip
    add("--pull", metavar="REF", help="the node gets the image from a registry itself")
    add("--python", default="python3", metavar="FILE", help="there, for --engine none (default: python3)")
    add("--device", choices=("auto", "cpu"), default="auto", help="cpu: leave the GPUs alone (default: auto)")
    add("--together", metavar="HOST:PORT", help="all hosts train as one; a port of the first that all reach")
    add(
        "--key",
        type=Path,
        metavar="FILE",
        help="your SSH key to certify with, or the .pub of one in an agent or token",
    )
    add("--ledger", type=Path, metavar="FILE", help="default: ~/.local/state/bench/ledger.jsonl")
    add("--valid", type=duration, metavar="TIME", help="of a run's certificate: fetch within it "
        "(default: the budget and 2h; a day more with --detach or without a budget)")  # fmt: skip


def _add_stages(push: argparse.ArgumentParser) -> None:
    stages = push.add_argument_group("how far")
    until = stages.add_mutually_exclusive_group()
    until.add_argument("--dry-run", action="store_true", help="look, and change nothing")
    until.add_argument("--no-run", action="store_true", help="bring the image, and start nothing")
    until.add_argument("-d", "--detach", action="store_true", help="start it, and come back: bench attach")
    stages.add_argument("--keep", action="store_true", help="leave the image there for the next push")
    stages.add_argument(
        "--once", action="store_true", help="a host whose bundle of this manifest is here is done"
    )
    stages.add_argument("--new", action="store_true", help="another run, though one was begun before")
    stages.add_argument(
        "--continue", dest="goes_on", metavar="RUN", help="of a node that is gone, from the mirror"
    )
    stages.add_argument("--anyway", action="store_true", help="run in spite of what preflight finds")


def _add_slurm(push: argparse.ArgumentParser) -> None:
    slurm = push.add_argument_group("Slurm").add_argument
    slurm("--slurm", action="store_true", help="as a job; HOST is a login node, none at all: this machine")
    slurm("--partition", metavar="NAME")
    slurm("--account", metavar="NAME")
    slurm("--constraint", metavar="FEATURES")
    slurm("--gpus-per-node", metavar="N", help="or TYPE:N")
    slurm("--slurm-nodes", type=int, default=1, metavar="N", help="that train together (default: 1)")
    slurm("--time", type=int, default=120, metavar="MINUTES", help="the job's limit (default: 120)")
    slurm("--shared", action="store_true", help="let other jobs onto the node meanwhile")
    slurm(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="any other, as --sbatch=--qos=high; repeatable",
    )


def _push(arguments: argparse.Namespace) -> int:
    from bench.cli.push import operator_key, push
    from bench.node_check.any_manifest import load_any
    from bench.node_check.check_manifest import CheckManifest
    from bench.push.hosts import find_hosts
    from bench.push.request import PushRequest

    a = arguments
    manifest = load_any(a.manifest)
    hosts = find_hosts(a.hosts, a.inventory, a.limit, a.identity)
    if a.name is not None:
        hosts = (_called(a, hosts),)
    _check(a, len(hosts))
    _check_kind(a, checks=isinstance(manifest, CheckManifest))
    order = PushRequest(
        manifest, a.engine, a.out, operator_key(a.key), a.ledger, a.image, a.pull, a.python, a.place,
        on_cpu=a.device == "cpu",
        budget_seconds=a.budget,
        level=a.level,
        valid_seconds=_valid_seconds(a),
        keep=a.keep,
        until="preflight" if a.dry_run else "ship" if a.no_run else "start" if a.detach else "fetch",
        once=a.once, anew=a.new, anyway=a.anyway,
        goes_on=_begun(a.goes_on, hosts) if a.goes_on else None,
        slurm=_slurm(a) if a.slurm else None,
        together=a.together,
        ssh_config=a.ssh_config,
    )  # fmt: skip
    return push(order, hosts, a.parallel, as_json=a.json)


def _called(a: argparse.Namespace, hosts: Sequence[Host]) -> Host:
    if len(hosts) != 1 or a.inventory is not None or not a.name.strip():
        raise BadInput(f"--name {a.name}: names one HOST", advice="an inventory has names of its own")
    return dataclasses.replace(hosts[0], name=a.name)


def _valid_seconds(a: argparse.Namespace) -> int:
    watched = a.budget is not None and not a.detach
    return int(a.valid or min((a.budget or 0) + _SHORT + (0 if watched else _LONG), 7 * _LONG))


def _check(a: argparse.Namespace, hosts: int) -> None:
    if not hosts and not a.slurm:
        raise BadInput("push to whom?", advice="a HOST, --inventory FILE, or --slurm on a login node")
    if a.parallel < 1:
        raise BadInput(f"--parallel {a.parallel} is not at least 1")
    if a.together and a.slurm:
        raise BadInput(
            "--together goes without --slurm", advice="--slurm-nodes N: Slurm brings them together"
        )
    if not a.slurm and (alone := _of_slurm(a)):
        raise BadInput(f"{alone} goes with --slurm", advice="without it, the run starts on HOST itself")
    if a.together and hosts < 2:
        raise BadInput("--together takes two hosts at least")
    if a.together and not is_host_and_port(a.together):
        raise BadInput(
            f"--together {a.together}: no HOST:PORT", advice="a port of the first host that all reach"
        )
    if a.pull and a.image:
        raise BadInput("--pull and --image name two images", advice="leave one out")
    if a.pull and a.engine not in ("docker", "podman"):
        raise BadInput("--pull goes with --engine docker or podman")


def _check_kind(a: argparse.Namespace, *, checks: bool) -> None:
    """Options that the other kind of manifest alone could heed."""
    if a.level and not checks:
        raise BadInput("--level is of a node check, and the manifest has models", advice="leave it out")
    given = {
        "--budget": a.budget,
        "--together": a.together,
        "--slurm-nodes": a.slurm_nodes > 1,
        "--continue": a.goes_on,
    }
    if checks and (alone := next((name for name, value in given.items() if value), None)):
        raise BadInput(
            f"{alone} is of training, and the manifest is a node check",
            advice="leave it out; --level is how long a check takes, and each node checks itself",
        )


def _of_slurm(a: argparse.Namespace) -> str | None:
    """An option that only Slurm could heed."""
    given = {
        "--partition": a.partition,
        "--account": a.account,
        "--constraint": a.constraint,
        "--gpus-per-node": a.gpus_per_node,
        "--slurm-nodes": a.slurm_nodes > 1,
        "--shared": a.shared,
        "--sbatch": a.sbatch,
    }
    return next((name for name, value in given.items() if value), None)


def _begun(name: str, hosts: Sequence[Host]) -> Record:
    from bench.push.push_record import Records

    found = Records().find([name])
    if len(found) != 1 or len(hosts) != 1:
        raise BadInput("--continue takes one run and one host")
    return found[0]


def _slurm(a: argparse.Namespace) -> Slurm:
    from bench.push.slurm import Slurm

    return Slurm(
        a.partition,
        a.account,
        a.constraint,
        a.gpus_per_node,
        a.slurm_nodes,
        a.time,
        not a.shared,
        tuple(a.sbatch),
    )


def _status(arguments: argparse.Namespace) -> int:
    from bench.cli.push import status

    return status(arguments.runs, as_json=arguments.json)


def _attach(arguments: argparse.Namespace) -> int:
    from bench.cli.push import attach

    return attach(arguments.runs, AT_ONCE, wait=True, as_json=arguments.json)


def _fetch(arguments: argparse.Namespace) -> int:
    from bench.cli.push import attach

    return attach(arguments.runs, AT_ONCE, wait=False, as_json=arguments.json)


def _cancel(arguments: argparse.Namespace) -> int:
    from bench.cli.push import cancel

    return cancel(arguments.runs)


def _clean(arguments: argparse.Namespace) -> int:
    from bench.cli.push import clean

    return clean(arguments.runs)
