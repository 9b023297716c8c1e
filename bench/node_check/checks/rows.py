"""Memory rows that were replaced by spares, or pages that were retired: is one waiting, are they used up?"""

from __future__ import annotations

from collections.abc import Iterator

from bench.node_check.checks import Check, not_read
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Verdict
from bench.node_check.judging.standards import Standards

SOURCE = "NVIDIA GPU Memory Error Management: row remapping"
MOST_RETIRED = 60  # pages, of the 64 there are: NVIDIA's dynamic page retirement


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    after = evidence.alive(AFTER)
    for gpu in evidence.alive(BEFORE).values():
        later = after.get(gpu.index, gpu)
        yield _rows(gpu, later, _known(gpu.index, evidence, standards))


def _known(index: int, evidence: Evidence, standards: Standards) -> int | None:
    """How many rows of this GPU had been remapped at its last check."""
    gpu = evidence.gpu(index)
    past = standards.history.get(gpu.uuid) if gpu else None
    return past.counters.get("remapped rows") if past else None


def _rows(before: Answers, after: Answers, known: int | None) -> Finding:
    found = after.get("RemappedRows")
    if found is None:
        return _pages(after)
    corrected, uncorrected, pending, failed = found
    count = corrected + uncorrected
    then = before.get("RemappedRows") or found
    new = count - (then[0] + then[1])
    grown = f", {count - known} more than at its last check" if known is not None and count > known else ""
    verdict: Verdict = "pass"
    advice = ""
    if uncorrected or new or grown:
        verdict, advice = "warn", "note it and look at the next check: more of them mean memory that fails"
    if pending:
        verdict, advice = "fail", "drain the node and reset the GPU (root): then the row is replaced"
    if failed:
        verdict, advice = "fail", "return it: the spare rows are used up, NVIDIA's own word for a replacement"
    parts = [f"{count} remapped, {uncorrected} of them for uncorrected errors{grown}"]
    parts += ["one waits for a reset"] * bool(pending) + ["remapping failed"] * bool(failed)
    return Finding(
        "rows",
        before.where,
        verdict,
        "; ".join(parts),
        "none waiting, none failed, none for uncorrected errors",
        "history" if grown else "rule",
        SOURCE,
        advice,
        before.index,
    )


def _pages(gpu: Answers) -> Finding:
    """Cards before Ampere retire pages, and consumer cards do neither."""
    pages = [gpu.get(f"RetiredPages.{cause}") for cause in (0, 1)]
    if all(p is None for p in pages):
        counts = gpu.why("RemappedRows") != "NotSupported"
        return not_read(
            "rows", f"{gpu.where} remaps no rows and retires no pages", counts=counts, gpu=gpu.index
        )
    count = sum(len(p or ()) for p in pages)
    pending = bool(gpu.number("RetiredPagesPendingStatus"))
    verdict: Verdict = "fail" if pending or count >= MOST_RETIRED else "warn" if pages[1] else "pass"
    return Finding(
        "rows", gpu.where, verdict, f"{count} pages retired" + ("; one waits for a reset" if pending else ""),
        f"none waiting, under {MOST_RETIRED}", "rule", "NVIDIA: dynamic page retirement",
        "" if verdict == "pass" else "reset it (root); with many pages return it", gpu.index,
    )  # fmt: skip


CHECK = Check("rows", "has memory been replaced, and is more waiting?", judge)
