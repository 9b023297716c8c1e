"""Reading telemetry in pieces gives the same result for a trial as reading it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.base.strict_json import canonical_json
from bench.records.slowdown import slowed_trials
from bench.runner.machine.telemetry import TelemetryReader

SPANS = {"a": (0.0, 10.0), "b": (20.0, 30.0)}


def reading(at: float, trial: str | None, *gpus: tuple[int, int]) -> bytes:
    readings: list[dict[str, Any]] = [{"sm_mhz": mhz, "throttle_reasons": bits} for mhz, bits in gpus]
    return canonical_json({"at": at, "trial": trial, "gpus": readings}) + b"\n"


def test_reading_telemetry_in_pieces_gives_the_same_result(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    reader = TelemetryReader(path)
    assert reader.new_lines() == []
    pieces = {
        "a": reading(1, "a", (1980, 0), (1700, 0))
        + b'{"at":2,"gp\n'
        + reading(3, "a", (1500, 0), (1900, 0x20)),
        "b": reading(15, None, (2100, 0), (2100, 0)) + reading(21, "b", (405, 0x20), (400, 0)) + b'{"at":',
    }
    for trial, piece in pieces.items():
        with path.open("ab") as file:
            file.write(piece)
        lines = reader.new_lines()
        apart = slowed_trials(lambda lines=lines: lines, {trial: SPANS[trial]}, 2)  # type: ignore[misc]
        whole = slowed_trials(lambda: path.read_bytes().splitlines(), SPANS, 2)
        assert apart[trial] == whole[trial]
    assert whole["b"].top_mhz == 1980


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    reader = TelemetryReader(path)
    for written, read in ((b"a\nb", [b"a"]), (b"c", []), (b"\nd\ne\n", [b"bc", b"d", b"e"]), (b"", [])):
        with path.open("ab") as file:
            file.write(written)
        assert reader.new_lines() == read


def test_the_first_line_with_a_gpus_highest_clock_in_a_trial_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    reader = TelemetryReader(path)
    lines = [
        reading(1, "a", (1700, 0), (1500, 0)),
        reading(2, "a", (1980, 0), (1400, 0)),
        reading(3, "a", (1980, 0), (1500, 0)),
        reading(4, None, (2100, 0), (2100, 0)),
        canonical_json({"at": 5, "trial": "a", "gpus": [{"sm_mhz": True}, {"sm_mhz": 9999.0}]}) + b"\n",
        b"[]\n",
    ]
    path.write_bytes(b"".join(lines))
    assert len(reader.new_lines()) == 6
    assert {line + b"\n" for line in reader.new_lines()} == {lines[0], lines[1]}
    assert len(reader.new_lines()) == 2
