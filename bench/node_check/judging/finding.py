"""One answer of one check: the verdict, the number, what was expected and by whose word, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "warn", "fail", "not-run"]
Basis = Literal["rule", "reference", "peers", "history", "fleet"]
EXITS: dict[Verdict, int] = {"pass": 0, "warn": 0, "fail": 1, "not-run": 3}
NAGIOS: dict[Verdict, int] = {"pass": 0, "warn": 1, "fail": 2, "not-run": 3}  # as monitoring plug-ins do
VERDICTS: tuple[Verdict, ...] = ("fail", "not-run", "warn", "pass")  # the worst first


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    subject: str  # "GPU 5 matmul-bf16", "the node"
    verdict: Verdict
    found: str  # in words, with the number
    expected: str  # in words, with the limit
    basis: Basis
    source: str  # who says so: a page, a bundle, a rule of NVIDIA's
    advice: str = ""  # what to do; empty where nothing is to be done
    gpu: int | None = None  # its index here; None: the node as a whole
    figure: str | None = None  # of which measured figure, where it is one
    value: float | None = None
    reference: float | None = None  # what the value was held against, in the same unit
    unit: str | None = None
    counts: bool = True  # false: not-run because this machine has no such thing, or it would need root

    @property
    def line(self) -> str:
        """As all that is said of it: with what was expected, where a number alone says nothing."""
        bare = self.verdict in ("warn", "fail") and self.value is not None and "%" not in self.found
        return f"{self.check}: {self.subject}: {self.found}{f', expected {self.expected}' if bare else ''}"

    @property
    def share(self) -> float | None:
        """The value over what it was held against."""
        if self.value is None or not self.reference:
            return None
        return self.value / self.reference


def overall(findings: Sequence[Finding]) -> Verdict:
    """The worst that counts. What was not run is no pass, and nothing at all is not-run."""
    counted = [f.verdict for f in findings if f.counts]
    if not any(verdict == "pass" for verdict in counted) and "fail" not in counted:
        return "not-run"
    return next(verdict for verdict in VERDICTS if verdict in counted)


def worst(findings: Iterable[Finding]) -> Finding | None:
    """The first of the gravest kind: what one line has room for.

    What is wrong goes before what is slow, which may follow from it: a guest, a link that is down, an error.
    A shortfall goes before a smaller one.
    """
    return min(findings, key=_gravity, default=None)


def _gravity(f: Finding) -> tuple[bool, int, bool, float]:
    slow = f.verdict != "pass" and f.share is not None
    return not f.counts, VERDICTS.index(f.verdict), slow, f.share if f.share is not None else 1.0


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: float, unit: str) -> str:
    """741 TFLOP/s, 4.28 TB/s, 55.5 GB/s, 12 °C: three figures and a prefix."""
    if not unit.startswith(("FLOP/s", "B/s")):
        return f"{value:.4g} {unit}"
    for scale, prefix in _PREFIXES:
        if abs(value) >= 0.9995 * scale:
            return f"{float(f'{value / scale:.3g}'):g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
