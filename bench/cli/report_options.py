"""Options of the commands that read bundles: `bench verify`, `compare`, `export`, `reproduce` and `paper`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cli.arguments import (
    Command,
    Commands,
    add_budget,
    add_command,
    add_json,
    count,
    days,
    percent,
    positive,
)
from bench.cli.measure_options import add_engine


def add_reports(commands: Commands) -> None:
    _add_verify(commands)
    _add_compare(commands)
    _add_export(commands)
    _add_reproduce(commands)
    _add_paper(commands)


def _add_verify(commands: Commands) -> None:
    verify = add_command(
        commands,
        "verify",
        "verify that bundles are what they claim to be",
        Command("verify", "verify", "VerifyArguments"),
        mixed=True,
    )
    verify.add_argument("bundles", type=Path, metavar="BUNDLE", nargs="+", help="files, folders, patterns")
    _add_lists(verify)
    add_json(verify, "the verdicts")


def _add_compare(commands: Commands) -> None:
    compare = add_command(
        commands,
        "compare",
        "rank machines by time and cost, from bundles",
        Command("compare", "compare", "CompareArguments"),
        mixed=True,
    )
    add = compare.add_argument
    add("bundles", type=Path, metavar="BUNDLE", nargs="+", help="files, folders, patterns")
    _add_lists(compare)
    add("--prices", type=Path, metavar="FILE", help="your quotes; they precede the shipped ones of 2024-09")
    add("--budget-usd", dest="budget", type=positive, metavar="N", help="the money there is to spend")
    add(
        "--deadline",
        dest="deadline_days",
        type=days,
        metavar="DAYS",
        help="the time in which a run must end: 14, 14d, 36h",
    )
    add("--runs", type=count, default=1, metavar="N", help="how many runs the budget is for (default: 1)")
    add(
        "--utilisation",
        type=percent,
        default=1.0,
        metavar="PERCENT",
        help="the share of its life that an owned machine trains (default: 100, as in the paper)",
    )
    add("--rank-all", action="store_true", help="also rank rows that are not comparable, and say so")
    add(
        "--estimate",
        action="append",
        default=[],
        metavar="NxGPU",
        help="extrapolate to a machine that was not measured, such as 8xh100; repeatable",
    )
    add("--settings", action="store_true", help="also show every setting that each bundle tried")
    add("--format", choices=("table", "json", "csv", "markdown"), help="default: table")
    add("--json", dest="as_json", action="store_true", help="same as --format json")
    add("--html", type=Path, metavar="FILE", help="write a report as one file that needs no network")
    add("--plots", type=Path, metavar="DIR", help="write every plot as SVG")
    add("--png", action="store_true", help="with --plots: also as PNG (pip install 'bench[png]')")


def _add_export(commands: Commands) -> None:
    export = add_command(
        commands,
        "export",
        "write a measured setting as a training script",
        Command("export", "export", "ExportArguments"),
    )
    add = export.add_argument
    add("bundle", type=Path, metavar="BUNDLE")
    add("--to", required=True, choices=("script", "trainer", "accelerate", "deepspeed"))
    add("folder", type=Path, metavar="DIR", help="a new or empty folder")
    add("--model", metavar="NAME", help="which model, if the bundle holds several")
    add("--setting", metavar="LABEL", help="which setting (default: the model's fastest)")
    _add_lists(export)


def _add_reproduce(commands: Commands) -> None:
    reproduce = add_command(
        commands,
        "reproduce",
        "run a bundle's manifest again here, and compare",
        Command("reproduce", "reproduce", "ReproduceArguments"),
    )
    add = reproduce.add_argument
    add("bundle", type=Path, metavar="BUNDLE")
    add("--with", type=Path, dest="again", metavar="BUNDLE", help="the second run, if it is done already")
    add("-o", "--out", type=Path, default=Path("out"), metavar="DIR", help="folder for runs (default: out)")
    _add_lists(reproduce)
    add_budget(reproduce)
    add("--key", type=Path, metavar="FILE", help="Ed25519 SSH key that signs (default: bench's own)")
    add("--device", choices=("auto", "cpu"), default="auto", help="cpu: use no GPU (default: auto)")
    add_engine(reproduce, default_image="the one that the bundle ran in")
    add("--any-stack", action="store_true", help="run even if the installed software differs")
    add(
        "--tolerance",
        type=percent,
        default=0.02,
        metavar="PERCENT",
        help="how much two runs of one machine may differ (default: 2)",
    )
    add_json(reproduce, "the verdict")


def _add_paper(commands: Commands) -> None:
    paper = add_command(
        commands,
        "paper",
        "show the paper's claims, and what they imply",
        Command("paper", "paper", "PaperArguments"),
    )
    paper.add_argument("--figures", type=Path, metavar="DIR", help="draw Figures 7, 12 and 13 as SVG")
    paper.add_argument("--png", action="store_true", help="with --figures: also as PNG")
    add_json(paper, "tables and claims")


def _add_lists(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        type=Path,
        metavar="FILE",
        help="a public key or an allowed_signers file that must vouch for the bundle",
    )
    parser.add_argument(
        "--revoked",
        type=Path,
        metavar="FILE",
        help="a revocation list (KRL) of ssh-keygen, in addition to bench's own",
    )
