"""The history of GPUs in earlier node checks, read from their bundles.

In:  paths of bundles, each of which is verified. Out: for each GPU its earlier figures and counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from bench.base.errors import BenchError
from bench.bundle.verify import verify_bundle
from bench.node_check.check_results import CheckContents
from bench.node_check.judging.evidence import AFTER
from bench.node_check.judging.standards import Past
from bench.node_check.recompute_any import recompute

CHECKS_KEPT = 10  # the newest node checks of each GPU
BUNDLES_READ = 32  # the newest bundles, which may be of several nodes
CHECKS_WITH_FIGURES = ("matmul", "memory", "copies")


def read(paths: Iterable[Path]) -> tuple[Mapping[str, Past], tuple[str, ...]]:
    """Return the history by GPU UUID, and why bundles were left out. `paths`: bundles or folders of them."""
    checks, refused = [], []
    for path in _newest(paths):
        try:
            contents = verify_bundle(path, recompute).contents
        except BenchError as error:
            refused.append(str(error))
            continue
        if isinstance(contents, CheckContents) and not contents.results.simulated:
            checks.append(contents)
    return past_of(checks), tuple(refused)


def _newest(paths: Iterable[Path]) -> list[Path]:
    """Return the newest bundles: a node that is checked every half hour has thousands."""
    bundles = [bundle for path in paths for bundle in (path.glob("*.tar") if path.is_dir() else [path])]
    return sorted(bundles, key=lambda path: path.stat().st_mtime if path.exists() else 0.0)[-BUNDLES_READ:]


def past_of(checks: Iterable[CheckContents]) -> Mapping[str, Past]:
    """Return the history by GPU UUID, without figures that failed, which do not show what is usual."""
    runs: dict[str, list[str]] = {}
    figures: dict[str, dict[str, list[float]]] = {}
    counters: dict[str, dict[str, int]] = {}
    for check in sorted(checks, key=lambda c: c.results.run.started_at):
        bad = {(f.gpu, f.figure) for f in check.results.findings if f.verdict == "fail" and f.figure}
        last = check.evidence.alive(AFTER)
        for gpu in check.results.node.gpus:
            runs.setdefault(gpu.uuid, []).append(check.results.run.id)
            for figure in chain.from_iterable(map(check.evidence.figures, CHECKS_WITH_FIGURES)):
                if figure.gpu == gpu.index and (gpu.index, figure.name) not in bad:
                    figures.setdefault(gpu.uuid, {}).setdefault(figure.name, []).append(figure.rate)
            if gpu.index in last and (rows := last[gpu.index].get("RemappedRows")):
                counters.setdefault(gpu.uuid, {})["remapped rows"] = int(rows[0] + rows[1])
    return {
        uuid: Past(
            tuple(ids[-CHECKS_KEPT:]),
            {name: tuple(rates[-CHECKS_KEPT:]) for name, rates in figures.get(uuid, {}).items()},
            counters.get(uuid, {}),
        )
        for uuid, ids in runs.items()
    }
