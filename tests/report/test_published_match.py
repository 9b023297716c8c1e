"""`bench reproduce --published` holds a run against a throughput that somebody published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cli.main import main
from bench.planning.published import load_rows, manifest_of
from tests.planning.test_published import TINY, file_of
from tests.report.made import bundle

SECONDS_A_PASS = 0.5


def compare(folder: Path, capsys: Any, *options: str, **changes: Any) -> tuple[int, dict[str, Any]]:
    """Hold a made run against a row; return the exit code and the document."""
    path = file_of(folder, {**TINY, "methods": [], **changes})
    run = bundle(
        folder / "run.tar", of=manifest_of(load_rows(path).rows[0], ["naive"]), pass_seconds=SECONDS_A_PASS
    )
    words = ["--published", "tiny", "--published-in", str(path), "--with", str(run), "--json", *options]
    code = main(["reproduce", *words])
    return code, json.loads(capsys.readouterr().out)


def rate_here(folder: Path, capsys: Any) -> float:
    return float(compare(folder, capsys)[1]["here_per_gpu"])


@pytest.mark.parametrize(("share", "code"), [(1.019, 0), (1.021, 1), (0.5, 0)])
def test_a_rate_is_reached_within_two_percent(tmp_path: Path, capsys: Any, share: float, code: int) -> None:
    here = rate_here(tmp_path, capsys)
    found, document = compare(tmp_path, capsys, per_second_per_gpu=here * share)
    assert (found, document["reached"]) == (code, code == 0)
    assert document["ratio"] == pytest.approx(1 / share)


def test_the_tolerance_is_the_users(tmp_path: Path, capsys: Any) -> None:
    here = rate_here(tmp_path, capsys)
    assert compare(tmp_path, capsys, "--tolerance", "10", per_second_per_gpu=here * 1.1)[0] == 0
    assert compare(tmp_path, capsys, "--tolerance", "9", per_second_per_gpu=here * 1.1)[0] == 1


def test_the_rate_is_that_of_the_whole_step_and_of_one_gpu(tmp_path: Path, capsys: Any) -> None:
    _, document = compare(tmp_path, capsys)
    row = load_rows(tmp_path / "rows.json").rows[0]
    (model,) = manifest_of(row).models
    passes = model.recipe.batch_size // 16
    tokens = model.recipe.batch_size * model.recipe.units_per_sample
    assert document["here_per_gpu"] == pytest.approx(tokens / (passes * SECONDS_A_PASS), rel=0.02)


def test_what_differs_is_said(tmp_path: Path, capsys: Any) -> None:
    _, document = compare(tmp_path, capsys, methods=["checkpointing"])
    assert document["differences"] == [
        "card: NVIDIA H100 80GB HBM3 here, NVIDIA H200 there",
        "setting: naive here, checkpointing there",
        "clock: 1,980 MHz and 400 W a GPU here, not published",
    ]
    assert document["there"][:3] == ["1x NVIDIA H200", "mine 1.0", "my table, 2026-01-31: example.org/table"]


def test_the_text_has_the_verdict_and_both_machines(tmp_path: Path, capsys: Any) -> None:
    compare(tmp_path, capsys)
    path, run = tmp_path / "rows.json", tmp_path / "run.tar"
    words = ["--published", "tiny", "--published-in", str(path), "--with", str(run)]
    assert main(["reproduce", *words]) == 0
    text = capsys.readouterr().out
    assert text.startswith("tiny: published 10 tokens a second and GPU\nmeasured here ")
    assert "% more: REACHED (naive, micro-batch 16)" in text
    assert "there   1x NVIDIA H200" in text
    assert "here    1x NVIDIA H100 80GB HBM3" in text


def test_a_run_of_another_model_is_refused(tmp_path: Path, capsys: Any) -> None:
    path = file_of(tmp_path, {**TINY, "model": {"name": "pythia-1b"}})
    run = bundle(tmp_path / "run.tar")
    words = ["--published", "tiny", "--published-in", str(path), "--with", str(run)]
    assert main(["reproduce", *words]) == 2
    assert "did not measure pythia-1b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "neither a bundle nor --published"),
        (["--published", "x", "b.tar"], "both a bundle and --published"),
        (["--published-in", "x.json"], "neither a bundle nor --published"),
        (["b.tar", "--published-in", "x.json"], "--published-in without --published"),
        (["--published", "x", "--any-stack"], "--any-stack with --published"),
        (["--published", "x", "--engine", "docker"], "--engine with --published"),
        (["--published", "no-such-row"], "has no published row 'no-such-row'"),
    ],
)
def test_options_that_exclude_each_other(capsys: Any, words: list[str], reason: str) -> None:
    assert main(["reproduce", *words]) == 2
    assert reason in capsys.readouterr().err


def test_all_rows_are_listed_within_eighty_columns(capsys: Any) -> None:
    assert main(["reproduce", "--published", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("kempnerforge-2026-01-1g-7b-none ") for line in lines)
