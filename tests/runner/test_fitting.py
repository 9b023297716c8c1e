"""A run of many hours fits into a bundle, and figures computed from the kept readings do not change."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.base.strict_json import canonical_json, strict_loads
from bench.bundle.tar_format import MAX_MEMBER_BYTES
from bench.node_check.judging.evidence import Reading
from bench.runner.processes.logs import LOG_BYTES, head_and_tail
from bench.runner.run.execute import _finish
from bench.runner.run.fit_into_bundle import fit_telemetry, fitting_logs, marks_of_checks, marks_of_trials
from bench.runner.run.seal import Seal
from tests.authority import contents
from tests.bundles import KEY
from tests.runner.test_measure import Guessing, begun, searched

HOUR = 3600
MOST = 100_000


def course(seconds: int, gpus: int = 1, **odd: dict[str, Any]) -> bytes:
    """Make one reading per second, ten minutes per trial; `odd` replaces readings by second."""
    lines = []
    for at in range(seconds):
        gpu = {"celsius": 60, "energy_joules": 700.0 * at, "throttle_reasons": 0} | odd.get(f"at_{at}", {})
        lines.append({"at": float(at), "trial": f"trial-{at // 600}", "load": 1.0, "gpus": [gpu] * gpus})
    return b"".join(canonical_json(line) + b"\n" for line in lines)


def kept(data: bytes) -> list[Any]:
    return [strict_loads(line) for line in data.splitlines()]


def test_small_files_are_packed_unchanged() -> None:
    data = course(600)
    assert fit_telemetry(data, marks_of_trials({}), len(data)) == data
    # bench compare would refuse such a reading.
    torn = data + b'{"at": half a li' + data[: data.index(b"\n") + 1] + data
    assert fit_telemetry(torn, marks_of_trials({}), len(torn)) == data + data


def test_telemetry_of_many_hours_is_thinned_evenly() -> None:
    data = course(2 * HOUR) + b'{"at": half a li'
    short = fit_telemetry(data, marks_of_trials({}), MOST)
    assert MOST / 2 < len(short) <= MOST
    times = [reading["at"] for reading in kept(short)]
    gaps = {after - before for before, after in pairwise(times)}
    assert max(gaps) <= 2 * len(data) / len(short)
    assert set(short.splitlines()) <= set(data.splitlines())


def test_telemetry_of_many_days_has_as_many_lines_as_a_bundle_may_have() -> None:
    data = course(2 * HOUR)
    short = kept(fit_telemetry(data, marks_of_trials({}), len(data), most_lines=1000))
    assert 500 < len(short) <= 1000


def test_an_incomplete_last_line_is_left_out() -> None:
    data = course(HOUR) + b'{"at": half a li' + course(HOUR)
    assert len(kept(fit_telemetry(data, marks_of_trials({}), MOST))) > 100


@pytest.mark.slow
def test_a_run_fits_into_a_bundle_for_any_size_of_telemetry_and_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(tmp_path / "run") as run:
        assert searched(run, Guessing(), monkeypatch) is None
        with (run.folder / "telemetry.jsonl").open("ab") as file:
            file.write(course(2 * HOUR, gpus=64) * 3)
        (run.folder / "logs").mkdir(exist_ok=True)
        (run.folder / "logs" / "long.txt").write_bytes(bytes(MAX_MEMBER_BYTES + 1))
        done = _finish(run, Seal(KEY), None)
    members = contents(done.bundle)
    assert set(members) >= {"telemetry.jsonl", "logs/long.txt"}
    assert all(len(data) <= MAX_MEMBER_BYTES for data in members.values())


def test_every_trial_keeps_its_ends_and_those_of_its_timed_steps() -> None:
    """Power is the energy divided by the time between the two readings nearest to the ends."""
    timed = {f"trial-{i}": (600.0 * i + 101, 600.0 * i + 137) for i in range(12)}
    times = {reading["at"] for reading in kept(fit_telemetry(course(2 * HOUR), marks_of_trials(timed), MOST))}
    for i in range(12):
        assert {600.0 * i + second for second in (0, 101, 137, 599)} <= times


def test_readings_that_a_node_checks_verdict_needs_are_kept() -> None:
    odd = {
        "at_1001": {"xids": [79]},
        "at_2001": {"throttle_reasons": 64},
        "at_3001": {"celsius": 93},
        "at_4001": {"lost": "GpuIsLost"},
        "at_5001": {"pcie_generation": 3, "pcie_width": 8},
    }
    readings = {"soak": Reading("soak", started_at=301.0, ended_at=6001.0)}
    short = kept(fit_telemetry(course(2 * HOUR, **odd), marks_of_checks(readings), MOST))
    assert {301.0, 1001.0, 2001.0, 3001.0, 4001.0, 5001.0, 6001.0} <= {reading["at"] for reading in short}


def test_the_result_fits_however_many_readings_are_marked() -> None:
    always = fit_telemetry(course(2 * HOUR), lambda reading: [reading["at"]], MOST)
    assert MOST / 2 < len(always) <= MOST


def test_the_beginning_and_the_end_of_a_long_log_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"short")
    (tmp_path / "b.txt").write_bytes(b"first" + bytes(3 * LOG_BYTES) + b"last")
    logs = fitting_logs(tmp_path, most_bytes=2 * LOG_BYTES)
    assert logs["logs/a.txt"] == b"short"
    assert logs["logs/b.txt"].startswith(b"first")
    assert logs["logs/b.txt"].endswith(b"last")
    assert b"\n[...]\n" in logs["logs/b.txt"]
    assert len(logs["logs/b.txt"]) < 1.1 * LOG_BYTES
    assert len(head_and_tail(tmp_path / "b.txt", 4 * LOG_BYTES)) == 3 * LOG_BYTES + 9
