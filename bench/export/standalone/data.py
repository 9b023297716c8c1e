"""The parts of a script that make up its data, and bring them to the device.

The samples are those of bench/runner/trial/made_up_data.py. Pure: takes a trial and returns source.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from bench.export.standalone.python_source import Constant, Raw, SourcePart
from bench.records.trial import Trial
from bench.runner.trial.pool_sizes import (
    PIXEL_DEVIATION,
    PIXEL_MEAN,
    POOL_NUMBERS,
    images_of_pool,
    tokens_of_pool,
)
from bench.training.models.footprint import lowers_weights
from bench.training.objectives.masked_lm import MASK_TOKEN_SHARE, RANDOM_TOKEN_SHARE
from bench.training.objectives.sound import sound_part

NUMPY, TORCH = "import numpy as np", "import torch"
COMMENT_WIDTH = 96  # columns


def data_constants(trial: Trial) -> Iterator[Constant]:
    """Yield the constants of the samples."""
    model, recipe = trial.model, trial.model.recipe
    aim = recipe.aim
    if "tokens" in aim.data:
        yield Constant("VOCABULARY", aim.vocabulary(model.architecture), "different tokens")
        if recipe.sequence_length:
            yield Constant("LENGTH", recipe.sequence_length, "tokens of a sample")
        if recipe.target_length:
            yield Constant("TARGET_LENGTH", recipe.target_length, "tokens of a sample's target")
        yield Constant("POOL", tokens_of_pool(recipe), "made-up tokens")
    if recipe.objective == "masked-lm":
        asked = recipe.asked_per_sample
        masked = round(asked * MASK_TOKEN_SHARE)
        yield Constant("ASKED", asked, "tokens of a sample that are predicted")
        yield Constant("MASKED", masked, "of these are hidden")
        replaced = masked + round(asked * RANDOM_TOKEN_SHARE)
        yield Constant("REPLACED", replaced, "are hidden, or replaced at random")
    if "images" in aim.data:
        assert recipe.image_size is not None
        yield Constant("SIDE", recipe.image_size, "pixels")
        yield Constant("POOL", images_of_pool(recipe.image_size), "made-up images")
    if recipe.objective == "masked-image":
        parts = aim.parts(model.architecture, recipe)
        patches = next(part.shape[0] for part in parts if part.elements == "flags")
        fraction = recipe.masked_fraction or aim.defaults["masked_fraction"]
        yield Constant("PATCHES", patches, "of an image")
        yield Constant("HIDDEN", max(1, round(patches * fraction)), "of these are predicted")
    if "num_labels" in aim.counts:
        yield Constant("CLASSES", int(model.architecture["num_labels"]))
    if recipe.audio_seconds:
        shape = sound_part(model.architecture, recipe).shape
        yield Constant("SOUND", Raw(repr(tuple(shape))), "the shape of a sample's sound")
        yield Constant("POOL_NUMBERS", POOL_NUMBERS, "made-up numbers")


def data_parts(trial: Trial) -> Iterator[SourcePart]:
    """Yield the parts in the order in which the script has them."""
    yield _samples(trial)
    yield _batches(trial)


def _samples(trial: Trial) -> SourcePart:
    recipe = trial.model.recipe
    pools, cuts = [], []
    if "tokens" in recipe.aim.data:
        pools.append("self.tokens = random.integers(0, VOCABULARY, POOL, dtype=np.int32)")
        cuts.append(TOKENS)
    if "images" in recipe.aim.data:
        pools.append("self.images = random.integers(0, 256, (POOL, 3, SIDE, SIDE), dtype=np.uint8)")
    if recipe.audio_seconds:
        pools.append("self.numbers = random.standard_normal(POOL_NUMBERS, dtype=np.float32)")
        cuts.append(SOUNDS)
    form = " ".join(recipe.aim.form(recipe, trial.micro_batch).replace("`", '"').split())
    request = f"YOUR DATA: return sample number `index`. A batch has {form}"
    comment = "\n".join(f"        # {line}" for line in textwrap.wrap(request, COMMENT_WIDTH - 8))
    made = "\n".join(f"        random = np.random.default_rng(SEED)\n        {pool}" for pool in pools)
    sample = SAMPLES[recipe.objective].strip("\n")
    if recipe.audio_seconds:
        sample = sample.replace("NAME", _sound_name(trial))
    return SourcePart(
        f'''
class Samples(Dataset):
    """Made-up samples, the ones that were trained on when this setting was measured."""

    def __init__(self):
{made}
{"".join(cuts)}
    def __getitem__(self, index):
{comment}
{sample}
''',
        (NUMPY, TORCH, "from torch.utils.data import DataLoader, Dataset"),
    )


TOKENS = """
    def cut(self, index, count):
        start = index * count % (len(self.tokens) - count)
        return torch.from_numpy(self.tokens[start : start + count].astype(np.int64))
