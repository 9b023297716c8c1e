"""The `bench` command. Each command imports its own side, and only when it is called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from bench import __version__
from bench.base.errors import BadInput, BenchError, EnvironmentCannot, Incomplete
from bench.base.strict_json import pretty_json
from bench.cli import operator_options as control
from bench.cli import push_options as pushing
from bench.cli import report_options as report
from bench.cli import stdio
from bench.cli.arguments import Commands, Parser, duration
from bench.cli.check_options import add_check, is_monitored, unknown
from bench.node_check.judging.finding import NAGIOS

EXIT_CODES = """exit codes:
  0  done
  1  it ran and the verdict is no
  2  bad input: the manifest, an argument, a file
  3  the environment cannot: no torch, no such GPU, no engine, another image; a run without any figure
  4  verification failed
  5  incomplete: interrupted or out of budget; the partial result is kept
"""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with stdio.wrapped_streams() as stdout:
            return _call(words, stdout)
    except BrokenPipeError:
        # The reader of our output has seen enough: `bench compare ... | head`.
        stdio.leave(sys.stdout)
        return 0


def _call(words: Sequence[str], stdout: stdio.Stdout) -> int:
    try:
        arguments = _parser().parse_args(words)
        code: int = arguments.call(arguments)
        stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        error: BenchError = Incomplete("interrupted")
    except Exception as raised:
        if os.environ.get("BENCH_DEBUG") == "1":
            raise
        error = raised if isinstance(raised, BenchError) else _defect(raised)
    if is_monitored(words):
        stdout.write(unknown(error) + "\n")
        return NAGIOS["not-run"]
    print(error, file=sys.stderr)
    if _wants_json(words) and not stdout.used:
        with suppress(EnvironmentCannot):  # stdout's own, when this one has been told
            stdout.write(pretty_json(error.to_json()).decode())
            stdout.flush()
    return error.exit_code


def _wants_json(words: Sequence[str]) -> bool:
    """Also where the arguments are wrong, and nobody knows more of them than their words."""
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words)


def _defect(error: Exception) -> BenchError:
    advice = "a defect of bench: BENCH_DEBUG=1 shows where; please report it"
    return EnvironmentCannot(f"{type(error).__name__}: {error}", advice=advice)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="bench",
        description="How long would it take to pre-train this model on this machine?",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bench {__version__}")
    # With its name given, argparse formats nothing here, for which it would import half of shutil.
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", prog="bench")
    _add_run(commands)
    _add_plan(commands)
    add_check(commands.add_parser("check", help="is this node good? in minutes", allow_abbrev=False))
    report.add_commands(commands)
    pushing.add_push(commands)
    control.add_operator(commands)
    control.add_keys(commands)
    control.add_image(
        commands.add_parser("image", help="build, name and carry the images", allow_abbrev=False)
    )
    return parser


def _add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="measure here", allow_abbrev=False)
    run.add_argument("manifest", type=Path, metavar="MANIFEST")
    run.add_argument(
        "-o", "--out", type=Path, default=Path("out"), metavar="DIR", help="where runs go (default: out)"
    )
    run.add_argument(
        "--budget", type=duration, metavar="TIME", help="start no trial after this long: 90s, 60m, 2h"
    )
    signing = run.add_mutually_exclusive_group()
    signing.add_argument(
        "--key", type=Path, metavar="FILE", help="an Ed25519 SSH key to sign with, instead of bench's own"
    )
    signing.add_argument(
        "--challenge",
        type=Path,
        metavar="FILE",
        help="sign with a key of this run alone, which the operator who made this file certifies",
    )
    run.add_argument(
        "--resume",
        action="store_true",
        help="go on with the newest unfinished run of this manifest; begin one if there is none",
    )
    run.add_argument(
        "--moved",
        action="store_true",
        help="with --challenge --resume: go on with a run of another machine of the same kind, and say so",
    )
    run.add_argument("--json", action="store_true", help="the results as JSON on stdout")
    run.add_argument(
        "--device", choices=("auto", "cpu"), default="auto", help="cpu: leave the GPUs alone (default: auto)"
    )
    run.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes that train together")
    run.add_argument("--node", type=int, default=0, metavar="I", help="which of them this is; 0 leads")
    run.add_argument("--meet", metavar="HOST:PORT", help="where they meet: a free port of node 0")
    control.add_engine(run)
    run.set_defaults(call=_run)


def _add_plan(commands: Commands[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan", help="what would run, what is skipped and why; touches no GPU", allow_abbrev=False
    )
    plan.add_argument("manifest", type=Path, metavar="MANIFEST", nargs="?")
    plan.add_argument("--gpus", type=int, metavar="N", help="plan for N GPUs, whatever is here")
    plan.add_argument("--gpu", metavar="NAME", help="plan for this GPU: h100, 'a100 80gb', 3090")
    plan.add_argument("--list-models", action="store_true", help="the models that a manifest can name")
    plan.add_argument("--json", action="store_true", help="the plan as JSON on stdout")
    plan.set_defaults(call=_plan)


def _run(arguments: argparse.Namespace) -> int:
    from bench.cli.run_and_plan import follow, run

    _refuse_what_means_nothing(arguments)
    on_cpu = arguments.device == "cpu"
    if control.in_image(arguments):
        return control.run_inside(arguments)
    place = (arguments.nodes, arguments.node, arguments.meet)
    if arguments.node > 0:
        return follow(arguments.manifest, on_cpu, place)
    return run(
        arguments.manifest,
        arguments.out,
        budget_seconds=arguments.budget,
        key=arguments.key,
        challenge=arguments.challenge,
        resume=arguments.resume,
        as_json=arguments.json,
        on_cpu=on_cpu,
        place=place,
        moved=arguments.moved,
    )


def _refuse_what_means_nothing(arguments: argparse.Namespace) -> None:
    """An option that would be ignored is a mistake: of what was typed, or of what was meant."""
    if arguments.nodes > 1 and arguments.meet is None:
        raise BadInput(
            f"--nodes {arguments.nodes} without --meet",
            advice="--meet HOST:PORT, a port of node 0 that all nodes reach",
        )
    if arguments.meet is not None and (arguments.nodes, arguments.node) == (1, 0):
        raise BadInput("--meet without --nodes", advice="--nodes says how many meet there")
    if arguments.moved and not (arguments.challenge and arguments.resume):
        raise BadInput(
            "--moved without --challenge and --resume", advice="it is for a run that an operator asked for"
        )


def _plan(arguments: argparse.Namespace) -> int:
    from bench.cli.run_and_plan import list_models, plan

    if arguments.list_models:
        if any(given is not None for given in (arguments.manifest, arguments.gpu, arguments.gpus)):
            raise BadInput("--list-models lists all models, whatever is planned", advice="give nothing else")
        return list_models(arguments.json)
    return plan(arguments.manifest, arguments.gpus, arguments.gpu, arguments.json)
