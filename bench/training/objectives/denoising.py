"""Predict the noise in a noisy latent, given its timestep and its class: diffusion.

Flow matching differs in its target, the velocity, and not in its cost: its steps take as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from bench.training.objectives.objective import (
    Architecture,
    Draw,
    Objective,
    Part,
    Sample,
    SampleSize,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

TIMESTEPS = 1000
# Variance of the noise that a timestep adds: the linear schedule of DDPM, which DiT trains with.
FIRST_VARIANCE, LAST_VARIANCE = 1e-4, 0.02


class Denoising(Objective):
    """Training on noisy latents. The architecture has the size of a latent, so the recipe needs none.

    The module is called with `noisy`, `timestep` and `class_labels`, and returns logits whose
    first channels are the noise.
    """

    name = "denoising"
    title = "Models that predict the noise in images"
    unit = "images"
    sizes = ()
    counts: Mapping[str, str] = {
        "input_size": "numbers a side", "in_channels": "channels", "num_classes": "classes",
    }  # fmt: skip

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return the noisy latent, its timestep, its class, and the noise to predict."""
        latent = (architecture["in_channels"], architecture["input_size"], architecture["input_size"])
        return (
            Part("noisy", latent, "numbers"),
            Part("timestep", (), "indices"),
            Part("class_labels", (), "indices"),
            Part("labels", latent, "numbers"),
        )

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Draw a latent and add noise by a random timestep of the diffusion's schedule."""
        import numpy as np

        side = architecture["input_size"]
        latent = draw.numbers(architecture["in_channels"], side, side)
        noise = draw.random.standard_normal(latent.shape, dtype=np.float32)
        timestep = int(draw.random.integers(TIMESTEPS))
        kept = _kept_variance()[timestep]
        return {
            "noisy": np.sqrt(kept) * latent + np.sqrt(1 - kept) * noise,
            "timestep": timestep,
            "class_labels": int(draw.random.integers(architecture["num_classes"])),
            "labels": noise,
        }

    def answer(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the predicted noise, without the variance that a model may predict in further channels."""
        return super().answer(module, batch)[:, : batch["labels"].size(1)]

    def loss(self, answer: Tensor, labels: Tensor) -> Tensor:
        """Return the squared error of the predicted noise, as a mean over its numbers."""
        from torch.nn.functional import mse_loss

        loss: Tensor = mse_loss(answer.float(), labels.float())
        return loss

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe the four parts, and what a training of a real model needs beside them."""
        return (
            f"of {samples} samples, `noisy`, the latents with noise, and `labels`, the noise\n"
            "(the velocity for flow matching), fp32 of samples x channels x side x side; `timestep`, int64 "
            f"of 0 to {TIMESTEPS - 1},\nand `class_labels`, int64, counted from 0. The model itself replaces "
            "a share of the labels by no class.\nLatents are prepared ahead by an autoencoder. The script "
            "does not average weights over steps (EMA)."
        )


@cache
def _kept_variance() -> NDArray[np.float32]:
    """Return the share of a latent's variance that is left at each timestep."""
    import numpy as np

    added = np.linspace(FIRST_VARIANCE, LAST_VARIANCE, TIMESTEPS)
    return np.cumprod(1 - added).astype(np.float32)


OBJECTIVE = Denoising()
