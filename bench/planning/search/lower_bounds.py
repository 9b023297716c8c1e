"""Bound a trial's step from below, by the steps measured in other trials. Pure.

In: an untried trial, the measured trials of its model. Out: the least seconds that its steps can take.

A pass takes  overhead + samples * rate,  a step  accumulation * pass + update.  Two micro-batches of one
setting show both terms of a pass; every other setting is bounded through what its methods can gain at most,
or must cost at least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bench.records.trial import Trial
from bench.training.methods import method_named
from bench.training.models import parameters_of
from bench.training.setting import GROUPS, SETTINGS_KEPT, Setting, halves_weights, in_group, sharded_by

# Least shares of a measured pass that remain in another setting (docs/accuracy.md, docs/methods.md).
# Half-precision weights save the casts of every pass, and make norms and sums of gradients cheaper: 0.04 of a
# pass was saved, and 0.15 of a pass of one sample.
LEAST_WITH_HALF_WEIGHTS = 0.95
LEAST_WITH_HALF_WEIGHTS_UNDER_FSDP = (
    0.97  # which casts gradients in place of weights; measured: 0.99 and more
)
LEAST_WITH_FP32_WEIGHTS = 0.96  # after half-precision weights, if casts cost less than these save
LEAST_WITHOUT_OFFLOADING = 0.1  # times with offloading say almost nothing about times without
LEAST_WITHOUT_HOST_SUMS = 0.02  # after a setting whose gradients the host adds up in every pass
LEAST_WITH_OTHER_KERNELS = 0.3
LEAST_WITH_OTHER_SHARDING = 0.3
# Seconds of casting that half-precision weights save in a pass, as a share of an update: a cast reads and
# writes half of the bytes that an update moves.
CASTS_PER_UPDATE = 0.6
# Seconds for each parameter. An update on the host, with its transfers, took 0.6 to 0.7 ns. Under FSDP2 the
# host adds up gradients beside the device's work (16 cores took 0.4 ns), but no pass ends before they have
# arrived: 4 bytes over a bus of 64 GB/s (PCIe 5).
HOST_UPDATE_SECONDS, TRANSFER_SECONDS = 0.4e-9, 4 / 64e9
# Least time of a sample at a smaller micro-batch, as a share of its time at the measured one.
LEAST_AT_SMALLER_MICRO_BATCH = 0.98
# Least share that remains of a pass in a step of one pass, if passes are compared with each other: a step of
# several computes each pass forward twice and backward once, or forward again with checkpointing.
LEAST_OF_COMPARED_PASS = 0.7
# Largest overhead of a pass while only one micro-batch is measured: in samples, and as a share of the
# micro-batch.
MAX_OVERHEAD_SAMPLES, MAX_OVERHEAD_SHARE = 2.5, 0.18
FUSED = "fused-optimizer"
LEAST_UPDATE_ELSEWHERE = 0.9  # least time of an update in another setting, as a share
# Largest share of the update in a step of one pass, whose pass and update cannot be told apart.
MAX_UPDATE_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class TimedTrial:
    """The times of a measured trial."""

    trial: Trial
    step_seconds: float
    update_seconds: float | None  # None: unknown, since each step is one pass

    @property
    def pass_seconds(self) -> float:
        """Seconds of a pass; if the update is unknown, the seconds include it and are an upper limit."""
        return (self.step_seconds - (self.update_seconds or 0.0)) / self.trial.accumulation

    @property
    def sample_seconds(self) -> float:
        """The seconds of a pass for each sample of its micro-batch."""
        return self.pass_seconds / self.trial.micro_batch


@dataclass(frozen=True, slots=True)
class PassCost:
    """The fixed cost of a pass, from two micro-batches of one setting."""

    overhead: float  # in samples
    smallest: int  # the smaller of the two micro-batches: below it a pass may be kernel launches alone


def with_updates(timed: Sequence[TimedTrial]) -> list[TimedTrial]:
    """Fill in unknown updates from trials of the same setting with several passes a step."""
    return [_with_update(timed_trial, _of_setting(timed_trial.trial.setting, timed)) for timed_trial in timed]


def _with_update(timed_trial: TimedTrial, same: Sequence[TimedTrial]) -> TimedTrial:
    updates = [other.update_seconds for other in same if other.update_seconds is not None]
    if timed_trial.update_seconds is not None or not updates:
        return timed_trial
    return replace(timed_trial, update_seconds=min(*updates, MAX_UPDATE_SHARE * timed_trial.step_seconds))


def pass_cost_of(timed: Sequence[TimedTrial]) -> PassCost | None:
    """Return the largest overhead that any setting with two micro-batches shows; None without such a setting.

    Of equal overheads, return that of the smaller micro-batch; ignore settings that add up on the host.
    """
    costs = []
    for setting in {timed_trial.trial.setting for timed_trial in timed}:
        same = _of_setting(setting, timed)
        if len(same) > 1 and not _adds_up_on_host(setting):
            small, large = same[-2], same[-1]
            rate = (large.pass_seconds - small.pass_seconds) / (
                large.trial.micro_batch - small.trial.micro_batch
            )
            rate = min(max(rate, 0.2 * large.sample_seconds), large.sample_seconds)
            overhead = (large.pass_seconds - rate * large.trial.micro_batch) / rate
            costs.append(PassCost(overhead, small.trial.micro_batch))
    return max(costs, key=lambda cost: (cost.overhead, -cost.smallest), default=None)


class LowerBounds:
    """The least seconds of untried steps, by the measured trials of their model.

    Values that all untried trials share are computed once, because a search asks for thousands of bounds.
    """

    def __init__(self, timed: Sequence[TimedTrial]) -> None:
        settings = dict.fromkeys(timed_trial.trial.setting for timed_trial in timed)
        self._extremes = {setting: _extremes(_of_setting(setting, timed)) for setting in settings}
        self._gains: dict[tuple[Setting, Setting, bool], float] = {}

    def __call__(self, trial: Trial, pass_cost: PassCost | None) -> float:
        """Return the least seconds of this trial's steps: the largest bound by any measured setting."""
        return max(self._by_settings(trial, pass_cost))

    def reach(self, seconds: float, trial: Trial, pass_cost: PassCost | None) -> bool:
        """Whether the steps of this trial take at least `seconds`, by any measured setting.

        No further setting is asked after one that shows it, because a search asks this of every open trial
        after each measured one.
        """
        return any(bound >= seconds for bound in self._by_settings(trial, pass_cost))

    def _by_settings(self, trial: Trial, pass_cost: PassCost | None) -> Iterator[float]:
        """Yield the bound by each measured setting."""
        half = trial.model.recipe.precision != "fp32"
        host, added = host_update_seconds(trial), host_sum_seconds(trial, TRANSFER_SECONDS)
        for setting, extremes in self._extremes.items():
            gain = self._gain(setting, trial.setting, half=half)
            # If an update is unknown, the lower of the two extremes counts.
            yield min(_bound_with_updates(same, trial, pass_cost, gain, host, added) for same in extremes)

    def _gain(self, measured: Setting, wanted: Setting, *, half: bool) -> float:
        key = (measured, wanted, half)
        if key not in self._gains:
            self._gains[key] = _gain(measured, wanted, half=half)
        return self._gains[key]


