"""Say why a run ended without a bundle, from its last status and the end of its log."""

from __future__ import annotations

import shlex

from bench.base.errors import BadInput, BenchError, EnvironmentCannot, Incomplete
from bench.push import mirror
from bench.push.connection import plain
from bench.push.mirror import Status
from bench.push.push_record import Record


def missing_bundle(status: Status, record: Record, *, checks: bool) -> BenchError:
    """Return the error for a run that ended without a bundle, with the last lines of its log."""
    log = record.mirror / mirror.LOG
    text = mirror.end_of(log).decode(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-2:]
    last = f": {plain(' '.join(lines))[:400]}" if lines else ""
    if status.state != "exit":
        why = "the run's folder is gone from the node"
        how = f" ({status.reason})" if status.reason else ""
        if status.state == "dead" and record.slurm_job:
            why = f"Slurm's job {record.slurm_job} ended without a bundle{how}"
        elif status.state == "dead":
            why = f"the run was killed on the node{how}"
        if record.slurm_job and status.on is None and not (status.reason or "").startswith("CANCELLED"):
            advice = (
                f"can its nodes write to {record.place}? --place DIR, on a file system that all of them share"
            )
            return EnvironmentCannot(f"{why}, and wrote nothing{last}", advice=advice)
        again = "the check starts over" if checks else "the run resumes from its journal"
        return EnvironmentCannot(f"{why}{last}", advice=f"push again: {again}")
    kinds: dict[int | None, type[BenchError]] = {2: BadInput, 5: Incomplete}
    kind = kinds.get(status.code, EnvironmentCannot)
    return kind(
        f"the run ended with exit code {status.code}{last}", advice=f"its log: {shlex.quote(str(log))}"
    )
