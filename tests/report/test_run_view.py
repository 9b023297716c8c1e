"""`bench show`: one bundle at a glance."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.bundle.verify import verify_bundle
from bench.cli.main import main
from bench.cli.show import glyphs_of
from bench.report.compare.compared_rows import ComparedRun, gather
from bench.report.text.run_view import MOST_SETTINGS, run_view
from bench.report.text.sparklines import BLOCKS, SIGNS, Glyphs, bar, sparkline
from tests.report.made import CRASH, NO_MEMORY, bundle
from tests.report.test_gradient_checks import WRONG, checked
from tests.terminals import on_terminal

ROOT = Path(__file__).parents[2]
HOUR = ROOT / "results/hour-h200/17-minutes.tar"
SLOWED = ROOT / "results/slowed-h100/five-models.tar"
EVERY_GLYPHS = pytest.mark.parametrize("glyphs", [BLOCKS, SIGNS])


@EVERY_GLYPHS
def test_a_bar_is_as_long_as_its_share(glyphs: Glyphs) -> None:
    assert bar(1.0, 8, glyphs) == glyphs.full * 8
    assert bar(0.5, 8, glyphs) == glyphs.full * 4
    assert bar(0.001, 8, glyphs) == glyphs.parts[0]
    assert [bar(share, 8, glyphs) for share in (0.0, -1.0, math.nan, math.inf)] == [""] * 4
    assert bar(3.0, 8, glyphs) == glyphs.full * 8


def test_a_bar_of_blocks_has_eighths() -> None:
    assert [bar(share, 1, BLOCKS) for share in (0.125, 0.5, 0.875)] == ["▏", "▌", "▉"]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200), st.integers(1, 60))
def test_a_sparkline_fits_and_has_the_highest_where_it_is(values: list[float], width: int) -> None:
    drawn = sparkline(values, width, BLOCKS)
    assert len(drawn) == min(width, len(values))
    if len(values) <= width and min(values) < max(values):
        assert drawn[values.index(max(values))] == "█"
        assert drawn[values.index(min(values))] == "▁"


def test_values_that_are_equal_are_a_line_in_the_middle() -> None:
    assert sparkline([7.0] * 4, 10, BLOCKS) == "▄▄▄▄"


@pytest.mark.parametrize(
    ("encoding", "terminal", "glyphs"),
    [
        ("utf-8", "xterm", BLOCKS),
        ("ascii", "xterm", SIGNS),
        ("latin-1", "xterm", SIGNS),
        ("utf-8", "dumb", SIGNS),
    ],
)
def test_blocks_are_drawn_where_they_can_be_seen(encoding: str, terminal: str, glyphs: Glyphs) -> None:
    assert glyphs_of(encoding, {"TERM": terminal}) is glyphs


def test_the_verdict_is_first_and_every_model_has_bars(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(HOUR)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("valid ")
    for model in ("pythia-160m", "vit-l", "mamba-2.8b"):
        block = text.split(f"\n{model}\n")[1].split("\n\n")[0].splitlines()
        lengths = [line.count("█") for line in block[2:]]
        assert lengths[0] == max(lengths) > 0
        assert block[2].startswith("*")
    for words in ("clock", "power", "temperature", "memory", "load of CPUs"):
        assert re.search(rf"^{words} +[▁-█]+  .* to ", text, re.MULTILINE)


def test_marks_stand_above_and_beside_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(SLOWED)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^SLOWED +GPU 0 by software thermal slowdown", text, re.MULTILINE)
    assert len(re.findall(r"[█▏▎▍▌▋▊▉] .*SLOWED$", text, re.MULTILINE)) == 12


def test_a_forged_bundle_shows_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forged = tmp_path / "forged.tar"
    data = HOUR.read_bytes()
    place = data.index(b'"units_per_second": ') + len(b'"units_per_second": ')
    forged.write_bytes(data[:place] + b"9" + data[place + 1 :])
    assert main(["show", str(forged)]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "forged.tar" in printed.err


def test_a_folder_of_several_bundles_is_refused(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        shutil.copy(SLOWED, tmp_path / name)
    assert main(["show", str(tmp_path)]) == 2


def test_settings_without_a_figure_come_last_and_many_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [((), 0.5), (("tf32",), NO_MEMORY), (("checkpointing",), CRASH), (("kernels",), 0.25)]
    path = bundle(tmp_path / "a.tar", settings=settings)
    assert main(["show", str(path)]) == 0
    rows = capsys.readouterr().out.split("\ntiny-gpt-neox\n")[1].splitlines()[2:6]
    assert [row[4:].split()[0] for row in rows[:2]] == ["kernels", "naive"]
    assert ["out of memory" in row or "crashed" in row for row in rows] == [False, False, True, True]


def test_a_setting_with_wrong_gradients_has_no_bar_and_the_others_are_longer_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(checked(tmp_path / "a.tar", WRONG))]) == 0
    rows = capsys.readouterr().out.split("\ntiny-gpt-neox\n")[1].splitlines()[2:5]
    assert re.match(r"\*   naive +█{8,} ", rows[0])
    assert re.match(r"    kernels +WRONG GRADIENTS", rows[1])
    assert re.match(r"    tf32 +crashed", rows[2])


def run_of(path: Path) -> ComparedRun:
    run = verify_bundle(path, partial(gather, with_telemetry=False)).contents
    assert isinstance(run, ComparedRun)
    return run


def test_a_trial_without_a_figure_says_how_it_ended_though_its_setting_has_wrong_gradients(
    tmp_path: Path,
) -> None:
    run = run_of(checked(tmp_path / "a.tar", WRONG))
    naive, kernels, _ = run.results.trials
    larger = replace(kernels, id="larger", micro_batch=32, outcome="out-of-memory", failure=NO_MEMORY,
                     estimate=None, gradient_check=None)  # fmt: skip
    trials = (naive, kernels, larger)
    view = run_view(replace(run, results=replace(run.results, trials=trials)), BLOCKS, 100, every=True)
    assert re.search(r"kernels +WRONG GRADIENTS +16 x", view)
    assert re.search(r"kernels +out of memory +32 x", view)


def test_trials_that_are_not_shown_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    run = run_of(checked(tmp_path / "a.tar", WRONG))
    naive, kernels, crashed = run.results.trials
    assert naive.estimate is not None
    impossible = replace(naive, id="fast", estimate=replace(naive.estimate, flops_per_second=1e30))
    short = replace(naive, id="short", estimate=None)
    alike = tuple(replace(naive, id=f"naive-{n}") for n in range(MOST_SETTINGS + 1))
    trials = (*alike, kernels, crashed, impossible, short)
    view = run_view(replace(run, results=replace(run.results, trials=trials)), BLOCKS, 200, every=False)
    (line,) = (line for line in view.splitlines() if line.endswith("--all"))
    counts = line.partition("(")[2].partition(")")[0]
    assert sorted(counts.split(", ")) == [
        "1 crashed", "1 implausible", "1 slower", "1 too few samples", "1 with wrong gradients"
    ]  # fmt: skip


def test_a_node_check_shows_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(ROOT / "results/node-check-h200/1gpu-fault-busy.tar")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("valid ")
    assert "matmul" in text


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (40, "*   free-lunch  ████████  26.971 ±0.048"),
        (50, "*   free-lunch  ████████████████  26.971 ±0.048"),
    ],
)
def test_a_bar_gives_way_before_anything_is_wrapped(columns: int, row: str) -> None:
    shown = on_terminal(
        ["show", str(ROOT / "results/nine-h200/vit-l.tar")], columns, {"BENCH_PAGER": "", "NO_COLOR": "1"}
    )
    assert row in shown.lines


@pytest.mark.parametrize("columns", [40, 80, 100, 120, 200])
@pytest.mark.parametrize("spelled_in", ["utf-8", "ascii"])
def test_it_fits_every_terminal(columns: int, spelled_in: str) -> None:
    shown = on_terminal(["show", str(HOUR)], columns, {"BENCH_PAGER": "", "SPELLED_IN": spelled_in})
    assert shown.code == 0
    assert [line for line in shown.lines if len(line) > columns and len(line.split()) > 1] == []
    assert ("█" in shown.text) == (spelled_in == "utf-8")
    assert "\\u" not in shown.text
    assert (" °C" in shown.text, " C to " in shown.text) == (spelled_in == "utf-8", spelled_in == "ascii")
