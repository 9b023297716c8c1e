"""Options of `bench push`, and of `status`, `attach`, `fetch`, `cancel` and `clean` for pushed runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bench.base.names import ANY_PYTHON, ENGINES_OF_NODES, IMAGE_VARIANTS, RENTAL_TOOLS
from bench.base.shipped_data import manifest_path
from bench.cli import arguments
from bench.cli.arguments import (
    DEVICE,
    DIR,
    FILE,
    FLAG,
    MODELS_OR_CHECK,
    REPEATABLE,
    TIME,
    Commands,
    add_command,
    add_json,
)
from bench.node_check.judging import DEPTHS

NODES_AT_ONCE = 64


def add_push(commands: Commands) -> None:
    """Add `bench push`, and the commands for runs that it started."""
    push = add_command(commands, "push", "measure or check other machines over SSH", "push.push", mixed=True)
    add = push.add_argument
    add("manifest", type=manifest_path, metavar="MANIFEST", help=MODELS_OR_CHECK)
    hosts = "HOST, USER@HOST, HOST:PORT, or a name in ~/.ssh/config; with --kubernetes, a node's name"
    add("hosts", metavar="HOST", nargs="*", help=hosts)
    _add_hosts(push.add_argument_group("hosts"))
    _add_run(push.add_argument_group("the run"))
    _add_stages(push.add_argument_group("how far"))
    _add_slurm(push.add_argument_group("Slurm"))
    _add_kubernetes(push.add_argument_group("Kubernetes"))
    at_once = f"nodes at a time (default: {NODES_AT_ONCE})"
    add("--parallel", type=int, default=NODES_AT_ONCE, metavar="N", help=at_once)
    add_json(push, "every node's outcome")
    _add_pushed_runs(commands)


def add_rent(commands: Commands) -> None:
    """Add `bench rent`."""
    summary = "write the file with which SkyPilot or dstack rents a machine for a manifest"
    rent = add_command(commands, "rent", summary, "rent.rent")
    add = rent.add_argument
    add("tool", metavar="TOOL", choices=RENTAL_TOOLS, help=" or ".join(RENTAL_TOOLS))
    add("manifest", type=manifest_path, metavar="MANIFEST", help=MODELS_OR_CHECK)
    add("--gpu", required=True, metavar="NAME", help="the kind of GPU: h100, 'a100 80gb', 4090")
    add("--gpus", type=arguments.count, metavar="N", help="how many (default: the manifest's, or 1)")
    given_back = "minutes after which the machine is given back, even in the middle of a run (default: 60)"
    add("--minutes", type=arguments.count, default=60, metavar="N", help=given_back)
    add("--cloud", metavar="CLOUD/REGION", help="where, by the tool's own names (default: anywhere)")
    add("--spot", **FLAG, help="a machine that its cloud may take back: cheaper, and the bundle may be lost")
    add("--name", metavar="NAME", help="of the machine (default: bench- and the manifest's digest)")
    add("-o", "--out", **DIR, default=Path("rent"), help="folder for the file (default: rent)")
    add_json(rent, "the file's path and the commands to use it")


def _add_pushed_runs(commands: Commands) -> None:
    for name, summary in (
        ("status", "show pushed runs and their state"),
        ("attach", "watch pushed runs again, and fetch their bundles"),
        ("fetch", "fetch the bundles of pushed runs that have ended"),
        ("cancel", "end pushed runs; measurements so far are kept"),
        ("clean", "remove everything of pushed runs from their nodes"),
    ):
        verb = add_command(commands, name, summary, f"pushed_runs.{name}")
        default = "required" if name == "clean" else "default: the newest push"
        runs = f"a run's id or its beginning, a push's id, or a host ({default})"
        verb.add_argument("runs", metavar="RUN", nargs="*", help=runs)
        if name in ("status", "attach", "fetch"):
            add_json(verb, "the result")
        if name == "cancel":
            hung = "end a run that does not end when asked: it packs no bundle, and a new push resumes it"
            how = verb.add_mutually_exclusive_group()
            how.add_argument("--kill", **FLAG, help=hung)
            how.add_argument("--detach", **FLAG, help="ask the runs to end, and do not wait until they have")


def _add_hosts(group: arguments.Options) -> None:
    add = group.add_argument
    add("-i", "--inventory", **FILE, help="an Ansible inventory: push to every host in it")
    add("--limit", metavar="PATTERN", help="only these hosts of the inventory, as in Ansible")
    add("--name", metavar="NAME", help="name of the single HOST, for tables and its bundle's file name")
    add("--identity", **FILE, help="the SSH key to log in with; keys of an agent are tried too")
    add("--ssh-config", **FILE, help="configuration of ssh (default: ~/.ssh/config)")
    add("--place", metavar="DIR", help="the folder to work in on the node (default: $HOME/.bench)")


def _add_run(group: arguments.Options) -> None:
    add = group.add_argument
    out = "folder for bundles on this machine (default: results)"
    add("-o", "--out", **DIR, default=Path("results"), help=out)
    arguments.add_budget(group)
    add("--level", choices=DEPTHS, help="a node check of 2, 10 or 60 minutes (default: the manifest's)")
    engine = "the node's engine (default: auto, the first that can run); venv: no container, a Python "
    engine += "environment that is installed from the lock; none: one that is there"
    add("--engine", choices=("auto", *ENGINES_OF_NODES), default="auto", help=engine)
    image = "a file that bench image build or save wrote, or a name in the engine of this machine"
    image += "; with --kubernetes, REGISTRY/NAME@sha256:DIGEST"
    add("--image", metavar="REF", help=f"{image} (default: the variant that fits the node's driver)")
    add("--pull", metavar="REF", help="the node pulls this image from a registry itself")
    whole = "send all layers: the node downloads no packages to assemble them itself"
    add("--no-assemble", dest="assemble", action="store_false", help=whole)
    add("--index", metavar="URL", help="the node's package index (default: those of its pip)")
    add("--mirror", metavar="URL", help="a mirror of Debian, for the node (default: those of its apt)")
    python = "the node's Python, for --engine none and venv (default: python3; for venv, any that fits)"
    add("--python", default=ANY_PYTHON, metavar="FILE", help=python)
    _add_environment(add)
    add("--device", **DEVICE, help="cpu: use no GPU (default: auto)")
    together = "all hosts work together and connect to this port of the first host, which all reach"
    add("--together", metavar="HOST:PORT", help=together)
    public = "with --together: let the hosts meet at an address that the whole internet may reach"
    add("--meet-in-public", **FLAG, help=public)
    key = "the SSH key that certifies, or the .pub of a key in an agent or token (default: bench's own)"
    add("--key", **FILE, help=key)
    add("--ledger", **FILE, help="default: ~/.local/state/bench/ledger.jsonl")
    valid = "how long a run's certificate is valid: fetch the bundle within that time"
    default = "the budget and 2h; a day more with --detach or without a budget"
    add("--valid", dest="valid_seconds", **TIME, help=f"{valid} (default: {default})")


def _add_environment(add: Callable[..., object]) -> None:
    """Add the options of --engine venv."""
    variant = "the lock to install with --engine venv (default: the one that fits the node's driver)"
    add("--variant", choices=IMAGE_VARIANTS, help=variant)
    wheelhouse = "wheels on this machine, for --engine venv: compiled kernels, and what an index may lack"
    add("--wheelhouse", **DIR, help=wheelhouse)
    source = "bench's repository, with the locks of --engine venv (default: ., or the installed wheel's)"
    add("--source", **DIR, help=source)


def _add_stages(group: argparse._ArgumentGroup) -> None:
    add, add_until = group.add_argument, group.add_mutually_exclusive_group().add_argument
    add_until("--dry-run", **FLAG, help="inspect the nodes, and change nothing")
    add_until("--no-run", **FLAG, help="send the image, and start nothing")
    add_until("-d", "--detach", **FLAG, help="start the runs, and return: bench attach watches them")
    add("--keep", **FLAG, help="leave the image on the node for the next push")
    add("--once", **FLAG, help="skip a host whose bundle of this manifest was fetched already")
    add("--new", dest="new_run", **FLAG, help="start another run, even if there is an unfinished one")
    continued = "continue this run from its mirror: its node is gone"
    add("--continue", dest="continued_run", metavar="RUN", help=continued)
    add("--anyway", dest="despite_findings", **FLAG, help="run in spite of preflight findings")


def _add_slurm(group: arguments.Options) -> None:
    add = group.add_argument
    add("--slurm", **FLAG, help="submit a job; HOST is a login node (default: this machine)")
    add("--partition", metavar="NAME")
    add("--account", metavar="NAME")
    add("--constraint", metavar="FEATURES")
    add(
        "--gpus-per-node", metavar="N", help="GPUs of each node: N, or TYPE:N; in Kubernetes N (default: all)"
    )
    add(
        "--slurm-nodes",
        type=int,
        default=1,
        metavar="N",
        help="nodes that train or check together (default: 1)",
    )
    limit = "the job's time limit (default: 120)"
    add("--time", dest="job_minutes", type=int, default=120, metavar="MINUTES", help=limit)
    add("--shared", **FLAG, help="allow other jobs on the node at the same time")
    other = "any other option of sbatch, such as --sbatch=--qos=high; repeatable"
    add("--sbatch", **REPEATABLE, metavar="OPTION", help=other)


def _add_kubernetes(group: arguments.Options) -> None:
    add = group.add_argument
    add("--kubernetes", **FLAG, help="make a Job with one pod for each node; kubectl reaches the cluster")
    add("--context", metavar="NAME", help="of the kubeconfig (default: the current one)")
    add("--namespace", metavar="NAME", help="to work in (default: the context's)")
    add("--nodes", type=arguments.count, metavar="N", help="any N nodes, without a HOST (default: 1)")
    add("--queue", metavar="NAME", help="the local queue of Kueue that admits the Job")
    add("--pull-secret", metavar="NAME", help="the namespace's secret with which nodes pull the image")
