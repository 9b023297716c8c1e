"""The text of a node check: those checks are listed as not possible that the last line counts."""

from __future__ import annotations

from bench.node_check.judging.finding import Finding
from bench.report.text.check_summary import counted_text
from bench.report.text.check_text import not_possible


def unjudged(check: str) -> Finding:
    source = "no profile of this device"
    return Finding(
        check, "GPU 0", "not-run", "8 TFLOP/s", "no reference figure", "reference", source, counts=False
    )


def test_a_check_of_which_a_part_is_not_possible_is_listed_as_a_part() -> None:
    passed = Finding("soak", "GPU 0", "pass", "the same bits", "the same bits", "rule", "IEEE 754")
    findings = [unjudged("matmul"), unjudged("memory"), unjudged("soak"), passed]
    assert not_possible(findings) == [
        "matmul, memory, a part of soak: no reference figure (no profile of this device)"
    ]
    assert counted_text(findings) == "1 pass, 2 not possible here, of 3 checks"
