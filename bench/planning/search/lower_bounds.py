"""What a step takes at the least, as far as measured steps tell. Pure.

A pass takes  overhead + samples * rate,  a step  accumulation * pass + update.  Two micro-batches of
one setting show both terms; every other setting is bounded from below through what its methods can
gain or must cost at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.records.trial import Trial
from bench.training.methods import known_methods
from bench.training.models import parameters_of
from bench.training.setting import GROUPS, Setting, halves_weights, in_group, sharded_by

# Of the time, at the very least and at most; measured in docs/accuracy.md and docs/methods.md.
# Weights in half precision save what autocast does to them in every pass: some launches, and half the bytes
# that an update moves; norms and sums of gradients come cheaper with them. 0.04 of a pass was measured, 0.15
# where it has one sample.
LOWERED, CASTS = 0.95, 0.6
# FSDP2 saves no more than the casts of weights, and casts each gradient instead: 0.99 and more was measured.
SHARDED = 0.97
RAISED = 0.96  # and the other way round, where casting costs less than it saves
WITHOUT_OFFLOADING = 0.1  # what is measured with it says next to nothing of what is without
WITHOUT_ADDING_UP = 0.02  # and least of all where the host has work in every pass
# Seconds of a parameter. An update on the host, with what goes down and up for it, took 0.6 to 0.7 ns. The
# gradients that FSDP2 sends there in every pass are added up beside the device's work (16 cores added a
# parameter's in 0.4 ns), but no pass ends before they are there: in fp32, over a bus of 64 GB/s (PCIe 5).
UPDATED_ON_HOST, SENT_TO_HOST = 0.4e-9, 4 / 64e9
SMALLER = 0.98  # a smaller micro-batch, of the time a sample took at the one measured
# What a pass costs beside its samples, in samples, while only one micro-batch is known: no more than
# so many, or that share of it.
MOST_OVERHEAD, OVERHEAD_SHARE = 2.5, 0.18
OTHERWISE = 0.9  # an update in another setting
# Where a step is one pass, nothing tells its update from it: no more than so much of the step.
MOST_UPDATE = 0.7


@dataclass(frozen=True, slots=True)
class TimedTrial:
    trial: Trial
    step_seconds: float
    update_seconds: float | None  # None: nothing told it from the pass

    @property
    def pass_seconds(self) -> float:
        """At the most, where the update is not known: then all of a step."""
        return (self.step_seconds - (self.update_seconds or 0.0)) / self.trial.accumulation

    @property
    def sample_seconds(self) -> float:
        return self.pass_seconds / self.trial.micro_batch


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a pass costs beside its samples, from two micro-batches of one setting."""

    overhead: float  # in samples
    smallest: int  # micro-batch that it was seen at: below it a pass may be all launches


def with_updates(found: Sequence[TimedTrial]) -> list[TimedTrial]:
    """Where an update could not be told, that of the same setting with more passes a step."""
    return [_with_update(one, _of(one.trial.setting, found)) for one in found]


def _with_update(one: TimedTrial, same: Sequence[TimedTrial]) -> TimedTrial:
    told = [other.update_seconds for other in same if other.update_seconds is not None]
    if one.update_seconds is not None or not told:
        return one
    return replace(one, update_seconds=min(*told, MOST_UPDATE * one.step_seconds))


def pass_cost_of(timed: Sequence[TimedTrial]) -> PassCost | None:
    """From the setting with two micro-batches, of several the one that overhead is most of.

    Of those that showed as much, or none at all, the one that was seen at the fewest samples.
    """
    found = []
    for setting in {one.trial.setting for one in timed}:
        same = _of(setting, timed)
        if len(same) > 1 and not _adds_up_on_host(setting):
            small, large = same[-2], same[-1]
            rate = (large.pass_seconds - small.pass_seconds) / (
                large.trial.micro_batch - small.trial.micro_batch
            )
            rate = min(max(rate, 0.2 * large.sample_seconds), large.sample_seconds)
            overhead = (large.pass_seconds - rate * large.trial.micro_batch) / rate
            found.append(PassCost(overhead, small.trial.micro_batch))
    return max(found, key=lambda one: (one.overhead, -one.smallest), default=None)


def bound(trial: Trial, timed: Sequence[TimedTrial], curve: PassCost | None) -> float:
    """No step of this trial takes less, as far as what was measured tells."""
    return max(_bound_by(trial, setting, timed, curve) for setting in {one.trial.setting for one in timed})


def _bound_by(trial: Trial, setting: Setting, timed: Sequence[TimedTrial], curve: PassCost | None) -> float:
    """What the trials of one measured setting say: the less of two extremes where no update is known."""
    same = _of(setting, timed)
    if all(one.update_seconds is not None for one in same):
        return _bound_if(same, trial, setting, curve)
    extremes = (
        [replace(o, update_seconds=share * o.step_seconds) for o in same] for share in (0, MOST_UPDATE)
    )
    return min(_bound_if(extreme, trial, setting, curve) for extreme in extremes)


