"""A question builds its findings and fills in the fields that all its answers share."""

from __future__ import annotations

from typing import Any

import pytest

from bench.node_check.judging.finding import (
    EXITS,
    NAGIOS,
    VERDICTS,
    Finding,
    Question,
    overall,
    quantity,
    state_of,
    verdict_of,
    worst,
)


@pytest.mark.parametrize(
    ("fail", "warn", "verdict"),
    [(True, True, "fail"), ([], 1, "warn"), (None, 0, "pass"), ("a fault", False, "fail")],
)
def test_the_most_serious_condition_decides(fail: object, warn: object, verdict: str) -> None:
    assert verdict_of(fail=fail, warn=warn) == verdict
    assert (verdict_of(fail=False), verdict_of(fail=True)) == ("pass", "fail")


def test_a_pass_has_no_advice_and_a_failure_has() -> None:
    question = Question("power", "GPU 3 limit", 3, unit="W")
    for verdict, advice in (
        ("pass", ""),
        ("warn", "raise it"),
        ("fail", "raise it"),
        ("not-run", "raise it"),
    ):
        finding = question.judged(
            verdict,  # type: ignore[arg-type]
            "500 W",
            expected="700 W",
            source="NVML",
            advice="raise it",
            value=500.0,
            reference=700.0,
        )
        assert finding == Finding(
            check="power",
            subject="GPU 3 limit",
            verdict=verdict,  # type: ignore[arg-type]
            found="500 W",
            expected="700 W",
            basis="rule",
            source="NVML",
            advice=advice,
            gpu=3,
            value=500.0,
            reference=700.0,
            unit="W",
        )


def test_an_unread_answer_is_not_run_and_counts_by_default() -> None:
    question = Question.of_gpu("ecc", 2, "mode")
    assert question.subject == "GPU 2 mode"
    assert (question.unread("no answer").verdict, question.unread("no answer").counts) == ("not-run", True)
    assert not question.unread("no answer", counts=False).counts
    assert (question.unread("no answer").expected, question.unread("no answer").source) == (
        "an answer",
        "bench",
    )


def finding(verdict: Any, **more: Any) -> Finding:
    return Finding("power", "GPU 3", verdict, more.pop("found", "500 W"), "700 W", "rule", "NVML", **more)


def test_each_verdict_has_its_exit_codes_and_its_state() -> None:
    assert EXITS == {"pass": 0, "warn": 0, "fail": 1, "not-run": 3}
    assert NAGIOS == {"pass": 0, "warn": 1, "fail": 2, "not-run": 3}
    assert {verdict: state_of(verdict) for verdict in VERDICTS} == {
        "fail": "fail", "not-run": "not-run", "warn": "pass", "pass": "pass",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ((), "not-run"),
        (("pass",), "pass"),
        (("pass", "warn"), "warn"),
        (("warn",), "not-run"),  # nothing passed or failed
        (("pass", "warn", "not-run"), "not-run"),
        (("not-run", "fail"), "fail"),
    ],
)
def test_the_worst_verdict_that_counts_is_the_nodes(verdicts: tuple[Any, ...], verdict: str) -> None:
    every = [finding(one) for one in verdicts]
    assert overall(every) == verdict
    assert overall([*every, finding("fail", counts=False)]) == verdict


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (finding("fail", value=500.0), "power: GPU 3: 500 W, expected 700 W"),
        (finding("warn", value=500.0), "power: GPU 3: 500 W, expected 700 W"),
        (finding("pass", value=500.0), "power: GPU 3: 500 W"),
        (finding("fail"), "power: GPU 3: 500 W"),
        (finding("fail", value=500.0, found="500 W, 71% of it"), "power: GPU 3: 500 W, 71% of it"),
    ],
)
def test_a_bare_number_is_told_with_what_was_expected(made: Finding, line: str) -> None:
    assert made.line == line


def test_a_share_is_a_value_by_its_reference() -> None:
    assert finding("fail", value=350.0, reference=700.0).share == 0.5
    assert finding("fail", value=350.0).share is None
    assert finding("fail", value=350.0, reference=0.0).share is None
    assert finding("fail", reference=700.0).share is None


def test_a_fault_is_worse_than_a_slow_figure_and_a_larger_shortfall_than_a_smaller_one() -> None:
    worst_first = [
        finding("fail"),
        finding("fail", value=350.0, reference=700.0),
        finding("fail", value=630.0, reference=700.0),
        finding("not-run"),
        finding("warn"),
        finding("warn", value=1.0, reference=700.0),
        finding("pass", value=1.0, reference=700.0),
        finding("pass"),
        finding("pass", value=800.0, reference=700.0),
        finding("fail", counts=False),
    ]
    for number in range(len(worst_first)):
        assert worst(reversed(worst_first[number:])) == worst_first[number]
    assert worst([]) is None


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (741e12, "FLOP/s", "741 TFLOP/s"), (4.284e12, "B/s", "4.28 TB/s"), (55.46e9, "B/s", "55.5 GB/s"),
        (999.4e9, "B/s", "999 GB/s"), (999.5e9, "B/s", "1 TB/s"), (1e15, "FLOP/s", "1 PFLOP/s"),
        (12e6, "B/s", "12 MB/s"), (1.5e3, "B/s", "1.5 kB/s"), (12.34, "B/s", "12.3 B/s"),
        (0.0, "B/s", "0 B/s"), (12.0, "°C", "12 °C"), (1234.56, "W", "1235 W"),
    ],
)  # fmt: skip
def test_a_quantity_has_three_figures_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_question_of_a_figure_names_its_gpu() -> None:
    assert Question.of_figure("memory", 3, "memory", "B/s").subject == "GPU 3 memory"
    assert Question.of_figure("memory", None, "memory", "B/s").subject == "memory"
    assert Question.of_gpu("power", 3).subject == "GPU 3"
    assert (Question("power").subject, Question("power").unread("no", advice="ask").advice) == (
        "the node",
        "ask",
    )
