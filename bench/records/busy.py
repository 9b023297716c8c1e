"""Find how much of the time of a trial's steps its GPUs ran kernels, and say which ones waited for the host.

In: readings of telemetry, and the time span of each trial's steps. Out: a share for each trial, and its text.
Pure. NVML counts the time in which at least one kernel ran. A low share means that a GPU waited: for the host
to launch kernels, load data or update weights. A high share does not mean that the GPU was used well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeGuard

from bench.base.frozen import dataclass
from bench.records.slowdown import Span, TrialReading

LEAST_BUSY_SHARE = 0.85  # of a trial that is not said to wait
LEAST_READINGS = 3  # of a trial: fewer say nothing
READING_SECONDS = 1.0  # before a reading, which its share may cover


@dataclass(slots=True)
class BusyTime:
    """The busy shares of all readings of GPUs while the steps of trials were timed; `spans` by trial id."""

    spans: Mapping[str, Span]
    gpus: int  # of each reading, the first ones: those that trained
    _percents: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def noting(self, readings: Iterable[TrialReading]) -> Iterator[TrialReading]:
        """Yield all readings unchanged, after noting the busy shares in them."""
        for reading in readings:
            begun, ended = self.spans.get(reading.trial, (0.0, -1.0))
            if begun + READING_SECONDS <= reading.at <= ended:
                shares = (gpu.get("busy_percent") for gpu in reading.gpus[: self.gpus])
                self._percents[reading.trial] += (
                    share for share in shares if type(share) is int and 0 <= share <= 100
                )
            yield reading

    def shares(self) -> Mapping[str, float]:
        """Return the mean share of the time in which kernels ran, by trial id."""
        return {
            trial: sum(percents) / len(percents) / 100
            for trial, percents in self._percents.items()
            if len(percents) >= LEAST_READINGS
        }


def waited(busy_share: float | None) -> TypeGuard[float]:
    """Whether the GPUs of a trial waited for the host; of a trial without a share this is not known."""
    return busy_share is not None and busy_share < LEAST_BUSY_SHARE


def waiting_text(busy_share: float | None, setting: Sequence[str]) -> str | None:
    """Say that the GPUs of a trial waited for the host, and what usually causes it; None if they did not."""
    if not waited(busy_share):
        return None
    if "offload" in setting:
        cause = "the host's CPUs update the weights"
    elif "cuda-graphs" in setting:
        cause = "the host may load data too slowly"
    else:
        cause = "the host may launch kernels too slowly: larger micro-batches need fewer launches"
    return f"kernels ran in {busy_share:.0%} of the time; for the rest the GPUs waited: {cause}"
