"""Choose one run to represent each machine among rows of one group, and say why others do not. Pure.

In: rows in the order of `groups.in_order`. A machine is represented by its fastest figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.bundle.verdict import Assurance, assurance
from bench.records.copied import originals
from bench.records.text import figures
from bench.report.compare.compared_rows import RankedRow, Row

COPIED = "its samples are those of another run, so one of the two measured nothing:"
Reasons = list[tuple[RankedRow, str]]


def assurance_of(row: Row) -> Assurance:
    """Return the key by which rows are ordered: trusted signers first, then bundles at level operator."""
    return assurance(row.level, trusted=row.trusted)


def fastest_runs(rows: Sequence[RankedRow]) -> tuple[list[RankedRow], Reasons]:
    """Keep one row for each machine, its fastest; return all others with why they are left out.

    A marked figure represents a machine only if the machine has no other. A faster run replaces only runs
    that are trusted no more than itself, because its signer chose its times and GPUs.
    """
    left_out = _copied(rows)
    copied = {id(row) for row, _ in left_out}
    by_machine: dict[str, list[RankedRow]] = {}
    for row in rows:
        if id(row) not in copied:
            by_machine.setdefault(row.machine.identity, []).append(row)
    kept = []
    for of_machine in by_machine.values():
        staying: list[RankedRow] = []
        for row in sorted(of_machine, key=_preference):
            better = next((one for one in staying if assurance_of(one) >= assurance_of(row)), None)
            if better is None:
                staying.append(row)
            else:
                left_out.append((row, _why_another(row, better)))
        kept += staying
    return kept, left_out


def _preference(row: RankedRow) -> tuple[bool, float, tuple[bool, ...], bool]:
    lower = tuple(not vouched for vouched in assurance_of(row))
    return bool(row.marks), row.days.value, lower, not row.complete


def _copied(rows: Iterable[RankedRow]) -> Reasons:
    """Find every row with the step times of another one.

    The original is the row with the highest assurance, then the one received first, then the first to run.
    Of a run that was continued, or given twice, the fastest figure counts, unless a bundle is trusted less.
    """
    ordered = sorted(rows, key=lambda row: row.received_at or "9")
    ordered.sort(key=assurance_of, reverse=True)
    runs = [((row.run_id, row.machine.identity, assurance_of(row)), row.step_times) for row in ordered]
    found: Reasons = []
    for row, position in zip(ordered, originals(runs), strict=True):
        original = ordered[position]
        if row is not original:
            why = _why_another(row, original) if _is_one_run(row, original) else f"{COPIED} {original.path}"
            found.append((row, why))
    return found


def _is_one_run(a: Row, b: Row) -> bool:
    """Whether two rows are of one run: the same bundle twice, or a run that was continued."""
    return (a.run_id, a.machine.identity) == (b.run_id, b.machine.identity)


def _why_another(row: RankedRow, kept: RankedRow) -> str:
    if kept.run_id == row.run_id:
        return f"the same run as {kept.path}"
    took = f"{figures(row.days.value)} days"
    if row.marks and not kept.marks:
        kinds = ", ".join(mark.kind for mark in row.marks)
        return f"{kinds}, {took}: the same machine has a run in which it was not: {kept.path}"
    return f"{took}: the same machine was faster in {kept.path}"
