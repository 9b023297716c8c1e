"""Mamba: a selective state-space model, one mixer a block.

The scan's mathematics follow arXiv:2312.00752, section 3; shapes follow transformers' MambaMixer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from bench.base.errors import EnvironmentCannot
from bench.training.models.footprint import FP32, INDEX, Block, FamilyWithFormulas, Footprint, linear, lowered
from bench.training.models.model import (
    Flops,
    Has,
    Model,
    OperationShapes,
    Parts,
    Recipe,
    installed,
    product_shapes,
    tiny,
)
from bench.training.optimizers import Adam
from bench.training.schedules import DecaySchedule
from bench.training.setting import Setting, in_group
from bench.training.vendor import transformers_inside

if TYPE_CHECKING:
    from torch import nn

SCAN_CHUNK = 2048  # tokens; mamba-ssm keeps one state a chunk: csrc/selective_scan/selective_scan.cpp
SCAN_OPERATIONS = 6  # for each token, channel and state: `Mamba.forward_flops` says which

KERNEL_PROJECTS = "mamba-ssm and causal-conv1d"
NO_ADAPTERS = "mamba-ssm's kernels read weights past their layers, and would leave adapters out"
BREAKS_GRAPH = "mamba-ssm's kernels break the graph in every block"


@contextmanager
def importing_kernels() -> Iterator[None]:
    """Turn a failing import of mamba-ssm into EnvironmentCannot, which says what to install."""
    try:
        yield
    except ImportError as error:
        what, advice = f"mamba-ssm cannot be imported: {error}", f"install {KERNEL_PROJECTS}"
        raise EnvironmentCannot(what, advice=advice) from None


def missing_packages(packages: Sequence[str], device: Literal["cpu", "cuda"], has: Has) -> str | None:
    """Return why mamba-ssm's kernels, which need these packages, cannot run; None if they can."""
    if device == "cpu":
        return "mamba-ssm's kernels run on NVIDIA GPUs alone"
    missing = [package for package in packages if not has(package)]
    what = "not installed, or without code for this GPU"
    return f"{what}: {', '.join(missing)} ({KERNEL_PROJECTS})" if missing else None


