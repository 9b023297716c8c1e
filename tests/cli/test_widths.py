"""Every command that prints tables or long lines, on real terminals of 40 to 120 columns."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from bench.bundle.verify import verify_bundle
from bench.cli.main import main
from bench.library.plan import plan
from bench.node_check.check_results import CheckContents
from bench.node_check.recompute_any import recompute
from bench.report.text.check_text import text as check_text
from bench.training.models.zoo import zoo_names
from tests.terminals import Shown, on_terminal

ROOT = Path(__file__).parents[2]
WIDTHS = (40, 80, 100, 120)
RULE = re.compile(r"-{2,}( +-{2,})+")  # below the heads of a table
COMMANDS = (
    "plan manifests/hour.json --gpu h100",
    "plan manifests/paper.json --gpu h100 --gpus 8",
    "plan --list-models",
    "plan --list-models llama 1b",
    "compare results/proof-h200",
    "compare results/proof-2xh200 --settings",
    "compare results/every-setting-h200/pythia-160m-2gpus.tar",
    "compare results/hour-h200/17-minutes.tar --deadline 20 --budget-usd 1000 --estimate 8xh100",
    "compare results/frontier-h200/modern.tar results/frontier-h200/vision.tar --settings",
    "compare results/nine-h200/vit-l.tar results/nine-h200/pythia-1b.tar --settings --columns all",
    "compare results/slowed-h100",
    "compare results/proof-2xh200 --node-overhead 1.5 --gco2-per-kwh 400",
    "compare results/node-check-h200",
    "show results/every-setting-h200/pythia-160m-2gpus.tar",
    "show results/slowed-h100/five-models.tar",
    "show results/node-check-2xh100/quick.tar",
    "predict benchmarks/data/pythia-1b.json",
    "predict manifests/hour.json --gpu h200,8xh100 --explain",
    "predict manifests/hour.json --gpu h200,8xh100 --node-overhead 1.5 --gco2-per-kwh 400",
    "predict manifests/hour.json --gpu h200 --deadline 1d",
    "prices",
    "paper",
    "reproduce --published list",
    "reproduce results/hour-h200/20-minutes.tar --with results/hour-h200/24-minutes.tar",
    "verify results/proof-2xh200 results/node-check-2xh100",
    "check --list",
)


# Functions of the commands whose results do not depend on the terminal.
RESULTS = (
    "bench.cli.plan.plan_run", "bench.cli.compare.compare_bundles", "bench.cli.show.verify_one",
    "bench.cli.predict.predict_machines", "bench.cli.reproduce.read_run", "bench.cli.verify.verify_bundles",
)  # fmt: skip


def called_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another one once for the same arguments, and keeps its results."""
    known: dict[str, Any] = {}

    def result(*arguments: Any, **keywords: Any) -> Any:
        asked = repr((arguments, keywords))
        if asked not in known:
            known[asked] = function(*arguments, **keywords)
        return known[asked]

    return result


def too_wide(shown: Shown, columns: int) -> list[str]:
    """Return the lines that a terminal of this width would wrap, except for paths and digests of one word."""
    return [line for line in shown.lines if len(line) > columns and len(line.split()) > 1]


