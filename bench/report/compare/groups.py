"""Divide the rows of a model into groups whose figures may be ranked together, and say how groups differ.

Pure. In: rows in the order of `in_order`. Out: a `Group` for each set of equal conditions; the first one
answers the user's questions. How a run searched for its fastest setting is not a condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bench.report.compare.compared_rows import DEEPSPEED, ON_TRUST, Conditions, RankedRow, Row

AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one model with equal conditions."""

    conditions: Conditions
    differs_in: tuple[str, ...]  # from the model's first group, in words; empty for that group
    rows: tuple[RankedRow, ...]
    without_figure: tuple[Row, ...]


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Sort rows by when they ran and by their signed contents; the order of the files does not matter.

    Only copies of one file are ordered by their names.
    """

    def order(row: Row) -> tuple[str, ...]:
        signed = row.started_at, row.run_id, row.statement_sha256
        return (*signed, Path(row.path).name, row.path, row.model)

    return sorted(rows, key=order)


def decisive(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """Select the rows that the user trusts; all rows if none is trusted."""
    every = list(rows)
    return [row for row in every if row.trusted] or every


def ranked_rows(rows: Iterable[Row]) -> list[RankedRow]:
    """Select the rows whose model has a figure, in the given order."""
    return [row for row in rows if isinstance(row, RankedRow)]


def groups_of(rows: Sequence[Row], *, as_one: bool = False) -> list[Group]:
    """Group the rows of one model; `as_one` puts all of them into the first group.

    A row without a figure goes to the group with its conditions, or to the first one.
    """
    alike = _of_the_fastest_settings(rows)
    conditions = _in_order_of_weight(ranked_rows(alike) or alike)
    first = conditions[0]
    groups: dict[Conditions, list[Row]] = {one: [] for one in (conditions[:1] if as_one else conditions)}
    for row in alike:
        groups[row.conditions if row.conditions in groups else first].append(row)
    return [
        Group(
            key,
            differing(key, first),
            tuple(ranked_rows(members)),
            tuple(row for row in members if not isinstance(row, RankedRow)),
        )
        for key, members in groups.items()
    ]


def _in_order_of_weight(rows: Sequence[Row]) -> list[Conditions]:
    """Sort conditions by weight, the heaviest first.

    Weight is the number of trusted machines, then whether nothing was taken on trust, then the number of
    machines, then the newest run. So bundles that were checked come before any number of bundles that were
    not.
    """
    members: dict[Conditions, list[Row]] = {}
    for row in rows:
        members.setdefault(row.conditions, []).append(row)

    def weight(conditions: Conditions) -> tuple[int, bool, int, str, Conditions]:
        of_group = members[conditions]
        trusted = {row.machine.identity for row in of_group if row.trusted}
        every = {row.machine.identity for row in of_group}
        checked = ON_TRUST not in dict(conditions)
        return len(trusted), checked, len(every), max(row.started_at for row in of_group), conditions

    return sorted(members, key=weight, reverse=True)


def _of_the_fastest_settings(rows: Sequence[Row]) -> list[Row]:
    """Drop the condition of DeepSpeed's version, unless fastest settings of these rows use several versions.

    In that case, rows whose fastest setting does not use DeepSpeed join the group of the most used version.
    """
    versions = Counter(dict(row.conditions).get(DEEPSPEED, "none") for row in rows if row.uses_deepspeed)
    most_used = max(versions, key=lambda version: (versions[version], version), default="none")

    def conditions(row: Row) -> Conditions:
        others = tuple(pair for pair in row.conditions if pair[0] != DEEPSPEED)
        if len(versions) < 2:
            return others
        return (
            *others,
            (DEEPSPEED, dict(row.conditions).get(DEEPSPEED, "none") if row.uses_deepspeed else most_used),
        )

    return [replace(row, conditions=conditions(row)) for row in rows]


def differing(conditions: Conditions, base: Conditions) -> tuple[str, ...]:
    """Put the differences in words, such as "batch 512, not 1024"."""
    ours, theirs = dict(conditions), dict(base)
    pairs = {name: (ours.get(name, "none"), theirs.get(name, "none")) for name in (*ours, *theirs)}
    return tuple(_difference(name, *both) for name, both in pairs.items() if both[0] != both[1])


def _difference(name: str, ours: str, theirs: str) -> str:
    if name == ON_TRUST:
        return "nothing on trust" if ours == "none" else f"on trust: {ours}"
    if name in ("architecture", "rest of the recipe"):
        return f"another {name}" if name == "architecture" else "another recipe"
    return f"{name} {ours}, not {theirs}"


def why_no_figure(row: Row) -> str:
    """Say how the trials of a row without a figure ended."""
    outcomes = Counter(attempt.outcome for attempt in row.attempts)
    if not outcomes:
        return "no setting was tried"
    return "no figure: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
