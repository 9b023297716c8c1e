"""The arguments of the operator's side, and what `--engine` passes on; imports it when called."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.names import CONTAINER_ENGINES, ENGINES, ENGINES_WITH_STORE
from bench.cli.arguments import Commands, duration


def add_operator(commands: Commands[argparse.ArgumentParser]) -> None:
    challenge = commands.add_parser(
        "challenge", help="ask for a run: a nonce for the node", allow_abbrev=False
    )
    challenge.add_argument("manifest", type=Path, metavar="MANIFEST")
    challenge.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: challenge-RUN.json")
    challenge.add_argument("--run", metavar="ID", help="again for this run, whose node was lost")
    challenge.set_defaults(call=_challenge)

    certify = commands.add_parser(
        "certify", help="certify the key of a run with your SSH key", allow_abbrev=False
    )
    certify.add_argument("request", type=Path, metavar="REQUEST", help="request.json, from the run's folder")
    certify.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: run-cert.pub beside it")
    certify.add_argument(
        "--valid", type=duration, default=7200.0, metavar="TIME", help="from now on, 7d at most (default: 2h)"
    )
    certify.set_defaults(call=_certify)

    receive = commands.add_parser(
        "receive", help="verify a bundle that came back, once, and countersign it", allow_abbrev=False
    )
    receive.add_argument("bundle", type=Path, metavar="BUNDLE")
    receive.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: in its place")
    receive.set_defaults(call=_receive)

    for command in (certify, receive):
        command.add_argument(
            "--key",
            type=Path,
            metavar="FILE",
            help="your SSH key, or the .pub of one in an agent or a token, instead of bench's own",
        )
    for command in (challenge, certify, receive):
        command.add_argument(
            "--ledger", type=Path, metavar="FILE", help="default: ~/.local/state/bench/ledger.jsonl"
        )


def add_keys(commands: Commands[argparse.ArgumentParser]) -> None:
    keys = commands.add_parser("keys", help="your key, whom you trust, what is revoked", allow_abbrev=False)
    actions = keys.add_subparsers(title="actions", required=True, metavar="ACTION", prog="bench keys")

    new = actions.add_parser("new", help="make a key with ssh-keygen", allow_abbrev=False)
    new.add_argument("file", type=Path, metavar="FILE", nargs="?", help="default: ~/.config/bench/id_ed25519")
    new.add_argument("--token", action="store_true", help="in a FIDO token; FILE is only a handle to it")
    new.add_argument("--no-passphrase", action="store_true", help="whoever reads the file can sign")
    new.set_defaults(call=_keys_new)

    show = actions.add_parser("show", help="your key, and how others trust it", allow_abbrev=False)
    show.add_argument("file", type=Path, metavar="FILE", nargs="?")
    show.set_defaults(call=_keys_show)

    trust = actions.add_parser("trust", help="add a key to your allowed_signers", allow_abbrev=False)
    trust.add_argument("file", type=Path, metavar="FILE.pub")
    trust.add_argument("--as", dest="name", metavar="NAME", help="whose it is (default: the file's name)")
    trust.set_defaults(call=_keys_trust)

    revoke = actions.add_parser("revoke", help="add to your revocation list (KRL)", allow_abbrev=False)
    revoke.add_argument(
        "targets",
        metavar="WHAT",
        nargs="+",
        help="a .pub file (a run's key, a certificate, an authority), a bundle, SHA256:..., or a run's id",
    )
    revoke.add_argument("--authority", type=Path, metavar="FILE.pub", help="who certified that run's id")
    revoke.add_argument("--file", type=Path, metavar="KRL", help="default: ~/.config/bench/revoked.krl")
    revoke.set_defaults(call=_keys_revoke)


def add_image(image: argparse.ArgumentParser) -> None:
    verbs = image.add_subparsers(title="commands", required=True, metavar="COMMAND", prog="bench image")

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
    build.add_argument("--load", choices=ENGINES_WITH_STORE, help="and load it there")
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
        verb.add_argument("--engine", choices=("auto", *CONTAINER_ENGINES), default="auto")
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


def run_inside(arguments: argparse.Namespace) -> int:
    """The same command in the image; only paths of this machine stay outside."""
    from bench.cli.image import run_in_image

    _refuse_key(arguments)
    inner = ["--device", arguments.device]
    inner += [f"--{name}" for name in ("resume", "moved", "json") if getattr(arguments, name)]
    if arguments.budget is not None:
        inner += ["--budget", f"{arguments.budget}s"]
    if arguments.nodes > 1:
        inner += [f"--nodes={arguments.nodes}", f"--node={arguments.node}", f"--meet={arguments.meet}"]
    return run_in_image(
        "run",
        arguments.manifest,
        arguments.out,
        arguments.engine,
        arguments.image,
        inner,
        on_cpu=arguments.device == "cpu",
        network=arguments.nodes > 1,
        challenge=arguments.challenge,
    )


def check_inside(arguments: argparse.Namespace) -> int:
    """The same command in the image, where files of this machine are not."""
    from bench.cli.image import run_in_image
    from bench.node_check.check_manifest import SHIPPED

    a = arguments
    _refuse_key(a)
    given = {"--scratch": a.scratch, "--history": a.history, "--junit": a.junit, "--html": a.html}
    if outside := next((name for name, value in given.items() if value), None):
        raise BadInput(
            f"{outside} is of this machine, which is not seen in the image",
            advice="leave it out: the disk of --out is checked, and its bundles are the history",
        )
    inner = ["--device", a.device, *(f"--{name}" for name in ("json", "nagios") if getattr(a, name))]
    inner += ["--level", a.level] if a.level else []
    inner += [word for name in a.skip for word in ("--skip", name)]
    return run_in_image(
        "check",
        a.manifest or SHIPPED,
        a.out,
        a.engine,
        a.image,
        inner,
        on_cpu=a.device == "cpu",
        network=False,
        challenge=a.challenge,
    )


def _refuse_key(arguments: argparse.Namespace) -> None:
    if arguments.key is not None:
        raise BadInput(
            "--key is of this machine; in the image a key is made for the run", advice="leave --key out"
        )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Of a command that measures here: in the image, or with what is installed."""
    parser.add_argument(
        "--engine",
        choices=("auto", *ENGINES),
        default="none",
        help="in the image, hardened (default: none, with what is installed here)",
    )
    parser.add_argument(
        "--image", metavar="REF", help="the image (default: the variant that fits the driver)"
    )