def tables(shown: Shown) -> int:
    return sum(RULE.fullmatch(line) is not None for line in shown.lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_terminal_and_tables_stay_tables(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's results, which take most of its time, are computed once, and printed in every width."""
    monkeypatch.chdir(ROOT)
    for name in RESULTS:
        monkeypatch.setattr(name, called_once(resolve_name(name)))
    main(command.split())  # each terminal has a fork of this process, with the results
    capsys.readouterr()
    by_width = {columns: on_terminal(command.split(), columns) for columns in WIDTHS}
    assert [line for columns, shown in by_width.items() for line in too_wide(shown, columns)] == []
    shown_tables = [tables(shown) for shown in by_width.values()]
    assert shown_tables == sorted(shown_tables, reverse=True)  # a matrix is divided, and none is no table
    assert len({shown.code for shown in by_width.values()}) == 1


@pytest.mark.parametrize(
    "command", ["image list", "plan manifests/hour.json --gpu h999", "explain no-such-word"]
)
def test_a_message_is_wrapped_between_words(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for columns in WIDTHS:
        shown = on_terminal(command.split(), columns)
        assert (shown.code, too_wide(shown, columns)) == (2, [])
    assert len(shown.lines) < len(on_terminal(command.split(), 40).lines)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("export results/every-setting-h200/pythia-160m-1gpu.tar OUT --to script", "is within 1% of"),
        ("predict manifests/hour.json --gpu h200 --measured results/slowed-h100 --plots OUT", "no bundle of"),
    ],
)
def test_what_a_command_says_beside_its_result_is_wrapped_between_words(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    for columns in WIDTHS:
        words = command.replace("OUT", str(tmp_path / f"{columns}")).split()
        shown = on_terminal(words, columns)
        assert said in " ".join(shown.text.split())
        assert too_wide(shown, columns) == []


def test_columns_of_offers_without_room_are_named_and_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = ["compare", "results/every-setting-h200"]
    narrow, wide = (" ".join(on_terminal(words, columns).text.split()) for columns in (80, 200))
    assert "no room beside offers for a billion, worth" in narrow
    assert "no room" not in wide
    for note in ("worth: what money", "a billion: what"):
        assert note in wide and note not in narrow


def test_a_digest_as_long_as_the_terminal_is_not_indented_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = on_terminal(["verify", "results/certified-h200/certified-e0d152b83c7a.tar"], 80)
    assert shown.widest <= 80
    assert any(re.fullmatch(r" +sha256:[0-9a-f]{64},", line) for line in shown.lines)


def test_lines_of_stderr_are_wrapped_to_its_own_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The paths that `bench export` prints go into a pipe; what it says goes to the terminal."""

    def with_a_pipe_at_stdout() -> int:
        sys.__stdout__ = sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        bundle = "results/every-setting-h200/pythia-160m-1gpu.tar"
        return main(["export", bundle, str(tmp_path / "training"), "--to", "script"])

    monkeypatch.chdir(ROOT)
    shown = on_terminal(with_a_pipe_at_stdout, 60)
    assert "is within 1% of" in " ".join(shown.text.split())
    assert (shown.code, too_wide(shown, 60)) == (0, [])


def test_a_plan_of_the_whole_zoo_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan, which takes seconds, is made once, and printed by the command in every width."""
    manifest = {"schema": "bench/manifest/v1", "models": sorted(zoo_names()), "methods": ["free-lunch"]}
    (tmp_path / "zoo.json").write_text(json.dumps(manifest))
    planned = plan(tmp_path / "zoo.json", gpu="h200")
    monkeypatch.setattr("bench.cli.plan.plan_run", lambda *_, **__: planned)
    for columns in WIDTHS:
        shown = on_terminal(["plan", str(tmp_path / "zoo.json"), "--gpu", "h200"], columns)
        assert too_wide(shown, columns) == []
        assert tables(shown) >= 30


@pytest.mark.parametrize("bundle", ["node-check-h200/4gpus-fault-traffic", "node-check-2xh100/quick"])
@pytest.mark.parametrize("columns", WIDTHS)
def test_the_findings_of_a_node_check_fit(bundle: str, columns: int) -> None:
    contents = verify_bundle(ROOT / f"results/{bundle}.tar", recompute).contents
    assert isinstance(contents, CheckContents)
    results = contents.results
    shown = on_terminal(lambda: print(check_text(results)) or 0, columns)
    assert too_wide(shown, columns) == []
    assert tables(shown) == 2  # the checks, and the slowest GPUs


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_progress_of_a_node_check_moves_the_cursor_and_fits(
    columns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The terminal draws the line: sequences that move the cursor are not shown as text."""
    (tmp_path / "machine.json").write_text("{}")
    monkeypatch.setenv("BENCH_FAKE_NVML", str(tmp_path / "machine.json"))
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = on_terminal(["check", "--level", "passive", "-o", str(tmp_path / "out")], columns)
    seen = [line.removeprefix("\x1b[K") for line in shown.lines]
    assert any(re.fullmatch(r"inventory-before  read in \d+ s", line) for line in seen)
    assert "\\x1b" not in shown.text
    assert [line for line in seen if len(line) > columns and len(line.split()) > 1] == []
