"""Fused attention of any architecture computes what eager attention does, without a mask where it can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bench.training.methods import Target, free_lunch
from bench.training.models import Model, family_of
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_generic import PICTURES, TEXT, resolved

WINDOW = 8  # of the 32 positions of a sample
ENCODER = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "pad_token_id": 0,
}  # fmt: skip
DECODER = ENCODER | {"num_key_value_heads": 2}
WIDE = DECODER | {"head_dim": 32}  # heads of another width than the hidden size divided by the heads
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip
GPT2 = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
VISION = {
    "num_labels": 10, "image_size": 64, "patch_size": 16, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
CAUSAL: dict[str, dict[str, Any]] = {
    "llama": DECODER, "mistral": DECODER | {"sliding_window": 32},
    "mixtral": DECODER | {"num_local_experts": 4},
    "qwen2": DECODER, "qwen3": WIDE, "olmo2": DECODER, "olmoe": DECODER | EXPERTS, "phi3": DECODER,
    "smollm3": DECODER, "starcoder2": DECODER, "stablelm": DECODER, "granite": DECODER, "gpt2": GPT2,
    "deepseek_v3": DECODER | LATENT,
}  # fmt: skip
FULL: dict[str, dict[str, Any]] = {
    "bert": ENCODER, "electra": ENCODER | {"embedding_size": 64}, "albert": ENCODER | {"embedding_size": 32},
    "xlm-roberta": ENCODER, "camembert": ENCODER,
    "distilbert": {"vocab_size": 128, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
}  # fmt: skip
IMAGES: dict[str, dict[str, Any]] = {
    "dinov2": VISION,
    "dinov2_with_registers": VISION,
    "deit": VISION,
    "beit": VISION,
}
WINDOWED: dict[str, tuple[str, dict[str, Any]]] = {  # objective, architecture
    "mistral": ("causal-lm", DECODER | {"sliding_window": WINDOW}),
    "gemma3_text": ("causal-lm", WIDE | {"sliding_window": WINDOW, "num_hidden_layers": 6}),
    "cohere2": ("causal-lm", WIDE | {"sliding_window": WINDOW, "num_hidden_layers": 4}),
    "modernbert": ("masked-lm", ENCODER | {"local_attention": WINDOW, "num_hidden_layers": 3}),
}
# Attention that the architecture defines itself, or a mask that it makes itself.
OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon": ("causal-lm", {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2,
                             "num_attention_heads": 4}),
    "opt": ("causal-lm", {"vocab_size": 128, "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 128,
                          "num_hidden_layers": 2, "num_attention_heads": 4, "layerdrop": 0.0}),
    "beit": ("image-classification", VISION | {"use_relative_position_bias": True}),
    "swin": ("image-classification", {"num_labels": 10, "image_size": 64, "patch_size": 2, "window_size": 2,
                                      "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4]}),
}  # fmt: skip


def model_of(name: str, objective: str, architecture: dict[str, Any]) -> Model:
    recipe = PICTURES if objective == "image-classification" else TEXT | {"objective": objective}
    return resolved(name, architecture, recipe)


UNMASKED = [
    *(model_of(name, "causal-lm", given) for name, given in CAUSAL.items()),
    *(model_of(name, "masked-lm", given) for name, given in FULL.items()),
    *(model_of(name, "image-classification", given) for name, given in IMAGES.items()),
]
MASKED = [model_of(name, *case) for name, case in (WINDOWED | OWN).items()]


def named(model: Model) -> str:
    return model.family


def built(model: Model, *, kernels: bool) -> nn.Module:
    """The model with weights that depend on nothing but their number, in evaluation mode: without dropout."""
    torch.manual_seed(0)
    return family_of(model).build(model, kernels=kernels).eval()


@pytest.mark.parametrize("model", [*UNMASKED, *MASKED], ids=named)
def test_fused_attention_computes_what_eager_attention_computes(model: Model) -> None:
    batch = made_up_batch(model, 2)
    found = []
    for kernels in (False, True):
        module = built(model, kernels=kernels)
        logits = module(**{name: data for name, data in batch.items() if name != "labels"}).logits
        logits.logsumexp(-1).mean().backward()
        gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        found.append((logits.detach(), torch.cat(gradients)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=2e-6)


def masks(model: Model) -> list[bool]:
    """For each call of fused attention in the traced model: whether it gets a mask."""
    calls = []

    def backend(graph: Any, _: Any) -> Any:
        for node in graph.graph.nodes:
            if node.op == "call_function" and "scaled_dot_product_attention" in str(node.target):
                given = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
                calls.append(given is not None)
        return graph.forward

    torch._dynamo.reset()
    module, batch = built(model, kernels=True), made_up_batch(model, 2)
    torch.compile(module, backend=backend)(**{k: v for k, v in batch.items() if k != "labels"})
    return calls


EVERYDAY = ("llama", "bert")  # tracing takes seconds


@pytest.mark.parametrize(
    "model",
    [m if m.family in EVERYDAY else pytest.param(m, marks=pytest.mark.e2e) for m in UNMASKED],
    ids=named,
)
def test_no_attention_gets_a_mask_when_compiled(model: Model) -> None:
    """Flash and cuDNN attention take no mask, so that one would exclude the fastest kernels."""
    assert masks(model) == [False, False]


def test_a_window_shorter_than_the_sample_keeps_its_mask_and_full_attention_beside_it_gets_none() -> None:
    objective, architecture = WINDOWED["gemma3_text"]
    assert masks(model_of("gemma3_text", objective, architecture)) == [True] * 5 + [False]


def test_a_capped_score_is_left_to_eager_attention() -> None:
    model = model_of("gemma2", "causal-lm", WIDE)
    assert "kernels" not in free_lunch(model, Target("cpu", 1, 2**34))
    said = family_of(model).missing_kernels("cpu")
    assert said == "gemma2 caps attention's scores, which fused attention cannot do"
