"""Options of `bench push`, and of `status`, `attach`, `fetch`, `cancel` and `clean` for pushed runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.base.names import ENGINES
from bench.cli.arguments import Command, Commands, add_budget, add_command, add_json, duration
from bench.node_check.judging import DEPTHS

NODES_AT_ONCE = 64


def add_push(commands: Commands) -> None:
    push = add_command(
        commands,
        "push",
        "measure or check other machines over SSH",
        Command("push", "push", "PushArguments"),
        mixed=True,
    )
    add = push.add_argument
    add("manifest", type=Path, metavar="MANIFEST", help="models to measure, or a node check")
    add("hosts", metavar="HOST", nargs="*", help="HOST, USER@HOST, HOST:PORT, or a name in ~/.ssh/config")
    _add_hosts(push)
    _add_run(push)
    _add_stages(push)
    _add_slurm(push)
    add(
        "--parallel",
        type=int,
        default=NODES_AT_ONCE,
        metavar="N",
        help=f"nodes at a time (default: {NODES_AT_ONCE})",
    )
    add_json(push, "every node's outcome")
    _add_pushed_runs(commands)


def _add_pushed_runs(commands: Commands) -> None:
    for name, summary in (
        ("status", "show what was pushed, and how it is going"),
        ("attach", "watch pushed runs again, and fetch their bundles"),
        ("fetch", "fetch the bundles of pushed runs that have ended"),
        ("cancel", "end pushed runs; what was measured is kept"),
        ("clean", "remove everything of pushed runs from their nodes"),
    ):
        command = Command("pushed_runs", name, "PushedRunsArguments")
        verb = add_command(commands, name, summary, command)
        default = "required" if name == "clean" else "default: the newest push"
        verb.add_argument(
            "runs",
            metavar="RUN",
            nargs="*",
            help=f"a run's id or its beginning, a push's id, or a host ({default})",
        )
        if name in ("status", "attach", "fetch"):
            add_json(verb, "the result")


def _add_hosts(push: argparse.ArgumentParser) -> None:
    add = push.add_argument_group("hosts").add_argument
    add("-i", "--inventory", type=Path, metavar="FILE", help="an Ansible inventory: every host in it")
    add("--limit", metavar="PATTERN", help="only these hosts of the inventory, as in Ansible")
    add("--name", metavar="NAME", help="the single HOST's name in tables and in its bundle's name")
    add(
        "--identity",
        type=Path,
        metavar="FILE",
        help="the SSH key to log in with; keys of an agent are tried too",
    )
    add("--ssh-config", type=Path, metavar="FILE", help="instead of ~/.ssh/config")
    add("--place", metavar="DIR", help="the folder to work in on the node (default: $HOME/.bench)")


def _add_run(push: argparse.ArgumentParser) -> None:
    group = push.add_argument_group("the run")
    add = group.add_argument
    add(
        "-o",
        "--out",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder for bundles on this machine (default: results)",
    )
    add_budget(group)
    add("--level", choices=DEPTHS, help="a node check of 2, 10 or 60 minutes (default: the manifest's)")
    add(
        "--engine",
        choices=("auto", *ENGINES),
        default="auto",
        help="on the node (default: auto, the first that answers); none: a Python environment",
    )
    add(
        "--image",
        metavar="REF",
        help="a file that bench image build or save wrote, or a name in the engine of this machine "
        "(default: the variant that fits the node's driver)",
    )
    add("--pull", metavar="REF", help="the node pulls this image from a registry itself")
    add(
        "--python",
        default="python3",
        metavar="FILE",
        help="on the node, for --engine none (default: python3)",
    )
    add("--device", choices=("auto", "cpu"), default="auto", help="cpu: use no GPU (default: auto)")
    add(
        "--together",
        metavar="HOST:PORT",
        help="all hosts train together and connect here: a port of the first host that all reach",
    )
    add(
        "--key",
        type=Path,
        metavar="FILE",
        help="the SSH key that certifies, or the .pub of a key in an agent or token (default: bench's own)",
    )
    add("--ledger", type=Path, metavar="FILE", help="default: ~/.local/state/bench/ledger.jsonl")
    add(
        "--valid",
        dest="valid_seconds",
        type=duration,
        metavar="TIME",
        help="how long a run's certificate is valid: fetch the bundle within that time (default: the budget "
        "and 2h; a day more with --detach or without a budget)",
    )


def _add_stages(push: argparse.ArgumentParser) -> None:
    stages = push.add_argument_group("how far")
    until = stages.add_mutually_exclusive_group()
    until.add_argument("--dry-run", action="store_true", help="inspect the nodes, and change nothing")
    until.add_argument("--no-run", action="store_true", help="send the image, and start nothing")
    until.add_argument(
        "-d", "--detach", action="store_true", help="start the runs, and return: bench attach watches them"
    )
    stages.add_argument("--keep", action="store_true", help="leave the image on the node for the next push")
    stages.add_argument(
        "--once", action="store_true", help="skip a host whose bundle of this manifest is here already"
    )
    stages.add_argument("--new", action="store_true", help="start another run, even if there is one already")
    stages.add_argument(
        "--continue",
        dest="continued_run",
        metavar="RUN",
        help="continue this run from its mirror: its node is gone",
    )
    stages.add_argument("--anyway", action="store_true", help="run in spite of preflight findings")


def _add_slurm(push: argparse.ArgumentParser) -> None:
    add = push.add_argument_group("Slurm").add_argument
    add("--slurm", action="store_true", help="submit a job; HOST is a login node (default: this machine)")
    add("--partition", metavar="NAME")
    add("--account", metavar="NAME")
    add("--constraint", metavar="FEATURES")
    add("--gpus-per-node", metavar="N", help="or TYPE:N")
    add("--slurm-nodes", type=int, default=1, metavar="N", help="how many nodes train together (default: 1)")
    add(
        "--time",
        dest="job_minutes",
        type=int,
        default=120,
        metavar="MINUTES",
        help="the job's time limit (default: 120)",
    )
    add("--shared", action="store_true", help="allow other jobs on the node at the same time")
    add(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="any other option of sbatch, such as --sbatch=--qos=high; repeatable",
    )
