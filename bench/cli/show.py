"""`bench show`: one bundle at a glance, verified first: its verdict, its machine, bars, sparklines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.base.encoding import can_spell
from bench.base.errors import one_line
from bench.base.terminal import wrapped
from bench.base.terminal_width import columns
from bench.cli.stdio import show as show_text
from bench.cli.verify import environment_lines
from bench.report.compare.compared_rows import ComparedRun, gather
from bench.report.read_bundles import Lists, verify_one
from bench.report.text.run_view import missing_models, run_view
from bench.report.text.sparklines import BLOCKS, SIGNS, Glyphs


@dataclass(frozen=True, slots=True)
class ShowArguments:
    """The options of `bench show`; unless `every`, only the fastest settings of each model are shown."""

    bundle: Path
    trust: Path | None = None
    revoked: Path | None = None
    every: bool = False


def show(request: ShowArguments) -> int:
    """Show a bundle; VerificationFailed, and nothing of its contents, if it is not what it claims to be."""
    verdict = verify_one(
        request.bundle, Lists(request.trust, request.revoked), partial(gather, with_telemetry=True)
    )
    run = verdict.contents
    head = [*verdict.to_lines(), *environment_lines(run.results.node, verdict), f"bundle     {verdict.path}"]
    if isinstance(run, ComparedRun):
        node, torch = run.results.node, run.results.node.packages.get("torch", "unknown")
        head.append(f"measured   by {run.results.measured_by}, torch {torch}, stack {node.stack}")
        if missing := missing_models(run.results):
            head.append(f"untried    {', '.join(missing)}")
    show_text(wrapped(map(one_line, head), " " * 11))
    glyphs = glyphs_of(sys.stdout.encoding, os.environ)
    if isinstance(run, ComparedRun):
        show_text("\n" + run_view(run, glyphs, columns(), every=request.every))
    else:
        from bench.report.text.check_text import text

        show_text("\n" + text(run.results))
    return 0


def glyphs_of(encoding: str | None, environment: Mapping[str, str]) -> Glyphs:
    """Return blocks where the locale and the terminal have them, else signs of ASCII."""
    blocks = can_spell(BLOCKS.levels + BLOCKS.parts, encoding) and environment.get("TERM") != "dumb"
    return BLOCKS if blocks else SIGNS
