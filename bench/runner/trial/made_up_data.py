"""Made-up data on disk, read through a real data loader.

Random tokens and pixels train at the speed of real ones that were prepared ahead of time, which the recipes
assume. Sample i does not depend on the micro-batch, so that losses can be compared. Imports torch at module
level.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from bench.runner.trial.team import Team
from bench.training.models import Model
from bench.training.models.loss import IGNORED

POOL_TOKENS = 1 << 22
POOL_IMAGES = 256
MASK_TOKEN_SHARE, RANDOM_TOKEN_SHARE = 0.8, 0.1  # of chosen tokens; the rest keep their token (BERT, RoBERTa)
PIXEL_MEAN, PIXEL_DEVIATION = 0.5, 0.25

Sample = dict[str, Any]


def make_pool(model: Model, folder: Path, seed: int) -> Path:
    """Write the file that the loader maps: a sequence of tokens, or images as bytes. Returns its path."""
    recipe = model.recipe
    random = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    path = folder / "pool.npy"
    if recipe.objective == "image-classification":
        assert recipe.image_size is not None
        size = recipe.image_size
        count = max(8, min(POOL_IMAGES, (1 << 26) // (3 * size * size)))
        np.save(path, random.integers(0, 256, (count, 3, size, size), dtype=np.uint8))
    else:
        vocabulary = int(model.architecture["vocab_size"])
        # At least two samples and most of a third: each sample begins a token later than the last but one.
        count = max(POOL_TOKENS, 3 * (recipe.units_per_sample + 1) - 1)
        np.save(path, random.integers(0, vocabulary, count, dtype=np.int32))
    return path


class Samples(Dataset[Sample]):
    """An endless data set over the pool, which each loader process opens for itself."""

    def __init__(self, model: Model, pool: Path, seed: int) -> None:
        self.model = model
        self.pool: NDArray[Any] = np.load(pool, mmap_mode="r")
        self.seed = seed

    def __getitem__(self, index: int) -> Sample:
        match self.model.recipe.objective:
            case "causal-lm":
                return self._next_tokens(index)
            case "masked-lm":
                return self._masked_tokens(index)
            case "image-classification":
                return self._image(index)

    def _tokens(self, index: int, count: int) -> NDArray[np.int64]:
        start = index * count % (len(self.pool) - count)
        return self.pool[start : start + count].astype(np.int64)

    def _next_tokens(self, index: int) -> Sample:
        length = self.model.recipe.units_per_sample
        tokens = torch.from_numpy(self._tokens(index, length + 1))
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}

    def _masked_tokens(self, index: int) -> Sample:
        recipe = self.model.recipe
        tokens = self._tokens(index, recipe.units_per_sample)
        random = np.random.default_rng((self.seed, index))
        # All samples choose equally many tokens: then the mean over micro-batches is the mean over the batch.
        chosen = random.permutation(len(tokens))[: recipe.asked_per_sample]
        labels = np.full_like(tokens, IGNORED)
        labels[chosen] = tokens[chosen]
        vocabulary = int(self.model.architecture["vocab_size"])
        masked = round(len(chosen) * MASK_TOKEN_SHARE)
        replaced = masked + round(len(chosen) * RANDOM_TOKEN_SHARE)
        tokens[chosen[:masked]] = vocabulary - 1
        tokens[chosen[masked:replaced]] = random.integers(0, vocabulary, replaced - masked)
        return {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}

    def _image(self, index: int) -> Sample:
        classes = int(self.model.architecture["num_labels"])
        label = int(np.random.default_rng((self.seed, index)).integers(classes))
        return {"pixel_values": torch.from_numpy(self.pool[index % len(self.pool)].copy()), "labels": label}


class Share(Sampler[list[int]]):
    """The samples of this member's micro-batches: every size-th micro-batch, beginning with the rank-th."""

    def __init__(self, micro_batch: int, team: Team, first: int = 0) -> None:
        self.micro_batch = micro_batch
        self.team = team
        self.first = first  # of this member's micro-batches; earlier ones were trained on already

    def __iter__(self) -> Iterator[list[int]]:
        for number in itertools.count(self.team.rank + self.first * self.team.size, self.team.size):
            yield list(range(number * self.micro_batch, (number + 1) * self.micro_batch))


class Batches:
    """An endless iterator of micro-batches on the device, from PyTorch's loader."""

    def __init__(
        self,
        model: Model,
        pool: Path,
        micro_batch: int,
        seed: int,
        device: torch.device,
        team: Team,
        workers: int,
        first: int = 0,
    ) -> None:
        self.device = device
        loader = DataLoader(
            Samples(model, pool, seed),
            batch_sampler=Share(micro_batch, team, first),
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )
        self._batches: Iterator[Sample] = iter(loader)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        batch = {k: v.to(self.device, non_blocking=True) for k, v in next(self._batches).items()}
        if (pixels := batch.get("pixel_values")) is not None:
            # Images are copied to the device as bytes, a quarter of the traffic of floats.
            batch["pixel_values"] = pixels.float().div_(255).sub_(PIXEL_MEAN).div_(PIXEL_DEVIATION)
        return batch
