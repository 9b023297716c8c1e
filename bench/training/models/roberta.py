"""RoBERTa: an encoder that fills in masked tokens, with norms after residual sums and learned positions."""

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
    autocasts,
    eager_attention,
    linear,
    lowered,
    transformer_shapes,
)
from bench.training.models.model import Flops, Model, OperationShapes, Parts, Recipe, tiny
from bench.training.optimizers import Adam
from bench.training.schedules import DecaySchedule
from bench.training.setting import Setting, in_group


class Roberta(FamilyWithFormulas):
    """RoBERTa of transformers: an encoder that predicts hidden tokens."""

    name = "roberta"
    objectives = ("masked-lm",)
    classes = ("RobertaConfig", "RobertaForMaskedLM")
    layers = "roberta.encoder.layer"
    # transformers 5.17, RobertaConfig
    defaults: Mapping[str, Any] = {
        "vocab_size": 50265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 1,
    }

    def parameters(self, model: Model) -> Parts:
        """Count the weights; the head's matrix is the embedding table, and its bias is its own."""
        a = self.complete(model)
        d, f, norm = a["hidden_size"], a["intermediate_size"], 2 * a["hidden_size"]
        tables = (a["vocab_size"] + a["max_position_embeddings"] + a["type_vocab_size"]) * d
        block = 4 * linear(d, d) + linear(d, f) + linear(f, d) + 2 * norm
        head = linear(d, d) + norm + a["vocab_size"]  # its matrix is the embedding table
        return Parts(tables + norm + head, (block,) * a["num_hidden_layers"])

    def forward_flops(self, model: Model) -> Flops:
        """Count products for every token, the head included, and attention to all tokens."""
        a, s = self.complete(model), model.recipe.units_per_sample
        d, layers = a["hidden_size"], a["num_hidden_layers"]
        weights = layers * (4 * d * d + 2 * d * a["intermediate_size"]) + d * d + d * a["vocab_size"]
        return Flops(matmul=2 * s * weights, attention=layers * s * s * 2 * 2 * d)

    def operation_shapes(self, model: Model) -> OperationShapes:
        """Return the shapes of products and of attention over the whole sequence."""
        a, s = self.complete(model), model.recipe.units_per_sample
        d = a["hidden_size"]
        return transformer_shapes(a, s, joined=False, head=[(d, d, s), (d, a["vocab_size"], s)])

    def head_flops(self, model: Model) -> int:
        """Count the two products of the head, for every token; "masked-head" needs only a share of them."""
        a = self.complete(model)
        hidden = a["hidden_size"]
        return 2 * int(model.recipe.units_per_sample * hidden * (hidden + a["vocab_size"]))

    def footprint(self, model: Model, setting: Setting) -> Footprint:
        """Count what a token keeps in each block, with masks of dropout, and in the head."""
        a, s, h = self.complete(model), model.recipe.units_per_sample, lowered(model)
        d, f, heads = a["hidden_size"], a["intermediate_size"], a["num_attention_heads"]
        mixed = autocasts(model, setting)
        residual = d * (FP32 if mixed else h)
        masks = d if a["hidden_dropout_prob"] else 0
        # Without compilation query, key and value each have their own half-precision copy of the input:
        # autocast caches copies of weights only.
        copies = 1 if in_group(setting, "compilation") else 3
        token = copies * h * d if mixed else residual
        token += 3 * h * d + h * d + masks  # query, key, value; attention's output
        token += residual + NORM_STATISTICS + h * d  # sum, norm
        token += f * activated(model, setting, a["hidden_act"])
        token += masks + residual + NORM_STATISTICS  # sum, norm
        if "kernels" in setting:
            # The backward pass peaks at the gradient of gelu's input.
            block, backward = s * (token + FP32 * heads), s * h * f
        else:
            copy, softmax = (h, FP32) if mixed else (0, h)
            scores, backward = eager_attention(s, heads, copy, a["attention_probs_dropout_prob"], softmax)
            block = s * token + scores
        embeddings = 3 * INDEX + residual + NORM_STATISTICS + masks
        head = (h * d if mixed else residual) + h * d + residual + NORM_STATISTICS + h * d + INDEX
        blocks = Block(a["num_hidden_layers"], s * residual, block, backward)
        return Footprint(s * embeddings, (blocks,), s * a["vocab_size"], s * head)


FAMILY = Roberta()

# fairseq's --fp16 keeps half-precision weights, and an fp32 copy in its FP16Optimizer.
LARGE = Model(
    "roberta-large",
    "roberta",
    {
        "vocab_size": 50265,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    Recipe(
        objective="masked-lm",
        batch_size=8192,
        steps=500_000,
        precision="fp16",
        optimizer=Adam("adam", 4e-4, 0.9, 0.98, 1e-6, 0.01),
        schedule=DecaySchedule("linear", warmup_steps=30_000),
        sequence_length=512,
        masked_fraction=0.15,
        clip_norm=None,
        log_every_steps=200,
        source="batch, steps, precision: paper, Table 3; optimizer and schedule: model card of "
        "roberta-large; masking, no clipping, dropout, log: github.com/facebookresearch/fairseq "
        "examples/roberta/config/pretraining/base.yaml and fairseq/tasks/masked_lm.py",
    ),
)
MODELS = (
    LARGE,
    tiny(
        LARGE,
        {
            "vocab_size": 512,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 1,  # one head: fewer transposed copies to compile
            "intermediate_size": 256,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 66,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
        "RoBERTa's",
        optimizer=Adam("adam", 1e-3, 0.9, 0.98, 1e-6, 0.01),
        schedule=DecaySchedule("linear", warmup_steps=120),
        sequence_length=64,
    ),
)
