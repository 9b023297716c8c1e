"""One job inside its own process group: a trial, or the ceilings of this machine.

torch and transformers are imported at the top here, and nowhere else but beside it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.codec import from_json, to_json
from bench.estimate import mean
from bench.methods import apply_all, known_methods
from bench.models.inline import family_of, flops_of
from bench.result import Crashed, Measured, Measurement, Outcome, OutOfMemory, StepSample, Trial
from bench.runner.ceilings import measure_ceilings
from bench.runner.data import Batches, make_pool
from bench.runner.device import Device
from bench.runner.loop import SingleDevice, gradient_norm
from bench.runner.timing import accumulation_counts, is_enough, is_steady

Emit = Callable[[dict[str, Any]], None]
LOSS_SAMPLES = 64  # a step of the loss curve, whatever the micro-batch, as near as it divides
SAVED_BYTES = 1 << 30  # how much of the state is really written; the rest is scaled


def work(job: dict[str, Any], emit: Emit) -> int:
    """The process boundary: whatever happens becomes an event, and the log holds the traceback."""
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=job.get("scratch")) as folder:
            emit(_dispatch(job, Path(folder), emit))
    except Exception as error:
        traceback.print_exc()
        emit({"outcome": to_json(classify(error))})
        return 1
    return 0


def _dispatch(job: dict[str, Any], scratch: Path, emit: Emit) -> dict[str, Any]:
    """The job's final event."""
    device = Device(job["device"])
    if job["kind"] == "ceilings":
        return {"ceilings": to_json(measure_ceilings(device, job["names"], job["gpus"]))}
    run = TrialRun(from_json(Trial, job["trial"]), device, scratch, emit)
    if job["kind"] == "reality":
        return {"reality": run.really(job["steps"], job["seconds"])}
    return {"outcome": to_json(Measured(run.run()))}


def classify(error: Exception) -> Outcome:
    """Out of memory is an answer about the machine; anything else is a failure with its reason."""
    text = f"{type(error).__name__}: {error}".strip()
    first_line = text.splitlines()[0][:300]
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory("gpu", first_line)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        return OutOfMemory("host", first_line)
    return Crashed(first_line)


@dataclass(frozen=True, slots=True)
class Warm:
    samples: tuple[StepSample, ...]
    steady: bool


