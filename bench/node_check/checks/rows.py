"""Check remapped memory rows or retired pages: pending ones, failed ones, exhausted spares. From NVML."""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Question, Verdict, verdict_of
from bench.node_check.judging.standards import Standards

SOURCE = "NVIDIA GPU Memory Error Management: row remapping"
SPENT = "return it: the spare rows are used up, NVIDIA's criterion for a replacement"
MOST_RETIRED = 60  # pages; a card can retire 64: NVIDIA's dynamic page retirement


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail rows or pages that wait or ran out; warn of uncorrected errors, and of more rows than before."""
    after = evidence.alive(AFTER)
    for gpu in evidence.alive(BEFORE).values():
        later = after.get(gpu.index, gpu)
        yield _rows(gpu, later, _remapped_before(gpu.index, evidence, standards))


def _remapped_before(index: int, evidence: Evidence, standards: Standards) -> int | None:
    """Return how many rows of this GPU were remapped at its last check; None if it was never checked."""
    gpu = evidence.gpu(index)
    past = standards.history.get(gpu.uuid) if gpu else None
    return past.counters.get("remapped rows") if past else None


def _rows(before: Answers, after: Answers, remapped_before: int | None) -> Finding:
    rows = after.get("RemappedRows")
    if rows is None:
        return _pages(after)
    corrected, uncorrected, pending, failed = rows
    count = corrected + uncorrected
    then = before.get("RemappedRows") or rows
    new = count != then[0] + then[1]
    more = 0 if remapped_before is None else max(0, count - remapped_before)
    grown = f", {more} more than at its last check" if more else ""
    verdict: Verdict = "pass"
    advice = ""
    if uncorrected or new or grown:
        verdict, advice = "warn", "note it and look at the next check: more of them mean memory that fails"
    if pending:
        verdict, advice = "fail", "drain the node and reset the GPU (root): then the row is replaced"
    if failed:
        verdict, advice = "fail", SPENT
    parts = [f"{count} remapped, {uncorrected} of them for uncorrected errors{grown}"]
    parts += ["one waits for a reset"] * bool(pending) + ["remapping failed"] * bool(failed)
    return Question.of_gpu("rows", before.index).judged(
        verdict,
        "; ".join(parts),
        expected="none waiting, none failed, none for uncorrected errors",
        basis="history" if grown else "rule",
        source=SOURCE,
        advice=advice,
    )


def _pages(gpu: Answers) -> Finding:
    """Judge the retired pages of a card before Ampere; consumer cards neither retire pages nor remap rows."""
    question = Question.of_gpu("rows", gpu.index)
    pages = [gpu.get(f"RetiredPages.{cause}") for cause in (0, 1)]
    if all(p is None for p in pages):
        return question.unread(
            f"{gpu.where} remaps no rows and retires no pages",
            counts=gpu.why("RemappedRows") != "NotSupported",
        )
    count = sum(len(p or ()) for p in pages)
    pending = bool(gpu.number("RetiredPagesPendingStatus"))
    return question.judged(
        verdict_of(fail=pending or count >= MOST_RETIRED, warn=pages[1]),
        f"{count} pages retired{'; one waits for a reset' if pending else ''}",
        expected=f"none waiting, under {MOST_RETIRED}",
        source="NVIDIA: dynamic page retirement",
        advice="reset it (root); with many pages return it",
    )


CHECK = Check("rows", "has memory been replaced, and is more waiting?", judge, passive=True)
