"""The `bench` command. Each command imports its own side, and only when it is called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import __version__
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
    _image_parser(
        commands.add_parser("image", help="build, name, list and save the images", allow_abbrev=False)
    )
    return parser


def _image_parser(image: argparse.ArgumentParser) -> None:
    verbs = image.add_subparsers(title="commands", required=True, metavar="COMMAND")

    build = verbs.add_parser("build", help="from the locks, the same bytes each time", allow_abbrev=False)
    _recipe_arguments(build)
    build.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="out/images/bench-VARIANT.tar if left out"
    )
    build.add_argument("--tag", metavar="REF", help="what engines call it (default: bench:VARIANT)")
    build.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave a compiled kernel out; repeatable",
    )
    build.add_argument("--load", choices=("docker", "podman"), help="and load it there")
    build.add_argument("--json", action="store_true", help="identity and layers as JSON on stdout")
    build.set_defaults(call=_image_build)

    kernels = verbs.add_parser("kernels", help="compile the wheels that no index has", allow_abbrev=False)
    _recipe_arguments(kernels)
    kernels.add_argument(
        "--arch",
        default="9.0",
        help="compute capabilities (default: 9.0; all: %(metavar)s)",
        metavar="8.0;8.6;8.9;9.0;10.0;12.0",
    )
    kernels.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="of the wheels; repeatable (default: all)"
    )
    kernels.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="files at a time")
    kernels.set_defaults(call=_image_kernels)

    for name, words in (
        ("id", "its identity, computed from its bytes"),
        ("sbom", "what it holds, as CycloneDX"),
        ("save", "as one compressed file, to carry"),
        ("load", "a saved file into an engine, checked first"),
    ):
        verb = verbs.add_parser(name, help=words, allow_abbrev=False)
        verb.add_argument(
            "image",
            metavar="IMAGE",
            help="a file of build or save" + ""
            if name == "load"
            else "a file of build or save, or a name in the engine",
        )
        verb.add_argument("--engine", choices=("auto", "docker", "podman", "apptainer"), default="auto")
        if name == "save":
            verb.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
        if name in ("id", "save"):
            verb.add_argument("--json", action="store_true", help="identity and layers as JSON on stdout")
        verb.set_defaults(call=_image, verb=name)


def _recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variant", metavar="VARIANT", help="cuda13, cuda12.8 or cpu")
    parser.add_argument(
        "--source", type=Path, default=Path(), metavar="DIR", help="bench's repository (default: .)"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="wheels and the base (default: ~/.cache/bench/images)"
    )
    parser.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="LINE",
        help="of Debian, as mmdebstrap takes it; repeatable",
    )


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
        return _run_in_image(arguments)
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


def _run_in_image(arguments: argparse.Namespace) -> int:
    """The same command, inside; only paths of this machine stay outside."""
    from bench.control.commands import run

    if arguments.key is not None:
        raise BadInput(
            "--key is of this machine; in the image a key is made for the run", advice="leave --key out"
        )
    inner = ["--device", arguments.device]
    inner += [f"--{name}" for name in ("resume", "json") if getattr(arguments, name)]
    if arguments.budget is not None:
        inner += ["--budget", f"{arguments.budget}s"]
    if arguments.nodes > 1:
        inner += [
            "--nodes",
            str(arguments.nodes),
            "--node",
            str(arguments.node),
            "--meet",
            str(arguments.meet),
        ]
    return run(
        arguments.manifest,
        arguments.out,
        arguments.engine,
        arguments.image,
        inner,
        on_cpu=arguments.device == "cpu",
        network=arguments.nodes > 1,
    )


def _image_build(arguments: argparse.Namespace) -> int:
    from bench.control.commands import build, recipe

    made = recipe(arguments.variant, arguments.source, arguments.cache, arguments.mirror, arguments.without)
    return build(made, arguments.out, arguments.tag, arguments.load, arguments.json)


def _image_kernels(arguments: argparse.Namespace) -> int:
    from bench.control.commands import kernels, recipe

    made = recipe(arguments.variant, arguments.source, arguments.cache, arguments.mirror)
    return kernels(made, arguments.only, arguments.arch, arguments.jobs)


def _image(arguments: argparse.Namespace) -> int:
    from bench.control import commands

    match arguments.verb:
        case "id":
            return commands.identity(arguments.image, arguments.engine, arguments.json)
        case "sbom":
            return commands.sbom(arguments.image, arguments.engine)
        case "load":
            return commands.load(Path(arguments.image), arguments.engine)
    return commands.save(arguments.image, arguments.out, arguments.engine, arguments.json)


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
