"""Combinations of options that several commands refuse alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.base.errors import BadInput, nearest


def refuse_two_formats(chosen: str | None, *, as_json: bool) -> None:
    """Raise BadInput if --json and --format disagree."""
    if as_json and chosen not in (None, "json"):
        raise BadInput(f"--json and --format {chosen}", advice="leave one of them out")


def chosen_columns(names: Sequence[str] | None, known: Iterable[str]) -> Sequence[str] | None:
    """Return the columns that --columns names; BadInput for a column that no table of the command has."""
    if names is None or tuple(names) == ("all",):
        return None if names is None else tuple(known)
    known = tuple(known)
    for name in names:
        if name not in known:
            raise BadInput(f"--columns {name}: no such column", advice=nearest(name, known))
    return names


def refuse_without_plots(plots: Path | None, option: str, given: object) -> None:
    """Raise BadInput if an option of the plots is given, and no folder for them."""
    if given and plots is None:
        raise BadInput(f"{option} without --plots", advice="--plots DIR says where the plots go")
