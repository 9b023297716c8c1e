"""The arguments of `bench check`; imports its side when called."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.base.errors import BenchError
from bench.cli import operator_options as control
from bench.node_check.judging import DEPTHS

EXIT_CODES = """exit codes:
  0  the node passes; warnings are shown
  1  a check failed
  2  bad input
  3  something that counts could not be checked: no GPU, no driver, a query that hangs; never a pass
  5  interrupted; what was read is kept
with --nagios, as monitoring plug-ins do: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN
"""


def add_check(check: argparse.ArgumentParser) -> None:
    check.epilog, check.formatter_class = EXIT_CODES, argparse.RawDescriptionHelpFormatter
    add = check.add_argument
    add("manifest", type=Path, metavar="MANIFEST", nargs="?", help="default: the one that bench brings")
    add("--level", choices=DEPTHS, help="2, 10 or 60 minutes (default: the manifest's)")
    add("-o", "--out", type=Path, default=Path("out"), metavar="DIR", help="where bundles go (default: out)")
    add("--skip", action="append", default=[], metavar="CHECK", help="leave a check out; repeatable")
    add("--scratch", type=Path, metavar="DIR", help="the disk to check (default: that of --out)")
    add(
        "--history", type=Path, action="append", metavar="PATH",
        help="bundles of earlier checks of this node; repeatable (default: those in --out)",
    )  # fmt: skip
    add("--device", choices=("auto", "cpu"), default="auto", help="cpu: a rehearsal without any GPU")
    add("--junit", type=Path, metavar="FILE", help="the findings as JUnit XML")
    add("--html", type=Path, metavar="FILE", help="the findings and the course of the run as one page")
    shown = check.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="the results as JSON on stdout")
    shown.add_argument("--nagios", action="store_true", help="one line and its exit code, for monitoring")
    shown.add_argument("--list", action="store_true", help="which checks there are; does nothing else")
    signing = check.add_mutually_exclusive_group()
    signing.add_argument("--key", type=Path, metavar="FILE", help="an Ed25519 SSH key to sign with")
    signing.add_argument("--challenge", type=Path, metavar="FILE", help="an operator's, to be certified by")
    control.add_engine(check)
    check.set_defaults(call=_check)


def is_monitored(words: Sequence[str]) -> bool:
    """Also where the arguments are wrong: who reads one line and a code from 0 to 3 reads of that so, too."""
    return list(words[:1]) == ["check"] and "--nagios" in words


def unknown(error: BenchError) -> str:
    """Of a check that could not begin. Its own exit code would be taken for a verdict."""
    from bench.report.text.check_text import nagios_unknown

    return nagios_unknown(str(error))


def _check(arguments: argparse.Namespace) -> int:
    from bench.cli.check import CheckArguments, check, list_checks

    if arguments.list:
        return list_checks()
    if control.in_image(arguments):
        return control.check_inside(arguments)
    a = arguments
    return check(
        CheckArguments(
            a.manifest, a.level, a.out, tuple(a.skip), a.scratch, tuple(a.history or ()), a.device == "cpu",
            a.junit, a.html, a.json, a.nagios, a.key, a.challenge,
        )
    )  # fmt: skip