def _bound_if(same: Sequence[TimedTrial], trial: Trial, setting: Setting, curve: PassCost | None) -> float:
    update = min(one.update_seconds or 0.0 for one in same)
    half = trial.model.recipe.precision != "fp32"
    saves = half and halves_weights(trial.setting) and not halves_weights(setting)
    casts = CASTS * update if saves and sharded_by(trial.setting) != "fsdp" else 0.0
    a_pass = _pass_bound(trial.micro_batch, same, curve, _gain(setting, trial.setting, half), casts)
    if setting != trial.setting:
        update *= OTHERWISE / (trial.gpus if in_group(trial.setting, "sharding") else 1)
    if "offload" in setting and "offload" not in trial.setting:
        update = 0.0  # the host's says nothing of the device's
    host = 0.0 if "offload" in setting else on_host(trial)
    return trial.accumulation * max(a_pass, added_up(trial, SENT_TO_HOST)) + update + host


def on_host(trial: Trial) -> float:
    """Seconds of a step that an update on the host takes at the least."""
    return _a_device(trial) * UPDATED_ON_HOST if "offload" in trial.setting else 0.0


def added_up(trial: Trial, seconds: float) -> float:
    """Of a pass, where gradients are added up on the host, and a parameter's takes so many."""
    return _a_device(trial) * seconds if _adds_up_on_host(trial.setting) else 0.0


def _a_device(trial: Trial) -> float:
    """Parameters, of which each device has its part."""
    return (parameters_of(trial.model) or 0) / trial.gpus


def _adds_up_on_host(setting: Setting) -> bool:
    return "offload" in setting and sharded_by(setting) == "fsdp"


def _of(setting: Setting, timed: Sequence[TimedTrial]) -> list[TimedTrial]:
    """One setting's, the smallest micro-batch first."""
    return sorted((o for o in timed if o.trial.setting == setting), key=lambda o: o.trial.micro_batch)


def _pass_bound(
    micro_batch: int, same: Sequence[TimedTrial], curve: PassCost | None, gain: float, casts: float
) -> float:
    """Of a pass of that many samples in a setting that gains so much on the measured one, and casts less."""
    nearest = min(same, key=lambda one: abs(one.trial.micro_batch - micro_batch))
    size = nearest.trial.micro_batch
    there = max(0.0, gain * nearest.pass_seconds - casts)  # casts cost the same whatever the size
    if micro_batch == size:
        return there
    if _adds_up_on_host(nearest.trial.setting):  # it may be all the host's, whatever the samples
        return there * min(1.0, micro_batch / size)
    if curve is None and micro_batch < size:
        return SMALLER * there * micro_batch / size
    if curve and size < min(micro_batch, curve.smallest):
        return 0.0
    overhead = curve.overhead if curve else max(MOST_OVERHEAD, OVERHEAD_SHARE * size)
    return there * (micro_batch + overhead) / (size + overhead)


def _gain(measured: Setting, wanted: Setting, half: bool) -> float:
    """The least share of a pass's time that the change from one setting to the other leaves."""
    share = 1.0
    for name in wanted:
        share *= 1.0 if name in measured else known_methods()[name].least_time_with
    for name in measured:
        share *= 1.0 if name in wanted else known_methods()[name].least_time_without
    if half and halves_weights(wanted) != halves_weights(measured):
        lowered = SHARDED if sharded_by(wanted) == "fsdp" else LOWERED
        share *= lowered if halves_weights(wanted) else RAISED
    if not arithmetic_of(wanted) <= arithmetic_of(measured):  # what costs nothing may be missing there
        share *= 0.3
    if "offload" in measured and not ("offload" in wanted and sharded_by(measured) == sharded_by(wanted)):
        share *= WITHOUT_ADDING_UP if _adds_up_on_host(measured) else WITHOUT_OFFLOADING
    elif not _costs_as_much(measured, wanted):
        share *= 0.3
    return share


def _costs_as_much(measured: Setting, wanted: Setting) -> bool:
    """All that the measured setting sent about, the wanted one sends too: sharding adds."""
    before, after = in_group(measured, "sharding"), in_group(wanted, "sharding")
    if before is None:
        return True
    # A later stage of the same.
    return after is not None and sharded_by(measured) == sharded_by(wanted) and before <= after


def arithmetic_of(setting: Setting) -> frozenset[str]:
    """The methods that decide which kernels run; block by block or whole, they are compiled."""
    return frozenset(GROUPS.get(name, name) for name in setting if known_methods()[name].chooses_kernels)
