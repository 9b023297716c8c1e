"""The answers of a node check: `Question` makes a `Finding`; `overall` and `worst` sum up many of them.

A finding holds the verdict, what was measured or read, what was expected and on which authority, and what to
do about it. Pure: no I/O, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.base.strict_json import field_values

Verdict = Literal["pass", "warn", "fail", "not-run"]
State = Literal["pass", "fail", "not-run"]  # of a node, for those who act on it
Basis = Literal["rule", "reference", "peers", "history", "fleet"]
EXITS: dict[Verdict, int] = {"pass": 0, "warn": 0, "fail": 1, "not-run": 3}
NAGIOS: dict[Verdict, int] = {"pass": 0, "warn": 1, "fail": 2, "not-run": 3}  # exit codes of Nagios plug-ins
VERDICTS: tuple[Verdict, ...] = ("fail", "not-run", "warn", "pass")  # the worst first


def state_of(verdict: Verdict) -> State:
    """Return a node's state. With a warning it passes: warnings that come and go change nothing."""
    return "pass" if verdict == "warn" else verdict


def verdict_of(*, fail: object, warn: object = False) -> Verdict:
    """Return "fail" if `fail` is true, else "warn" if `warn` is true, else "pass"."""
    return "fail" if fail else "warn" if warn else "pass"


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of one check about one subject, as results.json holds it."""

    check: str
    subject: str  # "GPU 5 matmul-bf16", "the node"
    verdict: Verdict
    found: str  # in words, with the number
    expected: str  # in words, with the limit
    basis: Basis
    source: str  # origin of the expectation: a page, a bundle, a rule of NVIDIA's
    advice: str = ""  # what to do; empty for a pass
    gpu: int | None = None  # index on this node; None: the node as a whole
    figure: str | None = None  # name of the measured figure, if a figure was judged
    value: float | None = None
    reference: float | None = None  # what the value was compared with, in the same unit
    unit: str | None = None
    counts: bool = True  # False: not-run because this machine has no such thing, or reading it needs root

    @property
    def line(self) -> str:
        """The finding as one line; a warning or failure with a bare number also says what was expected."""
        bare = self.verdict in ("warn", "fail") and self.value is not None and "%" not in self.found
        return f"{self.check}: {self.subject}: {self.found}{f', expected {self.expected}' if bare else ''}"

    @property
    def share(self) -> float | None:
        """The value divided by its reference; None if either is missing."""
        if self.value is None or not self.reference:
            return None
        return self.value / self.reference


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a check about one subject; its methods make the findings that answer it."""

    check: str
    subject: str = "the node"
    gpu: int | None = None
    figure: str | None = None
    unit: str | None = None

    @classmethod
    def of_gpu(cls, check: str, index: int, detail: str = "") -> Question:
        """Ask about one GPU, or about one detail of it, such as its power limit."""
        return cls(check, f"GPU {index} {detail}".rstrip(), index)

    @classmethod
    def of_figure(cls, check: str, gpu: int | None, figure: str, unit: str) -> Question:
        """Ask about a measured figure of one GPU, or of the node as a whole."""
        return cls(check, figure if gpu is None else f"GPU {gpu} {figure}", gpu, figure, unit)

    def judged(
        self,
        verdict: Verdict,
        found: str,
        *,
        expected: str,
        source: str,
        basis: Basis = "rule",
        advice: str = "",
        value: float | None = None,
        reference: float | None = None,
        counts: bool = True,
    ) -> Finding:
        """Make the finding for an answer that was read. The advice is dropped if the verdict is a pass."""
        return Finding(
            **field_values(self),
            verdict=verdict,
            found=found,
            expected=expected,
            basis=basis,
            source=source,
            advice=advice if verdict != "pass" else "",
            value=value,
            reference=reference,
            counts=counts,
        )

    def unread(self, reason: str, *, counts: bool = True, advice: str = "") -> Finding:
        """Make a not-run finding; `counts`: the missing answer keeps the node from passing."""
        expected = "an answer"
        return self.judged("not-run", reason, expected=expected, source="bench", advice=advice, counts=counts)


def overall(findings: Sequence[Finding]) -> Verdict:
    """Return the worst verdict among the findings that count; not-run unless something passed or failed."""
    counted = [f.verdict for f in findings if f.counts]
    if not any(verdict == "pass" for verdict in counted) and "fail" not in counted:
        return "not-run"
    return next(verdict for verdict in VERDICTS if verdict in counted)


def worst(findings: Iterable[Finding]) -> Finding | None:
    """Return the single most serious finding, for one-line summaries; None if there is no finding.

    Among findings of one verdict, faults (a foreign process, a link that is down, an error) go before slow
    figures, which may follow from them; a larger shortfall goes before a smaller one.
    """
    return min(findings, key=_gravity, default=None)


def _gravity(f: Finding) -> tuple[bool, int, bool, float]:
    slow = f.verdict != "pass" and f.share is not None
    return not f.counts, VERDICTS.index(f.verdict), slow, f.share if f.share is not None else 1.0


_BINARY_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: float, unit: str) -> str:
    """Format with three significant figures and a prefix: 741 TFLOP/s, 4.28 TB/s, 55.5 GB/s, 12 °C."""
    if not unit.startswith(("FLOP/s", "B/s")):
        return f"{value:.4g} {unit}"
    for scale, prefix in _PREFIXES:
        if abs(value) >= 0.9995 * scale:
            return f"{float(f'{value / scale:.3g}'):g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def memory(count: float) -> str:
    """Format memory or disk space with three significant figures in the unit that fits: 1 MiB, 141 GiB."""
    scale, unit = next((pair for pair in _BINARY_UNITS if count >= pair[0]), _BINARY_UNITS[-1])
    return f"{float(f'{count / scale:.3g}'):g} {unit}"
