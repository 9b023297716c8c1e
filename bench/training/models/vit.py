"""ViT: an encoder over patches of an image, read at its class token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bench.base.errors import Mistake
from bench.training.models.footprint import (
    FP32,
    INDEX,
    NORM_STATISTICS,
    Block,
    FamilyWithFormulas,
    Footprint,
    activated,
    autocasts,
    between_blocks,
    eager_attention,
    linear,
    lowered,
    transformer_shapes,
)
from bench.training.models.model import (
    ConvolutionShape,
    Flops,
    Model,
    OperationShapes,
    Parts,
    Recipe,
    tiny,
)
from bench.training.optimizers import Adam
from bench.training.schedules import DecaySchedule
from bench.training.setting import Setting, fuses_attention, in_group


class Vit(FamilyWithFormulas):
    """ViT of transformers: an encoder of patches whose class token is classified."""

    name = "vit"
    objectives = ("image-classification",)
    classes = ("ViTConfig", "ViTForImageClassification")
    layers = "vit.layers"
    # transformers 5.17, ViTConfig
    defaults: Mapping[str, Any] = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "num_labels": 2,
    }

    def mistakes(self, model: Model, path: str) -> Iterator[Mistake]:
        """Find patches that do not fill the image, and a recipe with images of another side."""
        a, size = self.complete(model), model.recipe.image_size
        yield from super().mistakes(model, path)
        if a["image_size"] % a["patch_size"]:
            found = f"{a['patch_size']} does not divide {a['image_size']}"
            yield Mistake(f"{path}/architecture/patch_size", found, "allowed: a divisor of image_size")
        if size != a["image_size"]:
            found = f"{size} is not the architecture's {a['image_size']}"
            yield Mistake(f"{path}/recipe/image_size", found, "allowed: the same in both")

    def parameters(self, model: Model) -> Parts:
        """Count the weights; patches, class token, positions and classifier lie outside of blocks."""
        a = self.complete(model)
        d, f = a["hidden_size"], a["intermediate_size"]
        patches = linear(a["num_channels"] * a["patch_size"] ** 2, d)
        tables = d + _tokens(a) * d  # class token, positions
        block = 3 * linear(d, d, a["qkv_bias"]) + linear(d, d) + linear(d, f) + linear(f, d) + 2 * 2 * d
        outside = patches + tables + 2 * d + linear(d, a["num_labels"])
        return Parts(outside, (block,) * a["num_hidden_layers"])

    def forward_flops(self, model: Model) -> Flops:
        """Count products of all tokens and the convolution of patches; one token is classified."""
        a = self.complete(model)
        d, n, layers = a["hidden_size"], _tokens(a), a["num_hidden_layers"]
        weights = layers * (4 * d * d + 2 * d * a["intermediate_size"])
        return Flops(
            matmul=2 * n * weights + 2 * d * a["num_labels"],  # only the class token is classified
            attention=layers * n * n * 2 * 2 * d,
            convolution=2 * (n - 1) * a["num_channels"] * a["patch_size"] ** 2 * d,
        )

    def operation_shapes(self, model: Model) -> OperationShapes:
        """Return the shapes of products and of attention over the patches and the class token."""
        a = self.complete(model)
        head = [(a["hidden_size"], a["num_labels"], 1)]  # only the class token is classified
        shapes = transformer_shapes(a, _tokens(a), joined=False, head=head)
        operations = self.forward_flops(model).convolution
        patches = ConvolutionShape(a["num_channels"], a["hidden_size"], a["patch_size"] ** 2, operations)
        return replace(shapes, convolutions=(patches,))

    def footprint(self, model: Model, setting: Setting) -> Footprint:
        """Count what a token keeps in each block; outside, the pixels and the last norm."""
        a, h = self.complete(model), lowered(model)
        d, f, n, heads = a["hidden_size"], a["intermediate_size"], _tokens(a), a["num_attention_heads"]
        mixed = autocasts(model, setting)
        residual = d * (FP32 if mixed else h)
        masks = d if a["hidden_dropout_prob"] else 0
        # Query, key and value read the norm in one copy in half precision if compiled, else in one each.
        copies = 1 if in_group(setting, "compilation") else 3
        token = residual + NORM_STATISTICS + (copies * h * d if mixed else residual)  # input, norm
        token += 3 * h * d + h * d + masks  # query, key, value; attention's output
        token += residual + NORM_STATISTICS + h * d  # sum, norm
        token += f * activated(model, setting, a["hidden_act"]) + masks
        if fuses_attention(setting):
            # The backward pass peaks at the gradient of gelu's input.
            block, backward = n * (token + FP32 * heads), n * h * f
        else:
            copy = h if h < FP32 else 0
            scores, backward = eager_attention(n, heads, copy, a["attention_probs_dropout_prob"])
            block = n * token + scores
        pixels = h * a["num_channels"] * a["image_size"] ** 2
        norm = n * (residual + NORM_STATISTICS) + (h * d if mixed else n * residual)
        ends = pixels + n * masks + norm + INDEX
        entry = n * d * between_blocks(model, setting)
        return Footprint(ends, (Block(a["num_hidden_layers"], entry, block, backward),), a["num_labels"])


def _tokens(a: Mapping[str, Any]) -> int:
    return int(a["image_size"] // a["patch_size"]) ** 2 + 1


FAMILY = Vit()

LARGE = Model(
    "vit-l",
    "vit",
    {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.0,
        "image_size": 224,
        "patch_size": 16,
        "num_labels": 21841,
    },
    Recipe(
        objective="image-classification",
        batch_size=4096,
        steps=311_948,  # 90 epochs of 14,197,122 images
        precision="fp32",
        optimizer=Adam("adam", 1e-3, 0.9, 0.999, 1e-8, 0.03),
        schedule=DecaySchedule("linear", warmup_steps=10_000, final_ratio=0.01),
        image_size=224,
        clip_norm=1.0,
        source="github.com/google-research/vision_transformer issue 2 (batch, epochs, rates, decay, "
        "dropout) and vit_jax/configs/models.py (L/16); steps, betas and clipping: the paper's code, "
        "src/models/vit.py",
    ),
)
MODELS = (
    LARGE,
    tiny(
        LARGE,
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 1,  # one head: fewer transposed copies to compile
            "intermediate_size": 256,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.0,
            "image_size": 32,
            "patch_size": 4,
            "num_labels": 100,
        },
        "ViT's",
        schedule=DecaySchedule("linear", warmup_steps=60, final_ratio=0.01),
        image_size=32,
    ),
)
