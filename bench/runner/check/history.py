"""What earlier checks showed of the same GPUs, from the bundles that are at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.base.errors import BenchError
from bench.bundle.verify import verify_bundle
from bench.node_check.check_results import CheckContents
from bench.node_check.judging.evidence import AFTER, Figure
from bench.node_check.judging.standards import Past
from bench.node_check.recompute_any import recompute

KEPT = 10  # of a GPU's checks, the newest
READ = 32  # bundles that are looked at, the newest: of several nodes, perhaps
ALSO = ("matmul", "memory", "copies")


def read(paths: Iterable[Path]) -> tuple[Mapping[str, Past], tuple[str, ...]]:
    """By GPU UUID; and the bundles that were left out, with the reason."""
    checks, refused = [], []
    for path in _newest(paths):
        try:
            found = verify_bundle(path, recompute).contents
        except BenchError as error:
            refused.append(str(error))
            continue
        if isinstance(found, CheckContents) and not found.results.simulated:
            checks.append(found)
    return past_of(checks), tuple(refused)


def _newest(places: Iterable[Path]) -> list[Path]:
    """Who checks every half hour has thousands: the last ones are enough."""
    found = [path for place in places for path in (place.glob("*.tar") if place.is_dir() else [place])]
    return sorted(found, key=lambda path: path.stat().st_mtime if path.exists() else 0.0)[-READ:]


def past_of(checks: Iterable[CheckContents]) -> Mapping[str, Past]:
    """Figures of runs that were not failed: what was bad is no measure of what is usual."""
    runs: dict[str, list[str]] = {}
    figures: dict[str, dict[str, list[float]]] = {}
    counters: dict[str, dict[str, int]] = {}
    for check in sorted(checks, key=lambda c: c.results.run.started_at):
        bad = {(f.gpu, f.figure) for f in check.results.findings if f.verdict == "fail" and f.figure}
        last = check.evidence.alive(AFTER)
        for gpu in check.results.node.gpus:
            runs.setdefault(gpu.uuid, []).append(check.results.run.id)
            for figure in _figures(check):
                if figure.gpu == gpu.index and (gpu.index, figure.name) not in bad:
                    figures.setdefault(gpu.uuid, {}).setdefault(figure.name, []).append(figure.rate)
            if gpu.index in last and (rows := last[gpu.index].get("RemappedRows")):
                counters.setdefault(gpu.uuid, {})["remapped rows"] = int(rows[0] + rows[1])
    return {
        uuid: Past(
            tuple(seen[-KEPT:]),
            {name: tuple(rates[-KEPT:]) for name, rates in figures.get(uuid, {}).items()},
            counters.get(uuid, {}),
        )
        for uuid, seen in runs.items()
    }


def _figures(check: CheckContents) -> list[Figure]:
    return [figure for name in ALSO for figure in check.evidence.figures(name) if figure.gpu is not None]
