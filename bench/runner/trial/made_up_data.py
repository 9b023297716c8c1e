"""Made-up data on disk, read through a real data loader.

Random tokens, pixels and sounds train at the speed of real ones that were prepared ahead of time, which the
recipes assume. Sample i does not depend on the micro-batch, so that losses can be compared. Imports torch at
module level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from bench.records.trial import Trial
from bench.runner.trial.data_folder import FolderPool
from bench.runner.trial.pool_sizes import (
    PIXEL_DEVIATION,
    PIXEL_MEAN,
    POOL_NUMBERS,
    images_of_pool,
    tokens_of_pool,
)
from bench.runner.trial.team import Team
from bench.training.models import Model
from bench.training.objectives.objective import Draw, Pool, Sample

TOKENS, IMAGES, NUMBERS = "tokens.npy", "images.npy", "numbers.npy"


def make_pool(model: Model, folder: Path, seed: int) -> Path:
    """Write the files that the loader maps: tokens, images as bytes, numbers. Return their folder."""
    recipe = model.recipe
    pool = folder / "pool"
    pool.mkdir(parents=True, exist_ok=True)
    if "images" in recipe.aim.data:
        assert recipe.image_size is not None
        size = recipe.image_size
        shape = (images_of_pool(size), 3, size, size)
        np.save(pool / IMAGES, np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))
    if "tokens" in recipe.aim.data:
        vocabulary = recipe.aim.vocabulary(model.architecture)
        count = tokens_of_pool(recipe)
        np.save(pool / TOKENS, np.random.default_rng(seed).integers(0, vocabulary, count, dtype=np.int32))
    if any(part.elements == "numbers" for part in recipe.aim.parts(model.architecture, recipe)):
        np.save(pool / NUMBERS, np.random.default_rng(seed).standard_normal(POOL_NUMBERS, dtype=np.float32))
    return pool


class MappedPool:
    """A folder that `make_pool` wrote. Every process that loads data opens it for itself."""

    own = False

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, NDArray[Any]] = {
            name: np.load(folder / name, mmap_mode="r")
            for name in (TOKENS, IMAGES, NUMBERS)
            if (folder / name).exists()
        }

    def tokens(self, index: int, count: int) -> NDArray[np.int64]:
        """Cut tokens from the file of tokens; cuts of successive samples follow each other."""
        tokens = self._files[TOKENS]
        start = index * count % (len(tokens) - count)
        return tokens[start : start + count].astype(np.int64)

    def image(self, index: int) -> NDArray[np.uint8]:
        """Return one of the images of the file, again from its beginning after the last one."""
        images = self._files[IMAGES]
        found: NDArray[np.uint8] = images[index % len(images)].copy()
        return found

    def numbers(self, index: int, *shape: int) -> NDArray[np.float32]:
        """Cut numbers from the file of numbers, again from its beginning after the last one."""
        numbers, count = self._files[NUMBERS], math.prod(shape)
        start = index * count % len(numbers)
        return np.take(numbers, np.arange(start, start + count), mode="wrap").reshape(shape)


class Samples(Dataset[Sample]):
    """An endless data set over the pool, which each loader process opens for itself."""

    def __init__(self, model: Model, pool: Path | Pool, seed: int) -> None:
        self.model = model
        self.pool: Pool = MappedPool(pool) if isinstance(pool, Path) else pool
        self.seed = seed

    def __getitem__(self, index: int) -> Sample:
        model = self.model
        draw = Draw(self.pool, index, np.random.default_rng((self.seed, index)))
        sample = model.recipe.aim.sample(model.architecture, model.recipe, draw)
        return {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in sample.items()}


def samples_of(trial: Trial, scratch: Path) -> Samples:
    """Return the samples of a trial's folder of data; without one, made-up samples."""
    model, folder = trial.model, trial.data
    pool = FolderPool(model, Path(folder)) if folder else make_pool(model, scratch, trial.seed)
    return Samples(model, pool, trial.seed)


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
        samples: Samples,
        micro_batch: int,
        device: torch.device,
        team: Team,
        workers: int,
        first: int = 0,
        at_once: int = 1,
    ) -> None:
        """`at_once`: how many micro-batches a step reads before it computes; as many are loaded ahead."""
        self.device = device
        ahead = max(4, math.ceil(at_once / workers)) if workers else 0  # by each worker
        loader = DataLoader(
            samples,
            batch_sampler=Share(micro_batch, team, first),
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=ahead or None,
        )
        self._batches: Iterator[Sample] = iter(loader)
        if at_once > 1 and device.type == "cuda":
            _pin_memory_of(samples[0], micro_batch, at_once + ahead * workers)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        return self.on_device(self.on_host())

    def on_host(self) -> Sample:
        """Return the next micro-batch in the host's memory."""
        return next(self._batches)

    def on_device(self, batch: Sample) -> dict[str, torch.Tensor]:
        """Copy a micro-batch to the device; images as bytes, a quarter of the traffic of floats."""
        copied = {name: part.to(self.device, non_blocking=True) for name, part in batch.items()}
        return {name: _floats(part) if part.dtype == torch.uint8 else part for name, part in copied.items()}


def batches_of(
    trial: Trial, scratch: Path, device: torch.device, team: Team, workers: int, first: int = 0
) -> Batches:
    """Return a member's micro-batches of a trial, endlessly from number `first` on."""
    # If samples are compared, a step first reads all of them: loaded evenly, they are there when it begins.
    at_once = trial.accumulation if trial.model.recipe.aim.compares_samples else 1
    return Batches(samples_of(trial, scratch), trial.micro_batch, device, team, workers, first, at_once)


def _pin_memory_of(sample: Sample, micro_batch: int, count: int) -> None:
    """Let PyTorch pin the memory of `count` micro-batches now, and not in the first steps.

    It keeps pinned memory that is freed. Pinning that of CLIP's batch takes seconds.
    """
    parts = [part for part in sample.values() if isinstance(part, torch.Tensor)]
    pinned = [
        torch.empty(micro_batch, *part.shape, dtype=part.dtype, pin_memory=True)
        for part in parts
        for _ in range(count)
    ]
    pinned.clear()


def _floats(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.float().div_(255).sub_(PIXEL_MEAN).div_(PIXEL_DEVIATION)
