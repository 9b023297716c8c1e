"""The family of modules that people bring as code: `{"module": "my_model.py:MyModel", "config": {...}}`.

The module is built as `MyModel(**config)`, and called as its objective says. Its code is in the
architecture, as lines (bench/planning/own_code.py puts it there), so that it is measured wherever the
manifest goes. It runs only where a model is built: in workers, and in the process of dry_build.py. Reading a
manifest or a bundle runs nothing of it. Imports torch only when called.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from bench.base.errors import BadInput, Mistake, in_json, raised
from bench.training.models.generic import count_mistakes
from bench.training.models.model import Has, Model, installed
from bench.training.models.module_family import ModuleFamily
from bench.training.objectives import ObjectiveName, known_objectives, objective_of
from bench.training.objectives.own_loss import BATCH, batch_mistakes

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = MODULE = "module"  # the family's, and the field with the file and the class
CODE, CONFIG = "code", "config"


class OwnModule(ModuleFamily):
    """A module in a Python file of one's own, which the manifest names and bench copies into it."""

    # Contrastive losses read the scale of the logits from the model, whose name only transformers fixes.
    objectives = tuple(aim.name for aim in known_objectives().values() if not aim.towers)
    tries_a_pass = True
    kernels = None
    no_adapters = "bench adds adapters to models of transformers and timm; your own code may hold its own"

    def __init__(self) -> None:
        super().__init__(NAME)

    def describes(self, given: Mapping[str, Any]) -> bool:
        """Whether the architecture names a file and a class."""
        return MODULE in given

    def kept_fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all fields, with those of its configuration where those of other families are."""
        config = given.get(CONFIG)
        return {**(config if isinstance(config, dict) else {}), **given}

    def architecture_mistakes(
        self, given: Mapping[str, Any], objective: ObjectiveName, path: str
    ) -> Iterator[Mistake]:
        """Find a name that is no file and class, and missing lines of the file; imports nothing."""
        path = f"{path}/architecture"
        if not file_and_class(given.get(MODULE)):
            yield Mistake(
                f"{path}/{MODULE}", f"{in_json(given.get(MODULE))} names no class", '"FILE.py:CLASS"'
            )
        code = given.get(CODE)
        if not isinstance(code, list) or not all(isinstance(line, str) for line in code):
            yield Mistake(
                f"{path}/{CODE}", "missing", "allowed: the lines of the file, which bench puts here"
            )
        config = given.get(CONFIG, {})
        if not isinstance(config, dict):
            yield Mistake(f"{path}/{CONFIG}", f"{in_json(config)} is not an object", "allowed: an object")
            return
        yield from count_mistakes(config, objective_of(objective), f"{path}/{CONFIG}")
        yield from batch_mistakes(given.get(BATCH), objective, f"{path}/{BATCH}")

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Refuse "kernels" always."""
        return "a module of your own decides itself which kernels it uses"

    def build_module(self, model: Model, *, fused: bool) -> nn.Module:
        """Run the file's code and call its class; `fused` changes nothing."""
        return build_own(model)


FAMILY = OwnModule()


def file_and_class(module: Any) -> tuple[str, str] | None:
    """Return the file and the class that "FILE.py:CLASS" names; None if it has another form."""
    if not isinstance(module, str):
        return None
    file, colon, name = module.rpartition(":")
    return (file, name) if colon and file.endswith(".py") and name.isidentifier() else None


def code_file(architecture: Mapping[str, Any]) -> str:
    """Return the name of the file that a module's code was read from."""
    return str(architecture[MODULE]).rpartition(":")[0]


def code_digest(architecture: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of a module's code."""
    return _digest(architecture[CODE])


def _digest(code: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(code).encode()).hexdigest()


def build_own(model: Model) -> nn.Module:
    """Build the module; raise BadInput if its code does not give one."""
    from torch import nn

    class Called(nn.Module):
        """The module, called as transformers' models are: it may return logits instead of an object."""

        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, **batch: Tensor) -> Any:
            out = self.body(**batch)
            if isinstance(out, Mapping):
                return Returned(out.get("logits"), out.get("loss"))
            if hasattr(out, "shape"):
                return Returned(out, out)
            if not hasattr(out, "logits") and not hasattr(out, "loss"):
                kinds = "a tensor, or an object or a dict with logits or loss"
                raise TypeError(f"it returned a {type(out).__name__}, and must return {kinds}")
            return out

    body = _class_of(model)(**model.architecture.get(CONFIG, {}))
    if not isinstance(body, nn.Module):
        raise BadInput(f"{model.architecture[MODULE]} is no torch.nn.Module", where=model.name)
    return Called(body).float().train()


class Returned:
    """A tensor that a module returned: its logits or its loss, whichever the objective asks for."""

    def __init__(self, logits: Any, loss: Any) -> None:
        self.logits = logits
        self.loss = loss


def _class_of(model: Model) -> Any:
    named = file_and_class(model.architecture[MODULE])
    assert named is not None
    file, name = named
    module = _executed(file, tuple(model.architecture[CODE]), model.name)
    if not hasattr(module, name):
        classes = ", ".join(key for key, value in vars(module).items() if isinstance(value, type)) or "none"
        raise BadInput(f"{file} has no {name}; its classes: {classes}", where=model.name)
    return getattr(module, name)


@cache
def _executed(file: str, code: Sequence[str], where: str) -> ModuleType:
    """Execute the code as a module of this process, with its lines where tracebacks and Triton look."""
    text = "\n".join(code)
    digest = _digest(code)[:16]
    name, shown = f"bench_own_{digest}", f"<{digest}/{file}>"
    module = ModuleType(name)
    module.__file__ = shown
    linecache.cache[shown] = (len(text), None, [f"{line}\n" for line in code], shown)
    sys.modules[name] = module
    try:
        exec(compile(text, shown, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # the code may raise anything
        raise BadInput(f"{file} cannot be imported: {raised(error)}", where=where) from error
    return module
