"""Read a bundle that is compared with its repetition: its run, and what its reproduction needs besides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, VerificationFailed
from bench.base.strict_json import field_values, strict_loads
from bench.bundle.verdict import RunContents
from bench.bundle.verify import Files
from bench.node_check.recompute_any import recompute
from bench.report.compare.energy import telemetry_lines
from bench.report.read_bundles import Lists, verify_one
from bench.report.reproduce.verdicts import FirstLosses, MeanCourse, ReproducibleRun


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