def in_image(arguments: argparse.Namespace) -> bool:
    if arguments.engine == "none" and arguments.image is not None:
        raise BadInput("--image without an engine to run it", advice="--engine docker, podman or apptainer")
    return bool(arguments.engine != "none")


def _image_build(arguments: argparse.Namespace) -> int:
    from bench.cli.image import build, recipe

    made = recipe(arguments.variant, arguments.source, arguments.cache, arguments.mirror, arguments.without)
    return build(made, arguments.out, arguments.tag, arguments.load, arguments.json)


def _image_kernels(arguments: argparse.Namespace) -> int:
    from bench.cli.image import kernels, recipe

    made = recipe(arguments.variant, arguments.source, arguments.cache, arguments.mirror)
    return kernels(made, arguments.only, arguments.arch, arguments.jobs)


def _image(arguments: argparse.Namespace) -> int:
    from bench.cli import image

    match arguments.verb:
        case "id":
            return image.identity(arguments.image, arguments.engine, arguments.json)
        case "sbom":
            return image.sbom(arguments.image, arguments.engine)
        case "load":
            return image.load(Path(arguments.image), arguments.engine)
    return image.save(arguments.image, arguments.out, arguments.engine, arguments.json)


def _challenge(arguments: argparse.Namespace) -> int:
    from bench.cli.keys_and_receipts import challenge

    return challenge(arguments.manifest, arguments.out, arguments.run, arguments.ledger)


def _certify(arguments: argparse.Namespace) -> int:
    from bench.cli.keys_and_receipts import certify

    return certify(arguments.request, arguments.out, arguments.key, arguments.valid, arguments.ledger)


def _receive(arguments: argparse.Namespace) -> int:
    from bench.cli.keys_and_receipts import receive

    return receive(arguments.bundle, arguments.out, arguments.key, arguments.ledger)


def _keys_new(arguments: argparse.Namespace) -> int:
    from bench.cli.keys_and_receipts import keys_new

    return keys_new(arguments.file, arguments.token, not arguments.no_passphrase and not arguments.token)


def _keys_show(arguments: argparse.Namespace) -> int:
    from bench.cli.keys_and_receipts import keys_show

    return keys_show(arguments.file)


def _keys_trust(arguments: argparse.Namespace) -> int:
    from bench.cli.keys_and_receipts import keys_trust

    return keys_trust(arguments.file, arguments.name)


def _keys_revoke(arguments: argparse.Namespace) -> int:
    from bench.cli.keys_and_receipts import keys_revoke

    return keys_revoke(arguments.targets, arguments.authority, arguments.file)