def _extremes(same: Sequence[TimedTrial]) -> list[Sequence[TimedTrial]]:
    """Return the trials of one setting; if an update is unknown, at its least and at its largest share."""
    if all(timed_trial.update_seconds is not None for timed_trial in same):
        return [same]
    return [
        [replace(timed_trial, update_seconds=share * timed_trial.step_seconds) for timed_trial in same]
        for share in (0, MAX_UPDATE_SHARE)
    ]


def _bound_with_updates(
    same: Sequence[TimedTrial],
    trial: Trial,
    pass_cost: PassCost | None,
    gain: float,
    host: float,
    added: float,
) -> float:
    """Return the least seconds of a trial's steps by the trials of one setting.

    `host` are the seconds of an update on the host, `added` those of a pass in which it adds gradients up.
    """
    setting = same[0].trial.setting
    update = min(timed_trial.update_seconds or 0.0 for timed_trial in same)
    half = trial.model.recipe.precision != "fp32"
    saves = half and halves_weights(trial.setting) and not halves_weights(setting)
    casts = CASTS_PER_UPDATE * update if saves and sharded_by(trial.setting) != "fsdp" else 0.0
    a_pass = _pass_bound(trial.micro_batch, same, pass_cost, gain, casts)
    if trial.accumulation == 1 and trial.model.recipe.aim.compares_samples:
        a_pass *= LEAST_OF_COMPARED_PASS
    if setting != trial.setting:
        update *= LEAST_UPDATE_ELSEWHERE / (trial.gpus if in_group(trial.setting, "sharding") else 1)
    if "offload" in setting and "offload" not in trial.setting:
        update = 0.0  # an update on the host shows nothing about one on the device
    if trial.model.recipe.optimizer.compiled_if_fused and FUSED in {*trial.setting} - {*setting}:
        update = 0.0  # nor does an update of many kernels about a compiled one
    host = 0.0 if "offload" in setting else host
    return trial.accumulation * max(a_pass, added) + update + host


