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
    _add_lists(verify)
    verify.add_argument("--json", action="store_true", help="the verdicts as JSON on stdout")
    verify.set_defaults(call=_verify)

    _add_compare(commands)

    export = commands.add_parser(
        "export", help="a measured setting as a training script and its files", allow_abbrev=False
    )
    export.add_argument("bundle", type=Path, metavar="BUNDLE")
    export.add_argument("--to", required=True, choices=("script", "trainer", "accelerate", "deepspeed"))
    export.add_argument("folder", type=Path, metavar="DIR", help="a new or empty directory")
    export.add_argument("--model", metavar="NAME", help="which model, where the bundle holds several")
    export.add_argument("--setting", metavar="LABEL", help="which setting (default: the model's fastest)")
    _add_lists(export)
    export.set_defaults(call=_export)

    again = commands.add_parser(
        "reproduce", help="run a bundle's manifest again here, and compare", allow_abbrev=False
    )
    again.add_argument("bundle", type=Path, metavar="BUNDLE")
    again.add_argument("--with", type=Path, dest="again", metavar="BUNDLE", help="that run, if it is done")
    again.add_argument("-o", "--out", type=Path, default=Path("out"), metavar="DIR")
    _add_lists(again)
    again.add_argument("--budget", type=_duration, metavar="TIME", help="start no trial after this long")
    again.add_argument("--key", type=Path, metavar="FILE", help="an Ed25519 SSH key to sign with")
    again.add_argument("--device", choices=("auto", "cpu"), default="auto")
    again.add_argument("--any-stack", action="store_true", help="run although the software is another")
    again.add_argument(
        "--tolerance", type=_percent, default=0.02, metavar="PERCENT",
        help="what two runs of one machine differ by anyway (default: 2)",
    )  # fmt: skip
    again.add_argument("--json", action="store_true", help="the verdict as JSON on stdout")
    again.set_defaults(call=_reproduce)

    paper = commands.add_parser(
        "paper", help="what the paper claims, what that implies, its figures", allow_abbrev=False
    )
    paper.add_argument("--figures", type=Path, metavar="DIR", help="Figures 7, 12 and 13, drawn as SVG")
    paper.add_argument("--png", action="store_true", help="with --figures: as PNG, too")
    paper.add_argument("--json", action="store_true", help="tables and claims as JSON on stdout")
    paper.set_defaults(call=_paper)
    _add_operator(commands)
    _add_keys(commands)
    control.add_image(
        commands.add_parser("image", help="build, name and carry the images", allow_abbrev=False)
    )
    return parser


def _add_lists(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust",
        type=Path,
        metavar="FILE",
        help="a public key, or an allowed_signers file, that must vouch for the bundle",
    )
    command.add_argument(
        "--revoked", type=Path, metavar="FILE", help="a KRL of ssh-keygen's, beside bench's own"
    )


Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns


def _add_operator(commands: Commands[argparse.ArgumentParser]) -> None:
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
        "--valid", type=_duration, default=7200.0, metavar="TIME", help="from now on (default: 2h)"
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


