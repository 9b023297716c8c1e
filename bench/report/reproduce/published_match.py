"""Compare a run on this machine with a published throughput. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench.base.errors import BadInput
from bench.base.sizes import bytes_text
from bench.planning.published import PublishedRow, PublishedSource
from bench.records.fastest import fastest
from bench.records.run_results import TrialResult
from bench.records.text import figures
from bench.report.reproduce.verdicts import MeanCourse, ReproducibleRun


@dataclass(frozen=True, slots=True)
class PublishedMatch:
    """A published throughput, and the same model's throughput on this machine."""

    row: str
    unit: str  # tokens or images
    published_per_gpu: float  # units a second
    here_per_gpu: float | None  # None: no setting gave a figure here
    here_half_width: float | None  # of the 95% interval
    expected_there_per_gpu: float | None  # what bench predicts of itself on the published machine
    tolerance: float
    setting: str | None
    micro_batch: int | None
    there: tuple[str, ...]  # machine, software and document of the published figure
    here: tuple[str, ...]  # machine, software and bundle of the run
    differences: tuple[str, ...]
    schema: Literal["bench/published-match/v1"] = "bench/published-match/v1"

    @property
    def ratio(self) -> float | None:
        """The throughput here divided by the published one."""
        return None if self.here_per_gpu is None else self.here_per_gpu / self.published_per_gpu

    @property
    def reached(self) -> bool:
        """Whether this machine is at least as fast as published, within the tolerance."""
        return self.ratio is not None and self.ratio >= 1 - self.tolerance


def match_published(
    row: PublishedRow,
    source: PublishedSource,
    run: ReproducibleRun,
    tolerance: float,
    expected_there_per_gpu: float | None,
) -> PublishedMatch:
    """Compare the fastest setting of a run with a published row; BadInput if the run is of another model."""
    name = row.model["name"]
    model = next((each for each in run.results.models if each.name == name), None)
    if model is None:
        measured = ", ".join(each.name for each in run.results.models)
        advice = f"it measured {measured}; --with takes the bundle of a run of {name}"
        raise BadInput(f"did not measure {name}", where=f"run {run.results.run.id}", advice=advice)
    trial = fastest(run.results.trials_of(name), run.marks)
    rate = half_width = None
    if trial is not None and trial.estimate is not None:
        step = trial.estimate.step_seconds
        rate = model.recipe.batch_size * model.recipe.units_per_sample / step.value / trial.gpus
        half_width = rate * step.half_width / step.value
    return PublishedMatch(
        row=row.name,
        unit=model.recipe.unit,
        published_per_gpu=row.per_second_per_gpu,
        here_per_gpu=rate,
        here_half_width=half_width,
        expected_there_per_gpu=expected_there_per_gpu,
        tolerance=tolerance,
        setting=trial.label if trial else None,
        micro_batch=trial.micro_batch if trial else None,
        there=tuple(_there(row, source)),
        here=tuple(_here(run)),
        differences=tuple(_differences(row, run, trial)),
    )


def _there(row: PublishedRow, source: PublishedSource) -> Iterator[str]:
    yield f"{row.gpus}x {row.card}"
    yield row.software
    yield f"{source.title}, {source.day}: {row.url}"
    yield row.quote
    yield from filter(None, (source.note, row.note))


def _here(run: ReproducibleRun) -> Iterator[str]:
    node = run.results.node
    yield _devices(run)
    if node.driver:
        yield f"driver {node.driver}"
    named = ("torch", "transformers", "triton", "nvidia-nccl-cu13", "nvidia-cudnn-cu13")
    yield ", ".join(f"{name} {node.packages[name]}" for name in named if name in node.packages)
    for trial in run.results.trials:
        if trial.estimate is not None:
            yield f"{trial.label} at micro-batch {trial.micro_batch}: {bytes_text(trial.estimate.peak_bytes)}"


def _devices(run: ReproducibleRun) -> str:
    node = run.results.node
    gpus = max((trial.gpus for trial in run.results.trials), default=1)
    return f"{gpus}x {node.gpus[0].name if node.gpus else node.cpu}"


def _differences(row: PublishedRow, run: ReproducibleRun, trial: TrialResult | None) -> Iterator[str]:
    """Yield known differences, and facts that the document leaves open."""
    gpus = run.results.node.gpus
    if not gpus or gpus[0].name != row.card:
        yield f"card: {gpus[0].name if gpus else 'none'} here, {row.card} there"
    if trial is None:
        return
    if row.micro_batch is None:
        yield f"micro-batch: {trial.micro_batch} here, not published"
    elif trial.micro_batch != row.micro_batch:
        yield f"micro-batch: {trial.micro_batch} here, {row.micro_batch} there"
    if row.methods and not {*row.methods} <= {*trial.setting}:
        yield f"setting: {trial.label} here, {' + '.join(row.methods)} there"
    yield from (f"{mark.kind.lower()} here: {mark.text}" for mark in run.marks.get(trial.id, ()))
    course = run.courses.get(trial.id, MeanCourse())
    if course.sm_mhz is not None:
        watts = f" and {course.watts:,.0f} W a GPU" if course.watts is not None else ""
        yield f"clock: {course.sm_mhz:,.0f} MHz{watts} here, not published"


def match_lines(match: PublishedMatch) -> Iterator[str]:
    """Yield the lines that compare a published throughput with this machine's."""
    unit = f"{match.unit} a second and GPU"
    yield f"{match.row}: published {figures(match.published_per_gpu, 4)} {unit}"
    if match.here_per_gpu is None or match.ratio is None:
        yield "NOT MEASURED: no setting gave a figure here"
    else:
        half = f" ±{figures(match.here_half_width, 2)}" if match.here_half_width else ""
        verdict = "REACHED" if match.reached else "NOT REACHED"
        difference = 100 * (match.ratio - 1)
        more = "more" if difference >= 0 else "less"
        yield (
            f"measured here {figures(match.here_per_gpu, 4)}{half}, {abs(difference):.1f}% {more}: {verdict}"
            f" ({match.setting}, micro-batch {match.micro_batch})"
        )
    if match.expected_there_per_gpu is not None:
        yield f"predicted for bench on the published machine: {figures(match.expected_there_per_gpu, 3)}"
    for head, lines in (("there", match.there), ("here", match.here), ("differs", match.differences)):
        for line in lines:
            yield f"{head:8}{line}"
    yield f"reached: at least the published rate, less {100 * match.tolerance:g}%"
