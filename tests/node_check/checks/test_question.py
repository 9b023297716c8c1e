"""A question builds its findings and fills in the fields that all its answers share."""

from __future__ import annotations

import pytest

from bench.node_check.judging.finding import Finding, Question, verdict_of


@pytest.mark.parametrize(
    ("fail", "warn", "verdict"),
    [(True, True, "fail"), ([], 1, "warn"), (None, 0, "pass"), ("a fault", False, "fail")],
)
def test_the_most_serious_condition_decides(fail: object, warn: object, verdict: str) -> None:
    assert verdict_of(fail=fail, warn=warn) == verdict


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
