"""Guided search: which trial of a model can still beat its fastest one? Pure, so it is replayed offline.

A pass takes  overhead + samples * rate,  a step  accumulation * pass + update.  Two micro-batches of
one setting show both terms; every other setting is bounded from below through what its methods can
gain or must cost at least. The search measures whatever has the lowest bound, and ends when no bound
lies more than a percent below the fastest: what was not measured by then could not have been faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.estimate import pass_and_update, step_interval
from bench.methods import Setting, halves_weights, in_group
from bench.models.inline import parameters_of
from bench.plan import Cell
from bench.result import Crashed, Measured, Outcome, OutOfMemory, TimedOut, Trial
from bench.winner import NEAR

COMFORTABLE = 0.85  # of the memory, for a first guess that must not run out
# Of the time, at the very least and at most; measured in docs/accuracy.md and docs/methods.md.
RECOMPUTED = 1.10  # checkpointing does a third of the arithmetic again
NOT_RECOMPUTED = 0.68  # and the other way round
# Weights in half precision save what autocast does to them in every pass: some launches, and half the bytes
# that an update moves. 0.04 and 0.03 of a pass were measured for small models, 0.12 where it has one sample.
LOWERED, CASTS = 0.95, 0.6
RAISED = 0.96  # and the other way round, where casting costs less than it saves
WITHOUT_OFFLOADING = 0.1  # what is measured with it says next to nothing of what is without
WITHOUT_ADDING_UP = 0.02  # and least of all where the host has work in every pass
# Seconds of a parameter on the host. FSDP2 adds gradients up there in every pass, without overlap: 1.7 to
# 3.2 ns were measured; an update there, with what goes down and up for it, took 0.6 to 0.7.
ADDED_UP_ON_HOST, UPDATED_ON_HOST = 1.0e-9, 0.4e-9
SMALLER = 0.98  # a smaller micro-batch, of the time a sample took at the one measured
# What a pass costs beside its samples, in samples, while only one micro-batch is known: no more than
# so many, or that share of it.
MOST_OVERHEAD, OVERHEAD_SHARE = 2.5, 0.18
OTHERWISE = 0.9  # an update in another setting
# Where a step is one pass, nothing tells its update from it: no more than so much of the step.
MOST_UPDATE = 0.7
OUT = 2  # crashes, or one time that is up, after which other settings with the same method are left alone
# What a guess believes: only an order, and wrong guesses are measured away. What a pass costs beside its
# samples, in samples; that of two larger micro-batches the nearer is better; what a method costs.
BELIEVED_OVERHEAD = 0.25
FARTHER = 0.001
BELIEVED: Mapping[str, float] = {
    "checkpointing": 1.25, "offload": 1.6, "zero-1": 1.1, "zero-2": 1.12, "zero-3": 1.6, "fsdp-2": 1.05,
    "fsdp-3": 1.15,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timed:
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
class Curve:
    """What a pass costs beside its samples, from two micro-batches of one setting."""

    overhead: float  # in samples
    smallest: int  # micro-batch that it was seen at: below it a pass may be all launches


def choose(cells: Sequence[Cell], known: Mapping[str, Outcome], memory_bytes: int) -> Trial | None:
    """The next trial of one model; None once the fastest is known."""
    return next(iter(promising(cells, known, memory_bytes)), None)


def promising(cells: Sequence[Cell], known: Mapping[str, Outcome], memory_bytes: int) -> list[Trial]:
    """Every trial that may yet be the fastest, the most promising first."""
    left = [(cell, trial) for cell in cells for trial in _untried(cell, known)]
    timed = _timed(cells, known)
    strikes = _strikes(cells, known, timed)
    if not timed:
        left.sort(
            key=lambda pair: (
                strikes(pair[1].setting),
                _guess(pair[1], pair[0].needs[pair[1].micro_batch], memory_bytes),
            )
        )
        return [trial for _, trial in left]
    best = min(timed, key=lambda one: one.step_seconds)
    curve = _curve(timed)
    bounds = [(bound(trial, timed, curve), trial) for _, trial in left if strikes(trial.setting) < OUT]
    hopeful = [trial for least, trial in bounds if least < NEAR * best.step_seconds]
    # A second micro-batch of the fastest setting tells its overhead, and so bounds all the others. Then by
    # what is expected, not by what is hoped: most bounds are far too low, and a good one rules out many.
    first = curve is None
    return sorted(hopeful, key=lambda t: (not (first and _next_to(t, best.trial)), _expected(t, best, curve)))


def _expected(trial: Trial, best: Timed, curve: Curve | None) -> float:
    """What its step may really take; nothing is left out for it. Only an order."""
    overhead = max(curve.overhead if curve else 0.0, BELIEVED_OVERHEAD)
    wanted, size = trial.micro_batch, best.trial.micro_batch
    # A larger one may gain, and may lose where memory is short: near to the known is sooner of use.
    smaller, larger = (wanted + overhead) / (size + overhead), (wanted / size) ** (1 + FARTHER)
    ratio = smaller if wanted < size else larger
    times = _believed(trial.setting) / _believed(best.trial.setting)
    return times * trial.accumulation * ratio * best.pass_seconds + _on_host(trial)


def _next_to(trial: Trial, measured: Trial) -> bool:
    return trial.setting == measured.setting and 0.4 <= trial.micro_batch / measured.micro_batch < 1


def bound(trial: Trial, timed: Sequence[Timed], curve: Curve | None) -> float:
    """No step of this trial takes less, as far as what was measured tells."""
    return max(_bound_by(trial, setting, timed, curve) for setting in {one.trial.setting for one in timed})


def _bound_by(trial: Trial, setting: Setting, timed: Sequence[Timed], curve: Curve | None) -> float:
    """What the trials of one measured setting say: the less of two extremes where no update is known."""
    same = _of(setting, timed)
    if all(one.update_seconds is not None for one in same):
        return _bound_if(same, trial, setting, curve)
    extremes = (
        [replace(o, update_seconds=share * o.step_seconds) for o in same] for share in (0, MOST_UPDATE)
    )
    return min(_bound_if(extreme, trial, setting, curve) for extreme in extremes)


def _bound_if(same: Sequence[Timed], trial: Trial, setting: Setting, curve: Curve | None) -> float:
    update = min(one.update_seconds or 0.0 for one in same)
    half = trial.model.recipe.precision != "fp32"
    casts = CASTS * update if half and halves_weights(trial.setting) and not halves_weights(setting) else 0.0
    a_pass = _pass_bound(trial.micro_batch, same, curve, _gain(setting, trial.setting, half), casts)
    if setting != trial.setting:
        update *= OTHERWISE / (trial.gpus if in_group(trial.setting, "sharding") else 1)
    if "offload" in setting and "offload" not in trial.setting:
        update = 0.0  # the host's says nothing of the device's
    host = 0.0 if "offload" in setting else _on_host(trial)
    return trial.accumulation * a_pass + update + host


def _on_host(trial: Trial) -> float:
    """Seconds of a step that offloading takes at the least."""
    if "offload" not in trial.setting:
        return 0.0
    parameters = parameters_of(trial.model) or 0
    passes = trial.accumulation if _adds_up_on_host(trial.setting) else 0
    return parameters / trial.gpus * (passes * ADDED_UP_ON_HOST + UPDATED_ON_HOST)


def _adds_up_on_host(setting: Setting) -> bool:
    return "offload" in setting and _kind(setting) == "fsdp-"


def _of(setting: Setting, timed: Sequence[Timed]) -> list[Timed]:
    """One setting's, the smallest micro-batch first."""
    return sorted((o for o in timed if o.trial.setting == setting), key=lambda o: o.trial.micro_batch)


