"""Combinations of options that several commands refuse alike."""

from __future__ import annotations

from pathlib import Path

from bench.base.errors import BadInput


def refuse_two_formats(as_json: bool, chosen: str | None) -> None:
    """Raise BadInput if --json and --format disagree."""
    if as_json and chosen not in (None, "json"):
        raise BadInput(f"--json and --format {chosen}", advice="leave one of them out")


def refuse_without_plots(plots: Path | None, option: str, given: object) -> None:
    """Raise BadInput if an option of the plots is given, and no folder for them."""
    if given and plots is None:
        raise BadInput(f"{option} without --plots", advice="--plots DIR says where the plots go")
