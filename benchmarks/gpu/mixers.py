"""Compare gradients of small models with mixers of Mamba 1 and 2: by mamba-ssm's kernels and by plain code.

    python benchmarks/gpu/mixers.py [TYPE...] > mixers.json

For each type of transformers, one pass is computed by its plain code in fp32, by the kernels in fp32, and by
both under autocast in bf16. A line of JSON has the losses, and how far the gradients are from those of the
plain code in fp32: the norm of all differences over the norm. The kernels are right if they are as far as the
plain code in the same precision. Needs one NVIDIA GPU, mamba-ssm and causal-conv1d.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

import torch
from mamba_rounding import Gradients, difference, gradients

from bench.planning.manifest import resolve_models
from bench.training.models import family_of
from bench.training.vendor.transformers_inside import MAMBA1_MIXERS, MAMBA2_MIXERS

SHARED = {"vocab_size": 512, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
MIXERS = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 32, "mamba_n_groups": 1}
TYPES = (*MAMBA1_MIXERS, *MAMBA2_MIXERS)
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "falcon_mamba": {"num_hidden_layers": 2, "num_attention_heads": None, "num_key_value_heads": None},
    "jamba": {
        "num_hidden_layers": 3, "num_experts": 1, "intermediate_size": 256, "attn_layer_period": 3,
        "attn_layer_offset": 1,
    },
    "zamba": {
        "num_hidden_layers": 4, "intermediate_size": 256, "num_key_value_heads": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "bamba": MIXERS | {"num_hidden_layers": 2, "intermediate_size": 256, "attn_layer_indices": [1]},
    "falcon_h1": MIXERS
    | {"num_hidden_layers": 2, "intermediate_size": 256, "head_dim": 32, "mamba_d_ssm": 256},
    "granitemoehybrid": MIXERS
    | {
        "num_hidden_layers": 2, "num_local_experts": 0, "shared_intermediate_size": 256,
        "layer_types": ["mamba", "attention"],
    },
    "mamba2": {
        "num_hidden_layers": 2, "num_heads": 4, "head_dim": 64, "state_size": 32, "n_groups": 1,
        "num_attention_heads": None, "num_key_value_heads": None,
    },
    "nemotron_h": {
        "num_hidden_layers": 2, "mamba_num_heads": 4, "mamba_head_dim": 64, "ssm_state_size": 32,
        "n_groups": 2, "head_dim": 32, "intermediate_size": 256, "layers_block_type": ["mamba", "attention"],
    },
    "zamba2": {
        "num_hidden_layers": 3, "n_mamba_heads": 4, "mamba_headdim": 64, "mamba_d_state": 32,
        "mamba_ngroups": 1, "intermediate_size": 256, "num_mem_blocks": 1,
        "layers_block_type": ["mamba", "hybrid", "mamba"], "hybrid_layer_ids": [1],
    },
}  # fmt: skip
SAMPLES, LENGTH = 4, 640  # more than two chunks of a scan of Mamba 2
LENGTH_OF_MAMBA1 = 2176  # more than a chunk


def compared(model_type: str) -> Mapping[str, Any]:
    """Return the losses and distances of a small model of this type."""
    fields = {name: value for name, value in (SHARED | FIELDS[model_type]).items() if value is not None}
    length = LENGTH_OF_MAMBA1 if model_type in MAMBA1_MIXERS else LENGTH
    recipe = {
        "objective": "causal-lm", "batch_size": SAMPLES, "steps": 10, "precision": "bf16",
        "sequence_length": length,
    }  # fmt: skip
    models, mistakes = resolve_models(
        [{"name": model_type, "architecture": {"model_type": model_type, **fields}, "recipe": recipe}]
    )
    if mistakes:
        raise SystemExit("\n".join(f"{model_type}: {mistake.found}" for mistake in mistakes))
    family = family_of(models[0])
    tokens = torch.randint(2, fields["vocab_size"], (SAMPLES, length), device="cuda")
    found: dict[str, tuple[float, Gradients]] = {}
    for kernels in (False, True):
        torch.manual_seed(0)
        with torch.device("cuda"):
            module = family.build(models[0], kernels=kernels)
        for half in (False, True):
            name = f"{'kernel' if kernels else 'plain'} {'bf16' if half else 'fp32'}"
            found[name] = gradients(module, tokens, half=half)
    reference = found["plain fp32"][1]
    return {
        "losses": {name: loss for name, (loss, _) in found.items()},
        "distances": {name: difference(reference, grads) for name, (_, grads) in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*", metavar="TYPE", help=", ".join(TYPES))
    for model_type in parser.parse_args().types or TYPES:
        print(json.dumps({"type": model_type, **compared(model_type)}), flush=True)


if __name__ == "__main__":
    main()
