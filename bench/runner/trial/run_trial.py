"""Run a trial in a worker: from an empty process to a measurement, phase by phase.

In: a trial, a device, a team. Out: a Measurement or a Proof, and events for the supervisor. Every member of
the team runs all phases. Imports torch at module level.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.records.estimate import mean
from bench.records.loss_curve import loss_passes
from bench.records.trial import Measurement, Proof, StepSample, Trial
from bench.runner.trial import stopping_rules as rules
from bench.runner.trial.checkpoint_time import seconds_to_save
from bench.runner.trial.compared_passes import compared_passes
from bench.runner.trial.counted_products import products_or_reason
from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import Batches, batches_of
from bench.runner.trial.strategies import make_strategy
from bench.runner.trial.team import Team
from bench.runner.trial.training_loop import Batch, Strategy, WithLoss
from bench.training.methods import apply_all, arithmetic, prepare_all
from bench.training.models import counts_of, family_of
from bench.training.models.isolation import require_documents_apart
from bench.training.setting import in_group
from bench.training.vendor import compiler_inside

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The steps of a warm-up, whether they became steady, and their times, from which pass counts follow."""

    samples: tuple[StepSample, ...]
    steady: bool
    step_seconds: float  # a step of one pass
    pass_seconds: float  # roughly, to choose pass counts


