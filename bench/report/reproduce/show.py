"""Read the bundles of `bench reproduce`, and print its verdict in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, VerificationFailed, printable
from bench.base.strict_json import field_values, strict_loads, to_json
from bench.base.terminal import print_json, wrapped
from bench.bundle.verdict import RunContents
from bench.bundle.verify import Files
from bench.node_check.recompute_any import recompute
from bench.records.estimate import TO_SIGMA
from bench.records.text import bytes_text, figures
from bench.report.compare.energy import telemetry_lines
from bench.report.read_bundles import Lists, verify_one
from bench.report.reproduce.verdicts import (
    FigureMatch,
    FirstLosses,
    MeanCourse,
    ReproducibleRun,
    Reproduction,
    SettingMatch,
)


def read_run(path: Path, lists: Lists | None) -> ReproducibleRun:
    """Verify a bundle, and return its run; VerificationFailed if it is not valid."""
    return verify_one(path, lists, _gather).contents


def _gather(files: Files) -> ReproducibleRun:
    run = recompute(files)
    if not isinstance(run, RunContents):
        advice = "bench check MANIFEST repeats it; bench compare compares bundles"
        raise BadInput("is a node check", advice=advice)
    try:
        lines = [strict_loads(line) for line in files.lines("samples.jsonl")]
        measured = {line["trial"]: line["measurement"] for line in lines}
        losses = {
            name: FirstLosses(int(m["samples_per_loss"]), tuple(map(float, m["losses"])))
            for name, m in measured.items()
        }
        courses = dict(_courses(files, measured))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise VerificationFailed(f"the manifest or the telemetry is malformed: {error}") from None
    models = [model.name for model in run.results.models]
    guided = {name for name in models if run.stated.methods_of(name) == "guided"}
    searched = guided | {name for name in models if run.stated.micro_batch_of(name) == "auto"}
    return ReproducibleRun(
        **field_values(run),
        losses=losses,
        courses=courses,
        searched=frozenset(searched),
    )


def _courses(files: Files, measured: Mapping[str, Any]) -> Iterator[tuple[str, MeanCourse]]:
    lines = telemetry_lines(files)
    for name, measurement in measured.items():
        readings = [strict_loads(line) for line in lines if name.encode() in line]
        begin, end = measurement["started_at"], measurement["ended_at"]
        gpus = [gpu for reading in readings if begin <= reading["at"] <= end for gpu in reading["gpus"]]
        yield name, MeanCourse(_mean(gpus, "sm_mhz"), _mean(gpus, "power_watts"))


def _mean(gpus: list[Any], name: str) -> float | None:
    values = [float(gpu[name]) for gpu in gpus if name in gpu]
    return sum(values) / len(values) if values else None


def show(reproduction: Reproduction, *, as_json: bool) -> int:
    """Print the reproduction; return exit code 0 if everything was reproduced, else 1."""
    if as_json:
        document = {"reproduced": reproduction.reproduced, **to_json(reproduction)}
        print_json(document)
    else:
        print(printable(wrapped(_lines(reproduction), " " * 4)))
    return 0 if reproduction.reproduced else 1


def _lines(reproduction: Reproduction) -> Iterator[str]:
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