def host_update_seconds(trial: Trial) -> float:
    """Return the least seconds of an update on the host, with its transfers; 0 without offloading."""
    return _parameters_per_device(trial) * HOST_UPDATE_SECONDS if "offload" in trial.setting else 0.0


def host_sum_seconds(trial: Trial, seconds: float) -> float:
    """Return the seconds of a pass in which the host adds up gradients, at `seconds` a parameter, or 0."""
    return _parameters_per_device(trial) * seconds if _adds_up_on_host(trial.setting) else 0.0


def _parameters_per_device(trial: Trial) -> float:
    return (parameters_of(trial.model) or 0) / trial.gpus


def _adds_up_on_host(setting: Setting) -> bool:
    return "offload" in setting and sharded_by(setting) == "fsdp"


def _of_setting(setting: Setting, timed: Sequence[TimedTrial]) -> list[TimedTrial]:
    """Return the trials of one setting, the smallest micro-batch first."""
    same = (timed_trial for timed_trial in timed if timed_trial.trial.setting == setting)
    return sorted(same, key=lambda timed_trial: timed_trial.trial.micro_batch)


def _pass_bound(
    micro_batch: int, same: Sequence[TimedTrial], pass_cost: PassCost | None, gain: float, casts: float
) -> float:
    """Return the least seconds of a pass of `micro_batch` samples, by the nearest one of a measured setting.

    `gain` is the share of that setting's pass that remains, `casts` the seconds of casting that are saved.
    """
    nearest = min(same, key=lambda timed_trial: abs(timed_trial.trial.micro_batch - micro_batch))
    size = nearest.trial.micro_batch
    at_size = max(0.0, gain * nearest.pass_seconds - casts)  # casts take the same time at every micro-batch
    if micro_batch == size:
        return at_size
    if _adds_up_on_host(nearest.trial.setting):  # all of it may be host work, however few the samples
        return at_size * min(1.0, micro_batch / size)
    if pass_cost is None and micro_batch < size:
        return LEAST_AT_SMALLER_MICRO_BATCH * at_size * micro_batch / size
    if pass_cost and size < min(micro_batch, pass_cost.smallest):
        return 0.0
    overhead = pass_cost.overhead if pass_cost else max(MAX_OVERHEAD_SAMPLES, MAX_OVERHEAD_SHARE * size)
    return at_size * (micro_batch + overhead) / (size + overhead)


def _gain(measured: Setting, wanted: Setting, *, half: bool) -> float:
    """Return the least share of a pass's time that remains after a change from one setting to another."""
    share = 1.0
    for name in wanted:
        share *= 1.0 if name in measured else method_named(name).least_time_with
    for name in measured:
        share *= 1.0 if name in wanted else method_named(name).least_time_without
    if half and halves_weights(wanted) != halves_weights(measured):
        fsdp = sharded_by(wanted) == "fsdp"
        halved = LEAST_WITH_HALF_WEIGHTS_UNDER_FSDP if fsdp else LEAST_WITH_HALF_WEIGHTS
        share *= halved if halves_weights(wanted) else LEAST_WITH_FP32_WEIGHTS
    if not arithmetic_of(wanted) <= arithmetic_of(measured):  # `measured` may lack fast kernels
        share *= LEAST_WITH_OTHER_KERNELS
    if "offload" in measured and not ("offload" in wanted and sharded_by(measured) == sharded_by(wanted)):
        share *= LEAST_WITHOUT_HOST_SUMS if _adds_up_on_host(measured) else LEAST_WITHOUT_OFFLOADING
    elif not _costs_as_much(measured, wanted):
        share *= LEAST_WITH_OTHER_SHARDING
    return share


def _costs_as_much(measured: Setting, wanted: Setting) -> bool:
    """Whether `wanted` communicates at least as much as `measured`."""
    before, after = in_group(measured, "sharding"), in_group(wanted, "sharding")
    if before is None:
        return True
    # The same stage of the same engine, or a later one.
    return after is not None and sharded_by(measured) == sharded_by(wanted) and before <= after


@lru_cache(SETTINGS_KEPT)
def arithmetic_of(setting: Setting) -> frozenset[str]:
    """Return the methods that choose kernels, by group if they have one: all ways to compile are alike."""
    return frozenset(GROUPS.get(name, name) for name in setting if method_named(name).chooses_kernels)
