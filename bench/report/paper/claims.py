"""The paper's tables, and times measured with its code, each with its source. Never used as thresholds.

Each claimed number of days comes with the utilisation that it implies: the model's own arithmetic over the
vendor's peak. Pure, except for reading shipped data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Literal

from bench.base.gpu_catalogue import GpuModel, find_gpu_model
from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json
from bench.records.estimate import SECONDS_A_DAY
from bench.training.models import family_of, known_models

Days = int | Literal["infeasible", "unreadable"]
Method = Literal["optimal", "naive"]
Exceeds = Literal["yes", "perhaps", "no"]
Sharding = Literal["none", "zero-1", "zero-2", "zero-3", "fsdp-2", "fsdp-3"]


@dataclass(frozen=True, slots=True)
class DaysRow:
    """A model on a kind of GPU: days on 1, 2, 4 and 8 of them, as the paper rounds them."""

    model: str
    gpu: str
    days: tuple[Days, ...]


@dataclass(frozen=True, slots=True)
class ClaimedSetting:
    """A setting from Appendix J; None where the text is not readable."""

    model: str
    gpu: str
    gpus: int
    micro_batch: int
    accumulation: int
    checkpointing: bool | None
    sharding: Sharding | None
    offload: bool | None


@dataclass(frozen=True, slots=True)
class OriginalRun:
    """The original training of a model, from Figure 6a; None where the paper prints a question mark."""

    model: str
    gpus: int | None
    gpu: str
    days: int | None


@dataclass(frozen=True, slots=True)
class SurveyShare:
    """The percentage of respondents that gave one answer."""

    percent: float
    who: str


@dataclass(frozen=True, slots=True)
class ComputeSurvey:
    """The survey among academic researchers."""

    respondents: int
    institutions: int
    dated: str
    where: str
    shares: tuple[SurveyShare, ...]


@dataclass(frozen=True, slots=True)
class TextClaim:
    """A factor that the paper's text claims, and the claim in words."""

    factor: float
    says: str
    where: str
    measure: Literal["speed-up", "compute"] | None = None  # how it follows from the tables; None: it does not
    needs: str | None = None  # what one would have to know, if it does not follow from the tables


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A claimed factor, recomputed from the paper's tables over some of its models."""

    factor: float
    over: str  # what the mean is over


@dataclass(frozen=True, slots=True)
class Paper:
    """Everything that is taken from the paper."""

    schema: Literal["bench/reference/v1"]
    source: str
    dated: str
    note: str
    gpu_counts: tuple[int, ...]
    gpus: dict[str, str]  # the paper's name to the driver's
    optimal_days: tuple[DaysRow, ...]
    naive_days: tuple[DaysRow, ...]
    optimal_settings: tuple[ClaimedSetting, ...]
    original_runs: tuple[OriginalRun, ...]
    training_flops: dict[str, float]  # as the paper counts them
    survey: ComputeSurvey
    text_claims: tuple[TextClaim, ...]
    contradictions: tuple[str, ...]  # where parts of the paper disagree


@dataclass(frozen=True, slots=True)
class TimedRow:
    """The paper's code on an H200: the days that it reports, and the same passes by the wall clock."""

    model: str
    free_lunch: bool
    micro_batch_size: int
    accumulation: int
    reference_estimate_days: float
    same_code_synchronised_days: float
    true_days: float
    reference_pass_seconds: float
    reference_update_seconds: float
    true_pass_seconds: float
    true_update_seconds: float
    true_per_second: float
    unit: str
    peak_allocated_gib: float
    gpus: int
    sharding: str


