"""ConvNeXt: stages of depthwise convolutions, each followed by an MLP over the channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

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
    linear,
    lowered,
)
from bench.training.models.model import (
    ConvolutionShape,
    Flops,
    Model,
    OperationShapes,
    Parts,
    Recipe,
    product_shapes,
    tiny,
)
from bench.training.optimizers import Adam
from bench.training.schedules import DecaySchedule
from bench.training.setting import Setting, in_group

if TYPE_CHECKING:
    from torch import nn

DEPTHWISE = 7 * 7
SHRINK = 2  # each stage has half the height and width of the previous one


class ConvNext(FamilyWithFormulas):
    """ConvNeXt of transformers: stages of depthwise convolutions, each with half the side of the last."""

    name = "convnext"
    objectives = ("image-classification",)
    kernels = None
    classes = ("ConvNextConfig", "ConvNextForImageClassification")
    # transformers 5.17, ConvNextConfig; kernel sizes are constants of its code
    defaults: Mapping[str, Any] = {
        "num_channels": 3,
        "patch_size": 4,
        "num_stages": 4,
        "hidden_sizes": [96, 192, 384, 768],
        "depths": [3, 3, 9, 3],
        "hidden_act": "gelu",
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "layer_scale_init_value": 1e-6,
        "drop_path_rate": 0.0,
        "image_size": 224,
        "num_labels": 2,
    }

    def mistakes(self, model: Model, path: str) -> Iterator[Mistake]:
        """Find lists without an entry for each stage, and images that do not halve evenly to the last one."""
        a, size = self.complete(model), model.recipe.image_size
        yield from super().mistakes(model, path)
        for field in ("hidden_sizes", "depths"):
            if len(a[field]) != a["num_stages"]:
                found = f"{len(a[field])} stages here, num_stages is {a['num_stages']}"
                yield Mistake(f"{path}/architecture/{field}", found, "allowed: one entry a stage")
        smallest = a["patch_size"] * SHRINK ** (a["num_stages"] - 1)
        if size is not None and size % smallest:
            found = f"{size} does not divide evenly into {a['num_stages']} stages"
            yield Mistake(f"{path}/recipe/image_size", found, f"allowed: a multiple of {smallest}")

    def parameters(self, model: Model) -> Parts:
        """Count the weights; the layers that shrink images between stages lie outside of blocks."""
        a = self.complete(model)
        scale = a["layer_scale_init_value"] > 0
        first, last = a["hidden_sizes"][0], a["hidden_sizes"][-1]
        outside = linear(a["num_channels"] * a["patch_size"] ** 2, first) + 2 * first
        outside += 2 * last + linear(last, a["num_labels"])
        blocks: list[int] = []
        before = None
        for channels, depth in zip(a["hidden_sizes"], a["depths"], strict=True):
            if before is not None:
                outside += 2 * before + linear(SHRINK**2 * before, channels)
            depthwise = channels * DEPTHWISE + channels
            mlp = linear(channels, 4 * channels) + linear(4 * channels, channels)
            blocks += [depthwise + 2 * channels + mlp + channels * scale] * depth
            before = channels
        return Parts(outside, tuple(blocks))

    def stages(self, model: Model) -> Iterator[tuple[int, int, int]]:
        """Yield the channels, the depth and the number of positions of each stage."""
        a = self.complete(model)
        assert model.recipe.image_size is not None
        side = model.recipe.image_size // a["patch_size"]
        for channels, depth in zip(a["hidden_sizes"], a["depths"], strict=True):
            yield channels, depth, side * side
            side //= SHRINK

    def forward_flops(self, model: Model) -> Flops:
        """Count 2 operations for each weight and place; 1 x 1 convolutions are linear layers here."""
        a, matmul, convolution, before = self.complete(model), 0, 0, 0
        for channels, depth, places in self.stages(model):
            if before:
                convolution += 2 * places * SHRINK**2 * before * channels
            else:
                convolution += 2 * places * a["num_channels"] * a["patch_size"] ** 2 * channels
            convolution += depth * 2 * places * DEPTHWISE * channels  # one filter a channel
            matmul += depth * 2 * places * 8 * channels * channels
            before = channels
        return Flops(matmul=matmul + 2 * before * a["num_labels"], convolution=convolution)

    def operation_shapes(self, model: Model) -> OperationShapes:
        """Return the shapes of products and of dense convolutions, and what depthwise ones write."""
        a, products, elements = self.complete(model), list[tuple[int, int, int]](), 0
        patch, before, dense = a["patch_size"] ** 2, a["num_channels"], list[ConvolutionShape]()
        for channels, depth, places in self.stages(model):
            dense.append(ConvolutionShape(before, channels, patch, 2 * places * patch * before * channels))
            products += depth * [(channels, 4 * channels, places), (4 * channels, channels, places)]
            elements += channels * depth * places
            patch, before = SHRINK**2, channels
        return OperationShapes(
            depthwise_elements=elements,
            depthwise_operations=2 * DEPTHWISE * elements,
            products=product_shapes([*products, (before, a["num_labels"], 1)]),
            convolutions=tuple(dense),
        )

    def footprint(self, model: Model, setting: Setting) -> Footprint:
        """Count what each block keeps for the backward pass; norms are in fp32 under autocast."""
        a, h = self.complete(model), lowered(model)
        blocks, before = [], 0
        wide = FP32 if autocasts(model, setting) else h  # bytes of a norm's input and result
        # Compiled, the norm of a block reads the convolution's result in half precision.
        convolved = h if in_group(setting, "compilation") else wide
        assert model.recipe.image_size is not None
        ends = h * a["num_channels"] * model.recipe.image_size**2 + INDEX  # pixels, label
        for channels, depth, places in self.stages(model):
            if before:  # the shrinking layer: norm of the previous stage, its copy for the convolution
                ends += places * SHRINK**2 * (wide * before + NORM_STATISTICS + h * before)
            else:
                ends += places * (wide * channels + NORM_STATISTICS)
            entry = between_blocks(model, setting) * channels * places
            place = h * channels  # the convolution's input
            place += convolved * channels + NORM_STATISTICS + h * channels  # norm
            place += 4 * channels * activated(model, setting, a["hidden_act"])
            place += h * channels  # the input of layer scale
            blocks.append(Block(depth, entry, places * place, places * 2 * h * 4 * channels))
            before = channels
        ends += 2 * wide * before + NORM_STATISTICS
        return Footprint(ends, tuple(blocks), a["num_labels"])

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Return the layers of all stages in order; those of different stages differ in shape."""
        return [layer for stage in module.convnext.encoder.stages for layer in stage.layers]