class TrialRun:
    """From an empty process to a measurement, phase by phase."""

    def __init__(self, trial: Trial, device: Device, scratch: Path, emit: Emit) -> None:
        self.trial = trial
        self.device = device
        self.scratch = scratch
        self.emit = emit
        self.phase_seconds: dict[str, float] = {}
        self._phase = ("start", time.perf_counter())

    def phase(self, name: str) -> None:
        before, started = self._phase
        now = time.perf_counter()
        self.phase_seconds[before] = self.phase_seconds.get(before, 0.0) + now - started
        self._phase = (name, now)
        self.emit({"phase": name})

    def run(self) -> Measurement:
        self.phase("build")
        self.device.cap_memory(self.trial.memory_cap_bytes)
        self.strategy = self.build()
        self.batches = self.load()
        self.phase("first steps")  # compilation happens in here
        losses, norms, samples_per_loss = self.loss_curve()
        self.phase("warm-up")
        warm = self.warm_up()
        self.phase("measure")
        started = time.time()
        self.device.reset_peak()
        steps = self.measure(warm)
        ended, peak = time.time(), self.device.peak_bytes()
        self.phase("overheads")
        log, save, evaluation = self.overheads()
        self.phase("done")
        return Measurement(
            steps=steps, warmup=warm.samples, steady=warm.steady,
            losses=losses, gradient_norms=norms, samples_per_loss=samples_per_loss,
            peak_bytes=peak,
            parameters=sum(p.numel() for p in self.strategy.module.parameters()),
            flops=flops_of(self.trial.model),
            master_dtype=_dtype_of(self.strategy.module),
            log_seconds=log, save_seconds=save, eval_seconds_per_sample=evaluation,
            phase_seconds=self.phase_seconds, started_at=started, ended_at=ended,
        )  # fmt: skip

    def really(self, steps: int, seconds: float) -> dict[str, float]:
        """Trains as the recipe says, at least so many steps and seconds; synchronised at both ends only.

        What an estimate is held against: nothing of the estimate's own clockwork is in here.
        """
        self.phase("build")
        self.device.cap_memory(self.trial.memory_cap_bytes)
        self.strategy = self.build()
        self.batches = self.load()
        self.phase("first steps")
        for _ in range(2):
            self.step(self.trial.accumulation)
        self.device.synchronise()
        self.phase("train")
        done = 0
        started = time.perf_counter()
        while done < steps or time.perf_counter() - started < seconds:
            self.step(self.trial.accumulation)
            done += 1
            self.emit({"step": self.trial.accumulation})
            if done >= steps:
                self.device.synchronise()  # only once the count alone no longer ends it
        self.device.synchronise()
        return {"steps": done, "seconds": time.perf_counter() - started}

    def build(self) -> SingleDevice:
        trial = self.trial
        family = family_of(trial.model)
        torch.manual_seed(trial.seed)
        # A graph that fails to compile must fail the trial, not fall back to eager in silence.
        torch._dynamo.config.suppress_errors = False
        for name in trial.setting:
            known_methods()[name].prepare()
        module = family.build(trial.model, kernels="kernels" in trial.setting).to(self.device.torch)
        module.train()
        apply_all(trial.setting, module, family.blocks(module))
        return SingleDevice(family, module, trial.model.recipe, self.device.torch)

    def load(self) -> Batches:
        trial = self.trial
        pool = make_pool(trial.model, self.scratch, trial.seed)
        return Batches(
            trial.model, pool, trial.micro_batch, trial.seed, self.device.torch, self.device.loaders
        )

    def step(self, passes: int) -> torch.Tensor:
        """One optimizer step, not synchronised. Returns its mean loss, still on the device."""
        total = torch.zeros((), device=self.device.torch)
        for i in range(passes):
            total += self.strategy.forward_backward(next(self.batches), passes, sync=i == passes - 1)
        self.strategy.update()
        return total

    def timed_step(self, passes: int) -> StepSample:
        self.device.synchronise()
        started = time.perf_counter()
        self.step(passes)
        self.device.synchronise()
        sample = StepSample(passes, time.perf_counter() - started)
        self.emit({"step": passes, "seconds": sample.seconds})
        return sample

    def loss_curve(self) -> tuple[tuple[float, ...], tuple[float, ...], int]:
        """The first steps: what tells whether a setting still computes the same thing."""
        trial = self.trial
        passes = max(1, min(LOSS_SAMPLES // trial.micro_batch, trial.accumulation))
        losses, norms = [], []
        for _ in range(trial.timing.loss_steps):
            total = torch.zeros((), device=self.device.torch)
            for i in range(passes):
                total += self.strategy.forward_backward(next(self.batches), passes, sync=i == passes - 1)
            scale = self.strategy.scaler.get_scale()
            norms.append(float(gradient_norm(self.strategy.module)) / scale)
            losses.append(float(total))
            self.strategy.update()
            self.emit({"step": passes})
        return tuple(losses), tuple(norms), passes * trial.micro_batch

    def warm_up(self) -> Warm:
        """Steps of one pass until two adjacent windows agree, or the time is up."""
        samples: list[StepSample] = []
        started = time.perf_counter()
        while not (steady := is_steady([s.seconds for s in samples], self.trial.timing)):
            if time.perf_counter() - started > self.trial.timing.warmup_seconds:
                break
            samples.append(self.timed_step(1))
        return Warm(tuple(samples), steady)

    def measure(self, warm: Warm) -> tuple[StepSample, ...]:
        """Both counts in turn, so that a machine that drifts drifts for both."""
        trial = self.trial
        one_pass = mean([s.seconds for s in warm.samples[-3:]])
        counts = accumulation_counts(trial.accumulation, one_pass, trial.timing)
        samples: list[StepSample] = []
        started = time.perf_counter()
        for passes in cycle(counts):
            samples.append(self.timed_step(passes))
            done = is_enough(samples, trial.accumulation, time.perf_counter() - started, trial.timing)
            if done and len(samples) % len(counts) == 0:
                return tuple(samples)
        raise AssertionError("cycle never ends")

    def overheads(self) -> tuple[float | None, float | None, float | None]:
        recipe = self.trial.model.recipe
        log = self.time_log() if recipe.log_every_steps else None
        save = self.time_save() if recipe.save_every_steps else None
        evaluation = self.time_evaluation() if recipe.eval_every_steps and recipe.eval_samples else None
        return log, save, evaluation

    def time_log(self) -> float:
        """Beyond the step: the wait that reading a loss forces is in every timed step already."""
        loss = self.step(1)
        self.device.synchronise()
        started = time.perf_counter()
        with (self.scratch / "log.txt").open("a") as file:
            file.write(f"{float(loss)}\n")
        return time.perf_counter() - started

    def time_save(self) -> float:
        """Weights and moments to this disk; past a GiB the rest is scaled from what was written."""
        tensors = _state_tensors(self.strategy)
        total = sum(t.nbytes for t in tensors)
        written, size = [], 0
        for tensor in tensors:
            if size >= SAVED_BYTES or size + tensor.nbytes > shutil.disk_usage(self.scratch).free // 2:
                break
            written.append(tensor)
            size += tensor.nbytes
        if not written:
            return 0.0
        self.device.synchronise()
        started = time.perf_counter()
        with (self.scratch / "checkpoint.pt").open("wb") as file:
            torch.save(written, file)
            file.flush()
            os.fsync(file.fileno())
        seconds: float = time.perf_counter() - started
        (self.scratch / "checkpoint.pt").unlink()
        return seconds * float(total / size)

    def time_evaluation(self) -> float:
        module = self.strategy.module
        module.eval()
        seconds = 0.0
        with torch.no_grad(), self.strategy.autocast():
            for _ in range(2):  # the first one may compile
                batch = next(self.batches)
                self.device.synchronise()
                started = time.perf_counter()
                self.strategy.family.loss(module, batch)
                self.device.synchronise()
                seconds = time.perf_counter() - started
        module.train()
        return float(seconds / self.trial.micro_batch)


def _state_tensors(strategy: SingleDevice) -> list[torch.Tensor]:
    moments = [
        value
        for state in strategy.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return [*(p.detach() for p in strategy.module.parameters()), *moments]


def _dtype_of(module: nn.Module) -> str:
    """The dtype that the optimizer updates: one for all parameters, or the trial is wrong."""
    kinds = {str(p.dtype).removeprefix("torch.") for p in module.parameters()}
    if len(kinds) != 1:
        raise RuntimeError(f"parameters of several dtypes: {', '.join(sorted(kinds))}")
    return kinds.pop()
