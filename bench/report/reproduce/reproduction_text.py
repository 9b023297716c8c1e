"""Put the answer of `bench reproduce` into words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bench.base.sizes import bytes_text
from bench.records.estimate import TO_SIGMA
from bench.records.text import figures
from bench.report.reproduce.verdicts import FigureMatch, Reproduction, SettingMatch


def reproduction_lines(reproduction: Reproduction) -> Iterator[str]:
    """Yield a line for each setting with its figures and why they differ, then the counts and the rule."""
    width = max((len(_name(match)) for match in reproduction.compared), default=0)
    for match in reproduction.compared:
        yield _name(match).ljust(width) + "  " + "; ".join(map(_figure, match.figures)) + _reasons(match)
    for missing in reproduction.missing:
        yield f"{missing}: not measured here"
    for name in reproduction.not_needed:
        yield f"{name}: the search did not need it here"
    reproduced = sum(match.reproduced for match in reproduction.compared)
    settings = len(reproduction.compared) + len(reproduction.missing)
    runs = f"run {reproduction.here} here, {reproduction.there} there"
    yield f"{reproduced} of {settings} settings reproduced: {runs}"
    if not settings:
        yield f"NOT REPRODUCED: run {reproduction.there} has no figure to compare with this run"
    tolerance, spread = f"{100 * reproduction.tolerance:g}%", f"{100 * reproduction.spread / TO_SIGMA:.1f}%"
    differ = (
        "the same GPUs differ by between days"
        if reproduction.same_machine
        else "two machines of a kind differ by"
    )
    yield (
        "a step is reproduced if it differs by no more than both 95% intervals together with the"
        f" {spread} that {differ}, or {tolerance}"
    )


def _name(match: SettingMatch) -> str:
    """Name a match by model, setting and micro-batch: a setting may have been measured at several."""
    at = "" if match.micro_batch is None else f", micro-batch {match.micro_batch}"
    return f"{match.model}, {match.label}{at}"


def _figure(figure: FigureMatch) -> str:
    verdict = figure.verdict if figure.verdict == "reproduced" else figure.verdict.upper()
    if isinstance(figure.here, str) or isinstance(figure.there, str):
        return f"{figure.there} there, {figure.here} here: {verdict}"
    here, there = _half_width(figure.here_half_width), _half_width(figure.there_half_width)
    match figure.name:
        case "step seconds":
            text = f"step {figures(figure.here, 4)} s{here}, was {figures(figure.there, 4)} s{there}"
        case "days":
            text = f"{figures(figure.here, 4)}{here} days, was {figures(figure.there, 4)}{there}"
        case "peak bytes":
            text = f"memory {bytes_text(figure.here)}, was {bytes_text(figure.there)}"
        case _:
            text = f"loss {figures(figure.here, 5)}, was {figures(figure.there, 5)}"
    if figure.verdict == "reproduced" or figure.percent is None:
        return f"{text}: {verdict}"
    return f"{text}: {verdict} ({figure.percent:+.1f}%)"


def _half_width(half_width: float | None) -> str:
    return f" ±{figures(half_width, 2)}" if half_width else ""


def _reasons(match: SettingMatch) -> str:
    if match.reproduced:
        return f"   {'; '.join(match.marks)}" if match.marks else ""
    reasons = [*match.marks, *match.reasons]
    return f"   possible reasons: {'; '.join(reasons)}" if reasons else "   no other recorded value differs"
