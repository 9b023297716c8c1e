"""Heads of models with an encoder and a decoder are called apart from the body, and compute the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all
from bench.training.models import Model, family_of
from bench.training.models.footprint import copies_logits
from bench.training.models.probe import tiny_batch, tiny_input
from tests.training.models.test_attention import named
from tests.training.models.test_generic import resolved

WORDS = 131  # no multiple of eight
SEQUENCES = {
    "objective": "sequence-to-sequence", "batch_size": 8, "steps": 10, "precision": "fp32",
    "sequence_length": 16, "target_length": 8,
}  # fmt: skip
SPEECH = {
    "objective": "speech-recognition", "batch_size": 8, "steps": 10, "precision": "fp32",
    "audio_seconds": 1, "target_length": 8,
}  # fmt: skip
T5 = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0, "pad_token_id": 0, "dropout_rate": 0.0,
}  # fmt: skip
STACKS = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "dropout": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
BART = STACKS | {"vocab_size": WORDS, "max_position_embeddings": 64}
LONG = {
    "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 4,
}  # fmt: skip
EXPERTS = {
    "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
    "router_jitter_noise": 0.0,
}  # fmt: skip
WHISPER = STACKS | {
    "vocab_size": WORDS, "num_mel_bins": 8, "max_source_positions": 50, "max_target_positions": 16,
}  # fmt: skip
LISTENING = STACKS | {
    "vocab_size": WORDS, "num_conv_layers": 2, "conv_kernel_sizes": [3, 3], "conv_channels": 32,
    "input_feat_per_channel": 8, "max_source_positions": 200, "max_target_positions": 16,
}  # fmt: skip


def model_of(name: str, architecture: dict[str, Any]) -> Model:
    return resolved(name, architecture, SPEECH if name in SPEAKING else SEQUENCES)


SPEAKING = {"whisper": WHISPER, "speech_to_text": LISTENING}
WITH_A_BODY = [
    *(model_of(name, BART) for name in ("bart", "mbart", "pegasus", "marian", "blenderbot", "m2m_100")),
    *(model_of(name, BART) for name in ("blenderbot-small", "plbart", "mvp", "seamless_m4t")),
    model_of("pegasus_x", BART | {"block_size": 4, "num_global_tokens": 2}),
    model_of("bigbird_pegasus", BART | {"attention_type": "original_full"}),
    model_of("led", BART | LONG),
    *(model_of(name, architecture) for name, architecture in SPEAKING.items()),
]
WITHOUT = [
    *(model_of(name, T5) for name in ("t5", "mt5", "umt5")),
    replace(model_of("t5", T5 | {"tie_word_embeddings": True}), name="scaled"),
    model_of("switch_transformers", T5 | EXPERTS),
    model_of("longt5", T5 | {"encoder_attention_type": "local", "local_radius": 3}),
]
MODELS = [*WITH_A_BODY, *WITHOUT]
every_model = pytest.mark.parametrize("model", MODELS, ids=named)


def whole_of(model: Model) -> tuple[WithLoss, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = family_of(model).build(model, kernels=False)
    return WithLoss(module, model.recipe.aim), tiny_batch(module, model)


def loss_and_gradients(whole: WithLoss, batch: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    whole.zero_grad()
    loss = whole.train()(batch)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in whole.parameters() if p.grad is not None]


@every_model
@pytest.mark.parametrize("padded", [False, True])
def test_a_loss_by_body_and_head_is_the_loss_of_the_model(model: Model, padded: bool) -> None:
    whole, batch = whole_of(model)
    parameters = dict(whole.named_parameters())
    expected = loss_and_gradients(whole, batch)
    whole.split_head(tiny_input(whole.model, model))
    assert whole.head is not None
    apply_all(("padded-head",) if padded else (), model, whole, [])
    found = loss_and_gradients(whole, batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert dict(whole.named_parameters()) == parameters


def test_compilation_by_blocks_makes_head_and_loss_one_region(without_inductor: None) -> None:
    for model in (WITH_A_BODY[0], WITHOUT[0]):
        whole, batch = whole_of(model)
        expected = loss_and_gradients(whole, batch)
        plain = whole.criterion.forward
        apply_all(("compile-blocks", "padded-head"), model, whole, family_of(model).blocks(whole.model))
        assert whole.head is not None and whole.criterion.forward == plain  # the tail is compiled instead
        torch.testing.assert_close(loss_and_gradients(whole, batch), expected, rtol=1e-5, atol=1e-6)


def test_a_head_that_computes_something_else_stays_in_the_model() -> None:
    for model in (WITH_A_BODY[0], WITHOUT[0]):
        whole, batch = whole_of(model)
        layer = whole.model.get_output_embeddings()
        plain = layer.forward
        layer.forward = lambda features, plain=plain: plain(features.cumsum(1))
        expected = whole(batch)
        whole.split_head(tiny_input(whole.model, model))
        assert whole.head is None
        torch.testing.assert_close(whole(batch), expected)
    model = model_of("fsmt", BART | {"langs": ["en", "de"], "src_vocab_size": WORDS, "tgt_vocab_size": WORDS})
    whole, batch = whole_of(model)
    expected = loss_and_gradients(whole, batch)
    whole.split_head(tiny_input(whole.model, model))
    assert whole.head is None  # its decoder computes the logits
    torch.testing.assert_close(loss_and_gradients(whole, batch), expected)
    whole, _ = whole_of(WITHOUT[0])
    whole.model.get_output_embeddings = lambda: None
    whole.split_head(tiny_input(whole.model, WITHOUT[0]))
    assert whole.head is None


def test_the_logits_of_a_padded_head_exist_once() -> None:
    plain = ("kernels", "compile-blocks")
    for model in MODELS:
        assert copies_logits(model, plain, WORDS) and not copies_logits(model, (*plain, "padded-head"), WORDS)
        assert not copies_logits(model, plain, 32_128)
