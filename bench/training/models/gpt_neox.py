"""GPT-NeoX: the decoder of Pythia, with attention and MLP side by side, and rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.training.models.footprint import (
    FP32,
    INDEX,
    NORM_STATISTICS,
    Block,
    FamilyWithFormulas,
    Footprint,
    activated,
    between_blocks,
    eager_attention,
    linear,
    lowered,
    transformer_shapes,
)
from bench.training.models.model import Flops, Model, OperationShapes, Parts, Precision, Recipe, tiny
from bench.training.optimizers import Adam
from bench.training.schedules import DecaySchedule
from bench.training.setting import Setting


class GptNeoX(FamilyWithFormulas):
    """GPT-NeoX of transformers (Pythia): a decoder whose attention and MLP may read the same input."""

    name = "gpt_neox"
    objectives = ("causal-lm",)
    classes = ("GPTNeoXConfig", "GPTNeoXForCausalLM")
    layers = "gpt_neox.layers"
    # transformers 5.17, GPTNeoXConfig
    defaults: Mapping[str, Any] = {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "max_position_embeddings": 2048,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "attention_bias": True,
    }

    def parameters(self, model: Model) -> Parts:
        """Count the weights; tied word embeddings are one table instead of two."""
        a = self.complete(model)
        d, f, bias = a["hidden_size"], a["intermediate_size"], a["attention_bias"]
        attending = linear(d, 3 * d, bias) + linear(d, d, bias)
        block = attending + linear(d, f) + linear(f, d) + 2 * 2 * d
        tables = a["vocab_size"] * d * (1 if a["tie_word_embeddings"] else 2)
        return Parts(tables + 2 * d, (block,) * a["num_hidden_layers"])

    def forward_flops(self, model: Model) -> Flops:
        """Count products of all weights but the embedding table, and attention to earlier tokens only."""
        a, s = self.complete(model), model.recipe.units_per_sample
        d, layers = a["hidden_size"], a["num_hidden_layers"]
        weights = layers * (4 * d * d + 2 * d * a["intermediate_size"]) + d * a["vocab_size"]
        pairs = s * (s + 1) // 2  # a token attends to itself and to those before it
        return Flops(matmul=2 * s * weights, attention=layers * pairs * 2 * 2 * d)

    def operation_shapes(self, model: Model) -> OperationShapes:
        """Return the shapes of products and of attention over the whole sequence."""
        a, s = self.complete(model), model.recipe.units_per_sample
        return transformer_shapes(a, s, joined=True, head=[(a["hidden_size"], a["vocab_size"], s)])

    def footprint(self, model: Model, setting: Setting) -> Footprint:
        """Count what a token keeps in each block, which depends on the kernel of its attention."""
        a, s, h = self.complete(model), model.recipe.units_per_sample, lowered(model)
        d, f, heads = a["hidden_size"], a["intermediate_size"], a["num_attention_heads"]
        residual = between_blocks(model, setting) * d
        token = residual + 2 * NORM_STATISTICS + 2 * h * d  # input, two norms
        token += f * activated(model, setting, a["hidden_act"])
        token += 0 if a["use_parallel_residual"] else residual
        token += 2 * d if a["hidden_dropout"] else 0
        token += h * d  # the attention's output
        if "rotary" in setting:
            # Query, key and value; attention overwrites its output.
            block, backward = s * (token + 3 * h * d + FP32 * heads), s * h * f
        elif "kernels" in setting:
            # Rotated query and key, the tensor that values are a view of, output by head, log-sum-exp.
            block, backward = s * (token + 6 * h * d + FP32 * heads), s * h * f
        else:
            # Copies of query, key, value; the softmax's copy in the matmul's precision.
            copy = h if h < FP32 else 0
            scores, backward = eager_attention(s, heads, copy, a["attention_dropout"])
            block = s * (token + 3 * h * d) + scores
        ends = s * (2 * INDEX + residual + NORM_STATISTICS + h * d)
        blocks = Block(a["num_hidden_layers"], s * residual, block, backward)
        return Footprint(ends, (blocks,), s * a["vocab_size"])


FAMILY = GptNeoX()


def _pythia(
    size: str,
    hidden: int,
    layers: int,
    heads: int,
    rate: float,
    *,
    precision: Precision = "fp16",
    vocabulary: int = 50304,
    eval_every_steps: int = 40_000,
    note: str = "",
) -> Model:
    architecture = {
        "vocab_size": vocabulary,  # 50,277 tokens, padded to a multiple of 128 a model-parallel rank
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 2048,
        "rotary_pct": 0.25,
    }
    # The .yml also says how weights were held: in fp16, under DeepSpeed's optimizer.
    recipe = Recipe(
        objective="causal-lm",
        batch_size=1024,
        steps=143_000,
        precision=precision,
        optimizer=Adam("adam", rate, 0.9, 0.95, 1e-8, 0.1),
        schedule=DecaySchedule("cosine", warmup_steps=1_430, final_ratio=0.1),
        sequence_length=2048,
        clip_norm=1.0,
        log_every_steps=10,
        save_every_steps=1_000,
        eval_every_steps=eval_every_steps,
        eval_samples=10 * 1024,
        source=f"github.com/EleutherAI/pythia models/{size}/pythia-{size.lower()}.yml; precision: paper, "
        f"Table 3{note}",
    )
    return Model(f"pythia-{size.lower()}", "gpt_neox", architecture, recipe)


PYTHIAS = (
    _pythia("160M", 768, 12, 12, 6e-4),
    _pythia("410M", 1024, 24, 16, 3e-4),
    _pythia(
        "1B",
        2048,
        16,
        8,
        3e-4,
        precision="bf16",
        note="; learning rate: that repository's README (the .yml has 2.5e-4)",
    ),
    _pythia("2.8B", 2560, 32, 32, 1.6e-4),
    # Its padding is larger because two model-parallel ranks trained it.
    _pythia("6.9B", 4096, 32, 32, 1.2e-4, vocabulary=50432, eval_every_steps=1_000),
)
TINY = tiny(
    PYTHIAS[0],
    {
        "vocab_size": 512,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,  # one head: fewer transposed copies to compile
        "intermediate_size": 256,
        "max_position_embeddings": 64,
        "rotary_pct": 0.25,
    },
    "Pythia's",
    optimizer=Adam("adam", 1e-3, 0.9, 0.95, 1e-8, 0.1),
    schedule=DecaySchedule("cosine", warmup_steps=20, final_ratio=0.1),
    sequence_length=64,
    eval_every_steps=None,
    eval_samples=None,
)
MODELS = (*PYTHIAS, TINY)