FAMILY = ConvNext()

XL = Model(
    "convnext-xl",
    "convnext",
    {
        "num_stages": 4,
        "hidden_sizes": [256, 512, 1024, 2048],
        "depths": [3, 3, 27, 3],
        "drop_path_rate": 0.2,
        "image_size": 224,
        "num_labels": 21841,
    },
    Recipe(
        objective="image-classification",
        batch_size=4096,
        steps=311_940,  # 90 epochs of 3,466 steps
        precision="fp32",
        optimizer=Adam("adamw", 4e-3, 0.9, 0.999, 1e-8, 0.05),
        schedule=DecaySchedule("cosine", warmup_steps=5 * 3_466, final_ratio=2.5e-4),
        image_size=224,
        log_every_steps=10,
        save_every_steps=3_466,
        source="github.com/facebookresearch/ConvNeXt TRAINING.md (ConvNeXt-XL, ImageNet-22K: batch, "
        "epochs, warm-up, drop path, no evaluation), main.py and engine.py (rates, decay, no clipping, "
        "no mixed precision, a save an epoch, a log each 10 steps); steps: the paper's code",
    ),
)
MODELS = (
    XL,
    tiny(
        XL,
        {
            "num_stages": 2,
            "hidden_sizes": [32, 64],
            "depths": [1, 1],
            "drop_path_rate": 0.2,
            "image_size": 32,
            "num_labels": 100,
        },
        "ConvNeXt's",
        schedule=DecaySchedule("cosine", warmup_steps=100, final_ratio=2.5e-4),
        image_size=32,
        save_every_steps=1_000,
    ),
)
