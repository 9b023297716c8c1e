"""The reason why a node is out of use is one short line of ASCII that no shell reads as a command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.errors import BadInput, VerificationFailed
from bench.bundle.verdict import RunContents
from bench.node_check import check_results
from bench.node_check.judging.finding import Finding, Question, Verdict
from bench.node_check.reason import REASON_BYTES, reason_of
from bench.node_check.recompute_any import recompute, trained_run


def finding(verdict: Verdict, found: str, **more: Any) -> Finding:
    return Question("ecc", "GPU 5").judged(verdict, found, expected="none", source="NVIDIA", **more)


def reason(verdict: Verdict, *findings: Finding) -> str:
    return reason_of(SimpleNamespace(verdict=verdict, findings=findings))  # type: ignore[arg-type]


def test_the_worst_finding_that_counts_is_the_reason() -> None:
    failed, warned = finding("fail", "7 errors"), finding("warn", "1 error")
    unread, missing = finding("fail", "gone", counts=False), finding("not-run", "no answer")
    assert reason("fail", unread, warned, missing, failed) == "bench: ecc: GPU 5: 7 errors"
    assert reason("not-run", warned, missing) == "bench: ecc: GPU 5: no answer"


def test_a_node_of_which_nothing_counts_does_not_pass() -> None:
    unread = finding("not-run", "reading it needs root", counts=False)
    assert reason("not-run", unread) == "bench: ecc: GPU 5: reading it needs root"
    assert reason("not-run") == "bench: nothing was judged"


@pytest.mark.parametrize("verdict", ["pass", "warn"])
def test_a_node_that_passes_says_so(verdict: Verdict) -> None:
    assert reason(verdict, finding("warn", "1 error")) == "bench: passes"
    assert reason(verdict, finding("fail", "gone", counts=False)) == "bench: passes"


def test_a_reason_is_plain_ascii_of_at_most_120_bytes() -> None:
    odd = finding("fail", "a \"quote\" 'and' `id` $HOME \\n 90 °C\n  and ~ {braces}")
    assert reason("fail", odd) == "bench: ecc: GPU 5: a quote and id HOME n 90 C and ~ {braces}"
    assert REASON_BYTES == 120
    start = "bench: ecc: GPU 5: "
    assert reason("fail", finding("fail", "x" * 200)) == start + "x" * (120 - len(start))
    blank_at_the_end = "x" * (119 - len(start)) + " y"
    assert reason("fail", finding("fail", blank_at_the_end)) == start + "x" * (119 - len(start))


class Files:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, name: str) -> bytes:
        return self.data if name == "results.json" else b""


def test_a_bundle_is_recomputed_as_what_its_results_say_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_results, "recompute_check", lambda document, files: ("check", document, files))
    monkeypatch.setattr("bench.node_check.recompute_any.recompute_run", lambda document, _: ("run", document))
    files: Any = Files(b'{"schema":"bench/check-results/v1"}')
    assert recompute(files) == ("check", {"schema": "bench/check-results/v1"}, files)  # type: ignore[comparison-overlap]
    for data, document in (
        (b'{"schema":"bench/results/v1"}', {"schema": "bench/results/v1"}),
        (b"{}", {}),
        (b'["schema"]', ["schema"]),
    ):
        assert recompute(Files(data)) == ("run", document)  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(VerificationFailed, match=r"^results\.json: is malformed: "):
        recompute(Files(b"{"))  # type: ignore[arg-type]


def test_a_node_check_has_no_results_of_training() -> None:
    results: Any = object()
    stated: Any = object()
    contents = RunContents(
        samples=0, measured_seconds=0.0, results=results, stated=stated, step_seconds={}, busy_shares={}
    )
    trained: Any = SimpleNamespace(contents=contents, path="a.tar")
    assert trained_run(trained) is contents
    checked: Any = SimpleNamespace(contents=None, path="a.tar")
    with pytest.raises(BadInput) as refused:
        trained_run(checked)
    assert (refused.value.where, refused.value.advice) == ("a.tar", "bench compare shows it")
