"""Options of the commands that measure this machine: `bench run`, `plan` and `check`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.base.names import ENGINES
from bench.base.shipped_data import manifest_path
from bench.cli import arguments
from bench.cli.arguments import DEVICE, DIR, FILE, FLAG, MODELS, REPEATABLE, Commands, add_command, add_json
from bench.node_check.judging import DEPTHS

CHECK_EXIT_CODES = """exit codes:
  0  the node passes; warnings are shown
  1  a check failed
  2  bad input
  3  a required check could not run (no GPU, no driver, a query that hangs)
  5  interrupted; the readings so far are kept
with --nagios, as monitoring plug-ins do: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN
"""


def add_measuring(commands: Commands) -> None:
    """Add `bench init`, `run`, `plan` and `check`."""
    _add_init(commands)
    _add_run(commands)
    _add_plan(commands)
    _add_check(commands)


def _add_init(commands: Commands) -> None:
    init = add_command(
        commands, "init", "write a first manifest, from five questions or options", "init.init"
    )
    add = init.add_argument
    default = Path("manifest.json")
    add("file", type=Path, metavar="FILE", nargs="?", default=default, help=f"default: {default}")
    add("--model", metavar="NAME", help="a model that bench knows, or the path of a config.json")
    add(
        "--precision",
        metavar="NAME",
        help="fp32, bf16, fp16, fp8 or published (default: published, else bf16)",
    )
    amount = "tokens or samples of the whole training: 300B, 20M samples, published (default: published)"
    add("--train-on", dest="amount", metavar="AMOUNT", help=amount)
    add("--hours", metavar="N", help="end the measurement after N hours; none: no limit (default: 1)")
    rent = (
        "what a GPU costs an hour, in dollars: '2.50 h100' (default: none, the quotes that ship with bench)"
    )
    add("--rent", metavar="PRICE GPU", help=rent)
    add("--force", **FLAG, help="overwrite files that are there")


def _add_run(commands: Commands) -> None:
    run = add_command(commands, "run", "measure this machine", "run.run", measures=True)
    add = run.add_argument
    add("manifest", type=manifest_path, metavar="MANIFEST", help=MODELS)
    add("-o", "--out", **DIR, default=Path("out"), help="folder for runs (default: out)")
    arguments.add_budget(run)
    challenge = "an operator's challenge: the run signs with a new key, which the operator certifies"
    _add_signing(run, challenge)
    resume = "continue the newest unfinished run of this manifest; start one if there is none"
    add("--resume", **FLAG, help=resume)
    moved = "continue a run that another machine of the same kind started; the bundle states it"
    add("--moved", **FLAG, help=f"with --challenge --resume: {moved}")
    arguments.add_columns(run)
    add_json(run, "the results")
    add("--device", **DEVICE, help="cpu: use no GPU (default: auto)")
    _add_meeting(run, "how many nodes train together (default: 1)")
    add_engine(run)


def _add_meeting(parser: argparse.ArgumentParser, nodes: str) -> None:
    add = parser.add_argument
    add("--nodes", type=int, default=1, metavar="N", help=nodes)
    add("--node", type=int, default=0, metavar="I", help="number of this node; node 0 leads (default: 0)")
    add("--meet", metavar="HOST:PORT", help="a free port of node 0 where the nodes connect")
    secret = "a file with a secret that all nodes have, to know each other by (default: BENCH_MEET_SECRET)"
    add("--meet-secret", **FILE, help=secret)
    public = "let the nodes meet at an address that the whole internet may reach"
    add("--meet-in-public", **FLAG, help=public)


def _add_plan(commands: Commands) -> None:
    plan = add_command(
        commands, "plan", "show what would run, and what is skipped and why", "plan.plan", paged=True
    )
    add = plan.add_argument
    add("manifest", type=manifest_path, metavar="MANIFEST", nargs="?", help=MODELS)
    add("--gpus", type=int, metavar="N", help="plan for N GPUs (default: those of this machine)")
    add("--gpu", metavar="NAME", help="plan for this kind of GPU: h100, 'a100 80gb', 3090")
    listing = "list the models that a manifest can name, or those with these words; then exit"
    add("--list-models", nargs="*", metavar="WORD", help=listing)
    add("--all", dest="every", **FLAG, help="show every setting, and why others are skipped")
    add_json(plan, "the plan")


def _add_check(commands: Commands) -> None:
    summary = "check in minutes whether this node is healthy"
    check = add_command(commands, "check", summary, "check.check", measures=True, epilog=CHECK_EXIT_CODES)
    add = check.add_argument
    shipped = "default: the manifest that bench ships"
    add("manifest", type=manifest_path, metavar="MANIFEST", nargs="?", help=shipped)
    add(
        "--level",
        choices=DEPTHS,
        help="no load (passive, prolog), or 2, 10 or 60 minutes (default: the manifest's, or nodes)",
    )
    add("-o", "--out", **DIR, default=Path("out"), help="folder for bundles (default: out)")
    add("--skip", **REPEATABLE, metavar="CHECK", help="leave a check out; repeatable")
    add("--scratch", **DIR, help="a folder on the disk to check (default: --out)")
    history = "bundles of earlier checks of this node; repeatable (default: bundles in --out)"
    add("--history", **REPEATABLE, type=Path, metavar="PATH", help=history)
    disk = "a folder on a file system to measure; repeatable"
    add("--disk", **REPEATABLE, type=Path, metavar="DIR", dest="disks", help=disk)
    baseline = "an earlier check that this machine is compared with, or a folder with some"
    add("--baseline", type=Path, metavar="PATH", help=baseline)
    add("--if-idle", **FLAG, help="check nothing, with exit code 0, if somebody uses a GPU")
    keep = "then delete all but the N newest node checks in --out"
    add("--keep-last", type=arguments.count, metavar="N", help=keep)
    add("--keep-days", type=arguments.days, metavar="D", help="then delete node checks older than D days")
    size = "then delete the oldest node checks that take more than G GB together"
    add("--keep-gb", type=arguments.positive, metavar="G", help=size)
    change = "call this, with findings on stdin, when the verdict changes to fail, to not-run or back"
    add("--on-change", type=arguments.command, metavar="COMMAND", help=change)
    add("--device", **DEVICE, help="cpu: a rehearsal without GPUs")
    add("--junit", **FILE, help="write the findings as JUnit XML")
    add("--html", **FILE, help="write the findings and the run's telemetry as one page")
    add("--metrics", **FILE, help="write the findings as OpenMetrics, for Prometheus' node exporter")
    _add_check_output(check)
    _add_meeting(check, "check the fabric between N nodes, which all run this command (level: nodes)")
    _add_signing(check, "an operator's challenge, to have the bundle certified")
    add_engine(check)


def _add_check_output(check: argparse.ArgumentParser) -> None:
    output = check.add_mutually_exclusive_group()
    add_json(output, "the results")
    nagios = "print one line, with exit codes for monitoring systems"
    output.add_argument("--nagios", **FLAG, help=nagios)
    reason = "print the most serious finding alone, as a scheduler's reason to drain the node"
    output.add_argument("--reason", **FLAG, help=reason)
    output.add_argument("--list", dest="list_checks", **FLAG, help="list the checks, and exit")


def _add_signing(parser: argparse.ArgumentParser, challenge: str) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    add("--key", **FILE, help="Ed25519 SSH key that signs (default: bench's own)")
    add("--challenge", **FILE, help=challenge)


def add_engine(
    parser: argparse.ArgumentParser, default_image: str = "the variant that fits the driver"
) -> None:
    """Add --engine and --image, for a command that measures this machine."""
    container = "run in a locked-down container (default: none, use the software of this machine)"
    parser.add_argument("--engine", choices=("auto", *ENGINES), default="none", help=container)
    parser.add_argument("--image", metavar="REF", help=f"the container image (default: {default_image})")
