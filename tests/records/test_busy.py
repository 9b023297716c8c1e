"""GPUs that waited for their host are named wherever their machine's fastest setting is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import canonical_json
from bench.cli.main import main
from bench.records.busy import LEAST_BUSY_SHARE, BusyTime, waiting_text
from bench.records.slowdown import TrialReading
from bench.runner.machine.telemetry import FILE_NAME
from bench.runner.run import measure_plan as loop
from tests.runner.test_measure import Guessing, begun, supervised

RESULTS = Path(__file__).parents[2] / "results"
# Passes of two GPUs are not recorded, and convnext-xl's at micro-batch 32 have many short kernels.
WAITING = RESULTS / "offload-2xh200/convnext-xl.tar"
BUSY = RESULTS / "nine-h200-repeated/convnext-xl-second-card.tar"


def share_of(*readings: tuple[float, Sequence[Any]], gpus: int = 1) -> float | None:
    """Return the busy share of a trial whose steps were timed from second 10 to 20."""
    busy = BusyTime({"t": (10.0, 20.0)}, gpus)
    given = [
        TrialReading(at, "t", [{"busy_percent": each} for each in percents]) for at, percents in readings
    ]
    assert list(busy.noting(given)) == given
    return busy.shares().get("t")


def test_the_share_is_the_mean_of_the_readings_of_the_timed_steps() -> None:
    steps = [(11.0, [90]), (15.0, [60]), (20.0, [30])]
    assert share_of(*steps) == pytest.approx(0.6)
    before, begun, after = (9.9, [0]), (10.9, [0]), (20.1, [0])
    assert share_of(before, begun, *steps, after) == pytest.approx(0.6)


def test_only_gpus_that_trained_count() -> None:
    readings = [(at, [100, 80, 0]) for at in (12.0, 14.0)]
    assert share_of(*readings, gpus=2) == pytest.approx(0.9)


def test_fewer_than_three_readings_say_nothing() -> None:
    assert share_of((12.0, [100]), (13.0, [100])) is None
    assert share_of((12.0, [100]), (13.0, [100]), (14.0, [100])) == 1


@pytest.mark.parametrize("odd", [None, "90", 90.0, True, -1, 101, [90]])
def test_a_reading_that_is_no_share_is_left_out(odd: object) -> None:
    assert share_of((12.0, [50]), (13.0, [odd]), (14.0, [50])) is None
    assert share_of((12.0, [50]), (13.0, [odd]), (14.0, [50]), (15.0, [50])) == 0.5


def test_readings_of_other_trials_and_gpus_without_a_share_are_left_out() -> None:
    busy = BusyTime({"t": (10.0, 20.0)}, 1)
    list(busy.noting([TrialReading(at, "other", [{"busy_percent": 1}]) for at in (12.0, 13.0, 14.0)]))
    list(busy.noting([TrialReading(at, "t", [{}]) for at in (12.0, 13.0, 14.0)]))
    assert busy.shares() == {}


def test_the_usual_cause_follows_from_the_setting() -> None:
    said = {
        cause: waiting_text(0.5, setting)
        for cause, setting in {
            "the host may launch kernels too slowly: larger micro-batches need fewer launches": ("zero-1",),
            "the host's CPUs update the weights": ("zero-1", "offload"),
            "the host may load data too slowly": ("cuda-graphs",),
        }.items()
    }
    for cause, text in said.items():
        assert text == f"kernels ran in 50% of the time; for the rest the GPUs waited: {cause}"
    assert waiting_text(LEAST_BUSY_SHARE, ()) is None
    assert waiting_text(None, ()) is None


def test_every_output_says_that_gpus_waited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "kernels ran in 61% of the time; for the rest the GPUs waited: the host may launch kernels"
    page = tmp_path / "page.html"
    for command in ("show", "compare --settings", "compare", f"compare --html {page}"):
        assert main([*command.split(), str(WAITING)]) == 0
        assert told in " ".join(capsys.readouterr().out.split()), command
    assert told in page.read_text(encoding="utf-8")
    assert main(["verify", str(WAITING), "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)
    assert verdict["recomputed"]["busy_shares"]["d3fc18ab99335118"] == pytest.approx(0.6125)
    assert main(["compare", str(WAITING), "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["parts"]
    assert part["entries"][0]["row"]["busy_share"] == pytest.approx(0.6125)
    assert main(["compare", str(WAITING), "--format", "csv"]) == 0
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert (head.split(",")[-1], row.split(",")[-1]) == ("busy_share", "0.6125")


def test_a_run_knows_the_shares_of_its_own_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(tmp_path) as run:
        supervised(Guessing(), monkeypatch)
        loop.measure(run, loop.Progress(), None, None)
        trial, (_, ended) = next(iter(run.spans().items()))
        reading = {"at": ended, "trial": trial, "gpus": [{"busy_percent": 40}]}
        (tmp_path / FILE_NAME).write_bytes(b'{"at":1,"gp\n' + 3 * (canonical_json(reading) + b"\n"))
        assert run.busy_shares() == {trial: 0.4}


def test_no_output_says_so_of_gpus_that_computed(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("show", "compare --settings", "compare"):
        assert main([*command.split(), str(BUSY)]) == 0
        assert "the GPUs waited" not in " ".join(capsys.readouterr().out.split()), command
