"""The arguments of `bench image`, and what `bench run --engine` passes on; imports its side when called."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.errors import BadInput


def add_image(image: argparse.ArgumentParser) -> None:
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
        file = "a file of build or save"
        named = file if name == "load" else f"{file}, or a name in the engine"
        verb.add_argument("image", metavar="IMAGE", help=named)
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


def run_in_image(arguments: argparse.Namespace) -> int:
    """The same command, inside; only paths of this machine stay outside."""
    from bench.control.commands import run

    if arguments.key is not None:
        raise BadInput(
            "--key is of this machine; in the image a key is made for the run", advice="leave --key out"
        )
    if arguments.challenge is not None:
        raise BadInput("--challenge goes with a run outside of an image", advice="leave --engine out")
    inner = ["--device", arguments.device]
    inner += [f"--{name}" for name in ("resume", "json") if getattr(arguments, name)]
    if arguments.budget is not None:
        inner += ["--budget", f"{arguments.budget}s"]
    if arguments.nodes > 1:
        inner += [f"--nodes={arguments.nodes}", f"--node={arguments.node}", f"--meet={arguments.meet}"]
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
