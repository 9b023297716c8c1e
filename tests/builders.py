"""Builders of small valid values for tests; a test states what matters and the rest is filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bench.records.estimate import Estimate, Interval
from bench.records.floor import FloorOrReason
from bench.records.gradients import CheckOrReason
from bench.records.run_results import LabelledTrial, TrialResult, reduce_outcome, trial_results
from bench.records.trial import (
    Ceiling,
    Measured,
    Measurement,
    Outcome,
    ProofOrFailure,
    StepSample,
    Timing,
    Trial,
)
from bench.training.models import Flops, Model, Recipe
from bench.training.optimizers import Adam
from bench.training.schedules import DecaySchedule

RECIPE = Recipe(
    objective="causal-lm",
    batch_size=8,
    steps=1000,
    precision="fp32",
    optimizer=Adam("adam", 1e-3, 0.9, 0.95, 1e-8, 0.0),
    schedule=DecaySchedule("constant", 0),
    sequence_length=16,
)
MODEL = Model("test-model", "gpt_neox", {"vocab_size": 64}, RECIPE)


ESTIMATE = Estimate(
    step_seconds=Interval(2.0, 0.01),
    pass_seconds=0.9,
    update_seconds=0.2,
    overhead_seconds=0.0,
    units_per_second=64.0,
    days=Interval(1.0, 0.005),
    flops_per_second=1e12,
    ceiling_flops_per_second=2e12,
    peak_bytes=1 << 30,
)


def trial(**changes: Any) -> Trial:
    """Build a trial of eight samples per step, in two passes of four."""
    one = Trial(MODEL, (), 4, 1, 0, Timing())
    return dataclasses.replace(one, **changes)


def measurement(steps: Sequence[StepSample], **changes: Any) -> Measurement:
    one = Measurement(
        steps=tuple(steps),
        warmup=(),
        steady=True,
        losses=(),
        gradient_norms=(),
        samples_per_loss=8,
        peak_bytes=1 << 20,
        parameters=10,
        flops=Flops(1000),
        master_dtype="float32",
        log_seconds=None,
        save_seconds=None,
        eval_seconds_per_sample=None,
        phase_seconds={},
        started_at=0.0,
        ended_at=1.0,
    )
    return dataclasses.replace(one, **changes)


def reduce_trials(
    trials: Sequence[tuple[Trial, str, Outcome]],
    ceilings: Sequence[Ceiling],
    proofs: Mapping[str, ProofOrFailure],
    earlier: Mapping[str, Measured] = MappingProxyType({}),
    floors: Mapping[str, FloorOrReason] = MappingProxyType({}),
    checks: Mapping[str, CheckOrReason] = MappingProxyType({}),
) -> tuple[TrialResult, ...]:
    """Summarise trials with their labels and outcomes as a run does; the mappings are by trial id."""
    labelled = [
        LabelledTrial(trial, label, reduce_outcome(trial, outcome, earlier.get(trial.id), ceilings))
        for trial, label, outcome in trials
    ]
    return trial_results(labelled, proofs, floors, checks)
