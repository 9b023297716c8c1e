"""The course of a run: its jobs in order of time, from the telemetry of its bundle. Pure.

A reading of telemetry names the job in flight, once a second: a trial, or for instance "ceilings". A proof
has the name of its trial, and comes after the trial's last timed step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

from bench.base.strict_json import strict_loads
from bench.records.run_results import Results, TrialResult

EpisodeKind = Literal["preparation", "trial", "no memory", "failed", "gradients", "floor", "proof", "waiting"]
JOBS: Mapping[str, EpisodeKind] = {
    "ceilings": "preparation", "nodes": "preparation", "gradients": "gradients", "floor": "floor",
}  # fmt: skip
LONGEST_GAP = 5  # times the usual time between two readings; in a longer gap the run was interrupted
LEAST_GAP_SECONDS = 10.0
# A reading as bench writes it. Its GPUs, between the two fields, are not decoded, which would be slow.
_READING = re.compile(rb'\{"at":(\d{1,12}(?:\.\d{1,9})?),.*"trial":(?:"([0-9a-z-]{1,64})"|null)\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Episode:
    """One job of a run, or a time in which the run had no job."""

    kind: EpisodeKind
    begun: float  # unix time
    ended: float
    model: str | None = None  # of a trial or its proof
    label: str = ""  # setting and micro-batch, or the name of the job


def ends_of(samples: Iterable[bytes]) -> dict[str, float]:
    """Return by trial the unix time of its last timed step, from the lines of samples.jsonl."""
    documents = (strict_loads(line) for line in samples)
    return {one["trial"]: float(one["measurement"]["ended_at"]) for one in documents}


def episodes_of(lines: Sequence[bytes], results: Results, ends: Mapping[str, float]) -> tuple[Episode, ...]:
    """Return the episodes of a run, one after the other; none if there are fewer than two readings."""
    readings = list(map(_time_and_job, lines))
    if len(readings) < 2:
        return ()
    times = accumulate((at for at, _ in readings), max)  # a clock may be set back
    read = [(at, name) for at, (_, name) in zip(times, readings, strict=True)]
    trials = {trial.id: trial for trial in results.trials}
    gaps = sorted(after - before for (before, _), (after, _) in pairwise(read))
    longest = max(LEAST_GAP_SECONDS, LONGEST_GAP * gaps[len(gaps) // 2])
    return tuple(_joined(_without_tails([*_joined(_stretches(read, trials, ends, longest))])))


def _time_and_job(line: bytes) -> tuple[float, Any]:
    """Return when a reading was taken, and the job that it names."""
    if (found := _READING.fullmatch(line)) is not None:
        return float(found[1]), found[2] and found[2].decode()
    reading = strict_loads(line)
    return float(reading["at"]), reading.get("trial")


def _stretches(
    read: Sequence[tuple[float, Any]],
    trials: Mapping[str, TrialResult],
    ends: Mapping[str, float],
    longest: float,
) -> Iterator[Episode]:
    """Yield an episode for the time from each reading to the next."""
    for (at, name), (after, _) in pairwise(read):
        if after - at > longest:
            yield Episode("waiting", at, after, label="not going on")
        elif isinstance(name, str) and name in trials:
            yield _of_trial(trials[name], at, after, ends.get(name))
        elif isinstance(name, str) and name in JOBS:
            yield Episode(JOBS[name], at, after, label=name)
        else:
            yield Episode("waiting", at, after, label="between jobs")


def _of_trial(trial: TrialResult, at: float, after: float, ended: float | None) -> Episode:
    label = f"{trial.label}, micro-batch {trial.micro_batch}"
    kind: EpisodeKind = "trial"
    if trial.outcome == "out-of-memory":
        kind = "no memory"
    elif trial.outcome != "measured":
        kind = "failed"
    elif (trial.proof or trial.unproven) and ended is not None and at > ended:
        kind = "proof"
    return Episode(kind, at, after, trial.model, label)


def _joined(stretches: Iterable[Episode]) -> Iterator[Episode]:
    """Join neighbours of one job."""
    before: Episode | None = None
    for episode in stretches:
        if before is not None and _job(before) == _job(episode):
            before = Episode(episode.kind, before.begun, episode.ended, episode.model, episode.label)
            continue
        if before is not None:
            yield before
        before = episode
    if before is not None:
        yield before


def _without_tails(found: Sequence[Episode]) -> Iterator[Episode]:
    """Count the seconds in which a trial's process ends as part of the trial, not of its proof."""
    last_of = {_job(episode): number for number, episode in enumerate(found)}
    for number, episode in enumerate(found):
        after_trial = episode.kind == "proof" and number > 0 and found[number - 1].kind == "trial"
        yield replace(episode, kind="trial") if after_trial and last_of[_job(episode)] > number else episode


def _job(episode: Episode) -> tuple[str, str | None, str]:
    return episode.kind, episode.model, episode.label
