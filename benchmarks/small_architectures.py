"""Small sizes for the architectures of transformers, by rules that look at a configuration's fields.

In: a type. Out: a few fields of its configuration, with which it trains on a CPU in seconds. Imports
transformers only when called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SEQUENCE_LENGTH = 32
# Sizes of samples, by the fields of a recipe; the size of pictures is the architecture's own.
SAMPLE = {"sequence_length": SEQUENCE_LENGTH, "target_length": 16, "audio_seconds": 1, "masked_fraction": 0.5}
# Small values of fields that many configurations have, by their names.
SIZES: Mapping[int, str] = {
    2: """num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_encoder_layers
          num_decoder_layers num_key_value_heads kv_n_heads num_experts_per_tok num_experts_per_token moe_k
          moe_topk moe_top_k top_k eos_token_id""",
    4: """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads
          num_experts num_local_experts n_routed_experts moe_num_experts mamba_n_heads n_mamba_heads
          linear_num_heads mamba_dt_rank""",
    1: "n_group topk_group bos_token_id n_shared_experts num_dense_layers",
    0: "pad_token_id num_kv_shared_layers",
    16: """head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim linear_head_dim mamba_d_state state_size
           chunk_size mamba_chunk_size kv_channels hidden_size_per_layer_input""",
    32: "q_lora_rank kv_lora_rank mamba_d_head mamba_headdim attention_head_dim",
    64: """hidden_size n_embd d_model dim embed_dim embedding_size emb_dim moe_intermediate_size
           hidden_size_global""",
    128: """intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim n_inner hidden_dim ffn_hidden_size
            expert_ffn_hidden_size attention_hidden_size mamba_d_ssm""",
    1000: "vocab_size vocab_size_per_layer_input encoder_hash_byte_group_vocab entity_vocab_size",
}
SMALL = {field: value for value, fields in SIZES.items() for field in fields.split()}
# Fields that must have a number, although the default of some configurations is null.
NEEDED = (
    "head_dim", "num_key_value_heads", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
    "vocab_size",
)  # fmt: skip
# Fields that state the form of a sample, as they are by default.
STATED = ("patch_size", "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
ROTATION = {"rope_type": "default", "rope_theta": 10_000.0}
# What single types need beside these rules.
PECULIAR: Mapping[str, Mapping[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 128},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {**ROTATION, "mrope_section": [3, 3, 2]},
            "sliding_attention": {**ROTATION, "mrope_section": [3, 3, 2]},
        }
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "esm": {"pad_token_id": 0, "mask_token_id": 3},
    "esmc": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"head_dim": 32, "n_groups": 1},
    "perceiver": {
        "max_position_embeddings": SEQUENCE_LENGTH,  # the length of its output
        "num_latents": 16,
        "d_latents": 64,
        "num_self_attends_per_block": 2,
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "reformer": {
        "max_position_embeddings": SEQUENCE_LENGTH,
        "axial_pos_shape": [4, SEQUENCE_LENGTH // 4],
        "axial_pos_embds_dim": [16, 48],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
        "num_buckets": 4,
    },
    "whisper": {"max_source_positions": 50},  # those of a second, of two frames each
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def made_small(model_type: str, objective: str) -> dict[str, Any]:
    """Return an architecture of this type with small sizes, for those of its fields that have usual names."""
    from transformers import CONFIG_MAPPING

    from bench.training.models import families
    from bench.training.objectives import objective_of

    counts = objective_of(objective).counts
    try:
        default = CONFIG_MAPPING[model_type]().to_dict()
    except Exception:  # it has no default: bench says what it lacks
        default = {}
    if "text_config" in default and "vocab_size" in counts:
        return {"model_type": model_type, "text_config": {"model_type": f"{model_type}_text"}}
    given = _picture_model(default) if "image" in objective else _shrunk(default)
    given |= {field: default[field] for field in STATED if type(default.get(field)) is int}
    given |= {field: SMALL.get(field, 10) for field in counts.keys() - given}  # labels, for instance
    if family := families().get(model_type):
        given = {field: value for field, value in given.items() if field in family.defaults}
    if objective == "causal-lm" and not family:
        given |= {field: True for field in ("is_decoder", "causal") if default.get(field) is False}
    return {"model_type": model_type, **given, **PECULIAR.get(model_type, {})}


def _picture_model(default: Mapping[str, Any]) -> dict[str, Any]:
    """Return few layers; widths of stages must fit each other, and are small by default."""
    if "vision_config" in default:
        return {"vision_config": _shrunk(default["vision_config"])}
    return {"num_hidden_layers": 2} if type(default.get("num_hidden_layers")) is int else {}


def sample_sizes(model_type: str, objective: str) -> dict[str, Any]:
    """Return the fields of a recipe that say how large a sample is."""
    from bench.training.objectives import objective_of

    fields = objective_of(objective).sizes
    return {field: SAMPLE[field] if field in SAMPLE else picture_size(model_type) for field in fields}


def _shrunk(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return small values of the fields of a configuration, or of one inside of it."""
    given: dict[str, Any] = {}
    layers = _one_of_each_kind(fields)
    for field, value in fields.items():
        if (type(value) is int and field in SMALL) or (value is None and field in NEEDED):
            given[field] = SMALL[field]
        elif isinstance(value, Mapping) and "model_type" in value:
            given[field] = {"model_type": value["model_type"], **_shrunk(value)}
        elif layers and isinstance(value, list | tuple) and len(value) == fields["num_hidden_layers"]:
            small = SMALL.get(field)
            given[field] = [small if small and type(value[i]) is int else value[i] for i in layers]
    if layers:
        given["num_hidden_layers"] = len(layers)
    if "kv_lora_rank" in fields:  # latent attention: as many heads of keys as of queries
        given["num_key_value_heads"] = given.get("num_attention_heads", 4)
    if "rotary_dim" in fields:
        given["rotary_dim"] = 8
    return given


def _one_of_each_kind(fields: Mapping[str, Any]) -> list[int]:
    """Return the places of layers that all differ, at least two; [] if no list describes layers."""
    number = fields.get("num_hidden_layers")
    if type(number) is not int or number < 3:
        return []
    lists = [v for v in fields.values() if isinstance(v, list | tuple) and len(v) == number]
    kinds = [repr([one[i] for one in lists]) for i in range(number)] if lists else []
    first = sorted(kinds.index(kind) for kind in {*kinds})
    return first if len(first) != 1 else [0, 1]


def picture_size(model_type: str) -> int:
    """Return the pixels a side of the pictures that a type takes."""
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING[model_type]()
    size = getattr(getattr(default, "vision_config", default), "image_size", 64)
    return size if type(size) is int else 224
