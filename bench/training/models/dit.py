"""DiT: a transformer that predicts the noise of latents, given a timestep and a class.

`{"model_type": "dit"}` is DiT-XL/2 for images of 256 pixels; fields have the names of the paper's code.
transformers has no type of this name: its "DiT", for documents, is a BEiT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.base.errors import Mistake
from bench.training.models.model import Model
from bench.training.models.module_family import ModuleFamily
from bench.training.objectives import ObjectiveName

if TYPE_CHECKING:
    from torch import nn

MOST_PATCHES, MOST_BLOCKS = 2**20, 10_000


class DitFamily(ModuleFamily):
    """Diffusion transformers (DiT) that predict the noise of a latent; bench has their code itself."""

    objectives = ("denoising",)
    uses_all_weights = True
    defaults: Mapping[str, Any] = {
        "input_size": 32,  # of a latent: an eighth of the image's side with the usual autoencoder
        "patch_size": 2,
        "in_channels": 4,
        "hidden_size": 1152,
        "depth": 28,
        "num_heads": 16,
        "mlp_ratio": 4.0,
        "class_dropout_prob": 0.1,
        "num_classes": 1000,
        "learn_sigma": True,
    }

    def __init__(self) -> None:
        super().__init__("dit")

    def architecture_mistakes(
        self, given: Mapping[str, Any], objective: ObjectiveName, path: str
    ) -> Iterator[Mistake]:
        """Find widths and sides that do not divide evenly, and latents with too many patches."""
        a = {**self.defaults, **given}
        for field, whole in (("patch_size", "input_size"), ("num_heads", "hidden_size")):
            if a[whole] % a[field]:
                found = f"{a[field]} does not divide {a[whole]}"
                yield Mistake(f"{path}/architecture/{field}", found, f"allowed: a divisor of {whole}")
        if a["hidden_size"] % 4:
            found = f"{a['hidden_size']} is no multiple of 4, for sines and cosines of rows and columns"
            yield Mistake(f"{path}/architecture/hidden_size", found, "allowed: a multiple of 4")
        if (patches := (a["input_size"] // a["patch_size"]) ** 2) > MOST_PATCHES:
            found = f"{a['input_size']} makes {patches:,} patches"
            yield Mistake(f"{path}/architecture/input_size", found, f"allowed: {MOST_PATCHES:,} patches")
        if a["depth"] > MOST_BLOCKS:
            found = f"{a['depth']} is more than anyone trains"
            yield Mistake(f"{path}/architecture/depth", found, f"allowed: at most {MOST_BLOCKS:,}")
        if int(a["hidden_size"] * a["mlp_ratio"]) < 1:
            found = f"{a['mlp_ratio']} of {a['hidden_size']} is less than one"
            yield Mistake(f"{path}/architecture/mlp_ratio", found, "allowed: a width of at least one")

    def build_module(self, model: Model, *, fused: bool) -> nn.Module:
        """Build it in fp32; `fused` chooses scaled_dot_product_attention, else plain products."""
        from bench.training.models.dit_module import Dit

        return Dit(self.complete(model), fused=fused).float().train()

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Return the transformer blocks, without the embeddings and the last layer."""
        return list(module.get_submodule("blocks").children())


FAMILY = DitFamily()
