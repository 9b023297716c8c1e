"""Readings of a node: answers of NVML, samples, counters that rose, rates of the disk."""

from __future__ import annotations

from typing import Any

import pytest

from bench.base.strict_json import DecodeError
from bench.node_check.judging.evidence import (
    AFTER,
    BEFORE,
    GONE,
    IDLE,
    LEAST_RATE,
    MOST_GPUS,
    Answers,
    Evidence,
    Figure,
    GpuSample,
    Reading,
    Sample,
    figures_of,
    grown,
    read_course,
)
from bench.records.trial import Gpu

GPUS = tuple(Gpu(index, "NVIDIA H200", f"GPU-{index}", 1 << 37, "9.0") for index in (0, 2))


def failed(error: str) -> dict[str, str]:
    return {"error": f"NVMLError_{error}"}


def evidence(*readings: Reading, course: tuple[Sample, ...] = ()) -> Evidence:
    return Evidence("quick", "cuda", GPUS, {reading.name: reading for reading in readings}, course)


def test_a_reading_counts_and_has_neither_data_nor_times_unless_it_says_so() -> None:
    assert Reading("memory") == Reading("memory", {}, None, True, 0.0, 0.0)
    assert Sample(1.0, ()) == Sample(1.0, (), 0.0, 0, None)
    assert GpuSample() == GpuSample(**dict.fromkeys(GpuSample.__dataclass_fields__) | {"xids": ()})
    assert (MOST_GPUS, LEAST_RATE) == (1024, 1.0)


def test_bundles_of_every_version_use_these_names_of_readings_that_belong_to_no_check() -> None:
    assert (BEFORE, AFTER, IDLE) == ("inventory-before", "inventory-after", "idle")


def test_a_reading_without_data_has_a_reason_instead() -> None:
    figure = {"name": "memory", "gpu": 0, "unit": "B/s", "work": 8.0, "samples": [2.0], "kind": ""}
    found = evidence(
        Reading("memory", {"figures": [figure]}), Reading("copies", {"figures": [figure]}, "no GPU")
    )
    assert found.data("memory") == {"figures": [figure]}
    assert found.data("copies") is found.data("disk") is None
    assert found.figures("memory") == (Figure("memory", 0, "B/s", 8.0, (2.0,)),)
    assert found.figures("copies") == found.figures("disk") == ()


def test_only_the_gpus_that_are_checked_are_in_an_inventory() -> None:
    raw = [{"Name": "a", "UUID": "b"}, {"Name": "other"}, {"Name": failed("GpuIsLost"), "UUID": "c"}]
    found = evidence(Reading("inventory-before", {"gpus": raw}))
    assert [one.index for one in found.inventory("inventory-before")] == [0, 2]
    assert [*found.alive("inventory-before")] == [0]
    assert found.inventory("inventory-after") == ()
    assert [found.gpu(index) for index in (0, 1, 2, None)] == [GPUS[0], None, GPUS[1], None]


def test_checks_of_one_machine_share_its_digest() -> None:
    assert evidence(Reading("host-errors", {"errors": {"machine": "5d41"}})).machine == "5d41"
    assert evidence(Reading("host-errors", {}, "needs root")).machine == evidence().machine == ""


def test_samples_during_a_reading_include_those_at_its_beginning_and_end() -> None:
    course = tuple(Sample(at, ()) for at in (0.9, 1.0, 1.5, 2.0, 2.1))
    found = evidence(Reading("memory", started_at=1.0, ended_at=2.0), course=course)
    assert [sample.at for sample in found.during("memory")] == [1.0, 1.5, 2.0]
    assert [*found.during("copies")] == []


@pytest.mark.parametrize(
    ("counters", "rose"),
    [
        ({}, None),
        ({"a": (None, 3)}, None),
        ({"a": (3, None)}, None),
        ({"a": (3, 3)}, {}),
        ({"a": (5, 3)}, {}),  # it was reset
        ({"a": (3, 4), "b": (None, 9), "c": (0, 2.0)}, {"a": 1, "c": 2}),
    ],
)
def test_a_counter_rose_if_it_was_read_twice_and_is_higher(counters: Any, rose: Any) -> None:
    assert grown(counters) == rose


def answers(**raw: Any) -> Answers:
    return Answers(3, raw)


@pytest.mark.parametrize(
    ("answer", "value", "number", "why"),
    [
        (7, 7, 7.0, "7"),
        (0, 0, 0.0, "0"),
        (1.5, 1.5, 1.5, "1.5"),
        (True, True, None, "True"),
        ("text", "text", None, "text"),
        ({"total": 9}, {"total": 9}, None, "{'total': 9}"),
        (None, None, None, "not asked"),
        (failed("NotSupported"), None, None, "NotSupported"),
        ({"raised": "OSError"}, None, None, "{'raised': 'OSError'}"),
    ],
)
def test_an_answer_of_nvml_is_a_value_or_an_error(answer: Any, value: Any, number: Any, why: str) -> None:
    asked = answers(Power=answer)
    assert (asked.get("Power"), asked.number("Power"), asked.why("Power")) == (value, number, why)
    assert (asked.get("Temperature"), asked.number("Temperature"), asked.why("Temperature")) == (
        None, None, "not asked",
    )  # fmt: skip
    assert asked.where == "GPU 3"


