"""Any architecture that transformers can build, without formulas of ours: counted, not predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bench.models import Flops, Model, Objective
from bench.models._common import image_loss, language_loss

if TYPE_CHECKING:
    from torch import Tensor, nn

_AUTO = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
}
COUNTED = "counted from the built module, when it runs"


@dataclass(frozen=True, slots=True)
class TransformersFamily:
    """The family contract for a `model_type` that has no file here."""

    name: str
    objectives: tuple[Objective, ...] = ("causal-lm", "masked-lm", "image-classification")
    kernels: str | None = "scaled_dot_product_attention, where transformers has it for this architecture"

    def defaults(self) -> Mapping[str, Any]:
        return {}

    def mistakes(self, model: Model, path: str) -> tuple[()]:
        return ()

    def parameters(self, model: Model) -> int:
        raise LookupError(COUNTED)

    def forward_flops(self, model: Model) -> Flops:
        raise LookupError(COUNTED)

    def activation_bytes(self, model: Model, *, kernels: bool, checkpointing: bool) -> int:
        raise LookupError(COUNTED)

    def missing_kernels(self, device: Literal["cpu", "cuda"]) -> str | None:
        return None

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        import transformers

        # Some architectures keep a cache by default; training has no use for one.
        config = transformers.AutoConfig.for_model(model.family, **{"use_cache": False, **model.architecture})
        auto = getattr(transformers, _AUTO[model.recipe.objective])
        attention = "sdpa" if kernels else "eager"
        module: nn.Module = auto.from_config(config, attn_implementation=attention)
        return module.train()

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """The longest list of modules of one class: what every repeated architecture has."""
        from torch import nn

        lists = [list(m) for m in module.modules() if isinstance(m, nn.ModuleList)]
        equal = [found for found in lists if len({type(m) for m in found}) == 1]
        return max(equal, key=len, default=[])

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return image_loss(module, batch) if "pixel_values" in batch else language_loss(module, batch)

    def counted_flops(self, model: Model) -> Flops:
        """Torch's counter over one sample on the meta device: shapes only, no memory, no time."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        recipe = model.recipe
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            module = self.build(model, kernels=False)
            if recipe.image_size is not None:
                module(pixel_values=torch.empty(1, 3, recipe.image_size, recipe.image_size))
            else:
                tokens = torch.ones(1, recipe.units_per_sample, dtype=torch.long)
                # Under a causal mask transformers looks into the tokens for packing, unless it gets a
                # mask, and elsewhere into the mask, if it gets one: meta tensors hold no values.
                module(input_ids=tokens, attention_mask=tokens if recipe.objective == "causal-lm" else None)
        counts = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}
        attention = sum(n for op, n in counts.items() if "bmm" in op or "attention" in op)
        convolution = sum(n for op, n in counts.items() if "convolution" in op)
        matmul = sum(counts.values()) - attention - convolution
        if recipe.objective == "causal-lm":  # the counter counts the upper triangle too
            length = recipe.units_per_sample
            attention = attention * (length + 1) // (2 * length)
        return Flops(matmul, attention, convolution)
