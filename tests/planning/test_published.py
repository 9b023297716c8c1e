"""Published throughputs: shipped rows are complete, and a row's manifest measures its model and setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import gpu_named
from bench.base.strict_json import to_json
from bench.planning.prediction.published_rate import predicted_per_gpu
from bench.planning.prediction.step_time import shipped_fit
from bench.planning.published import load_rows, manifest_of, meaning_mistakes, setting_of, shipped_rows
from bench.training.methods import Target
from bench.training.models import counts_by_formula

ROWS = shipped_rows()
TINY: dict[str, Any] = {
    "name": "tiny", "source": "me", "url": "example.org/table", "quote": "| 10 |", "software": "mine 1.0",
    "card": "NVIDIA H200", "gpus": 1, "model": {"name": "tiny-gpt-neox"}, "methods": ["checkpointing"],
    "micro_batch": 16, "per_second_per_gpu": 10.0,
}  # fmt: skip


def file_of(folder: Path, *rows: dict[str, Any], **changes: Any) -> Path:
    sources = {"me": {"title": "my table", "day": "2026-01-31"}}
    document = {"schema": "bench/published-rows/v1", "sources": sources, "rows": rows, **changes}
    path = folder / "rows.json"
    path.write_text(json.dumps(document))
    return path


def test_shipped_rows_do_not_contradict_themselves() -> None:
    assert not [*meaning_mistakes(ROWS)]
    assert {row.source for row in ROWS.rows} == ROWS.sources.keys()


def test_at_least_five_projects_published_shipped_rows() -> None:
    assert len({source.title for source in ROWS.sources.values()}) >= 5


@pytest.mark.parametrize("row", ROWS.rows, ids=lambda row: row.name)
def test_every_shipped_row_is_of_a_known_card_and_has_a_valid_manifest(row: Any) -> None:
    gpu = gpu_named(row.card)
    assert gpu is not None
    (request,) = manifest_of(row).requests
    assert request.model.name == row.model["name"]
    assert request.micro_batch == row.micro_batch
    target = Target("cuda", row.gpus, int(gpu.memory_gib * 2**30), gpu.name, gpu.compute_capability)
    assert {*row.methods} <= {*setting_of(row, target)}
    assert request.model.recipe.batch_size % (row.gpus * (row.micro_batch or 1)) == 0


def test_a_row_of_ones_own_is_read_and_its_rate_predicted(tmp_path: Path) -> None:
    row = load_rows(file_of(tmp_path, {**TINY, "model": {"name": "pythia-1b"}})).row("tiny", "here")
    (model,) = manifest_of(row).models
    counts = counts_by_formula(model)
    assert counts is not None
    rate = predicted_per_gpu(row, counts, shipped_fit())
    assert rate is not None
    assert 30_000 < rate < 120_000  # tokens a second of pythia-1b on an H200, with checkpointing


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    wrong = {**TINY, "source": "you", "methods": ["checkpoint"], "gpus": 0, "per_second_per_gpu": -1.0}
    with pytest.raises(BadInput) as raised:
        load_rows(file_of(tmp_path, TINY, wrong, sources={"me": {"title": "t", "day": "May 2026"}}))
    text = str(raised.value)
    for part in ("/sources/me/day", "/rows/1/name", "/rows/1/source", "/rows/1/methods", "/rows/1/gpus"):
        assert part in text
    assert 'nearest: "checkpointing"' in text
    assert "/rows/1/per_second_per_gpu" in text


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": "bench/manifest/v1"}', '{"rows": 1}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"rows\.json"):
        load_rows(path)


def test_an_unknown_row_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"tinyllama-2023-1\.1b-16g"):
        ROWS.row("tinylama-2023-1.1b-16g", "bench")


def test_rows_survive_being_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(to_json(ROWS)))
    assert load_rows(path) == ROWS
