"""Models without a file here, tried before anything is measured: built without contents, and counted.

transformers takes a field that it does not know in silence, and what would be measured is then another
model than was meant. It is asked in a process of its own: planning imports neither it nor torch. What was
counted there is all that a plan knows of such a model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from bench.base.errors import BadInput, EnvironmentCannot, Mistake, in_json, nearest
from bench.base.strict_json import from_json, to_json
from bench.training.models import Counted, Model, families, transformers_source
from bench.training.models.generic import configured, counted, kinds

# By their configurations alone, on no device: the GPUs are a trial's.
ALONE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def rehearse(models: Sequence[Model], where: str) -> Mapping[str, Counted]:
    """BadInput with all that is wrong with them, else the counts by name of those that have no formulas.

    Nothing where transformers is not installed.
    """
    new = {f"/models/{i}": model for i, model in enumerate(models) if model.family not in families()}
    if not new or not all(map(find_spec, ("torch", "transformers"))):
        return {}
    process = [sys.executable, "-m", "bench.training.models.dry_build"]
    asked = json.dumps({path: to_json(model) for path, model in new.items()})
    done = subprocess.run(
        process, input=asked, env=os.environ | ALONE, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EnvironmentCannot(f"transformers cannot be asked of these models: {said}", where=where)
    tried = from_json(dict[str, Tried], json.loads(done.stdout.splitlines()[-1]))
    if mistakes := [mistake for one in tried.values() for mistake in one.mistakes]:
        raise BadInput.of(mistakes, where)
    return {new[path].name: one.counted for path, one in tried.items() if one.counted}


def main() -> None:
    asked = json.load(sys.stdin)
    print(json.dumps({path: to_json(tried(from_json(Model, model), path)) for path, model in asked.items()}))


@dataclass(frozen=True, slots=True)
class Tried:
    counted: Counted | None  # None: there are mistakes
    mistakes: tuple[Mistake, ...] = ()


def tried(model: Model, path: str) -> Tried:
    """What is wrong with its fields, else what speaks against it as it is built and run, else its counts."""
    try:
        configuration = configured(model)
        found = [
            *_of_objective(model, configuration, path),
            *_of_fields(model, configuration, path),
            *_of_sizes(model, configuration, path),
        ]
        return Tried(None, tuple(found)) if found else Tried(counted(model))
    except BadInput as error:
        found = [Mistake(f"{path}/architecture", error.message, "allowed: what transformers can build")]
    except Exception as error:  # whatever an architecture's code makes of its fields
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        found = [Mistake(f"{path}/architecture", f"cannot run: {said}", "allowed: what transformers can run")]
    return Tried(None, tuple(found))


def _of_objective(model: Model, configuration: Any, path: str) -> Iterator[Mistake]:
    objective = model.recipe.objective
    able = [name for name, kind in kinds().items() if type(configuration) in kind._model_mapping]
    if objective not in able:
        allowed = ", ".join(able) or "none: transformers has no class of it that bench trains"
        yield Mistake(f"{path}/recipe/objective", f'"{objective}" does not fit', f"allowed: {allowed}")
    sees_all = "masked-lm" in able and not configuration.is_encoder_decoder
    if objective == "causal-lm" and sees_all and getattr(configuration, "is_decoder", None) is False:
        found = f"false: a token of {model.family} sees those that follow"
        yield Mistake(f"{path}/architecture/is_decoder", found, "allowed for causal-lm: true")


def _of_fields(model: Model, configuration: Any, path: str) -> Iterator[Mistake]:
    """What is neither a field, nor another name of one, nor read by the configuration itself."""
    usual = type(configuration)()
    known = [*vars(usual), *usual.attribute_map]
    for key in model.architecture:
        if key in vars(configuration) and not hasattr(usual, key):
            found = f"{type(usual).__name__} has no such field"
            hint = nearest(key, [name for name in known if not name.startswith("_")])
            yield Mistake(f"{path}/architecture/{key}", found, f"{hint}; or leave it out: nothing reads it")


def _of_sizes(model: Model, configuration: Any, path: str) -> Iterator[Mistake]:
    def size(name: str) -> tuple[str, Any]:
        field = configuration.attribute_map.get(name, name)
        return f"{path}/architecture/{field}", getattr(configuration, field, None)

    place, layers = size("num_hidden_layers")
    if type(layers) is int and layers < 1:
        yield Mistake(place, f"{layers} is less than allowed", "allowed: a whole number, at least 1")
    if model.recipe.sequence_length is None:
        return
    place, padding = size("pad_token_id")
    vocabulary = model.architecture["vocab_size"]
    if type(padding) is int and padding >= vocabulary:
        found = f"{in_json(padding)} is none of {vocabulary} tokens"
        yield Mistake(place, found, f"allowed: 0 to {vocabulary - 1}, or null")
    place, positions = size("max_position_embeddings")
    length = model.recipe.sequence_length
    if type(positions) is not int:
        return
    if type(padding) is int and transformers_source.counts_positions_after_padding(model.family):
        positions -= padding + 1
    if positions < length:
        found = f"{length} is more than the {positions} positions of the architecture"
        allowed = f"allowed: at most {positions}, or more in {place}"
        yield Mistake(f"{path}/recipe/sequence_length", found, allowed)


if __name__ == "__main__":
    main()
