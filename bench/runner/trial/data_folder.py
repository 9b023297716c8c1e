"""The user's own data: a folder of token files, or of images, read as a training would read it.

In: a model and a folder. Out: a `Pool` of its samples, or the mistakes in the folder. Files are mapped into
memory, and samples are read in a shuffled order, so that a slow disk is seen. Tokens are the numbers of
`.bin` files (16 bits each, or 32 if the vocabulary needs them; no header) and of one-dimensional `.npy`
files. Images are `.npy` files of bytes [count, 3, height, width], or `.jpg`, `.png` and `.webp` files, which
Pillow decodes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.base.errors import Mistake
from bench.training.models import Model, installed

PICTURES = (".jpg", ".jpeg", ".png", ".webp")
SHUFFLE = 0x9E3779B97F4A7C15  # an odd number: multiples of it modulo a count are spread evenly
WIDE = 1 << 16  # words of a vocabulary from which on a token takes 32 bits
TRIED = 1 << 16  # tokens at the start of each file that are compared with the vocabulary


class FolderPool:
    """The samples of a folder; every process that loads data opens it for itself."""

    own = True

    def __init__(self, model: Model, folder: Path) -> None:
        self.folder = folder
        self.size = model.recipe.image_size or 0
        self.vocabulary = int(model.architecture.get("vocab_size", 0))
        self.paths = _files(model, folder)
        if not self.paths:
            raise FileNotFoundError(f"{folder} has no data for {model.recipe.objective}")
        self.arrays = [_mapped(path, self.vocabulary) for path in self.paths if not _is_picture(path)]
        self.pictures = [path for path in self.paths if _is_picture(path)]
        self._orders: dict[int, _Order] = {}  # by tokens of a sample; 0 for images

    def tokens(self, index: int, count: int) -> NDArray[np.int64]:
        """Return consecutive tokens of one file, at a place that depends on the index."""
        if count not in self._orders:
            self._orders[count] = _Order([len(array) // count for array in self.arrays])
        number, place = self._orders[count].place(index)
        found = self.arrays[number][place * count : (place + 1) * count].astype(np.int64)
        if int(found.max()) >= self.vocabulary or int(found.min()) < 0:
            raise ValueError(
                f"{self.paths[number]} has the token {int(found.max())} near {place * count}; the "
                f"architecture's vocab_size is {self.vocabulary}"
            )
        return found

    def image(self, index: int) -> NDArray[np.uint8]:
        """Return the next image of a shuffled order of all arrays and pictures; pictures are decoded now."""
        if 0 not in self._orders:
            self._orders[0] = _Order([*map(len, self.arrays), len(self.pictures)])
        number, place = self._orders[0].place(index)
        if number == len(self.arrays):
            return _decoded(self.pictures[place], self.size)
        found: NDArray[np.uint8] = np.array(self.arrays[number][place])
        return found

    def numbers(self, index: int, *shape: int) -> NDArray[np.float32]:
        """Return made-up numbers: a folder holds no sounds."""
        return np.random.default_rng(index).standard_normal(shape, dtype=np.float32)


class _Order:
    """The shuffled order of the samples of several files: every sample comes once in each round."""

    def __init__(self, counts: Sequence[int]) -> None:
        """`counts` has the samples of each file."""
        self.ends = list(accumulate(counts))
        self.step = SHUFFLE % self.ends[-1]
        while math.gcd(self.step, self.ends[-1]) != 1:
            self.step += 1

    def place(self, index: int) -> tuple[int, int]:
        """Return the number of a sample's file and its place in the file."""
        chosen = index * self.step % self.ends[-1]
        number = bisect_right(self.ends, chosen)
        return number, chosen - (self.ends[number - 1] if number else 0)


def data_mistakes(model: Model, folder: Path, path: str) -> Iterator[Mistake]:
    """Yield why a folder cannot be a model's data: it is missing, empty, of another kind, or too short."""
    kinds = model.recipe.aim.data
    if len(kinds) != 1:  # a folder holds data of one kind
        found = f"{model.recipe.objective} reads no folder: its data are made up"
        yield Mistake(path, found, "allowed: to leave it out")
        return
    if not folder.is_dir():
        yield Mistake(path, f"{folder} is not a folder of this machine", "allowed: a folder")
        return
    wanted = ".bin or .npy files of tokens" if "tokens" in kinds else f".npy, {', '.join(PICTURES)} files"
    if not (files := _files(model, folder)):
        held = ", ".join(sorted({each.suffix or each.name for each in folder.iterdir()})[:5]) or "nothing"
        yield Mistake(path, f"{folder} has none of its files: {held}", f"allowed: {wanted}")
        return
    if any(_is_picture(each) for each in files) and not installed("PIL"):
        yield Mistake(path, f"{folder} has pictures, and Pillow is not installed", "pip install pillow")
        return
    try:
        yield from _mistakes_in(model, folder, files, path)
    except (OSError, ValueError) as error:
        yield Mistake(path, f"{folder} cannot be read: {error}", f"allowed: {wanted}")


def _mistakes_in(model: Model, folder: Path, files: Sequence[Path], path: str) -> Iterator[Mistake]:
    recipe, size = model.recipe, model.recipe.image_size
    vocabulary = int(model.architecture.get("vocab_size", 0))
    samples = sum(1 for each in files if _is_picture(each))
    length = (recipe.sequence_length or 0) + (recipe.target_length or 0) + 1
    for file in (each for each in files if not _is_picture(each)):
        array = _mapped(file, vocabulary)
        if "tokens" in recipe.aim.data:
            if array.ndim != 1 or array.dtype.kind not in "iu":
                found = f"{file} holds {array.dtype} of shape {array.shape}, not tokens"
                yield Mistake(path, found, "allowed: whole numbers in one dimension")
                continue
            if len(array) and int(array[:TRIED].max()) >= vocabulary:
                found = f"{file} has the token {int(array[:TRIED].max())}"
                yield Mistake(path, found, f"allowed: below the vocab_size {vocabulary}")
            samples += len(array) // length
        elif array.dtype != np.uint8 or array.shape[1:] != (3, size, size):
            found = f"{file} holds {array.dtype} of shape {array.shape}"
            yield Mistake(path, found, f"allowed: uint8 of shape [count, 3, {size}, {size}]")
        else:
            samples += len(array)
    if samples < recipe.batch_size:
        found = f"{folder} has {samples} samples, less than a batch of {recipe.batch_size}"
        yield Mistake(path, found, "allowed: at least a batch")


def _files(model: Model, folder: Path) -> list[Path]:
    """Return the files of a folder, and of the folders in it, that the model's objective reads."""
    suffixes = (".bin", ".npy") if "tokens" in model.recipe.aim.data else (".npy", *PICTURES)
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES


def _mapped(path: Path, vocabulary: int) -> NDArray[Any]:
    if path.suffix == ".bin":
        return np.memmap(path, dtype=np.uint32 if vocabulary > WIDE else np.uint16, mode="r")
    found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _decoded(path: Path, size: int) -> NDArray[np.uint8]:
    """Decode a picture, and scale its middle to the recipe's size."""
    from PIL import Image, ImageOps

    with Image.open(path) as picture:
        picture.draft("RGB", (size, size))  # JPEG files are decoded at a fraction of their size
        whole = ImageOps.fit(picture.convert("RGB"), (size, size))
    return np.ascontiguousarray(np.asarray(whole).transpose(2, 0, 1))
