"""Head and loss by chunks compute what they compute at once, with less memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.planning.memory_prediction import predict_counted_bytes
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all, chunked_loss, conflict, free_lunch, known_methods
from bench.training.models import Model
from tests.targets import H200
from tests.training.models.keeping import counted_for, made_up_batch
from tests.training.models.test_attention import DECODER, built, model_of
from tests.training.test_equivalence import curve

METHOD = known_methods()["chunked-loss"]
BESIDE = ("kernels", "half-weights", "fused-optimizer", "compile-blocks")


def llama(**changed: Any) -> Model:
    model = model_of("llama", "causal-lm", DECODER | {"vocab_size": 70_000} | changed)
    return replace(model, recipe=replace(model.recipe, precision="bf16"))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of at most 25 positions: a batch of 2 samples of 32 takes three, the last shorter."""
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 25 * 70_000 * 2)


@pytest.mark.parametrize("tied", [False, True])
def test_losses_and_gradients_are_those_without_chunks(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes a step, so that gradients are added up across passes and across chunks.

    A small vocabulary, which the method would refuse as not worth it, computes the same in less time.
    """
    monkeypatch.setattr(chunked_loss, "MIN_WORDS", 0)
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 25 * 700 * 2)  # three chunks, as in small_chunks
    model = llama(tie_word_embeddings=tied, vocab_size=700)
    settings = (("half-weights",), ("half-weights", "chunked-loss"))
    with torch.compiler.set_stance("force_eager"):
        expected, found = (curve(model, setting, tmp_path, micro_batch=2, batch=4) for setting in settings)
    torch.testing.assert_close(found[:3], expected[:3], rtol=1e-4, atol=0)  # losses
    torch.testing.assert_close(found[3:], expected[3:], rtol=1e-2, atol=0)  # gradient norms


@pytest.mark.usefixtures("small_chunks")
def test_an_evaluation_adds_no_gradients() -> None:
    model = llama()
    whole = WithLoss(built(model, kernels=False))
    batch = made_up_batch(model, 2)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = whole(batch)
        apply_all(("chunked-loss",), model, whole, [])
        torch.testing.assert_close(whole(batch), expected, rtol=1e-5, atol=0)
    assert all(weight.grad is None for weight in whole.parameters())


def test_it_is_part_of_a_free_lunch_with_half_weights_for_large_vocabularies() -> None:
    assert "chunked-loss" in free_lunch(llama(), H200, ("half-weights",))
    assert "chunked-loss" not in free_lunch(llama(), H200)
    assert "half-weights" in str(conflict(("compile-blocks", "chunked-loss")))
    assert "compile-blocks" in str(conflict(("half-weights", "chunked-loss")))


def test_small_vocabularies_and_other_objectives_are_refused() -> None:
    assert "32,000 words" in str(METHOD.refuse(llama(vocab_size=32_000), H200))
    assert METHOD.refuse(model_of("bert", "masked-lm", DECODER), H200)


def test_predicted_memory_has_one_chunk_of_logits() -> None:
    model = llama()
    counts = counted_for(model, BESIDE)
    plain, chunked = (
        predict_counted_bytes(model, setting, 2048, 1, counts)
        for setting in (BESIDE, (*BESIDE, "chunked-loss"))
    )
    assert plain is not None and chunked is not None
    positions = 2048 * model.recipe.units_per_sample
    assert plain - chunked == positions * 70_000 * 2 - 2 * chunked_loss.CHUNK_BYTES
