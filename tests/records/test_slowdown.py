"""A GPU that heat or its power supply slowed during timing is marked wherever its figure is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.strict_json import canonical_json
from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.records.slowdown import (
    BAD_REASONS,
    HEALTHY,
    Slowed,
    has_bad_reason,
    slowed_lines,
    slowed_text,
    slowed_trials,
    telemetry_line,
)
from bench.records.trial import Trial
from bench.report.compare.compared_rows import Row
from bench.runner.machine.telemetry import FILE_NAME
from bench.runner.run import measure_plan as loop
from tests.report.made import START, bundle, manifest
from tests.runner.test_measure import METER, Guessing, begun, supervised

RESULTS = Path(__file__).parents[2] / "results"
HOT = RESULTS / "slowed-h100/five-models.tar"
POWER_CAP, HEAT, BRAKE = 0x04, 0x20, 0x80
Reading = Callable[[int], list[dict[str, Any]]]  # readings of the GPUs by second


def one(reasons: int | None, mhz: int = 1980, celsius: int = 60) -> dict[str, Any]:
    said = {"sm_mhz": mhz, "celsius": celsius, "energy_joules": 1.0}
    return said if reasons is None else {**said, "throttle_reasons": reasons}


def slowed_by(tmp_path: Path, reading: Reading, name: str = "a", **more: Any) -> Row:
    """Find the slowed GPU of a run of sixty seconds, whose steps are timed from the tenth to the fiftieth."""
    of = more.pop("of", None) or manifest()
    gpus = more.get("gpus", 1)
    trial = Trial(of.models[0], (), 16, gpus, of.seed, of.timing)
    lines = [
        {"at": START + i, "trial": trial.id, "gpus": reading(i), "load": 1.0, "available_bytes": 1}
        for i in range(60)
    ]
    data = b"".join(canonical_json(line) + b"\n" for line in lines)
    path = bundle(tmp_path / f"{name}.tar", run_id=name * 4, uuid=name, telemetry=data, of=of, **more)
    (part,) = collect(CompareArguments((path,))).parts
    return part.entries[0].row


def test_an_h100_that_could_not_cool_itself_says_so_in_every_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this bundle, short products are as fast as on a good card, and training is three times slower."""
    told = "GPU 0 by software thermal slowdown in 12 trials, at 345 to 540 of its 1,980 MHz and up to 88 °C"
    assert main(["verify", str(HOT)]) == 0
    assert f"SLOWED     {told}: the same GPU in good health is faster" in capsys.readouterr().out
    page = tmp_path / "x.html"
    assert main(["compare", str(HOT), "--settings", "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert f"SLOWED  {told}" in " ".join(shown.split()).replace("SLOWED GPU", "SLOWED  GPU")
    assert "SLOWED: 1x H100 80GB HBM3, GPU 0 by software thermal slowdown, at 480 of its 1,980 MHz" in shown
    assert shown.count("SLOWED: see below") == 3 * 5, "beside models, purchases and rents"
    assert "software thermal slowdown, at 480 of its 1,980 MHz" in page.read_text()
    assert main(["compare", str(HOT), "--budget-usd", "100000"]) == 0
    assert capsys.readouterr().out.count("SLOWED: see below") == 3 * 5, "with a question, too"
    for form in ("markdown", "csv", "json"):
        assert main(["compare", str(HOT), "--format", form]) == 0
        assert "software thermal slowdown" in capsys.readouterr().out
    assert main(["verify", str(HOT), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert len(found["recomputed"]["slowed"]) == 12


@pytest.mark.parametrize("name", ["hour-h200/decided", "settings-h200/pythia-1b-1gpu-16"])
def test_a_good_card_at_its_power_cap_is_not_slowed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(RESULTS / f"{name}.tar"), "--settings"]) == 0
    assert "SLOWED" not in capsys.readouterr().out


def test_only_readings_while_steps_were_timed_count(tmp_path: Path) -> None:
    assert slowed_by(tmp_path, lambda i: [one(POWER_CAP)]).slowed is None
    before_and_after = slowed_by(tmp_path, lambda i: [one(POWER_CAP if 10 <= i <= 50 else HEAT)])
    assert before_and_after.slowed is None
    found = slowed_by(
        tmp_path, lambda i: [one(HEAT | POWER_CAP, 600, 88) if i % 2 else one(POWER_CAP)]
    ).slowed
    assert found is not None
    assert (found.gpu, found.why, found.sm_mhz, found.top_mhz, found.celsius) == (
        0, ("software thermal slowdown",), 600, 1980, 88,
    )  # fmt: skip
    assert slowed_text(found) == (
        "GPU 0 by software thermal slowdown, 49% of the time, at 600 of its 1,980 MHz and 88 °C"
    )


def test_the_gpu_that_was_slowed_most_is_named(tmp_path: Path) -> None:
    found = slowed_by(
        tmp_path, lambda i: [one(0), one(HEAT if i % 3 == 0 else 0), one(BRAKE, 300), one(0)], gpus=4
    ).slowed
    assert found is not None
    assert (found.gpu, found.why, found.sm_mhz) == (2, ("power brake",), 300)


def test_a_gpu_that_did_not_train_is_ignored(tmp_path: Path) -> None:
    hot_neighbour = slowed_by(tmp_path, lambda i: [one(0), one(HEAT)], on_one_node=2, of=manifest(gpus=1))
    assert hot_neighbour.slowed is None


@pytest.mark.parametrize("said", [{}, *({"throttle_reasons": odd} for odd in ("hot", -1, True, 2**52))])
def test_a_card_without_throttle_reasons_is_not_marked_slowed(tmp_path: Path, said: dict[str, Any]) -> None:
    assert slowed_by(tmp_path, lambda i: [one(None) | said]).slowed is None


def test_a_moment_in_many_hours_does_not_count_as_slowed() -> None:
    lines = [
        canonical_json({"at": i, "trial": "t", "gpus": [one(HEAT if i == 7 else 0)]}) for i in range(200)
    ]
    assert slowed_trials(lambda: lines, {"t": (0, 200)}, 1) == {}
    assert slowed_trials(lambda: lines, {"t": (0, 99)}, 1).keys() == {"t"}, "one reading in a hundred"
    assert slowed_trials(lambda: lines, {"t": (0, 100)}, 1) == {}


@pytest.mark.parametrize(
    "line", [b"[" * 10**5, b"{", b"[]", b'{"at":"x","trial":"t","gpus":[]}', b'{"at":1,"gpus":3}']
)
def test_a_line_that_is_not_a_reading_is_ignored(line: bytes) -> None:
    hot = canonical_json({"at": 1.5, "trial": "t", "gpus": [one(HEAT), "what?"]})
    assert slowed_trials(lambda: [line, hot], {"t": (1, 2)}, 8)["t"].share == 1


FAULTS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def slowed_while(*readings: dict[str, Any]) -> Slowed | None:
    """Find the cause that held back a GPU with these readings, one a second, all while steps were timed."""
    lines = [canonical_json({"at": i, "trial": "t", "gpus": [said]}) for i, said in enumerate(readings)]
    return slowed_trials(lambda: lines, {"t": (0, len(lines))}, 1).get("t")


@pytest.mark.parametrize("bit", range(53))
def test_four_clock_reasons_are_faults_and_no_other(bit: int) -> None:
    found = slowed_while(one(1 << bit))
    assert (found.why if found else None) == ((FAULTS[1 << bit],) if 1 << bit in FAULTS else None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_beside_any_other_clock_reason(fault: int) -> None:
    for other in (1 << bit for bit in range(53) if 1 << bit not in FAULTS):
        found = slowed_while(one(fault | other))
        assert found is not None and found.why == (FAULTS[fault],)


def test_all_reasons_of_a_trial_are_named_also_if_they_come_in_turn() -> None:
    found = slowed_while(one(BRAKE), one(HEAT), one(0))
    assert found is not None and found.why == ("power brake", "software thermal slowdown")


def test_a_reading_without_a_temperature_leaves_that_of_the_others() -> None:
    found = slowed_while(one(HEAT, celsius=85), one(HEAT) | {"celsius": None}, one(HEAT, celsius=88))
    assert found is not None and found.celsius == 88


@pytest.mark.parametrize("odd", [-1, True, "87", 87.5, None])
def test_a_clock_or_temperature_that_is_no_natural_number_is_not_reported(odd: Any) -> None:
    found = slowed_while(one(HEAT) | {"celsius": odd, "sm_mhz": odd})
    assert found is not None
    assert (found.sm_mhz, found.top_mhz, found.celsius) == (None, None, None)
    found = slowed_while(one(HEAT, mhz=0, celsius=0))
    assert found is not None
    assert (found.sm_mhz, found.top_mhz, found.celsius) == (0, 0, 0)


def test_a_gpu_without_clock_reasons_is_never_the_one_that_was_slowed_most() -> None:
    line = canonical_json({"at": 1, "trial": "t", "gpus": [one(None), one(HEAT)]})
    later = canonical_json({"at": 2, "trial": "t", "gpus": [one(None), one(0)]})
    found = slowed_trials(lambda: [line, later], {"t": (0, 3)}, 2)["t"]
    assert (found.gpu, found.share) == (1, 0.5)


@pytest.mark.parametrize("odd", [5, None, "text", [1], []])
def test_a_reading_that_is_no_object_reports_nothing(odd: Any) -> None:
    lines = [canonical_json({"at": 1, "trial": "t", "gpus": [odd, one(HEAT)]})]
    found = slowed_trials(lambda: lines, {"t": (0, 2)}, 2)["t"]
    assert (found.gpu, found.why) == (1, ("software thermal slowdown",))


def test_a_line_of_telemetry_is_an_object_or_nothing() -> None:
    assert telemetry_line(b'{"at":1}') == {"at": 1}
    assert telemetry_line(b"[]") == telemetry_line(b"7") == telemetry_line(b'{"at":') == {}


@pytest.mark.parametrize(
    ("share", "sm_mhz", "top_mhz", "celsius", "text"),
    [
        (1.0, 405, 1980, 87, ", at 405 of its 1,980 MHz and 87 °C"),
        (0.95, 405, 1980, 87, ", 95% of the time, at 405 of its 1,980 MHz and 87 °C"),
        (1.0, 405, 1980, None, ", at 405 of its 1,980 MHz"),
        (1.0, None, 1980, 87, ", at 87 °C"),
        (1.0, 405, None, 87, ", at 87 °C"),
        (1.0, None, None, None, ""),
    ],
)
def test_only_what_the_gpu_reports_is_told(
    share: float, sm_mhz: int | None, top_mhz: int | None, celsius: int | None, text: str
) -> None:
    slowed = Slowed(3, ("power brake",), share, sm_mhz, top_mhz, celsius)
    assert slowed_text(slowed) == f"GPU 3 by power brake{text}"
    assert list(slowed_lines({"t": slowed})) == [f"GPU 3 by power brake in 1 trial{text}: {HEALTHY}"]


def test_of_two_trials_the_worst_is_told() -> None:
    both = {
        name: Slowed(1, ("power brake",), share, 405, 1980, 88) for name, share in (("a", 0.5), ("b", 0.25))
    }
    assert list(slowed_lines(both)) == [
        "GPU 1 by power brake in 2 trials, up to 50% of the time, at 405 of its 1,980 MHz and up to 88 °C:"
        f" {HEALTHY}"
    ]


def test_each_gpu_has_a_line_of_its_own_over_all_its_trials() -> None:
    slowed = {
        "a": Slowed(1, ("software thermal slowdown",), 0.5, 405, 1980, 88),
        "b": Slowed(0, ("power brake",), 1.0, 600, 1755, 70),
        "c": Slowed(1, ("software thermal slowdown",), 0.25, 345, 1980, 90),
        "d": Slowed(1, ("software thermal slowdown",), 0.25, None, None, None),
    }
    assert list(slowed_lines(slowed)) == [
        f"GPU 0 by power brake in 1 trial, at 600 of its 1,755 MHz and 70 °C: {HEALTHY}",
        "GPU 1 by software thermal slowdown in 3 trials, up to 50% of the time,"
        f" at 345 to 405 of its 1,980 MHz and up to 90 °C: {HEALTHY}",
    ]


def test_a_slowed_row_is_no_evidence_for_other_machines(tmp_path: Path) -> None:
    """The days of a slowed card hold only for that machine; estimates for an H200 would be as bad."""
    long = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"batch_size": 4096}}])
    slowed_by(tmp_path, lambda i: [one(HEAT)], of=long, pass_seconds=2.0)
    hot = tmp_path / "a.tar"
    (part,) = collect(CompareArguments((hot,), estimate=("h200",))).parts
    (guess,) = part.guesses
    assert guess.days is None
    assert guess.basis == "in every run of gpt_neox a GPU was slowed down"
    slowed_by(tmp_path, lambda i: [one(0)], "b", of=long, pass_seconds=0.5)
    (part,) = collect(CompareArguments((hot, tmp_path / "b.tar"), estimate=("h200",))).parts
    (guess,) = part.guesses
    best = next(entry.row.best for entry in part.entries if not entry.row.slowed)
    assert guess.days is not None
    assert guess.days <= best.days.value


