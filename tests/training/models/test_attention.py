"""Fused attention of any architecture computes what eager attention does, without a mask where it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_causal_mask_function,
)

from bench.training.methods import Target, free_lunch
from bench.training.models import Model, family_of
from bench.training.models.attention import fused_attention, register_fused_attention, window_of
from bench.training.models.own_models import resolve_inline
from bench.training.vendor.torch_inside import Window
from benchmarks.architectures import described
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
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=2e-6)


def test_code_that_joins_masks_gets_them_whole() -> None:
    """T5Gemma 2 joins the mask of a window with that of the encoder's output."""
    model = resolve_inline(described("t5gemma2", "sequence-to-sequence"), "/models/0")
    assert isinstance(model, Model)
    tokens = {name: torch.arange(32).view(2, 16) for name in ("input_ids", "decoder_input_ids")}
    eager, fused = (built(model, kernels=kernels)(**tokens).logits for kernels in (False, True))
    torch.testing.assert_close(fused, eager, rtol=1e-3, atol=2e-6)


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
    [m if m.family in EVERYDAY else pytest.param(m, marks=pytest.mark.sweep) for m in UNMASKED],
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


def attention_in_window(
    query: Tensor, key: Tensor, value: Tensor, window: Window, scale: float, ends: Tensor | None
) -> Tensor:
    """Compute the result of FlashAttention with a mask and in fp32."""
    assert ends is None
    times, (left, right) = query.size(1) // key.size(1), window
    key, value = (t.repeat_interleave(times, 1).float() for t in (key, value))
    positions = torch.arange(query.size(2))
    ahead = positions[None, :] - positions[:, None]
    mask = (ahead >= -left) & (ahead <= right)
    out = F.scaled_dot_product_attention(query.float(), key, value, attn_mask=mask, scale=scale)
    return out.to(query.dtype)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Window]]:
    """Let fused attention take the path of a GPU; yield the windows that it attends within."""
    windows: list[Window] = []

    def attend(*tensors: Tensor, **_: Any) -> Tensor:
        windows.append(tensors[3])  # type: ignore[arg-type]
        return attention_in_window(*tensors)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        patch.setattr("torch.cuda.get_device_properties", lambda: SimpleNamespace(major=9))
        patch.setattr("bench.training.vendor.torch_inside.attention_in_window", attend)
        register_fused_attention.cache_clear()
        fused_attention()
        yield windows
    register_fused_attention.cache_clear()
    fused_attention()


@pytest.mark.parametrize("window", [1, WINDOW])
@pytest.mark.parametrize("name", WINDOWED)
def test_windows_need_no_mask_on_a_gpu_in_half_precision(
    name: str, window: int, on_a_gpu: list[Window]
) -> None:
    objective, architecture = WINDOWED[name]
    field = "local_attention" if name == "modernbert" else "sliding_window"
    model = model_of(name, objective, architecture | {field: window})
    batch, found = made_up_batch(model, 2), []
    for kernels in (False, True):
        module = built(model, kernels=kernels).bfloat16()
        with torch.no_grad():
            found.append(module(input_ids=batch["input_ids"]).logits.float())
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)
    assert found[0].std() > 0
    reach = window // 2 if name == "modernbert" else window - 1
    assert on_a_gpu and set(on_a_gpu) == {(reach, reach if name == "modernbert" else 0)}


def asked_for(mask_function: Callable[..., Tensor], local_size: int | None = WINDOW) -> Tensor | None:
    fused_attention()
    mask: Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS["bench_fused"](
        batch_size=2, q_length=32, kv_length=32, mask_function=mask_function, local_size=local_size,
        attention_mask=None, device=torch.device("cpu"), allow_is_causal_skip=True,
    )  # fmt: skip
    return mask


def test_other_patterns_of_the_size_of_a_window_keep_their_masks() -> None:
    """Llama 4 attends within chunks, and Gemma 3 lets the parts of an image see each other."""
    window = sliding_window_causal_mask_function(WINDOW)
    assert window_of(asked_for(window)) == (WINDOW - 1, 0)
    parts = torch.zeros(32, dtype=torch.long)
    for other in (
        chunked_causal_mask_function(WINDOW, torch.zeros(2, dtype=torch.long)),
        or_masks(window, lambda _b, _h, q, k: (parts[q] == parts[k]) & (k < 4)),
    ):
        mask = asked_for(other)
        assert mask is not None and mask.shape[-2:] == (32, 32) and window_of(mask) is None