def _add_keys(commands: Commands[argparse.ArgumentParser]) -> None:
    keys = commands.add_parser("keys", help="your key, whom you trust, what is revoked", allow_abbrev=False)
    actions = keys.add_subparsers(title="actions", required=True, metavar="ACTION")

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


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compare = commands.add_parser(
        "compare", help="bundles to a decision: which machine, at what cost", allow_abbrev=False
    )
    add = compare.add_argument
    add("bundles", type=Path, metavar="BUNDLE", nargs="+", help="files, directories, patterns")
    _add_lists(compare)
    add("--prices", type=Path, metavar="FILE", help="your quotes, before the shipped ones of September 2024")
    add("--budget-usd", type=_positive, metavar="N", help="what there is to spend")
    add("--deadline", type=_days, metavar="DAYS", help="when a run must be done: 14, 14d, 36h")
    add("--runs", type=_count, default=1, metavar="N", help="how many runs the budget is for (default: 1)")
    add(
        "--utilisation", type=_percent, default=1.0, metavar="PERCENT",
        help="of its life, how much an owned machine trains (default: 100, as the paper has it)",
    )  # fmt: skip
    add("--rank-all", action="store_true", help="rank what cannot be compared, too, and say so")
    add(
        "--estimate", action="append", default=[], metavar="NxGPU",
        help="what a machine that was not measured would take, from those that were: 8xh100",
    )  # fmt: skip
    add("--settings", action="store_true", help="every setting that each bundle tried, too")
    add("--format", choices=("table", "json", "csv", "markdown"), default="table")
    add("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    add("--html", type=Path, metavar="FILE", help="a report in one file that needs no network")
    add("--plots", type=Path, metavar="DIR", help="every plot as SVG")
    add("--png", action="store_true", help="with --plots: as PNG, too (pip install 'bench[png]')")
    compare.set_defaults(call=_compare)


def _positive(text: str) -> float:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not more than 0")
    return number


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _percent(text: str) -> float:
    number = _positive(text.rstrip("%"))
    if number > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 100%")
    return number / 100


def _days(text: str) -> float:
    """Days from 14, 14d, 36h."""
    return _positive(text[:-1]) / 24 if text.endswith("h") else _positive(text.removesuffix("d"))


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
        challenge=arguments.challenge,
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
    from bench.report.bundles import Lists, verify

    return verify(arguments.bundles, Lists(arguments.trust, arguments.revoked), arguments.json)


def _challenge(arguments: argparse.Namespace) -> int:
    from bench.control.desk import challenge

    return challenge(arguments.manifest, arguments.out, arguments.run, arguments.ledger)


def _certify(arguments: argparse.Namespace) -> int:
    from bench.control.desk import certify

    return certify(arguments.request, arguments.out, arguments.key, arguments.valid, arguments.ledger)


def _receive(arguments: argparse.Namespace) -> int:
    from bench.control.desk import receive

    return receive(arguments.bundle, arguments.out, arguments.key, arguments.ledger)


def _keys_new(arguments: argparse.Namespace) -> int:
    from bench.control.desk import keys_new

    return keys_new(arguments.file, arguments.token, not arguments.no_passphrase and not arguments.token)


def _keys_show(arguments: argparse.Namespace) -> int:
    from bench.control.desk import keys_show

    return keys_show(arguments.file)


def _keys_trust(arguments: argparse.Namespace) -> int:
    from bench.control.desk import keys_trust

    return keys_trust(arguments.file, arguments.name)


def _keys_revoke(arguments: argparse.Namespace) -> int:
    from bench.control.desk import keys_revoke

    return keys_revoke(arguments.targets, arguments.authority, arguments.file)


def _export(arguments: argparse.Namespace) -> int:
    from bench.commands import export
    from bench.report.bundles import Lists

    a = arguments
    return export(a.bundle, a.to, a.folder, a.model, a.setting, Lists(a.trust, a.revoked))


def _reproduce(arguments: argparse.Namespace) -> int:
    from bench.commands import reproduce
    from bench.report.bundles import Lists

    return reproduce(
        arguments.bundle,
        arguments.again,
        arguments.out,
        lists=Lists(arguments.trust, arguments.revoked),
        tolerance=arguments.tolerance,
        budget_seconds=arguments.budget,
        key=arguments.key,
        on_cpu=arguments.device == "cpu",
        any_stack=arguments.any_stack,
        as_json=arguments.json,
    )


def _paper(arguments: argparse.Namespace) -> int:
    from bench.report.paper import show

    return show(arguments.figures, png=arguments.png, as_json=arguments.json)


def _compare(arguments: argparse.Namespace) -> int:
    from bench.report.bundles import Lists
    from bench.report.compare import Request, compare

    return compare(
        Request(
            tuple(arguments.bundles),
            lists=Lists(arguments.trust, arguments.revoked),
            prices=arguments.prices,
            budget=arguments.budget_usd,
            deadline_days=arguments.deadline,
            runs=arguments.runs,
            utilisation=arguments.utilisation,
            rank_all=arguments.rank_all,
            estimate=tuple(arguments.estimate),
            format=arguments.format,
            settings=arguments.settings,
            html=arguments.html,
            plots=arguments.plots,
            png=arguments.png,
        )
    )
