"""A head with rows of zeros added computes the model's logits and gradients, without a copy of the logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._inductor.utils import run_and_get_code

from bench.base.errors import BadInput
from bench.planning.memory_prediction import predict_counted_bytes
from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all, conflict, free_lunch, known_methods
from bench.training.methods.padded_head import PADDED_TO
from bench.training.models import Counted, Model
from bench.training.models.paper_code import find_model
from bench.training.models.probe import tiny_input
from tests.targets import H200
from tests.training.models.keeping import counted_for, made_up_batch
from tests.training.models.test_attention import CAUSAL, DECODER, FULL, WINDOWED, built, model_of, named

WORDS = 131  # no multiple of eight
METHOD = known_methods()["padded-head"]


def odd(name: str, objective: str, architecture: dict[str, Any]) -> Model:
    return model_of(name, objective, architecture | {"vocab_size": WORDS})


ARCHITECTURES = [
    *(odd(name, "causal-lm", given) for name, given in CAUSAL.items()),
    *(odd(name, "masked-lm", given) for name, given in FULL.items()),
    *(odd(name, *given) for name, given in WINDOWED.items()),
]


def logits_and_gradients(model: Model, setting: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    whole = WithLoss(built(model, kernels=False))
    apply_all(setting, model, whole, [])
    batch = made_up_batch(model, 2)
    logits = whole.model(**{name: data for name, data in batch.items() if name != "labels"}).logits
    logits.logsumexp(-1).mean().backward()
    return logits.detach(), torch.cat([p.grad.flatten() for p in whole.parameters() if p.grad is not None])


def test_more_than_twenty_architectures_are_compared() -> None:
    assert len({model.family for model in ARCHITECTURES}) > 20


@pytest.mark.parametrize("model", ARCHITECTURES, ids=named)
def test_logits_and_gradients_are_those_of_the_model(model: Model) -> None:
    expected, found = (logits_and_gradients(model, setting) for setting in ((), ("padded-head",)))
    assert found[0].shape[-1] == WORDS
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_compiled_loss_writes_the_logits_once_and_their_gradient_over_them() -> None:
    model = odd("llama", "causal-lm", DECODER)
    whole = WithLoss(built(model, kernels=False))
    whole.split_head(tiny_input(whole.model, model))
    apply_all(("padded-head",), model, whole, [])
    features = torch.randn(3, 32, DECODER["hidden_size"], requires_grad=True)
    labels = torch.randint(WORDS, (3, 32))

    def forward_and_backward() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.compile(whole.tail, dynamic=False)(features, labels)
        loss.backward()

    # Otherwise Inductor would first compile six trials of the CPU's instructions.
    known = {"compile_threads": 1, "force_disable_caches": True, "cpp.vec_isa_ok": True}
    with torch._inductor.config.patch(known):
        _, code = run_and_get_code(forward_and_backward)
    rows, padded = 3 * 32, WORDS + -WORDS % PADDED_TO
    allocated = "\n".join(code)
    assert allocated.count(f"= empty_strided_cpu(({rows}, {padded})") == 1
    assert f"empty_strided_cpu(({rows}, {WORDS})" not in allocated


def test_a_free_lunch_pads_the_heads_of_gpt2_bert_roberta_and_whisper_and_no_other() -> None:
    padded = {"gpt2", "bert-base-uncased", "roberta-large", "whisper-small"}
    others = {"pythia-1b", "t5-v1.1-base", "vit-l", "smollm2-1.7b", "llama-3.1-8b"}
    taken = {name for name in padded | others if "padded-head" in free_lunch(find_model(name), H200)}
    assert taken == padded


def test_other_heads_are_refused_with_the_reason() -> None:
    gpt2 = find_model("gpt2")

    def reason(name: str, words: int) -> str:
        return str(METHOD.refuse(replace(gpt2, family=name, architecture={"vocab_size": words}), H200))

    assert reason("gpt2", 8191) == "padding pays from 8,192 words on: 8,191 are a small part of a pass"
    assert METHOD.refuse(replace(gpt2, architecture={"vocab_size": 8193}), H200) is None
    assert reason("gpt2", 50_304) == "logits of 50,304 words need no padding"
    assert reason("unknown-type", 50_257) == "bench knows no linear layer with logits of unknown-type"
    assert METHOD.refuse(find_model("vit-l"), H200) == "a model without words has no logits to pad"


def test_a_head_of_another_kind_fails_when_it_is_applied() -> None:
    model = odd("llama", "causal-lm", DECODER)
    whole = WithLoss(built(model, kernels=False))
    whole.model.set_output_embeddings(torch.nn.Sequential(whole.model.get_output_embeddings()))
    with pytest.raises(BadInput, match="no product of one linear layer"):
        apply_all(("padded-head",), model, whole, [])


def test_it_needs_a_compiler_and_no_chunks() -> None:
    assert "compile-blocks" in str(conflict(("padded-head",)))
    assert conflict(("compile", "padded-head")) is None
    both = ("half-weights", "compile-blocks", "chunked-loss", "padded-head")
    assert conflict(both) == "chunked-loss computes its gradient from whole rows"


@pytest.fixture(scope="module")
def of_many_words() -> tuple[Model, Counted]:
    """A model and its counts, which take seconds."""
    model = model_of("llama", "causal-lm", DECODER | {"vocab_size": 50_257})
    model = replace(model, recipe=replace(model.recipe, precision="bf16"))
    return model, counted_for(model, ("kernels", "compile-blocks"))


@pytest.mark.parametrize("recorded", [(), ("cuda-graphs",)], ids=["", "recorded"])
def test_predicted_memory_has_one_copy_of_the_logits_in_place_of_three(
    recorded: tuple[str, ...], of_many_words: tuple[Model, Counted]
) -> None:
    model, counts = of_many_words
    plain = ("kernels", "fused-optimizer", "compile-blocks")
    with_copies, without = (
        predict_counted_bytes(model, setting, 2048, 1, counts)
        for setting in ((*plain, *recorded), (*plain, "padded-head", *recorded))
    )
    logits = 2 * 2048 * 32 * 50_257
    assert with_copies is not None and without is not None
    assert with_copies - without == pytest.approx(2 * logits, rel=0.1)
