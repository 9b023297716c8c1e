"""`bench reproduce --published`: measure the shape of a published throughput on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.operating_system import ELSEWHERE
from bench.base.strict_json import to_json
from bench.base.terminal import Table, Wrapped, plain_columns, print_json, table, wrapped
from bench.cli.measuring import RepeatArguments, measured_here
from bench.library.this_machine import probed
from bench.planning.plan import target_of
from bench.planning.prediction.published_rate import predicted_per_gpu
from bench.planning.prediction.step_time import shipped_fit
from bench.planning.published import (
    PublishedRow,
    PublishedRows,
    load_rows,
    manifest_of,
    setting_of,
    shipped_rows,
)
from bench.records.text import figures
from bench.report.read_bundles import Lists
from bench.report.reproduce.published_match import PublishedMatch, match_lines, match_published
from bench.report.reproduce.read_run import read_run
from bench.training.models import Counted
from bench.training.models.dry_build import rehearse

LIST = "list"


def reproduce_published(name: str, file: Path | None, request: RepeatArguments) -> int:
    """Measure the published row of this name; `file` None means the rows that ship with bench."""
    rows = shipped_rows() if file is None else load_rows(file)
    if name == LIST:
        return _list(rows, as_json=request.as_json)
    row = rows.row(name, str(file or "bench"))
    lists = Lists(request.trust, request.revoked)
    counted = rehearse(manifest_of(row).models, row.name).counted
    bundle = request.again or _run(row, request, counted)
    counts = counted.get(row.model["name"])
    expected = predicted_per_gpu(row, counts, shipped_fit()) if counts else None
    run = read_run(bundle, lists if request.again else None)
    match = match_published(row, rows.sources[row.source], run, request.tolerance, expected)
    return _show(match, as_json=request.as_json)


def _run(row: PublishedRow, request: RepeatArguments, counted: Mapping[str, Counted]) -> Path:
    """Measure the row's model at its setting, with every method that costs nothing here."""
    node = probed(ELSEWHERE, gpus_too=not request.on_cpu)
    if node.gpus and len(node.gpus) < row.gpus:
        found = f"was measured on {row.gpus} GPUs, this machine has {len(node.gpus)}"
        raise EnvironmentCannot(found, where=row.name, advice="--published list shows the GPUs of every row")
    manifest = manifest_of(row, [setting_of(row, target_of(node, row.gpus))])
    return measured_here(manifest, request, counted)


def _show(match: PublishedMatch, *, as_json: bool) -> int:
    if as_json:
        document = {"reached": match.reached, "ratio": match.ratio, **to_json(match)}
        print_json(document)
    else:
        print(wrapped(match_lines(match), " " * 4))
    return 0 if match.reached else 1


def _list(rows: PublishedRows, *, as_json: bool) -> int:
    if as_json:
        print_json(to_json(rows))
        return 0
    listed = [
        (row.name, f"{row.gpus}x {row.card.removeprefix('NVIDIA ')}", figures(row.per_second_per_gpu, 4))
        for row in rows.rows
    ]
    heads = plain_columns(("row", "machine", "rate"), [2])
    print(table(Table(heads, listed), [Wrapped("machine", 12), Wrapped("row", 20)]))
    how = "bench reproduce --published ROW measures a row's model at its setting here"
    print(wrapped(["rate   tokens a second and GPU", how], " " * 4))
    return 0
