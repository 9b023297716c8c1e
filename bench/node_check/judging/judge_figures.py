"""Judge measured rates by the profile's reference, the node's other GPUs and the same GPU's past. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from bench.node_check.judging.evidence import Evidence, Figure
from bench.node_check.judging.finding import Finding, Question, Verdict, quantity
from bench.node_check.judging.standards import Standards


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How far below its peers or its own past a figure may lie, in percent, and the advice if it is lower."""

    peers_warn: float
    peers_fail: float
    history_warn: float
    advice: str


def judge_figures(
    check: str, figures: Sequence[Figure], evidence: Evidence, standards: Standards, tolerances: Tolerances
) -> Iterator[Finding]:
    """Yield a finding for each figure and each of the standards that apply to it."""
    for figure in figures:
        yield _by_reference(check, figure, standards, tolerances)
        yield from _by_history(check, figure, evidence, standards, tolerances)
    # On a CPU all processes share one device, so their figures are not compared.
    if evidence.device != "cuda":
        return
    alike: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        if gpu := evidence.gpu(figure.gpu):
            alike.setdefault((figure.name, gpu.name), []).append(figure)
    for peers in alike.values():
        yield from _by_peers(check, peers, tolerances)


def _by_reference(check: str, figure: Figure, standards: Standards, tolerances: Tolerances) -> Finding:
    profile = standards.profile
    reference = profile.figures.get(figure.kind or figure.name) if profile else None
    question = Question.of_figure(check, figure.gpu, figure.name, figure.unit)
    found = quantity(figure.rate, figure.unit)
    if reference is None:
        return question.judged(
            "not-run",
            found,
            expected="no reference figure",
            basis="reference",
            source=f"{profile.name} has no such figure" if profile else "no profile of this device",
            advice="it is still compared with its peers and its history",
            value=figure.rate,
            counts=False,
        )
    least = reference.value * (1 - reference.warn_percent / 100)
    usual = f"{quantity(reference.value, figure.unit)} - {reference.warn_percent:g}%"
    return question.judged(
        shortfall(figure.rate, reference.value, reference.warn_percent, reference.fail_percent),
        found,
        expected=f"at least {quantity(least, figure.unit)} ({usual})",
        basis="reference",
        source=reference.source,
        advice=tolerances.advice,
        value=figure.rate,
        reference=reference.value,
    )


def _by_peers(check: str, figures: Sequence[Figure], tolerances: Tolerances) -> Iterator[Finding]:
    """Compare each GPU's figure with the median of the other GPUs, which a single bad GPU does not move."""
    if len(figures) < 2:
        return
    for figure in figures:
        others = median(f.rate for f in figures if f is not figure)
        source = "the other GPUs of this node"
        yield by_usual(check, figure, others, "the others' median", "peers", source, tolerances)


def _by_history(
    check: str, figure: Figure, evidence: Evidence, standards: Standards, tolerances: Tolerances
) -> Iterator[Finding]:
    """Compare the figure with the median of the same GPU's earlier checks, if it has any; at worst warn."""
    gpu = evidence.gpu(figure.gpu)
    past = standards.history.get(gpu.uuid) if gpu else None
    if past is None or not past.figures.get(figure.name):
        return
    usual = median(past.figures[figure.name])
    source = f"this GPU in {len(past.figures[figure.name])} earlier checks, the last {past.runs[-1]}"
    yield by_usual(check, figure, usual, "its own past", "history", source, tolerances)


def by_usual(
    check: str,
    figure: Figure,
    usual: float,
    words: str,  # for the usual rate
    basis: Literal["peers", "history"],
    source: str,
    tolerances: Tolerances,
) -> Finding:
    """Compare a figure with the rate that is usual among its peers, or was in its past, which only warns."""
    limits = (tolerances.peers_warn, tolerances.peers_fail)
    if basis == "history":
        limits = (tolerances.history_warn, 100.0)
    deviation = f"{100 * (figure.rate / usual - 1):+.1f}% of {words}"
    return Question.of_figure(check, figure.gpu, figure.name, figure.unit).judged(
        shortfall(figure.rate, usual, *limits),
        f"{quantity(figure.rate, figure.unit)}, {deviation}",
        expected=f"at most {limits[0]:g}% under {quantity(usual, figure.unit)}",
        basis=basis,
        source=source,
        advice=tolerances.advice,
        value=figure.rate,
        reference=usual,
    )


def shortfall(value: float, reference: float, warn_percent: float, fail_percent: float) -> Verdict:
    """Judge a value that may lie less than `warn_percent` below its reference."""
    if value < reference * (1 - fail_percent / 100):
        return "fail"
    return "warn" if value < reference * (1 - warn_percent / 100) else "pass"
