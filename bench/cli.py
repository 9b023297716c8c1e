"""The `bench` command. Each command imports its own side, and only when it is called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import __version__
from bench.control import cli as control
from bench.errors import BadInput, BenchError

EXIT_CODES = """exit codes:
  0  done
  1  it ran and the verdict is no
  2  bad input: the manifest, an argument, a file
  3  the environment cannot: no torch, no such GPU, no engine, another image
  4  verification failed
  5  incomplete: interrupted or out of budget; the partial result is kept
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.call(arguments)
        sys.stdout.flush()
    except BenchError as error:
        if os.environ.get("BENCH_DEBUG") == "1":
            raise
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has seen enough: `bench compare ... | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 5
    except Exception as error:
        if os.environ.get("BENCH_DEBUG") == "1":
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        print("  a defect of bench: BENCH_DEBUG=1 shows where; please report it", file=sys.stderr)
        return 3
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench",
        description="How long would it take to pre-train this model on this machine?",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bench {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="measure here", allow_abbrev=False)
    run.add_argument("manifest", type=Path, metavar="MANIFEST")
    run.add_argument(
        "-o", "--out", type=Path, default=Path("out"), metavar="DIR", help="where runs go (default: out)"
    )
    run.add_argument(
        "--budget", type=_duration, metavar="TIME", help="start no trial after this long: 90s, 60m, 2h"
    )
    run.add_argument(
        "--key", type=Path, metavar="FILE", help="an Ed25519 SSH key to sign with, instead of bench's own"
    )
    run.add_argument(
        "--resume", action="store_true", help="go on with the newest unfinished run of this manifest"
    )
    run.add_argument("--json", action="store_true", help="the results as JSON on stdout")
    run.add_argument(
        "--device", choices=("auto", "cpu"), default="auto", help="cpu: leave the GPUs alone (default: auto)"
    )
    run.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes that train together")
    run.add_argument("--node", type=int, default=0, metavar="I", help="which of them this is; 0 leads")
    run.add_argument("--meet", metavar="HOST:PORT", help="where they meet: a free port of node 0")
    run.add_argument(
        "--engine",
        choices=("auto", "docker", "podman", "apptainer", "none"),
        default="none",
        help="run in the image, hardened (default: none, with what is installed here)",
    )
    run.add_argument("--image", metavar="REF", help="the image (default: the variant that fits the driver)")
    run.set_defaults(call=_run)

    plan = commands.add_parser(
        "plan", help="what would run, what is skipped and why; touches no GPU", allow_abbrev=False
    )
    plan.add_argument("manifest", type=Path, metavar="MANIFEST", nargs="?")
    plan.add_argument("--gpus", type=int, metavar="N", help="plan for N GPUs, whatever is here")
    plan.add_argument("--gpu", metavar="NAME", help="plan for this GPU: h100, 'a100 80gb', 3090")
    plan.add_argument("--list-models", action="store_true", help="the models that a manifest can name")
    plan.add_argument("--json", action="store_true", help="the plan as JSON on stdout")
    plan.set_defaults(call=_plan)

    verify = commands.add_parser("verify", help="is a bundle what it claims to be", allow_abbrev=False)
    verify.add_argument("bundles", type=Path, metavar="BUNDLE", nargs="+")
    verify.add_argument("--trust", type=Path, metavar="FILE", help="a public key, or an allowed_signers file")
    verify.add_argument("--json", action="store_true", help="the verdicts as JSON on stdout")
    verify.set_defaults(call=_verify)

    compare = commands.add_parser("compare", help="verify bundles and print their tables", allow_abbrev=False)
    compare.add_argument("bundles", type=Path, metavar="BUNDLE", nargs="+")
    compare.add_argument(
        "--trust", type=Path, metavar="FILE", help="a public key, or an allowed_signers file"
    )
    compare.add_argument("--json", action="store_true", help="the results as JSON on stdout")
    compare.set_defaults(call=_compare)
    control.add_image(
        commands.add_parser("image", help="build, name and carry the images", allow_abbrev=False)
    )
    return parser


def _duration(text: str) -> float:
    """Seconds from 90s, 60m, 2h."""
    scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    try:
        seconds = float(text[:-1]) * (scale or 0)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 90s, 60m or 2h")
    return seconds


def _run(arguments: argparse.Namespace) -> int:
    from bench.commands import follow, run

    on_cpu = arguments.device == "cpu"
    if arguments.engine != "none":
        return control.run_in_image(arguments)
    if arguments.image is not None:
        raise BadInput("--image without an engine to run it", advice="--engine docker, podman or apptainer")
    place = (arguments.nodes, arguments.node, arguments.meet)
    if arguments.node > 0:
        return follow(arguments.manifest, on_cpu, place)
    return run(
        arguments.manifest,
        arguments.out,
        budget_seconds=arguments.budget,
        key=arguments.key,
        resume=arguments.resume,
        as_json=arguments.json,
        on_cpu=on_cpu,
        place=place,
    )


def _plan(arguments: argparse.Namespace) -> int:
    from bench.commands import list_models, plan

    if arguments.list_models:
        return list_models(arguments.json)
    return plan(arguments.manifest, arguments.gpus, arguments.gpu, arguments.json)


def _verify(arguments: argparse.Namespace) -> int:
    from bench.report.bundles import verify

    return verify(arguments.bundles, arguments.trust, arguments.json)


def _compare(arguments: argparse.Namespace) -> int:
    from bench.report.bundles import compare

    return compare(arguments.bundles, arguments.trust, arguments.json)