@pytest.mark.parametrize(
    ("kind", "member"), [(0, 5), (1, 5), (2, 9), (3, 9), (4, 9), (5, 5), (6, 5), (None, 5)]
)
def test_the_type_of_a_field_tells_which_member_of_the_union_has_its_value(
    kind: int | None, member: int
) -> None:
    value = {"nvmlReturn": 0, "valueType": kind, "value": {"ullVal": 9, "uiVal": 5}}
    assert answers(**{"field.NVML_FI_DEV_ECC": [value]}).field("ECC") == member


@pytest.mark.parametrize(
    "answer", [None, [], {}, 7, [{"nvmlReturn": 3, "value": {"uiVal": 5}}], [{}], failed("X")]
)
def test_a_field_without_a_value_is_none(answer: Any) -> None:
    assert answers(**{"field.NVML_FI_DEV_ECC": answer}).field("ECC") is None


@pytest.mark.parametrize(
    ("raw", "lost"),
    [
        ({"Name": "a", "UUID": "b"}, None),
        ({"Name": failed("NotSupported"), "UUID": "b"}, None),
        ({"Name": "a", "UUID": failed("NotSupported")}, None),
        ({"Name": failed("IrqIssue"), "UUID": failed("InsufficientPower")}, "InsufficientPower"),
        ({}, "not asked"),
        *(({"Name": "a", "UUID": "b", asked: failed(error)}, error)
          for asked in ("Name", "UUID", "MemoryInfo") for error in sorted(GONE)),
    ],
)  # fmt: skip
def test_a_gpu_is_lost_by_five_errors_or_if_neither_its_name_nor_its_uuid_is_known(
    raw: Any, lost: str | None
) -> None:
    assert answers(**raw).lost == lost
    assert {"GpuIsLost", "ResetRequired", "NoData", "Unknown", "GpuNotFound"} == GONE


def test_a_gpu_of_another_job_is_forbidden() -> None:
    assert answers(Name="a", UUID=failed("NoPermission")).forbidden
    assert not answers(Name=failed("NoPermission"), UUID="b").forbidden
    assert not answers(UUID=failed("GpuIsLost")).forbidden


@pytest.mark.parametrize("gpus", [1024, 1025])
def test_a_reading_has_at_most_1024_gpus(gpus: int) -> None:
    line = {"at": 1.0, "gpus": [{}] * gpus}
    if gpus == 1024:
        assert len(read_course([line])[0].gpus) == 1024
    else:
        with pytest.raises(DecodeError, match=r"^a reading of telemetry\.jsonl has more than 1024 GPUs$"):
            read_course([line])


@pytest.mark.parametrize("line", [{"at": 1.0, "gpus": 7}, {"at": 1.0}, 7, [{"gpus": []}]])
def test_a_line_that_is_no_reading_is_refused(line: Any) -> None:
    with pytest.raises(DecodeError):
        read_course([line])


def test_the_disk_keeps_bytes_with_their_seconds() -> None:
    data = {"written_bytes": 8, "write_seconds": 2.0, "read_bytes": 6, "read_seconds": 1.0}
    write, read = (Figure("disk write", None, "B/s", 8, (2.0,)), Figure("disk read", None, "B/s", 6, (1.0,)))
    assert figures_of(Reading("disk", data)) == (write, read)
    assert figures_of(Reading("disk", data | {"read_bytes": 0})) == (write,)
    assert figures_of(Reading("disk", {"free_bytes": 9})) == ()
    assert figures_of(Reading("memory", data)) == (), "another reading has other members"
    with pytest.raises(DecodeError, match=r"^disk: disk write took no time$"):
        figures_of(Reading("disk", data | {"write_seconds": 0.0}))


def test_a_window_of_the_soak_is_judged_by_its_first_sample_for_each_gpu_of_its_group() -> None:
    window = {"name": "soak", "gpu": 0, "unit": "FLOP/s", "work": 8.0, "samples": [2.0, 4.0], "kind": ""}
    data = {"gpus": [{"gpu": 5, "windows": [window]}, {"gpu": 6, "windows": []}]}
    assert figures_of(Reading("soak", data)) == (Figure("soak", 5, "FLOP/s", 8.0, (2.0,)),)
    assert figures_of(Reading("memory", data)) == (), "another reading has other members"
    assert figures_of(Reading("soak", data, "no GPU")) == ()
