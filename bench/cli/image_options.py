"""Options of `bench image`: build, identify and carry the container images."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.base.names import CONTAINER_ENGINES, ENGINES_WITH_STORE
from bench.cli.arguments import Command, Commands, add_command, add_json


def add_image(commands: Commands) -> None:
    image = commands.add_parser(
        "image",
        help="build, identify and carry the container images",
        description="Build, identify and carry the container images that bench runs in.",
    )
    verbs = image.add_subparsers(title="commands", required=True, metavar="COMMAND", prog="bench image")
    _add_build(verbs)
    _add_kernels(verbs)
    _add_id(verbs)
    _add_sbom(verbs)
    _add_save(verbs)
    _add_load(verbs)


def _add_build(verbs: Commands) -> None:
    build = add_command(
        verbs, "build", "build an image from its lock files", Command("image", "build", "BuildArguments")
    )
    _add_inputs(build)
    build.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: out/images/bench-VARIANT.tar")
    build.add_argument("--tag", metavar="REF", help="its name in engines (default: bench:VARIANT)")
    build.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave a compiled kernel out; repeatable",
    )
    build.add_argument("--load", choices=ENGINES_WITH_STORE, help="also load it into this engine")
    add_json(build, "identity and layers")


def _add_kernels(verbs: Commands) -> None:
    kernels = add_command(
        verbs,
        "kernels",
        "compile the wheels that no index has",
        Command("image", "kernels", "KernelArguments"),
    )
    _add_inputs(kernels)
    kernels.add_argument(
        "--arch",
        default="9.0",
        help="compute capabilities (default: 9.0; all: %(metavar)s)",
        metavar="8.0;8.6;8.9;9.0;10.0;12.0",
    )
    kernels.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="compile this wheel; repeatable (default: all)",
    )
    kernels.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="files to compile at a time"
    )


def _add_id(verbs: Commands) -> None:
    identity = add_command(
        verbs,
        "id",
        "compute an image's identity from its bytes",
        Command("image", "identity", "ImageArguments"),
    )
    _add_source(identity)
    add_json(identity, "identity and layers")


def _add_sbom(verbs: Commands) -> None:
    sbom = add_command(
        verbs,
        "sbom",
        "print an image's software bill of materials",
        Command("image", "sbom", "ImageArguments"),
    )
    _add_source(sbom)


def _add_save(verbs: Commands) -> None:
    save = add_command(
        verbs, "save", "save an image as one compressed file", Command("image", "save", "SaveArguments")
    )
    _add_source(save)
    save.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")
    add_json(save, "identity and layers")


def _add_load(verbs: Commands) -> None:
    load = add_command(
        verbs,
        "load",
        "check a saved image, and load it into an engine",
        Command("image", "load", "ImageArguments"),
    )
    load.add_argument("image", metavar="IMAGE", help="a file that build or save wrote")
    _add_engine(load)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "image", metavar="IMAGE", help="a file that build or save wrote, or a name in the engine"
    )
    _add_engine(parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=("auto", *CONTAINER_ENGINES),
        default="auto",
        help="default: auto, the first that answers",
    )


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the inputs of a build."""
    parser.add_argument("variant", metavar="VARIANT", help="cuda13, cuda12.8 or cpu")
    parser.add_argument(
        "--source", type=Path, default=Path(), metavar="DIR", help="bench's repository (default: .)"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="downloads: wheels and the base system (default: ~/.cache/bench/images)",
    )
    parser.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="LINE",
        help="a Debian mirror in the form that mmdebstrap takes; repeatable",
    )
