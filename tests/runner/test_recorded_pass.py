"""Recorded passes train as others do. A CPU cannot record: there, a replay computes again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import pytest
import torch

from bench.runner.trial import recorded_pass
from bench.runner.trial.device import Device
from bench.runner.trial.recorded_pass import UNRECORDED, RecordedPass, Replay
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import UNRECORDABLE, conflict, free_lunch, known_methods, ordered, refusal
from bench.training.models import Model, Precision, known_models
from bench.training.setting import Setting
from tests.builders import trial
from tests.targets import CPU, FOUR_H200, H200
from tests.training.test_equivalence import curve, without_dropout

TINY = without_dropout(known_models()["tiny-gpt-neox"])


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """Replace recording by computing again. Returns a list that gets every recorded function."""
    passes: list[Replay] = []

    def record(compute: Replay) -> Replay:
        passes.append(compute)
        return compute

    monkeypatch.setattr(recorded_pass, "record_graph", record)
    return passes


def in_precision(precision: Precision) -> Model:
    assert precision in get_args(Precision)
    return dataclasses.replace(TINY, recipe=dataclasses.replace(TINY.recipe, precision=precision))


@pytest.mark.parametrize(
    ("setting", "precision"),
    [((), "fp32"), ((), "bf16"), (("half-weights",), "bf16"), (("half-weights",), "fp16")],
)
def test_recorded_passes_compute_what_others_compute(
    setting: Setting, precision: Precision, recorded: list[Replay], tmp_path: Path
) -> None:
    model = in_precision(precision)
    expected = curve(model, setting, tmp_path, micro_batch=4)
    found = curve(model, (*setting, "cuda-graphs"), tmp_path, micro_batch=4)
    assert len(recorded) == 1
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)


def test_gradients_keep_their_memory_between_steps(recorded: list[Replay], tmp_path: Path) -> None:
    one = trial(model=TINY, setting=("cuda-graphs",), micro_batch=4)
    run = TrialRun(one, Device("cpu"), Team(), tmp_path, lambda _event: None)
    run.prepare()
    run.step(1)
    before = [weight.grad.data_ptr() for weight in run.strategy.whole.parameters() if weight.grad is not None]
    assert before
    for _ in range(3):
        run.step(2)
    after = [weight.grad.data_ptr() for weight in run.strategy.whole.parameters() if weight.grad is not None]
    assert after == before
    assert len(recorded) == 1


def test_the_share_of_a_pass_may_change_after_it_was_recorded(recorded: list[Replay], tmp_path: Path) -> None:
    one = trial(model=TINY, setting=("cuda-graphs",), micro_batch=4)
    run = TrialRun(one, Device("cpu"), Team(), tmp_path, lambda _event: None)
    run.prepare()
    batch = next(run.batches)
    whole = [float(run.strategy.forward_backward(batch, 1, sync=True)) for _ in range(4)]
    half = float(run.strategy.forward_backward(batch, 2, sync=True))
    assert whole == pytest.approx([whole[0]] * 4)
    assert half == pytest.approx(whole[0] / 2)
    assert len(recorded) == 1


def test_batches_are_copied_into_the_recorded_one(recorded: list[Replay]) -> None:
    seen: list[torch.Tensor] = []

    def run_pass(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.append(batch["ids"])
        return batch["ids"].sum()

    one = RecordedPass(run_pass)  # type: ignore[arg-type]
    given = [{"ids": torch.full((3,), i)} for i in range(6)]
    assert [int(one(batch)) for batch in given] == [0, 3, 6, 9, 12, 15]
    assert len(recorded) == 1
    assert all(seen[i] is given[i]["ids"] for i in range(UNRECORDED))
    assert all(ids is seen[UNRECORDED] for ids in seen[UNRECORDED:])
    assert [int(batch["ids"][0]) for batch in given] == list(range(6))


def test_a_batch_of_another_shape_is_refused(recorded: list[Replay]) -> None:
    one = RecordedPass(lambda batch: batch["ids"].sum())
    for _ in range(UNRECORDED + 1):
        one({"ids": torch.ones(3)})
    assert recorded
    with pytest.raises(RuntimeError):
        one({"ids": torch.ones(2, 2)})


def test_a_pass_that_cannot_be_recorded_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda _graph, capture_error_mode: Recorder())
    with pytest.raises(RuntimeError, match=f"{UNRECORDABLE}: CUDA error: .*; leave"):
        recorded_pass.record_graph(lambda: torch.ones(()))


class Recorder:
    """Stands for a recording: it fails at its end if the code within it failed, as CUDA does."""

    def __enter__(self) -> None: ...

    def __exit__(self, failed: object, *_: object) -> None:
        if failed:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda _graph, capture_error_mode: Recorder())


@pytest.mark.usefixtures("recorder")
def test_a_pass_that_cannot_be_recorded_says_what_failed_first() -> None:
    def copies_from_the_host() -> torch.Tensor:
        raise RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture")

    with pytest.raises(RuntimeError, match=f"{UNRECORDABLE}: Cannot copy between .*; leave"):
        recorded_pass.record_graph(copies_from_the_host)


@pytest.mark.usefixtures("recorder")
def test_a_pass_that_runs_out_of_memory_while_it_is_recorded_is_out_of_memory() -> None:
    def too_much() -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        recorded_pass.record_graph(too_much)


def test_passes_are_recorded_on_gpus_only() -> None:
    assert "NVIDIA GPU" in str(known_methods()["cuda-graphs"].refuse(TINY, CPU))
    assert "cuda-graphs" not in free_lunch(TINY, CPU)
    assert "cuda-graphs" in free_lunch(TINY, H200)


@pytest.mark.parametrize("other", ["checkpointing", "zero-1", "fsdp-3"])
def test_a_pass_that_waits_for_others_or_reads_random_state_is_not_recorded(other: str) -> None:
    assert conflict(ordered(["compile-blocks", "cuda-graphs", other]))
    assert "cuda-graphs" not in free_lunch(TINY, FOUR_H200, (other,))


def test_on_several_gpus_passes_are_recorded_if_gradients_are_exchanged_after_them() -> None:
    model = known_models()["pythia-1b"]
    assert "cuda-graphs" not in free_lunch(model, FOUR_H200)
    assert "cuda-graphs" in free_lunch(model, FOUR_H200, ("half-weights",))
    reason = refusal(("compile-blocks", "cuda-graphs"), model, FOUR_H200)
    assert "DDP exchanges gradients within a pass" in str(reason)
