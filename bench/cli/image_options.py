"""Options of `bench image`: build, identify, carry, sign and scan the container images."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.base.names import CONTAINER_ENGINES, ENGINES_WITH_STORE
from bench.cli.arguments import DIR, FILE, FLAG, REPEATABLE, Commands, ShowHelp, add_command, add_json


def add_image(commands: Commands) -> None:
    """Add `bench image` with its commands; their parsers are always made, since few starts need them."""
    image = commands.add_parser(
        "image",
        help="build, identify, carry, sign and scan the container images",
        description="Build, identify, carry, sign and scan the container images that bench runs in.",
    )
    image.set_defaults(call=ShowHelp(image))
    verbs = Commands(image, None, title="commands", metavar="COMMAND")
    _add_makers(verbs)
    _add_carriers(verbs)
    _add_registry(verbs)
    _add_witnesses(verbs)


def _add_makers(verbs: Commands) -> None:
    build = add_command(verbs, "build", "build an image from its lock files", "image.build")
    _add_inputs(build)
    build.add_argument("-o", "--out", **FILE, help="default: out/images/bench-VARIANT.tar")
    build.add_argument("--tag", metavar="REF", help="name of the image in engines (default: bench:VARIANT)")
    build.add_argument("--load", choices=ENGINES_WITH_STORE, help="also load the image into this engine")
    add_json(build, "identity and layers")

    kernels = add_command(
        verbs, "kernels", "compile wheels that no package index has, into a layer", "image.kernels"
    )
    _add_inputs(kernels)
    arch, some = "compute capabilities (default: 9.0; all: %(metavar)s)", "8.0;8.6;8.9;9.0;10.0;12.0"
    kernels.add_argument("--arch", default="9.0", metavar=some, help=arch)
    only = "compile this wheel; repeatable (default: all)"
    kernels.add_argument("--only", **REPEATABLE, metavar="NAME", help=only)
    jobs = "files to compile at a time"
    kernels.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help=jobs)
    wheels = "make the layer of the wheels in this folder, and compile nothing"
    kernels.add_argument("--wheels", **DIR, help=wheels)
    layer = "the layer (default: out/images/bench-VARIANT-kernels.tar)"
    kernels.add_argument("-o", "--out", **FILE, help=layer)

    add = add_command(verbs, "add", "add a kernel layer to an image", "image.add")
    add.add_argument("image", type=Path, metavar="IMAGE", help="a file that build or save wrote")
    add.add_argument("layer", type=Path, metavar="LAYER", help="a file that kernels wrote")
    add.add_argument("-o", "--out", **FILE, required=True)
    add.add_argument("--tag", metavar="REF", help="its name in engines (default: bench:VARIANT-kernels)")
    add_json(add, "identity and layers")


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("variant", metavar="VARIANT", help="cuda13, cuda12.8 or cpu")
    add("--source", **DIR, help="bench's repository (default: ., or what the installed wheel carries)")
    add("--cache", **DIR, help="folder for wheels and the base system (default: ~/.cache/bench/images)")
    mirror = "a mirror of Debian (default: those of this machine's apt); repeatable"
    add("--mirror", **REPEATABLE, metavar="URL", help=mirror)


def _add_engine(parser: argparse.ArgumentParser, help: str = "default: auto, the first that answers") -> None:
    parser.add_argument("--engine", choices=("auto", *CONTAINER_ENGINES), default="auto", help=help)


def _add_carriers(verbs: Commands) -> None:
    identity = add_command(verbs, "id", "compute the digest of an image or a kernel layer", "image.identity")
    sbom = add_command(verbs, "sbom", "print an image's software bill of materials", "image.sbom")
    save = add_command(verbs, "save", "save an image as one compressed file", "image.save")
    load = add_command(verbs, "load", "check a saved image, and load it into an engine", "image.load")
    for command in (identity, sbom, save, load):
        store = "" if command is load else ", or a name in the engine"
        command.add_argument("image", metavar="IMAGE", help=f"a file that build or save wrote{store}")
        _add_engine(command)
    save.add_argument("-o", "--out", **FILE, required=True)
    for command in (identity, save):
        add_json(command, "identity and layers")


def _add_registry(verbs: Commands) -> None:
    push = add_command(verbs, "push", "upload an image to a registry, and sign it", "image_registry.push")
    pull = add_command(verbs, "pull", "download an image that a given key signed", "image_registry.pull")
    push.add_argument(
        "image", metavar="IMAGE", help="a file that save or build wrote, or a name in the engine"
    )
    push.add_argument("reference", metavar="REF", help="HOST[:PORT]/NAME[:TAG]")
    _add_engine(push)
    push.add_argument("--key", **FILE, help="an Ed25519 SSH key that signs (default: yours for bench)")
    attached = "attach this attestation, as bench image attest wrote it; repeatable"
    push.add_argument("--attestation", **REPEATABLE, type=Path, metavar="FILE", help=attached)
    pull.add_argument("reference", metavar="REF", help="HOST[:PORT]/NAME@sha256:DIGEST")
    signers = "public key of who may have signed it; repeatable"
    pull.add_argument("--key", **REPEATABLE, type=Path, metavar="FILE", required=True, help=signers)
    pull.add_argument("-o", "--out", **FILE, help="default: out/images/bench-VARIANT.tar")
    pull.add_argument("--load", choices=ENGINES_WITH_STORE, help="also load the image into this engine")
    plain = "speak HTTP without TLS to a registry elsewhere than on this machine; no login is sent"
    for command in (push, pull):
        command.add_argument("--plain-http", **FLAG, help=plain)
    add_json(pull, "identity and layers")


def _add_witnesses(verbs: Commands) -> None:
    attest = add_command(
        verbs, "attest", "sign how an image was built and what is in it", "image_trust.attest"
    )
    verify = add_command(verbs, "verify", "verify attestations of an image", "image_trust.verify")
    known = "look for known vulnerabilities in an image, without a network"
    scan = add_command(verbs, "scan", known, "image_trust.find_vulnerabilities")
    for command in (attest, verify, scan):
        also = ", or a list of its contents (.json)" if command is scan else ""
        command.add_argument("image", metavar="IMAGE", help=f"a file, or a name in the engine{also}")
        _add_engine(command, "default: auto")
    attest.add_argument(
        "--source", **DIR, default=Path(), help="checkout that it was built from (default: .)"
    )
    attest.add_argument("-o", "--out", **DIR, default=Path("out/images"), help="default: out/images")
    attest.add_argument("--key", **FILE, help="an Ed25519 SSH key (default: yours for bench)")
    attest.add_argument("--builder", metavar="URI", help="who built it (default: a URN of the key)")
    verify.add_argument("attestation", type=Path, nargs="+", metavar="ATTESTATION", help="a DSSE envelope")
    signers = "public key of who may have signed; repeatable"
    verify.add_argument("--key", **REPEATABLE, type=Path, metavar="FILE", required=True, help=signers)
    feed = "vulnerabilities in OSV's format: a file, an archive of osv.dev, or a folder of them"
    scan.add_argument("--feed", type=Path, required=True, metavar="PATH", help=feed)
    vex = "an OpenVEX document that says what does not apply; repeatable"
    scan.add_argument("--vex", **REPEATABLE, type=Path, metavar="FILE", help=vex)
    add_json(scan, "what was found")
