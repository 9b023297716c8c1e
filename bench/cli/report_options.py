"""The arguments of what reads bundles: verify, compare, export, reproduce, paper; imports it when called."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.base.errors import BadInput
from bench.base.names import ENGINES
from bench.cli.arguments import Commands, Mixed, count, days, duration, percent, positive


def add_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    _add_verify(commands)
    _add_compare(commands)
    _add_export(commands)
    _add_reproduce(commands)
    _add_paper(commands)


def _add_verify(commands: Commands[argparse.ArgumentParser]) -> None:
    verify = commands.add_parser("verify", help="is a bundle what it claims to be", allow_abbrev=False)
    verify.__class__ = Mixed
    verify.add_argument("bundles", type=Path, metavar="BUNDLE", nargs="+")
    _add_lists(verify)
    verify.add_argument("--json", action="store_true", help="the verdicts as JSON on stdout")
    verify.set_defaults(call=_verify)


def _add_compare(commands: Commands[argparse.ArgumentParser]) -> None:
    compare = commands.add_parser(
        "compare", help="bundles to a decision: which machine, at what cost", allow_abbrev=False
    )
    compare.__class__ = Mixed
    add = compare.add_argument
    add("bundles", type=Path, metavar="BUNDLE", nargs="+", help="files, directories, patterns")
    _add_lists(compare)
    add("--prices", type=Path, metavar="FILE", help="your quotes, before the shipped ones of September 2024")
    add("--budget-usd", type=positive, metavar="N", help="what there is to spend")
    add("--deadline", type=days, metavar="DAYS", help="when a run must be done: 14, 14d, 36h")
    add("--runs", type=count, default=1, metavar="N", help="how many runs the budget is for (default: 1)")
    add(
        "--utilisation", type=percent, default=1.0, metavar="PERCENT",
        help="of its life, how much an owned machine trains (default: 100, as the paper has it)",
    )  # fmt: skip
    add("--rank-all", action="store_true", help="rank what cannot be compared, too, and say so")
    add(
        "--estimate", action="append", default=[], metavar="NxGPU",
        help="what a machine that was not measured would take, from those that were: 8xh100",
    )  # fmt: skip
    add("--settings", action="store_true", help="every setting that each bundle tried, too")
    add("--format", choices=("table", "json", "csv", "markdown"), help="default: table")
    add("--json", action="store_true", help="the same as --format json")
    add("--html", type=Path, metavar="FILE", help="a report in one file that needs no network")
    add("--plots", type=Path, metavar="DIR", help="every plot as SVG")
    add("--png", action="store_true", help="with --plots: as PNG, too (pip install 'bench[png]')")
    compare.set_defaults(call=_compare)


def _add_export(commands: Commands[argparse.ArgumentParser]) -> None:
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


def _add_reproduce(commands: Commands[argparse.ArgumentParser]) -> None:
    again = commands.add_parser(
        "reproduce", help="run a bundle's manifest again here, and compare", allow_abbrev=False
    )
    again.add_argument("bundle", type=Path, metavar="BUNDLE")
    again.add_argument("--with", type=Path, dest="again", metavar="BUNDLE", help="that run, if it is done")
    again.add_argument("-o", "--out", type=Path, default=Path("out"), metavar="DIR")
    _add_lists(again)
    again.add_argument("--budget", type=duration, metavar="TIME", help="start no trial after this long")
    again.add_argument("--key", type=Path, metavar="FILE", help="an Ed25519 SSH key to sign with")
    again.add_argument("--device", choices=("auto", "cpu"), default="auto")
    again.add_argument(
        "--engine", choices=("auto", *ENGINES), default="none",
        help="run in the bundle's own image, by its identity (default: none, with what is installed here)",
    )  # fmt: skip
    again.add_argument(
        "--image", metavar="REF", help="what the engine calls that image (default: its identity)"
    )
    again.add_argument("--any-stack", action="store_true", help="run although the software is another")
    again.add_argument(
        "--tolerance", type=percent, default=0.02, metavar="PERCENT",
        help="what two runs of one machine differ by anyway (default: 2)",
    )  # fmt: skip
    again.add_argument("--json", action="store_true", help="the verdict as JSON on stdout")
    again.set_defaults(call=_reproduce)


def _add_paper(commands: Commands[argparse.ArgumentParser]) -> None:
    paper = commands.add_parser(
        "paper", help="what the paper claims, what that implies, its figures", allow_abbrev=False
    )
    paper.add_argument("--figures", type=Path, metavar="DIR", help="Figures 7, 12 and 13, drawn as SVG")
    paper.add_argument("--png", action="store_true", help="with --figures: as PNG, too")
    paper.add_argument("--json", action="store_true", help="tables and claims as JSON on stdout")
    paper.set_defaults(call=_paper)


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


def _verify(arguments: argparse.Namespace) -> int:
    from bench.cli.verify import verify
    from bench.report.read_bundles import Lists

    return verify(arguments.bundles, Lists(arguments.trust, arguments.revoked), arguments.json)


def _compare(arguments: argparse.Namespace) -> int:
    from bench.cli.compare import CompareArguments, compare
    from bench.report.read_bundles import Lists

    if arguments.json and arguments.format not in (None, "json"):
        raise BadInput(f"--json and --format {arguments.format}", advice="one of the two")
    return compare(
        CompareArguments(
            tuple(arguments.bundles),
            lists=Lists(arguments.trust, arguments.revoked),
            prices=arguments.prices,
            budget=arguments.budget_usd,
            deadline_days=arguments.deadline,
            runs=arguments.runs,
            utilisation=arguments.utilisation,
            rank_all=arguments.rank_all,
            estimate=tuple(arguments.estimate),
            format="json" if arguments.json else arguments.format or "table",
            settings=arguments.settings,
            html=arguments.html,
            plots=arguments.plots,
            png=arguments.png,
        )
    )


def _export(arguments: argparse.Namespace) -> int:
    from bench.cli.export_and_reproduce import export
    from bench.report.read_bundles import Lists

    a = arguments
    return export(a.bundle, a.to, a.folder, a.model, a.setting, Lists(a.trust, a.revoked))


def _reproduce(arguments: argparse.Namespace) -> int:
    from bench.cli.export_and_reproduce import reproduce
    from bench.report.read_bundles import Lists

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
        engine=arguments.engine,
        image=arguments.image,
        as_json=arguments.json,
    )


def _paper(arguments: argparse.Namespace) -> int:
    from bench.report.paper.figures import show

    return show(arguments.figures, png=arguments.png, as_json=arguments.json)
