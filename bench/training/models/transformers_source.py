"""What transformers' source says of its architectures: importing it takes seconds and brings torch along."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path


def _models() -> Path | None:
    package = find_spec("transformers")
    return Path(package.origin).parent / "models" if package and package.origin else None


@cache
def _mappings() -> str:
    """From types to names. Empty where it is not installed or looks different: then the worker finds out."""
    folder = _models()
    files = (
        [folder / "auto" / name for name in ("auto_mappings.py", "configuration_auto.py")] if folder else []
    )
    return "".join(file.read_text() for file in files if file.is_file())


@cache
def types() -> frozenset[str]:
    return frozenset(re.findall(r'"([\w.-]+)"[,:] "\w+Config"', _mappings()))


@cache
def _folders() -> Mapping[str, str]:
    """Of the types that do not lie under their own name."""
    _, _, special = _mappings().partition("SPECIAL_MODEL_TYPE_TO_MODULE_NAME")
    return dict(re.findall(r'\("([\w.-]+)", "([a-z][\w.]*)"\)', special))


@cache
def _code(model_type: str) -> str:
    """How its modules are made; empty where that cannot be read."""
    folder, name = _models(), _folders().get(model_type, model_type.replace("-", "_"))
    files = (folder / name).glob("modeling_*.py") if folder else ()
    return "".join(file.read_text() for file in files)


def has_fused_attention(model_type: str) -> bool | None:
    """Whether PyTorch's fused attention can be put into it; None where that cannot be read."""
    code = _code(model_type)
    return "_supports_sdpa = True" in code if code else None


def counts_positions_after_padding(model_type: str) -> bool:
    """As RoBERTa does: its first position is the padding token's id and one more."""
    return "padding_idx=self.padding_idx" in _code(model_type)
