"""Guided search: which trial of a model can still beat its fastest one? Pure, so it is replayed offline.

Every setting is bounded from below (lower_bounds.py beside this). The search measures what may be the
fastest, and ends when no bound lies more than a percent below the fastest: no setting that was left out
could have been faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from bench.planning.plan import SettingPlan
from bench.planning.search.learnt_memory import LEAP, LearntMemory
from bench.planning.search.lower_bounds import (
    PassCost,
    TimedTrial,
    added_up,
    arithmetic_of,
    bound,
    on_host,
    pass_cost_of,
    with_updates,
)
from bench.records.estimate import SECONDS_A_DAY, pass_and_update, step_interval
from bench.records.fastest import NEAR
from bench.records.trial import Crashed, Measured, Outcome, OutOfMemory, TimedOut, Trial
from bench.training.methods import known_methods
from bench.training.setting import Setting

COMFORTABLE = 0.85  # of the memory, for a first guess that must not run out
OUT = 2  # crashes, or one time that is up, after which other settings with the same method are left alone
# What a guess believes: only an order, and wrong guesses are measured away. What a pass costs beside its
# samples, in samples; that of two larger micro-batches the nearer is better.
BELIEVED_OVERHEAD = 0.25
FARTHER = 0.001
BELIEVED_RATE = 0.4  # of the vendor's peak
# Seconds that a parameter's gradient takes in every pass under FSDP2 with offloading, beside what the device
# does: 0.4 to 0.6 ns where that was less (docs/settings.md: mamba-2.8b, pythia-1b).
BELIEVED_ADDED_UP = 0.45e-9
STEPS = 12  # of one pass or two, that a trial takes at the least
LONG = 5.0  # seconds of a pass: a trial has a dozen and more, and its time may be up before


def choose(
    cells: Sequence[SettingPlan],
    known: Mapping[str, Outcome],
    memory_bytes: int,
    trial_seconds: float = math.inf,
) -> Trial | None:
    """The next trial of one model; None once the fastest is known."""
    return next(iter(promising(cells, known, memory_bytes, trial_seconds)), None)


def promising(
    cells: Sequence[SettingPlan],
    known: Mapping[str, Outcome],
    memory_bytes: int,
    trial_seconds: float = math.inf,
) -> list[Trial]:
    """Every trial that may yet be the fastest, the most promising first."""
    fits = LearntMemory(cells, known, memory_bytes)
    open_ = [(cell, trial, fits(cell, trial)) for cell in cells for trial in _untried(cell, known)]
    left = [(cell, trial) for cell, trial, fit in open_ if fit != "no"]
    tight = {id(trial) for _, trial, fit in open_ if fit == "hardly"}
    timed = _timed(cells, known)
    blamed = _blamed(cells, known, timed)
    if not timed:
        full = [trial for trial, outcome in _outcomes(cells, known) if isinstance(outcome, OutOfMemory)]
        slow = [trial for trial, outcome in _outcomes(cells, known) if _was_slow(outcome)]
        left.sort(
            key=lambda pair: (
                _suspicion(pair[1].setting, blamed),
                _doubts(pair[0], pair[1], full, slow),
                _guess(pair[0], pair[1], memory_bytes),
            )
        )
        return [trial for _, trial in left]
    best = min(timed, key=lambda one: one.step_seconds)
    curve = pass_cost_of(timed)
    works = [trial for _, trial in left if _strikes(trial.setting, blamed) < OUT]
    bounds = [(bound(trial, timed, curve), trial) for trial in works]
    hopeful = [trial for least, trial in bounds if least < NEAR * best.step_seconds]
    # A second micro-batch of the fastest setting tells its overhead, and so bounds all the others. Then by
    # what is expected, not by what is hoped: most bounds are far too low, and a good one rules out many. Last
    # what will hardly end within a trial's time.
    first = curve is None

    def turn(trial: Trial) -> tuple[bool, int, bool, float]:
        expected = _expected(trial, best, curve)
        step = expected / trial.accumulation + (best.update_seconds or 0.0)
        # Of what hardly fits the smallest: it rules out those above.
        beyond = trial.micro_batch if id(trial) in tight else 0
        return STEPS * step > trial_seconds, beyond, not (first and _next_to(trial, best.trial)), expected

    return sorted(hopeful, key=turn)


def _expected(trial: Trial, best: TimedTrial, curve: PassCost | None) -> float:
    """What its step may really take; nothing is left out for it. Only an order."""
    overhead = max(curve.overhead if curve else 0.0, BELIEVED_OVERHEAD)
    wanted, size = trial.micro_batch, best.trial.micro_batch
    # A larger one may gain, and may lose where memory is short: near to the known is sooner of use.
    smaller, larger = (wanted + overhead) / (size + overhead), (wanted / size) ** (1 + FARTHER)
    ratio = smaller if wanted < size else larger
    times = _believed(trial.setting) / _believed(best.trial.setting)
    return trial.accumulation * _with_host(times * ratio * best.pass_seconds, trial) + on_host(trial)


def _next_to(trial: Trial, measured: Trial) -> bool:
    return trial.setting == measured.setting and 0.4 <= trial.micro_batch / measured.micro_batch < 1


def _timed(cells: Sequence[SettingPlan], known: Mapping[str, Outcome]) -> list[TimedTrial]:
    found = []
    for trial, outcome in _outcomes(cells, known):
        if not isinstance(outcome, Measured):
            continue
        step = step_interval(outcome.measurement.steps, trial.accumulation)
        _, update = pass_and_update(outcome.measurement.steps)
        if step is not None:
            kept = None if update is None else max(0.0, update)
            found.append(TimedTrial(trial, step.value, kept))
    return with_updates(found)


def _untried(cell: SettingPlan, known: Mapping[str, Outcome]) -> list[Trial]:
    """Trials without an outcome that could still have one: memory that ran out, runs out above too."""
    too_large = math.inf
    for identity, trial in zip(cell.ids, cell.trials, strict=True):
        match known.get(identity):
            case None | Measured():
                pass
            case OutOfMemory():
                too_large = min(too_large, trial.micro_batch)
            case TimedOut(trained=True):  # with fewer samples a pass it may be measured
                too_large = min(too_large, max(2, trial.micro_batch // LEAP + 1))
            case _:
                return []  # it does not work, whatever the micro-batch
    pairs = zip(cell.ids, cell.trials, strict=True)
    return [trial for identity, trial in pairs if identity not in known and trial.micro_batch < too_large]


def _was_slow(outcome: Outcome) -> bool:
    return isinstance(outcome, TimedOut) and outcome.trained


def _outcomes(cells: Sequence[SettingPlan], known: Mapping[str, Outcome]) -> Iterator[tuple[Trial, Outcome]]:
    for cell in cells:
        for identity, trial in zip(cell.ids, cell.trials, strict=True):
            if identity in known:
                yield trial, known[identity]


def _doubts(cell: SettingPlan, trial: Trial, full: Sequence[Trial], slow: Sequence[Trial]) -> int:
    """How often the time was up in any setting with less than LEAP times the samples.

    Or memory ran out, where nothing predicts it.
    """
    predicted = cell.needs[trial.micro_batch] is not None
    return sum(end.micro_batch < LEAP * trial.micro_batch for end in (*slow, *(() if predicted else full)))


def _blamed(
    cells: Sequence[SettingPlan], known: Mapping[str, Outcome], timed: Sequence[TimedTrial]
) -> list[tuple[frozenset[str], int]]:
    """The fewest methods that explain each failure, which have worked nowhere yet, and how much it counts."""
    worked = {name for one in timed for name in one.trial.setting}
    failed = [
        (suspects, OUT if isinstance(outcome, TimedOut) else 1)
        for trial, outcome in _outcomes(cells, known)
        if isinstance(outcome, (Crashed, TimedOut))
        and not _was_slow(outcome)
        and (suspects := frozenset(trial.setting) - worked)
    ]
    return [(min((s for s, _ in failed if s <= suspects), key=len), n) for suspects, n in failed]


def _strikes(setting: Setting, blamed: Sequence[tuple[frozenset[str], int]]) -> int:
    """What speaks against a setting: it has all methods that a failure is blamed on."""
    return sum(count for suspects, count in blamed if suspects <= {*setting})


def _suspicion(setting: Setting, blamed: Sequence[tuple[frozenset[str], int]]) -> float:
    """While nothing has worked yet, any of them may be to blame: the fewer of them, the sooner."""
    return sum(count * len(suspects & {*setting}) / max(1, len(suspects)) for suspects, count in blamed)


def _guess(cell: SettingPlan, trial: Trial, memory_bytes: int) -> tuple[bool, float, float, int]:
    """Comfortable before tight, short passes before long ones, cheap before dear, large before small."""
    need = cell.needs[trial.micro_batch]
    tight = (need or cell.least_bytes or 0) > COMFORTABLE * memory_bytes
    cost = _believed(trial.setting) * (1 + 1 / trial.micro_batch)
    if cell.floor_days is None:
        return tight, 0.0, cost, -trial.micro_batch
    step = cost * cell.floor_days * SECONDS_A_DAY / trial.model.recipe.steps / BELIEVED_RATE
    a_pass = _with_host(step / trial.accumulation, trial) + on_host(trial) / trial.accumulation
    return tight, a_pass if a_pass > LONG else 0.0, a_pass * trial.accumulation, -trial.micro_batch


def _with_host(device_seconds: float, trial: Trial) -> float:
    """Of a pass, where the host may have more to do in it than the device."""
    return max(device_seconds, added_up(trial, BELIEVED_ADDED_UP))


def _believed(setting: Setting) -> float:
    cost = math.prod(known_methods()[name].prior_time for name in setting)
    # Without what costs nothing, a setting is slower than with it.
    free = len(arithmetic_of(setting))
    return cost * 1.2**-free