def _curve(timed: Sequence[Timed]) -> Curve | None:
    """From the setting with two micro-batches, of several the one that overhead is most of."""
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
            found.append(Curve(overhead, small.trial.micro_batch))
    return max(found, key=lambda one: one.overhead, default=None)


def _pass_bound(
    micro_batch: int, same: Sequence[Timed], curve: Curve | None, gain: float, casts: float
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
    if "checkpointing" in wanted and "checkpointing" not in measured:
        share *= RECOMPUTED
    elif "checkpointing" in measured and "checkpointing" not in wanted:
        share *= NOT_RECOMPUTED
    if half and halves_weights(wanted) != halves_weights(measured):
        share *= LOWERED if halves_weights(wanted) else RAISED
    if not _arithmetic(wanted) <= _arithmetic(measured):  # what costs nothing may be missing there
        share *= 0.3
    if "offload" in measured and not ("offload" in wanted and _kind(measured) == _kind(wanted)):
        share *= WITHOUT_ADDING_UP if _adds_up_on_host(measured) else WITHOUT_OFFLOADING
    elif not _costs_as_much(measured, wanted):
        share *= 0.3
    return share


def _kind(setting: Setting) -> str | None:
    """ "zero-" or "fsdp-": whose code it is that shards."""
    sharding = in_group(setting, "sharding")
    return sharding and sharding[:-1]


def _costs_as_much(measured: Setting, wanted: Setting) -> bool:
    """All that the measured setting sent about, the wanted one sends too: sharding adds."""
    before, after = in_group(measured, "sharding"), in_group(wanted, "sharding")
    if before is None:
        return True
    return after is not None and _kind(measured) == _kind(wanted) and before <= after  # a later stage


def _arithmetic(setting: Setting) -> frozenset[str]:
    """The methods that decide which kernels run; block by block or whole, they are compiled."""
    memory = {"checkpointing", "offload", "half-weights", in_group(setting, "sharding")}
    alike = {"compile-blocks": "compile", "fused-optimizer": ""}
    return frozenset(alike.get(name, name) for name in setting if name not in memory) - {""}


def _timed(cells: Sequence[Cell], known: Mapping[str, Outcome]) -> list[Timed]:
    found = []
    for cell in cells:
        for identity, trial in zip(cell.ids, cell.trials, strict=True):
            match known.get(identity):
                case Measured(measurement):
                    step = step_interval(measurement.steps, trial.accumulation)
                    _, update = pass_and_update(measurement.steps)
                    if step is not None:
                        kept = None if update is None else max(0.0, update)
                        found.append(Timed(trial, step.value, kept))
    return [_with_update(one, _of(one.trial.setting, found)) for one in found]


def _with_update(one: Timed, same: Sequence[Timed]) -> Timed:
    """Where it could not be told, that of the same setting with more passes a step."""
    told = [other.update_seconds for other in same if other.update_seconds is not None]
    if one.update_seconds is not None or not told:
        return one
    return replace(one, update_seconds=min(*told, MOST_UPDATE * one.step_seconds))


def _untried(cell: Cell, known: Mapping[str, Outcome]) -> list[Trial]:
    """Trials without an outcome that could still have one: memory that ran out, runs out above too."""
    too_large = math.inf
    for identity, trial in zip(cell.ids, cell.trials, strict=True):
        match known.get(identity):
            case None | Measured():
                pass
            case OutOfMemory():
                too_large = min(too_large, trial.micro_batch)
            case _:
                return []  # it does not work, whatever the micro-batch
    pairs = zip(cell.ids, cell.trials, strict=True)
    return [trial for identity, trial in pairs if identity not in known and trial.micro_batch < too_large]


def _strikes(
    cells: Sequence[Cell], known: Mapping[str, Outcome], timed: Sequence[Timed]
) -> Callable[[Setting], int]:
    """What speaks against a setting: it has all methods of a failed one that have worked nowhere yet."""
    worked = {name for one in timed for name in one.trial.setting}
    failed = [
        (suspects, OUT if isinstance(outcome, TimedOut) else 1)
        for cell in cells
        for identity, trial in zip(cell.ids, cell.trials, strict=True)
        if isinstance(outcome := known.get(identity), (Crashed, TimedOut))
        and (suspects := frozenset(trial.setting) - worked)
    ]
    # The fewest that explain a failure are what it counts against.
    blamed = [(min((s for s, _ in failed if s <= suspects), key=len), n) for suspects, n in failed]
    return lambda setting: sum(count for suspects, count in blamed if suspects <= {*setting})


def _guess(trial: Trial, need: int | None, memory_bytes: int) -> tuple[bool, float, int]:
    """Comfortable before tight, cheap before dear, large before small."""
    tight = need is not None and need > COMFORTABLE * memory_bytes
    return tight, _believed(trial.setting) * (1 + 1 / trial.micro_batch), -trial.micro_batch


def _believed(setting: Setting) -> float:
    cost = math.prod(BELIEVED.get(name, 1.0) for name in setting)
    # Without what costs nothing, a setting is slower than with it.
    free = len(_arithmetic(setting))
    return cost * 1.2**-free