"""
SOUNDS = '''
    def sound(self, index):
        """Return the sound of a sample."""
        count = math.prod(SOUND)
        places = np.arange(index * count % POOL_NUMBERS, index * count % POOL_NUMBERS + count)
        return torch.from_numpy(self.numbers.take(places, mode="wrap").reshape(SOUND))
'''


# The objectives that a script can train for, each with the lines that make a sample; NAME is its sound's.
SAMPLES = {
    "causal-lm": """
        tokens = self.cut(index, LENGTH + 1)
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}  # labels are shifted already
""",
    "masked-lm": """
        random = np.random.default_rng((SEED, index))
        tokens = self.cut(index, LENGTH)
        chosen = torch.from_numpy(random.permutation(LENGTH)[:ASKED])
        labels = torch.full_like(tokens, -100)
        labels[chosen] = tokens[chosen]
        tokens[chosen[:MASKED]] = VOCABULARY - 1
        replaced = random.integers(0, VOCABULARY, REPLACED - MASKED)
        tokens[chosen[MASKED:REPLACED]] = torch.from_numpy(replaced)
        return {"input_ids": tokens, "labels": labels}
""",
    "image-classification": """
        label = int(np.random.default_rng((SEED, index)).integers(CLASSES))
        pixels = torch.from_numpy(self.images[index % POOL].copy())
        return {"pixel_values": pixels, "labels": label}  # pixels are bytes: see `batches_of`
""",
    "masked-image": """
        hidden = torch.zeros(PATCHES, dtype=torch.bool)
        hidden[np.random.default_rng((SEED, index)).permutation(PATCHES)[:HIDDEN]] = True
        pixels = torch.from_numpy(self.images[index % POOL].copy())
        return {"pixel_values": pixels, "bool_masked_pos": hidden}  # pixels are bytes
""",
    "sequence-to-sequence": """
        tokens = self.cut(index, LENGTH + TARGET_LENGTH + 1)
        source, target = tokens[:LENGTH], tokens[LENGTH:]
        return {"input_ids": source, "decoder_input_ids": target[:-1], "labels": target[1:]}
""",
    "speech-recognition": """
        text, sound = self.cut(index, TARGET_LENGTH + 1), self.sound(index)
        return {"NAME": sound, "decoder_input_ids": text[:-1], "labels": text[1:]}
""",
    "audio-classification": """
        label = int(np.random.default_rng((SEED, index)).integers(CLASSES))
        return {"NAME": self.sound(index), "labels": label}
""",
}


def _sound_name(trial: Trial) -> str:
    return sound_part(trial.model.architecture, trial.model.recipe).name


def _batches(trial: Trial) -> SourcePart:
    recipe = trial.model.recipe
    images, sounds = "images" in recipe.aim.data, bool(recipe.audio_seconds)
    lowered = lowers_weights(trial.model, trial.setting)
    lines = [
        "for loaded in loader:",
        "    batch = {name: part.to(device, non_blocking=True) for name, part in loaded.items()}",
    ]
    if images:
        lines += [
            '    pixels = batch["pixel_values"].float().div_(255)',
            f'    batch["pixel_values"] = pixels.sub_({PIXEL_MEAN}).div_({PIXEL_DEVIATION})',
        ]
    if lowered and (images or sounds):
        name = "pixel_values" if images else _sound_name(trial)
        lines += [f'    batch["{name}"] = batch["{name}"].to(HALF)']
    lines += ["    yield batch"]
    if len(lines) == 3:  # nothing but the copy
        lines[1:] = ["    yield {name: part.to(device, non_blocking=True) for name, part in loaded.items()}"]
    body = "\n".join(f"    {line}" for line in lines)
    imports = ("from itertools import count", "import os", *(("import math",) if sounds else ()))
    return SourcePart(
        f'''
def batches_of(device, rank, first):
    """Yield the micro-batches of this process, endlessly, from its number `first` on."""
    numbers = count(rank + first * GPUS, GPUS)
    shares = (range(number * MICRO_BATCH, (number + 1) * MICRO_BATCH) for number in numbers)
    cuda = device.type == "cuda"
    workers = max(1, min(8, os.cpu_count() // (2 * torch.cuda.device_count()))) if cuda else 0
    loader = DataLoader(Samples(), batch_sampler=shares, num_workers=workers, pin_memory=cuda)
{body}
''',
        imports,
    )
