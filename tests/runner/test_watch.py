"""The watch over GPUs during a node check: what a reading has, and what faults of a driver leave of it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.runner.machine import watch as watching
from bench.runner.machine.fake_nvml import FakeNvml
from bench.runner.machine.telemetry import gpu_queries
from bench.runner.machine.watch import Watch, watch_until
from tests.patience import until

LINKS = {"pcie_generation", "pcie_width"}


def looks(count: int = 1, **scenario: Any) -> list[list[dict[str, Any]]]:
    """Return the GPUs of each of the readings of a machine with two GPUs and these faults."""
    file = io.BytesIO()
    watch = Watch(FakeNvml({"count": 2, **scenario}), file)
    for _ in range(count):
        watch.look()
    return [json.loads(line)["gpus"] for line in file.getvalue().splitlines()]


def test_a_reading_has_the_figures_of_telemetry_the_links_and_the_errors_of_each_gpu() -> None:
    (gpus,) = looks()
    names = {*gpu_queries(FakeNvml({}), 0), *LINKS, "xids"}
    assert [set(gpu) for gpu in gpus] == [names, names]
    assert (gpus[0]["pcie_generation"], gpus[0]["pcie_width"], gpus[0]["xids"]) == (5, 16, [])


def test_a_reading_belongs_to_no_trial() -> None:
    file = io.BytesIO()
    Watch(FakeNvml({"count": 1}), file).look()
    reading = json.loads(file.getvalue())
    assert (reading["trial"], reading["available_bytes"]) == (None, 0)


def test_each_error_is_told_once_for_its_own_gpu_in_the_order_of_arrival() -> None:
    first, second = looks(2, xids={"0": [13], "1": [79, 31]})
    assert [gpu["xids"] for gpu in first] == [[13], [79, 31]]
    assert [gpu["xids"] for gpu in second] == [[], []]


def test_a_gpu_that_does_not_report_errors_has_none_rather_than_no_errors() -> None:
    refusing = {"RegisterEvents": {"error": "NVMLError_NotSupported", "value": 3}}
    (gpus,) = looks(gpus={"0": refusing}, xids={"1": [79]})
    assert [gpu["xids"] for gpu in gpus] == [None, [79]]
    (neither,) = looks(all=refusing, xids={"1": [79]})
    assert [gpu["xids"] for gpu in neither] == [None, None]


def test_a_driver_without_events_leaves_the_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nvml: FakeNvml) -> None:
        raise nvml.NVMLError(3)

    monkeypatch.setattr(FakeNvml, "nvmlEventSetCreate", refuse)
    (gpus,) = looks()
    assert all(gpu["xids"] is None and gpu["celsius"] for gpu in gpus)


def test_a_gpu_without_a_handle_is_lost_and_the_others_are_read() -> None:
    (gpus,) = looks(handles={"0": {"error": "NVMLError_GpuIsLost", "value": 15}})
    assert gpus[0] == {"lost": "it has no handle", "xids": None}
    assert gpus[1]["celsius"] and gpus[1]["xids"] == []


@pytest.mark.parametrize("error", ["GpuIsLost", "Unknown"])
def test_a_gpu_that_is_lost_has_nothing_else(error: str) -> None:
    refusing = {"Temperature.GPU": {"error": f"NVMLError_{error}", "value": 15}}
    (gpus,) = looks(gpus={"1": refusing})
    assert gpus[1] == {"lost": error, "xids": []}
    assert "lost" not in gpus[0]


def test_a_figure_that_a_gpu_does_not_have_is_left_out() -> None:
    refusing = {"Temperature.GPU": {"error": "NVMLError_NotSupported", "value": 3}}
    (gpus,) = looks(gpus={"1": refusing})
    assert set(gpus[0]) - set(gpus[1]) == {"celsius"}


def test_a_watch_reads_before_between_and_after_its_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml({"count": 1})
    monkeypatch.setattr(watching, "load", lambda: fake)
    path = tmp_path / "course.jsonl"
    path.write_text("earlier\n")
    waits = iter([False, False, True])
    read: list[int] = []

    def ended() -> bool:
        read.append(len(path.read_bytes().splitlines()))
        return next(waits)

    watch_until(path, ended)
    assert read == [2, 3, 4], "each reading can be read at once"
    assert len(path.read_bytes().splitlines()) == 5
    assert path.read_text().startswith("earlier\n")


def test_a_driver_that_fails_at_the_end_spoils_no_earlier_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml({"count": 1})
    monkeypatch.setattr(watching, "load", lambda: fake)
    look = Watch.look

    def look_until_the_end(watch: Watch) -> None:
        if ended:
            raise FakeNvml.NVMLError(15)
        look(watch)

    ended: list[bool] = []
    monkeypatch.setattr(Watch, "look", look_until_the_end)
    watch_until(tmp_path / "course.jsonl", lambda: ended.append(True) is None)
    assert len((tmp_path / "course.jsonl").read_bytes().splitlines()) == 1


def test_the_process_reads_until_its_standard_input_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake.json").write_text(json.dumps({"count": 1}))
    monkeypatch.setenv("BENCH_FAKE_NVML", str(tmp_path / "fake.json"))
    path = tmp_path / "course.jsonl"
    command = [sys.executable, "-m", "bench.runner.machine.watch", str(path), "0.01"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    until(lambda: path.exists() and len(path.read_bytes().splitlines()) > 3, "readings")
    assert process.poll() is None
    process.stdin.close()
    assert process.wait() == 0


def test_the_process_ends_with_its_parent_though_its_standard_input_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake.json").write_text(json.dumps({"count": 1}))
    monkeypatch.setenv("BENCH_FAKE_NVML", str(tmp_path / "fake.json"))
    path = tmp_path / "course.jsonl"
    watch = [sys.executable, "-m", "bench.runner.machine.watch", str(path), "0.01"]
    code = f"import subprocess; print(subprocess.Popen({watch}).pid, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None
    watching_pid = int(parent.stdout.readline())
    until(lambda: path.exists() and path.read_bytes(), "a reading")
    parent.kill()
    parent.wait()
    until(lambda: not Path(f"/proc/{watching_pid}/exe").exists(), "the end of the watch")
    parent.stdin.close()
    parent.stdout.close()