def test_a_reproduction_names_it_as_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slowed_by(tmp_path, lambda i: [one(HEAT, 500, 90)], pass_seconds=2.0)
    slowed_by(tmp_path, lambda i: [one(0)], "b")
    assert main(["reproduce", str(tmp_path / "b.tar"), "--with", str(tmp_path / "a.tar")]) == 1
    assert "slowed here: GPU 0 by software thermal slowdown, at 500" in capsys.readouterr().out


def test_a_run_says_so_as_soon_as_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run reads the telemetry while it grows, including a line that a kill cut off."""
    course = tmp_path / FILE_NAME

    class Hot(Guessing):
        def trial(self, trial: Trial, *rest: Any) -> Any:
            planned = replace(trial, timing=run.manifest.timing)  # also in the second, longer measurement
            reading = {"at": 0.5, "trial": planned.id, "gpus": [one(HEAT, 435, 87)], "load": 1.0}
            with course.open("ab") as file:
                file.write(b'{"at":1,"gp\n' + canonical_json(reading) + b"\n")
            return super().trial(trial, *rest)

    meter = SimpleNamespace(**vars(METER) | {"used_bytes": lambda: [0]})
    monkeypatch.setattr(loop.telemetry, "TelemetrySampler", lambda *given: meter)
    with begun(tmp_path) as run:
        supervised(fake := Hot(), monkeypatch)
        loop.measure(run, loop.Progress(), None, None)
        assert len(run.slowed()) == len(run.outcomes)
    told = "SLOWED: GPU 0 by software thermal slowdown, at 435 of its 435 MHz and 87 °C"
    assert capsys.readouterr().err.count(told) == len(fake.asked)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b'{"throttle_reasons":0}', False),
        (b'{"throttle_reasons":4}', False),
        (b'{"throttle_reasons":4}\n{"throttle_reasons": 32}', True),
        (b'{"sm_mhz":32}', False),
        (b"", False),
    ],
)
def test_a_block_of_readings_is_searched_for_faults(block: bytes, found: bool) -> None:
    assert has_bad_reason(block) == found


def test_reasons_that_mean_a_fault_and_how_bad_each_is() -> None:
    """NVML's bits; software slows a GPU down before the hardware must."""
    assert BAD_REASONS == {
        8: ("hardware slowdown", "fail"),
        64: ("hardware thermal slowdown", "fail"),
        128: ("power brake", "fail"),
        32: ("software thermal slowdown", "warn"),
    }


def test_a_gpu_that_reports_no_temperature_is_told_without_it(tmp_path: Path) -> None:
    def silent(_: int) -> list[dict[str, Any]]:
        return [{name: value for name, value in one(HEAT, mhz=405).items() if name != "celsius"}]

    row = slowed_by(tmp_path, silent)
    assert row.slowed is not None
    assert (row.slowed.celsius, row.slowed.sm_mhz) == (None, 405)
    assert slowed_text(row.slowed) == "GPU 0 by software thermal slowdown, at 405 of its 405 MHz"
