"""The history of GPUs in earlier node checks, from the index of a folder and from bundles that it lacks.

In:  paths of bundles, each of which is verified, or of folders. Out: for each GPU its earlier figures and
counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bench.base.errors import BenchError
from bench.node_check.check_results import CheckContents, CheckResults
from bench.node_check.checks.host_errors import errors_of
from bench.node_check.judging.evidence import AFTER, Evidence
from bench.node_check.judging.finding import worst
from bench.node_check.judging.standards import CORRECTED_ERRORS, COUNTED_AT, Past
from bench.runner.check.check_index import Entry, IndexedCheck, UnusableBundle, add, read_index

CHECKS_KEPT = 10  # the newest node checks of each GPU
BUNDLES_READ = 32  # the newest bundles that no index has, which may be of several nodes
CHECKS_WITH_FIGURES = ("matmul", "memory", "copies")
DAY_SECONDS = 86_400.0
MOST_TEXT = 200  # characters of a finding or a reason that the index keeps


@dataclass(frozen=True, slots=True)
class History:
    """The figures and counters of earlier checks."""

    past: Mapping[str, Past]  # by GPU UUID
    refused: tuple[str, ...]  # why bundles were left out
    bundles: Mapping[str, bool]  # those of the folders, by name: whether each is a node check


def read(paths: Iterable[Path], *, index: bool = False) -> History:
    """Read the history from bundles or folders of them.

    `index`: also write what was read from bundles of a folder into its index.
    """
    checks: list[IndexedCheck] = []
    refused: list[str] = []
    bundles: dict[str, bool] = {}
    for path in paths:
        if path.is_dir():
            known = read_index(path)
            checks += known.checks
            unread = _newest(bundle for bundle in path.glob("*.tar") if bundle.name not in known.bundles)
        else:
            known, unread = None, [path]
        entries = [_entry(bundle, refused) for bundle in unread]
        checks += [entry for entry in entries if isinstance(entry, IndexedCheck)]
        bundles |= known.bundles if known is not None else {}
        bundles |= {entry.bundle: isinstance(entry, IndexedCheck) for entry in entries}
        if index and known is not None and (entries or known.damaged):
            with suppress(OSError):  # the entries that were read are used without an index
                add(path, entries, repair=bool(known.damaged))
    return History(past_of(checks), tuple(refused), bundles)


def _newest(bundles: Iterable[Path]) -> list[Path]:
    """Return the newest bundles, the oldest of them first."""
    return sorted(bundles, key=lambda path: path.stat().st_mtime if path.exists() else 0.0)[-BUNDLES_READ:]


def _entry(bundle: Path, refused: list[str]) -> Entry:
    """Verify a bundle and return its entry; append to `refused` why it does not verify."""
    from bench.bundle.verify import verify_bundle  # an index usually has every bundle, and spares the imports
    from bench.node_check.recompute_any import recompute

    try:
        contents = verify_bundle(bundle, recompute).contents
    except BenchError as error:
        refused.append(str(error))
        return UnusableBundle(bundle.name, str(error)[:MOST_TEXT])
    if isinstance(contents, CheckContents):
        return indexed(bundle.name, contents.results, contents.evidence)
    return UnusableBundle(bundle.name, "is not a node check")


def indexed(bundle: str, results: CheckResults, evidence: Evidence) -> IndexedCheck:
    """Return the index's entry of a check, without figures that failed: they do not show what is usual."""
    bad = {(f.gpu, f.figure) for f in results.findings if f.verdict == "fail" and f.figure}
    last = evidence.alive(AFTER)
    rates: dict[str, dict[str, float]] = {}
    uuids = {gpu.index: gpu.uuid for gpu in results.node.gpus}
    for figure in chain.from_iterable(map(evidence.figures, CHECKS_WITH_FIGURES)):
        if figure.gpu in uuids and (figure.gpu, figure.name) not in bad:
            rates.setdefault(uuids[figure.gpu], {})[figure.name] = figure.rate
    rows = {uuid: last[index].get("RemappedRows") if index in last else None for index, uuid in uuids.items()}
    problem = worst([f for f in results.findings if f.counts])
    return IndexedCheck(
        bundle=bundle,
        run=results.run.id,
        ended_at=results.run.ended_at,
        level=results.level,
        verdict=results.verdict,
        finding=problem.line[:MOST_TEXT] if problem and results.verdict != "pass" else "",
        simulated=results.simulated,
        remapped_rows={uuid: int(row[0] + row[1]) if row else None for uuid, row in rows.items()},
        figures=rates,
        machine=evidence.machine,
        corrected_errors=errors.corrected if (errors := errors_of(evidence)) else None,
    )


def _of_machines(checks: Iterable[IndexedCheck]) -> dict[str, Past]:
    """Return each machine's corrected memory errors as of a day before its last check, by its digest.

    If the machine's first check is less than a day older than its last, the count of the first check.
    """
    counted: dict[str, list[IndexedCheck]] = {}
    for check in sorted(checks, key=lambda c: c.ended_at):
        if check.machine and check.corrected_errors is not None:
            counted.setdefault(check.machine, []).append(check)
    found = {}
    for machine, every in counted.items():
        day_before = [c for c in every if c.ended_at <= every[-1].ended_at - DAY_SECONDS]
        then = (day_before or every[:1])[-1]
        assert then.corrected_errors is not None
        counters = {CORRECTED_ERRORS: then.corrected_errors, COUNTED_AT: int(then.ended_at)}
        found[machine] = Past((then.run,), counters=counters)
    return found


def past_of(checks: Iterable[IndexedCheck]) -> Mapping[str, Past]:
    """Return the history by GPU UUID and by the machine's digest, without checks of simulated machines."""
    once = {check.bundle: check for check in checks if not check.simulated}
    runs: dict[str, list[str]] = {}
    figures: dict[str, dict[str, list[float]]] = {}
    counters: dict[str, dict[str, int]] = {}
    for check in sorted(once.values(), key=lambda c: c.ended_at):
        for uuid, rows in check.remapped_rows.items():
            runs.setdefault(uuid, []).append(check.run)
            if rows is not None:
                counters.setdefault(uuid, {})["remapped rows"] = rows
            for name, rate in check.figures.get(uuid, {}).items():
                figures.setdefault(uuid, {}).setdefault(name, []).append(rate)
    return _of_machines(once.values()) | {
        uuid: Past(
            tuple(ids[-CHECKS_KEPT:]),
            {name: tuple(rates[-CHECKS_KEPT:]) for name, rates in figures.get(uuid, {}).items()},
            counters.get(uuid, {}),
        )
        for uuid, ids in runs.items()
    }
