"""A measured rate against a reference, against the node's other GPUs, and against its own past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding, Verdict, quantity
from bench.node_check.judging.standards import Standards


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How far below its peers or its own past a figure may lie, in percent, and what to do about it."""

    peers_warn: float
    peers_fail: float
    history_warn: float
    advice: str


def judge_figures(
    check: str, figures: Sequence[Figure], evidence: Evidence, standards: Standards, rules: Tolerances
) -> Iterator[Finding]:
    for figure in figures:
        yield _by_reference(check, figure, standards, rules)
        if (found := _by_history(check, figure, evidence, standards, rules)) is not None:
            yield found
    # On a CPU all processes share one device: they are no peers.
    alike: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures if evidence.device == "cuda" else ():
        if figure.gpu is not None and (gpu := evidence.gpu(figure.gpu)) is not None:
            alike.setdefault((figure.name, gpu.name), []).append(figure)
    for peers in alike.values():
        yield from _by_peers(check, peers, rules)


def _by_reference(check: str, figure: Figure, standards: Standards, rules: Tolerances) -> Finding:
    profile = standards.profile
    wanted = profile.figures.get(figure.kind or figure.name) if profile else None
    found, subject = quantity(figure.rate, figure.unit), _subject(figure)
    if wanted is None:
        missing = f"{profile.name} has no such figure" if profile else "no profile of this device"
        return Finding(
            check, subject, "not-run", found, "no reference figure", "reference", missing,
            "peers and history still judge it", figure.gpu, figure.name, figure.rate, None, figure.unit,
            counts=False,
        )  # fmt: skip
    verdict = shortfall(figure.rate, wanted.value, wanted.warn_percent, wanted.fail_percent)
    least = wanted.value * (1 - wanted.warn_percent / 100)
    return Finding(
        check, subject, verdict, found,
        f"at least {quantity(least, figure.unit)} ({quantity(wanted.value, figure.unit)} - "
        f"{wanted.warn_percent:g}%)",
        "reference", wanted.source, rules.advice if verdict != "pass" else "",
        figure.gpu, figure.name, figure.rate, wanted.value, figure.unit,
    )  # fmt: skip


def _by_peers(check: str, figures: Sequence[Figure], rules: Tolerances) -> Iterator[Finding]:
    """Each against the median of the others: one that is bad does not move what it is held against."""
    if len(figures) < 2:
        return
    for figure in figures:
        others = median(f.rate for f in figures if f is not figure)
        verdict = shortfall(figure.rate, others, rules.peers_warn, rules.peers_fail)
        yield Finding(
            check, _subject(figure), verdict, f"{quantity(figure.rate, figure.unit)}, "
            f"{100 * (figure.rate / others - 1):+.1f}% of the others' median",
            f"at most {rules.peers_warn:g}% under {quantity(others, figure.unit)}", "peers",
            "the other GPUs of this node", rules.advice if verdict != "pass" else "",
            figure.gpu, figure.name, figure.rate, others, figure.unit,
        )  # fmt: skip


def _by_history(
    check: str, figure: Figure, evidence: Evidence, standards: Standards, rules: Tolerances
) -> Finding | None:
    gpu = evidence.gpu(figure.gpu) if figure.gpu is not None else None
    past = standards.history.get(gpu.uuid) if gpu else None
    if past is None or not past.figures.get(figure.name):
        return None
    usual = median(past.figures[figure.name])
    verdict = shortfall(figure.rate, usual, rules.history_warn, 100.0)
    return Finding(
        check, _subject(figure), verdict,
        f"{quantity(figure.rate, figure.unit)}, {100 * (figure.rate / usual - 1):+.1f}% of its own past",
        f"at most {rules.history_warn:g}% under {quantity(usual, figure.unit)}", "history",
        f"this GPU in {len(past.figures[figure.name])} earlier checks, the last {past.runs[-1]}",
        rules.advice if verdict != "pass" else "", figure.gpu, figure.name, figure.rate, usual, figure.unit,
    )  # fmt: skip


def shortfall(value: float, wanted: float, warn_percent: float, fail_percent: float) -> Verdict:
    if value < wanted * (1 - fail_percent / 100):
        return "fail"
    return "warn" if value < wanted * (1 - warn_percent / 100) else "pass"


def _subject(figure: Figure) -> str:
    return figure.name if figure.gpu is None else f"GPU {figure.gpu} {figure.name}"