class Mamba(FamilyWithFormulas):
    """Mamba of transformers: a decoder of selective scans, without attention."""

    name = "mamba"
    objectives = ("causal-lm",)
    kernels = "mamba-ssm: convolution, scan and projections of a mixer fused"
    kernels_call_layers = False
    slow_without_kernels = True  # transformers' plain scan goes token by token
    layers = "backbone.layers"
    keeps_fp32_weights = "Mamba's authors kept fp32 weights and computed under autocast"
    activations = ("silu",)  # the fused kernel supports no other
    no_adapters = NO_ADAPTERS
    breaks_graph = BREAKS_GRAPH
    # transformers 5.17, MambaConfig
    defaults: Mapping[str, Any] = {
        "vocab_size": 50280,
        "hidden_size": 768,
        "state_size": 16,
        "num_hidden_layers": 32,
        "layer_norm_epsilon": 1e-5,
        "expand": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "hidden_act": "silu",
        "initializer_range": 0.1,
        "residual_in_fp32": True,
        "time_step_rank": "auto",
        "time_step_scale": 1.0,
        "time_step_min": 0.001,
        "time_step_max": 0.1,
        "time_step_init_scheme": "random",
        "time_step_floor": 1e-4,
        "rescale_prenorm_residual": False,
        "use_associative_scan": True,
        "tie_word_embeddings": True,
    }

    def parameters(self, model: Model) -> Parts:
        """Count the weights; tied word embeddings are one table instead of two."""
        a = self.complete(model)
        d, inner, states, rank = _sizes(a)
        block = d + linear(d, 2 * inner, a["use_bias"]) + linear(inner, d, a["use_bias"])
        block += inner * a["conv_kernel"] + inner * a["use_conv_bias"]
        block += linear(inner, rank + 2 * states, False) + linear(rank, inner)
        block += inner * states + inner  # A and D
        tables = a["vocab_size"] * d * (1 if a["tie_word_embeddings"] else 2)
        return Parts(tables + d, (block,) * a["num_hidden_layers"])

    def forward_flops(self, model: Model) -> Flops:
        """Count the operations, of which the scan has six for each token, channel and state.

        Two products compute the step from time and input, one multiply-add advances the state, another reads
        it out. Exponentials, gates and the skip D are elementwise, and not counted, like norms and
        activations in other families.
        """
        a, s = self.complete(model), model.recipe.units_per_sample
        d, inner, states, rank = _sizes(a)
        weights = d * 2 * inner + inner * (rank + 2 * states) + rank * inner + inner * d
        layers = a["num_hidden_layers"]
        return Flops(
            matmul=2 * s * (layers * weights + d * a["vocab_size"]),
            convolution=layers * 2 * s * inner * a["conv_kernel"],
            scan=layers * SCAN_OPERATIONS * s * inner * states,
        )

    def operation_shapes(self, model: Model) -> OperationShapes:
        """Return the shapes of the products beside a scan, and of the head's."""
        a, s = self.complete(model), model.recipe.units_per_sample
        d, inner, states, rank = _sizes(a)
        sizes = [(d, 2 * inner), (inner, rank + 2 * states), (rank, inner), (inner, d)]
        each = a["num_hidden_layers"] * sizes + [(d, a["vocab_size"])]
        return OperationShapes(products=product_shapes((*size, s) for size in each))

    def footprint(self, model: Model, setting: Setting) -> Footprint:
        """Count what a token keeps; without kernels, the scan keeps the states of every position."""
        a, s, h = self.complete(model), model.recipe.units_per_sample, lowered(model)
        d, inner, states, rank = _sizes(a)
        # A norm keeps its input, its scaled input and a deviation; a lowered copy feeds the projection.
        # When compiled, the scaled input is recomputed.
        norm = FP32 * d + FP32 + h * d + (0 if in_group(setting, "compilation") else FP32 * d)
        projections = h * 2 * inner + h * (rank + 2 * states)  # input and gate; time, B and C
        if "kernels" in setting:
            # mamba-ssm, MambaInnerFn: convolution and time steps are recomputed.
            token = norm + projections + h * 2 * states + h * inner
            block = s * token + ceil(s / SCAN_CHUNK) * inner * 2 * states * FP32
            backward = s * inner * 6 * h
        else:
            block = s * (norm + projections + self._eager_token(a, h))
            # The gradient of every state, twice: each step adds one over the whole sequence.
            backward = 4 * s * inner * states * FP32
        ends = s * (2 * INDEX + norm)
        blocks = Block(a["num_hidden_layers"], s * FP32 * d, block, backward)
        return Footprint(ends, (blocks,), s * a["vocab_size"])

    @staticmethod
    def _eager_token(a: Mapping[str, Any], h: int) -> int:
        """Return the bytes a token that the plain mixer keeps, in addition to norm and projections."""
        _, inner, states, _ = _sizes(a)
        mixed = h < FP32
        kept = 2 * h * inner  # convolution's output, its activation
        kept += h * inner  # a copy of the activation, laid out for the projection
        kept += 2 * FP32 * inner  # time steps before and after softplus
        kept += FP32 * inner + 2 * h * inner  # scan's output, open gate, out_proj's input
        kept += inner * states * 3 * FP32  # decay, input and state of every step
        if mixed:  # copies between the precisions
            kept += h * inner + FP32 * inner + FP32 * states + inner * states * h
        return int(kept)

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Return which of the packages of mamba-ssm is missing, or that they need a GPU."""
        return missing_packages(transformers_inside.MAMBA_PACKAGES, device, has)

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """Build it from transformers' code, loaded with or without mamba-ssm's kernels."""
        from transformers import MambaConfig

        with importing_kernels() if kernels else nullcontext():
            modeling = transformers_inside.load_mamba(fused=kernels)
        config = MambaConfig(**self.complete(model), use_cache=False)
        module: nn.Module = modeling.MambaForCausalLM(config).train()
        return module


def _sizes(a: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return the sizes of a mixer: hidden size, inner size, states, rank of the time step."""
    d = a["hidden_size"]
    rank = ceil(d / 16) if a["time_step_rank"] == "auto" else a["time_step_rank"]
    return d, int(a["expand"] * d), a["state_size"], rank


FAMILY = Mamba()

LARGE = Model(
    "mamba-2.8b",
    "mamba",
    {
        "vocab_size": 50280,
        "hidden_size": 2560,
        "state_size": 16,
        "num_hidden_layers": 64,
        "expand": 2,
        "conv_kernel": 4,
        "time_step_rank": 160,
    },
    Recipe(
        objective="causal-lm",
        batch_size=128,
        steps=572_204,  # 300 billion tokens
        precision="bf16",
        optimizer=Adam("adamw", 8e-4, 0.9, 0.95, 1e-8, 0.1),
        schedule=DecaySchedule("cosine", warmup_steps=57_220, final_ratio=0.0125),
        sequence_length=4096,
        clip_norm=1.0,
        source="paper, Table 3, and its code, src/models/mamba.py; warm-up: github.com/state-spaces/"
        "mamba issue 184 (its issues 7 and 144 tell of 2,048 tokens and a rate of 4.8e-4 instead)",
    ),
)
MODELS = (
    LARGE,
    tiny(
        LARGE,
        {
            "vocab_size": 512,
            "hidden_size": 64,
            "state_size": 4,
            "num_hidden_layers": 2,
            "expand": 2,
            "conv_kernel": 4,
            "use_associative_scan": False,  # so short a sequence compiles faster unrolled
        },
        "Mamba's",
        optimizer=Adam("adamw", 1e-3, 0.9, 0.95, 1e-8, 0.1),
        schedule=DecaySchedule("cosine", warmup_steps=200, final_ratio=0.0125),
        sequence_length=4,
    ),
)
