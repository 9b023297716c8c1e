"""Small models of every type of transformers with mixers of Mamba 1, Mamba itself apart, or of Mamba 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.training.models import Model
from tests.training.models.test_attention import model_of

SHARED = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
ATTENTION = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
MIXERS = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8,
}  # fmt: skip
LAYERS = ["mamba", "attention"]
SMALL: dict[str, Mapping[str, Any]] = {
    "bamba": ATTENTION | MIXERS | {"attn_layer_indices": [1]},
    "falcon_h1": ATTENTION | MIXERS | {"head_dim": 8, "mamba_d_ssm": 64},
    "granitemoehybrid": ATTENTION
    | MIXERS
    | {"num_local_experts": 0, "shared_intermediate_size": 64, "layer_types": LAYERS},
    "mamba2": {
        "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8, "expand": 2,
        "conv_kernel": 4, "time_step_limit": [0.0, 1.0],
    },
    "nemotron_h": ATTENTION
    | {
        "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 8, "chunk_size": 8,
        "layers_block_type": LAYERS, "head_dim": 8,
    },
    "zamba2": ATTENTION
    | {
        "num_hidden_layers": 3, "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8,
        "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1,
        "layers_block_type": ["mamba", "hybrid", "mamba"], "hybrid_layer_ids": [1],
    },
}  # fmt: skip
OF_MAMBA1 = {"mamba_d_state": 8, "mamba_dt_rank": 4}
SMALL_OF_MAMBA1: dict[str, Mapping[str, Any]] = {
    "falcon_mamba": {"state_size": 8, "time_step_rank": 4, "expand": 2, "conv_kernel": 4},
    "jamba": ATTENTION
    | OF_MAMBA1
    | {"num_hidden_layers": 3, "num_experts": 1, "attn_layer_period": 3, "attn_layer_offset": 1},
    "zamba": ATTENTION
    | OF_MAMBA1
    | {
        "num_hidden_layers": 4, "num_key_value_heads": 4, "n_mamba_heads": 2,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
}  # fmt: skip
MIXERS_IN = {
    "bamba": 1, "falcon_h1": 2, "granitemoehybrid": 1, "mamba2": 2, "nemotron_h": 1, "zamba2": 3,
    "falcon_mamba": 2, "jamba": 2, "zamba": 4,
}  # fmt: skip


def small(model_type: str = "mamba2", fields: Mapping[str, Any] = {}, **recipe: Any) -> Model:
    sizes = (SMALL | SMALL_OF_MAMBA1)[model_type]
    model = model_of(model_type, "causal-lm", {**SHARED, **sizes, **fields})
    return replace(model, recipe=replace(model.recipe, **recipe))