@dataclass(frozen=True, slots=True)
class PaperCode:
    """Times of the paper's code, with the machine that they were measured on."""

    schema: Literal["bench/reference/v1"]
    source: str
    dated: str
    gpu: str
    note: str
    matmul_ceiling_bf16_tflops_8192: float
    rows: tuple[TimedRow, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """Days that the paper claims, and the utilisation that they imply."""

    method: Method
    model: str
    gpu: str
    gpus: int
    days: int
    utilisation: float  # of the vendor's peak, implied by the printed days
    exceeds: Exceeds  # whether it exceeds the chip's peak; perhaps: it depends on rounding


@cache
def paper() -> Paper:
    """Return the paper's tables and claims from data/reference/paper.json; read once."""
    return from_json(Paper, read_data("reference/paper.json"))


@cache
def paper_code() -> PaperCode:
    """Return the times of the paper's code from data/reference/paper_code_h200.json; read once."""
    return from_json(PaperCode, read_data("reference/paper_code_h200.json"))


def claims() -> Iterator[Claim]:
    """Yield every number of days in Tables 1 and 4."""
    tables: dict[Method, tuple[DaysRow, ...]] = {"optimal": paper().optimal_days, "naive": paper().naive_days}
    for method, rows in tables.items():
        for row in rows:
            for gpus, days in zip(paper().gpu_counts, row.days, strict=True):
                if isinstance(days, int):
                    yield claim(method, row.model, row.gpu, gpus, days)


def claim(method: Method, model: str, gpu: str, gpus: int, days: int) -> Claim:
    """Return a claimed number of days with the utilisation that it implies."""
    implied = training_flops(model) / (peak_flops(model, gpu) * gpus * days * SECONDS_A_DAY)
    # The paper prints whole days, so the true value may be half a day less or more.
    low, high = implied * days / (days + 0.5), implied * days / (days - 0.5)
    exceeds: Exceeds = "yes" if low > 1 else "perhaps" if high > 1 else "no"
    return Claim(method, model, gpu, gpus, days, implied, exceeds)


def recomputed(claim: TextClaim) -> tuple[Recomputed, ...]:
    """Return the tables' values for a claim of the text; empty if they have none."""
    if claim.measure == "speed-up":
        all_ = _speedups()
        pythia = [factor for model, factor in all_ if model.startswith("pythia")]
        return (
            Recomputed(fmean(pythia), f"the {len(pythia)} cells of Pythia with both days"),
            Recomputed(fmean(factor for _, factor in all_), f"all {len(all_)} cells with both days"),
        )
    if claim.measure == "compute":
        runs = dict(_compute_saved())
        without = [factor for model, factor in runs.items() if model != "vit-l"]
        return (
            Recomputed(fmean(runs.values()), f"{len(runs)} models, ViT's TPU cores counted as GPUs"),
            Recomputed(fmean(without), f"the {len(without)} models without ViT"),
        )
    return ()


def _speedups() -> list[tuple[str, float]]:
    """Return naive days over optimal days, for each cell that has both."""
    return [
        (fast.model, slow_days / fast_days)
        for fast, slow in zip(paper().optimal_days, paper().naive_days, strict=True)
        for fast_days, slow_days in zip(fast.days, slow.days, strict=True)
        if isinstance(fast_days, int) and isinstance(slow_days, int)
    ]


def _compute_saved() -> Iterator[tuple[str, float]]:
    """Yield GPU-days of the original run over those of the optimal setting on 8 A100, by model."""
    eight = {row.model: row.days[-1] for row in paper().optimal_days if row.gpu == "A100"}
    for run in paper().original_runs:
        days = eight[run.model]
        if run.gpus and run.days and isinstance(days, int):
            yield run.model, run.gpus * run.days / (paper().gpu_counts[-1] * days)


def training_flops(model: str) -> float:
    """Count the operations of the whole recipe, by the formula of the model's family."""
    shipped = known_models()[model]
    recipe = shipped.recipe
    return family_of(shipped).forward_flops(shipped).training * recipe.batch_size * recipe.steps


def peak_flops(model: str, gpu: str) -> float:
    """Return the vendor's dense peak of one GPU in the recipe's precision; fp32 recipes run on TF32 units."""
    return gpu_model(gpu).peak_flops(known_models()[model].recipe.precision, tf32=True)


def gpu_model(gpu: str) -> GpuModel:
    """Find the card of a name that the paper uses, such as A100; KeyError for any other name."""
    model = find_gpu_model(paper().gpus[gpu])
    assert model is not None  # the shipped catalogue has every GPU of the paper
    return model