class TrialRun:
    """A member's run of a trial; `run` and `prove` list its phases from top to bottom."""

    def __init__(self, trial: Trial, device: Device, team: Team, scratch: Path, emit: Emit) -> None:
        self.trial = trial
        self.device = device
        self.team = team
        self.scratch = scratch
        self.emit = emit
        self.phase_seconds: dict[str, float] = {}
        self._phase = ("start", time.perf_counter())

    def phase(self, name: str) -> None:
        """End the current phase and begin the next, for the supervisor and for the measurement's record."""
        before, started = self._phase
        now = time.perf_counter()
        self.phase_seconds[before] = self.phase_seconds.get(before, 0.0) + now - started
        self._phase = (name, now)
        self.emit({"phase": name})

    def run(self) -> Measurement:
        """Go through all phases of a measurement; failures are raised."""
        self.prepare()
        flops = arithmetic(self.trial.setting, self.trial.model, counts_of(self.trial.model))
        self.emit({"flops": flops.training})
        self.phase("first steps")  # includes compilation
        losses, norms, samples_per_loss = self.loss_curve()
        self.emit({"peak_bytes": self.peak_bytes()})
        self.phase("warm-up")
        freeze_garbage_collector()
        warm = self.warm_up()
        self.phase("measure")
        started = time.time()
        self.device.reset_peak()
        steps = self.measure(warm)
        ended, peak = time.time(), self.peak_bytes()
        self.phase("overheads")
        log, save, evaluation = self.overheads(warm.pass_seconds)
        self.phase("products")
        products = products_or_reason(self.trial, flops) if self.team.rank == 0 else ()
        self.phase("done")
        return Measurement(
            steps=steps,
            warmup=warm.samples,
            steady=warm.steady,
            losses=losses,
            gradient_norms=norms,
            samples_per_loss=samples_per_loss,
            peak_bytes=int(self.team.slowest(peak)),
            parameters=self.parameters,
            flops=flops,
            master_dtype=_dtype_of(self.strategy.optimizer),
            log_seconds=log,
            save_seconds=save,
            eval_seconds_per_sample=evaluation,
            phase_seconds=self.phase_seconds,
            started_at=started,
            ended_at=ended,
            products=() if isinstance(products, str) else products,
            no_products=products if isinstance(products, str) else None,
        )

    def prove(self, steps: int, seconds: float) -> Proof:
        """Train as the recipe says for at least `steps` steps and `seconds`, and time all of it.

        Estimates are compared with this time, so it is taken in another way: devices are synchronised at the
        beginning and at the end only.
        """
        self.prepare()
        self.phase("first steps")
        for passes in self.passes_before_proof():
            self.step(passes)
        freeze_garbage_collector()
        self.device.synchronise()
        self.device.reset_peak()
        self.phase("train")
        self.team.wait()
        done, elapsed = 0, 0.0
        started = time.perf_counter()
        while done < steps or elapsed < seconds:
            self.step(self.trial.accumulation)
            done += 1
            self.emit({"step": self.trial.accumulation})
            if done >= steps:  # before that, the time cannot end the loop, and is not read
                self.device.synchronise()
                elapsed = self.team.slowest(time.perf_counter() - started)
        return Proof(done, elapsed, int(self.team.slowest(self.peak_bytes())))

    def passes_before_proof(self) -> tuple[int, ...]:
        """Return the pass counts of the steps that a proof does not time.

        A step that compares all its samples holds the whole batch in the host's memory, while as much is
        loaded for the next step. The first two such steps are the first to use all of this memory.
        """
        whole = self.trial.accumulation
        compares = self.trial.model.recipe.aim.compares_samples
        return (min(2, whole),) * 3 + ((whole,) * 2 if compares else ())

    def prepare(self) -> None:
        """Build the strategy and open the data, within the trial's memory cap."""
        self.phase("build")
        self.device.cap_memory(self.trial.memory_cap_bytes)
        self.strategy = self.build()
        self.batches = self.load()

    def build(self) -> Strategy:
        """Build the model with all methods of the setting, and the strategy that trains it."""
        trial = self.trial
        family = family_of(trial.model)
        torch.manual_seed(trial.seed)
        compiler_inside.fail_instead_of_eager()
        prepare_all(trial.setting)
        model = self.build_model()
        if trial.model.recipe.documents:
            require_documents_apart(model, trial.model)
        model.train()
        self.parameters = sum(p.numel() for p in model.parameters())
        blocks = family.blocks(model)
        self.whole = WithLoss(model, trial.model.recipe.aim, self.team.rows)
        apply_all(trial.setting, trial.model, self.whole, blocks)
        return make_strategy(trial, self.whole, blocks, self.device.torch, self.team)

    def build_model(self) -> nn.Module:
        """Build the model on the device with its first weights; methods are applied later."""
        trial, device = self.trial, self.device.torch
        with device:
            model = family_of(trial.model).build(trial.model, kernels="kernels" in trial.setting)
        return model.to(device)  # Wav2Vec2 for instance puts a parameter into the host's memory

    def load(self, first: int = 0) -> Batches:
        """Return this process's micro-batches, from number `first` on."""
        device, scratch = self.device, self.scratch / f"rank-{self.team.rank}"
        return batches_of(self.trial, scratch, device.torch, self.team, device.loaders(), first)

    def peak_bytes(self) -> int:
        """Return the most memory used; CUDA graphs keep theirs outside of what torch counts."""
        return self.device.peak_bytes(recorded="cuda-graphs" in self.trial.setting)

    def passes(self, count: int, of: int | None = None) -> torch.Tensor:
        """Run `count` passes of a step that has `of` passes (default: `count`). Returns their mean loss."""
        total = torch.zeros((), device=self.device.torch)
        for i, batch in enumerate(self.micro_batches(self.strategy, self.batches, count, of)):
            total += self.strategy.forward_backward(batch, of or count, sync=i == count - 1)
        return total

    def micro_batches(
        self, strategy: Strategy, data: Iterator[Batch], count: int, of: int | None = None
    ) -> Iterator[Batch]:
        """Yield the micro-batches of `count` passes of a step that has `of` passes (default: `count`)."""
        if self.trial.model.recipe.aim.compares_samples and self.trial.accumulation > 1:
            return compared_passes(self.whole, strategy, data, self.device.torch, count, of or count)
        return islice(data, count)

    def step(self, passes: int, of: int | None = None) -> torch.Tensor:
        """Run one optimizer step without synchronising. Returns its mean loss, on the device."""
        loss = self.passes(passes, of)
        self.strategy.update()
        return loss

    def timed_step(self, passes: int) -> StepSample:
        """Time a step of fewer passes than the recipe's, whose losses are scaled as in the recipe's step.

        A loss is divided by the number of passes of its step. Larger losses slow down a GPU at its power
        limit: fp16 gradients 128 times too large cost 2% (docs/accuracy.md).
        """
        self.device.synchronise()
        self.team.wait()
        started = time.perf_counter()
        self.step(passes, self.trial.accumulation)
        self.device.synchronise()
        sample = StepSample(passes, self.team.slowest(time.perf_counter() - started))
        self.emit({"step": passes, "seconds": sample.seconds})
        return sample

    def loss_curve(self) -> tuple[tuple[float, ...], tuple[float | None, ...], int]:
        """Train the first steps. Returns their losses, gradient norms, and samples a step.

        Comparing losses between settings shows whether a setting computes the same as the naive one.
        """
        trial = self.trial
        at_once = trial.micro_batch * self.team.size
        passes = loss_passes(self.parameters, trial.model.recipe, at_once, trial.accumulation)
        losses: list[float] = []
        norms: list[float | None] = []
        for step in range(1, trial.timing.loss_steps + 1):
            loss = self.passes(passes)
            norm = self.strategy.update(norm_wanted=True)
            losses.append(self.team.mean(float(loss)))
            if not math.isfinite(losses[-1]):  # timings of such numbers would mean nothing
                raise FloatingPointError(
                    f"the loss is {losses[-1]} at step {step}: lower the recipe's learning rate, "
                    "or train in bf16 where fp16 overflows"
                )
            assert norm is not None
            # Not finite if half precision overflowed; then the scaler skipped this update.
            norms.append(float(norm) if math.isfinite(norm) else None)
            self.emit({"step": passes, "loss": losses[-1]})
        return tuple(losses), tuple(norms), passes * at_once

    def warm_up(self) -> WarmUp:
        """Run steps of one pass until two adjacent windows agree or the time is up, then two of two passes.

        Two steps of two passes, because the first may still allocate memory for the sums of gradients.
        """
        samples: list[StepSample] = []
        started = time.perf_counter()
        while not (steady := rules.is_steady([s.seconds for s in samples], self.trial.timing)):
            if self.team.slowest(time.perf_counter() - started) > self.trial.timing.warmup_seconds:
                break
            samples.append(self.timed_step(1))
        a_step = mean([sample.seconds for sample in samples[-3:]])  # the last steps are the warmest
        if self.trial.accumulation == 1:
            return WarmUp(tuple(samples), steady, a_step, a_step)
        samples += [self.timed_step(2), self.timed_step(2)]
        a_pass = min(max(samples[-1].seconds - a_step, a_step / 50), a_step)
        return WarmUp(tuple(samples), steady, a_step, a_pass)

    def measure(self, warm: WarmUp) -> tuple[StepSample, ...]:
        """Time steps of both pass counts alternately, so that drift of the machine affects both alike."""
        trial = self.trial
        update = warm.step_seconds - warm.pass_seconds
        counts = rules.accumulation_counts(
            trial.accumulation, warm.pass_seconds, update, trial.timing, self.strategy.even_from
        )
        samples: list[StepSample] = []
        started = time.perf_counter()
        for passes in cycle(counts):
            samples.append(self.timed_step(passes))
            elapsed = self.team.slowest(time.perf_counter() - started)
            done = rules.is_enough(samples, trial.accumulation, elapsed, trial.timing)
            if done and len(samples) % len(counts) == 0:
                return tuple(samples)
        raise AssertionError("cycle never ends")

    def overheads(self, pass_seconds: float) -> tuple[float | None, float | None, float | None]:
        """Return seconds of a log line, a checkpoint, an evaluated sample; None if the recipe omits it."""
        recipe = self.trial.model.recipe
        log = self.time_log() if recipe.log_every_steps else None
        save = self.time_save() if recipe.save_every_steps else None
        evaluation = None
        if rules.evaluates_rarely(recipe):  # a training pass takes longer, and is compiled already
            evaluation = pass_seconds / (self.trial.micro_batch * self.team.size)
        elif recipe.eval_every_steps and recipe.eval_samples:
            evaluation = self.time_evaluation()
        return log, save, evaluation

    def time_log(self) -> float:
        """Return seconds for writing a log line, without waiting for the loss, which timed steps include."""
        loss = self.step(1)
        self.device.synchronise()
        started = time.perf_counter()
        with (self.scratch / f"log-{self.team.rank}.txt").open("a") as file:
            file.write(f"{float(loss)}\n")
        return self.team.slowest(time.perf_counter() - started)

    def time_save(self) -> float:
        """Return seconds for saving weights and moments to disk, scaled up from the time of at most a GiB.

        The first of several replicas saves; if each member holds a part, all save at once.
        """
        saves = self.team.rank == 0 or in_group(self.trial.setting, "sharding") is not None
        path = self.scratch / f"checkpoint-{self.team.rank}.pt"
        self.team.wait()
        return self.team.slowest(seconds_to_save(self.strategy, self.device, path) if saves else 0.0)

    def time_evaluation(self) -> float:
        """Return the seconds of evaluating one sample."""
        whole = self.strategy.whole
        whole.eval()
        seconds = 0.0
        for _ in range(2):  # the first evaluation may compile
            batch = next(self.batches)
            self.device.synchronise()
            self.team.wait()
            started = time.perf_counter()
            self.strategy.evaluate(batch)
            self.device.synchronise()
            seconds = self.team.slowest(time.perf_counter() - started)
        whole.train()
        return seconds / (self.trial.micro_batch * self.team.size)


def freeze_garbage_collector() -> None:
    """Exempt all objects from garbage collection. Called once everything is built and compiled.

    Otherwise Python's collector repeatedly scans half a million permanent objects, and delays a step by a
    third of a second each time.
    """
    gc.collect()
    gc.freeze()


def _dtype_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the dtype of the weights that the optimizer updates. Raises unless the dtype is fp32."""
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in optimizer.state}
    if dtypes != {"float32"}:
        names = ", ".join(sorted(dtypes)) or "nothing"
        raise RuntimeError(f"the optimizer updates {names}, not fp32 weights")
    return dtypes.pop()
