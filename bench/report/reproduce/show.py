"""`bench reproduce`: bundles read for it, and its verdict in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, BenchError, VerificationFailed, printable
from bench.base.strict_json import pretty_json, strict_loads, to_json
from bench.bundle.verdict import RunContents, Verdict
from bench.bundle.verify import Files
from bench.node_check.recompute_any import recompute
from bench.records.text import bytes_text, figures
from bench.report.compare.energy import telemetry_lines
from bench.report.read_bundles import Lists, look_at_all
from bench.report.reproduce.verdicts import (
    FigureMatch,
    FirstLosses,
    MeanCourse,
    Reproduction,
    RunFigures,
    SettingMatch,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A verified bundle and the manifest that it ran."""

    run: RunFigures
    manifest: bytes
    samples_sha256: str


def read_subject(path: Path, lists: Lists | None) -> Subject:
    ((_, found),) = look_at_all([path], lists, _gather, _look)
    if isinstance(found, BenchError):
        raise found
    return found


@dataclass(frozen=True, slots=True)
class ReproducibleRun(RunContents):
    """A run with what it takes to reproduce it."""

    losses: Mapping[str, FirstLosses]  # by trial
    courses: Mapping[str, MeanCourse]
    searched: frozenset[str]  # models whose settings or micro-batches a search chose
    samples_sha256: str


def _gather(files: Files) -> ReproducibleRun:
    run = recompute(files)
    if not isinstance(run, RunContents):
        raise BadInput("is a node check", advice="bench check MANIFEST does it again; bench compare compares")
    try:
        lines = [strict_loads(line) for line in files.lines("samples.jsonl")]
        measured = {line["trial"]: line["measurement"] for line in lines}
        losses = {
            name: FirstLosses(int(m["samples_per_loss"]), tuple(map(float, m["losses"])))
            for name, m in measured.items()
        }
        courses = dict(_courses(files, measured))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise VerificationFailed(f"the manifest or the telemetry does not have its form: {error}") from None
    models = [model.name for model in run.results.models]
    guided = {name for name in models if run.stated.methods_of(name) == "guided"}
    searched = guided | {name for name in models if run.stated.micro_batch_of(name) == "auto"}
    return ReproducibleRun(
        results=run.results,
        stated=run.stated,
        samples=run.samples,
        measured_seconds=run.measured_seconds,
        notes=run.notes,
        slowed=run.slowed,
        losses=losses,
        courses=courses,
        searched=frozenset(searched),
        samples_sha256=files.sha256["samples.jsonl"],
    )


def _courses(files: Files, measured: Mapping[str, Any]) -> Iterator[tuple[str, MeanCourse]]:
    lines = telemetry_lines(files)
    for name, measurement in measured.items():
        readings = [strict_loads(line) for line in lines if name.encode() in line]
        gpus = [
            gpu
            for reading in readings
            if measurement["started_at"] <= reading["at"] <= measurement["ended_at"]
            for gpu in reading["gpus"]
        ]
        yield name, MeanCourse(_mean(gpus, "sm_mhz"), _mean(gpus, "power_watts"))


def _mean(gpus: list[Any], name: str) -> float | None:
    values = [float(gpu[name]) for gpu in gpus if name in gpu]
    return sum(values) / len(values) if values else None


def _look(_path: Path, verdict: Verdict[ReproducibleRun]) -> Subject:
    found = verdict.contents
    run = RunFigures(found.results, found.losses, found.courses, found.searched, found.slowed)
    return Subject(run, found.stated.data, found.samples_sha256)


def show(found: Reproduction, *, as_json: bool) -> int:
    """0 if all was reproduced, 1 if not."""
    if as_json:
        sys.stdout.write(pretty_json({"reproduced": found.reproduced, **to_json(found)}).decode())
    else:
        print(printable("\n".join(_lines(found))))
    return 0 if found.reproduced else 1


def _lines(found: Reproduction) -> Iterator[str]:
    width = max((len(_name(one)) for one in found.compared), default=0)
    for one in found.compared:
        yield _name(one).ljust(width) + "  " + "; ".join(map(_figure, one.figures)) + _why(one)
    for missing in found.missing:
        yield f"{missing}: not measured here"
    for name in found.not_needed:
        yield f"{name}: the search did not need it here"
    counted = sum(one.reproduced for one in found.compared)
    every = len(found.compared) + len(found.missing)
    yield f"{counted} of {every} settings reproduced: run {found.here} here, {found.there} there"
    if not every:
        yield f"NOT REPRODUCED: run {found.there} has no figure that this one could be held against"
    yield f"a step counts as reproduced within both 95% intervals, or {100 * found.tolerance:g}%"


def _name(one: SettingMatch) -> str:
    """A setting may have been measured at several micro-batches."""
    at = "" if one.micro_batch is None else f", micro-batch {one.micro_batch}"
    return f"{one.model}, {one.label}{at}"


def _figure(figure: FigureMatch) -> str:
    verdict = figure.verdict if figure.verdict == "reproduced" else figure.verdict.upper()
    if isinstance(figure.here, str) or isinstance(figure.there, str):
        return f"{figure.there} there, {figure.here} here: {verdict}"
    match figure.name:
        case "step seconds":
            here, there = _own(figure.here_half_width), _own(figure.there_half_width)
            said = f"step {figures(figure.here, 4)} s{here}, was {figures(figure.there, 4)} s{there}"
        case "days":
            here, there = _own(figure.here_half_width), _own(figure.there_half_width)
            said = f"{figures(figure.here, 4)}{here} days, was {figures(figure.there, 4)}{there}"
        case "peak bytes":
            said = f"memory {bytes_text(figure.here)}, was {bytes_text(figure.there)}"
        case _:
            said = f"loss {figures(figure.here, 5)}, was {figures(figure.there, 5)}"
    far = (
        f" ({figure.percent:+.1f}%)" if figure.verdict != "reproduced" and figure.percent is not None else ""
    )
    return f"{said}: {verdict}{far}"


def _own(half_width: float | None) -> str:
    return f" ±{figures(half_width, 2)}" if half_width else ""


def _why(one: SettingMatch) -> str:
    if one.reproduced:
        return ""
    return (
        "   because, perhaps: " + "; ".join(one.reasons)
        if one.reasons
        else "   nothing else that was recorded differs"
    )
