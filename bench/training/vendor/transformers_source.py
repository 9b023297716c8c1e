"""Facts about transformers' architectures, read from its source files with regular expressions.

Relies on: the text of auto_mappings.py, configuration_auto.py and modeling_*.py. Why: importing transformers
takes seconds and imports torch, and planning must work without both. Pure but for reading these files.
If a file is missing or looks different, the functions return unknown, and the worker finds out later.
No issue known. Remove when transformers ships its list of architectures as data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal


def _models_folder() -> Path | None:
    package = find_spec("transformers")
    return Path(package.origin).parent / "models" if package and package.origin else None


@cache
def _mappings() -> str:
    """Return the source that maps model types to class names; empty if it cannot be read."""
    folder = _models_folder()
    if folder is None:
        return ""
    files = [folder / "auto" / name for name in ("auto_mappings.py", "configuration_auto.py")]
    return "".join(file.read_text() for file in files if file.is_file())


@cache
def types() -> frozenset[str]:
    """Return all model types; empty if they cannot be read."""
    return frozenset(re.findall(r'"([\w.-]+)"[,:] "\w+Config"', _mappings()))


@cache
def _folders() -> Mapping[str, str]:
    """Return the folders of model types that are not in a folder of their own name."""
    _, _, special = _mappings().partition("SPECIAL_MODEL_TYPE_TO_MODULE_NAME")
    return dict(re.findall(r'\("([\w.-]+)", "([a-z][\w.]*)"\)', special))


@cache
def _source(model_type: str, kind: Literal["modeling", "configuration"]) -> str:
    """Return the source of a type's modules or of its configuration; empty if it cannot be read."""
    models, name = _models_folder(), _folders().get(model_type, model_type.replace("-", "_"))
    files = (models / name).glob(f"{kind}_*.py") if models else ()
    return "".join(file.read_text() for file in files)


def why_not_fused(model_type: str) -> str | None:
    """Return why the type cannot use PyTorch's fused attention; None if it can or its code is unknown."""
    code = _source(model_type, "modeling")
    if code and "_supports_sdpa = True" not in code:
        return f"transformers' {model_type} takes no fused attention"
    if "softcap=" in code:  # transformers passes the cap to fused attention, which ignores it
        return f"{model_type} caps attention's scores, which fused attention cannot do"
    return None


@cache
def why_head_needs_more(model_type: str) -> str | None:
    """Return why a masked language model's head cannot run on the features of some positions.

    None if it can, or if its code is unknown. Heads read, for instance, which tokens are padding, or a
    decoder's output.
    """
    code = _source(model_type, "modeling")
    found = re.search(r"class \w+ForMaskedLM\(.*?(?=\nclass |\Z)", code, re.DOTALL)
    if code and found is None:
        return f"transformers' {model_type} has no masked language model with a head of its own"
    text = re.sub(r"(>>>|\.\.\.) .*", "", found[0]) if found else ""  # without examples
    if re.search(r"input_ids\.|outputs\.(?!last_hidden_state|hidden_states|attentions|pooler|logits)", text):
        return f"the head of transformers' {model_type} reads more than features of positions"
    return None


def why_not_joined(model_type: str) -> str | None:
    """Return why no layers of an architecture can be joined to one product; None if they can, or if unknown.

    Known are queries, keys and values, and gates with what they let through.
    """
    code = _source(model_type, "modeling")
    if not code or re.search(r"self\.(?:k_proj|key|k_lin|gate_proj) = nn\.Linear\(", code):
        return None
    return f"bench knows no layers of {model_type} to join: two that read the same tensor"


@cache
def why_not_depthwise(model_type: str) -> str | None:
    """Return why bench knows no depthwise convolutions of seven by seven in a type; None if it has some.

    Known are layers whose size is a number in the code, and not a field of the configuration. Code that
    cannot be read has none: depthwise belongs to free-lunch, which must not choose it for a model without
    such layers.
    """
    code = _source(model_type, "modeling")
    channels = r"(?:in_channels=)?([\w.]+), (?:out_channels=)?\1,"
    convolution = rf"nn\.Conv2d\( ?{channels} (?:kernel_size=)?7,[^()]* groups=\1[,) ]"
    if re.search(convolution, re.sub(r"\s+", " ", code)):
        return None
    if not code:
        return f"bench cannot read in transformers' code whether {model_type} has depthwise convolutions"
    return f"bench knows no depthwise convolutions of seven by seven in transformers' {model_type}"


def takes_registered_attention(model_type: str) -> bool:
    """Whether the type calls attention by its registered name, whatever the name is.

    Types that compare the name with "sdpa" build some masks for that name only, those of sparse attention
    for instance. True if the source cannot be read.
    """
    code = _source(model_type, "modeling")
    compared = re.search(r'_attn_implementation\s*(==|!=|in\b|not in\b).*"sdpa"', code)
    return not code or ("ALL_ATTENTION_FUNCTIONS" in code and compared is None)


def reads_field(model_type: str, field: str) -> bool:
    """Whether the type's code reads this field, which its configuration may lack.

    For instance, modules of the type read "head_dim", and rotary embeddings "partial_rotary_factor".
    """
    name = f'"{re.escape(field)}"'
    read = rf"getattr\((self\.)?config, {name}|kwargs\.(get|pop)\({name}"
    return bool(re.search(read, _source(model_type, "modeling") + _rotary_code()))


@cache
def _rotary_code() -> str:
    """Return the source of rotary embeddings' parameters; empty if it cannot be read."""
    models = _models_folder()
    file = models.parent / "modeling_rope_utils.py" if models else None
    return file.read_text() if file and file.is_file() else ""


def counts_positions_after_padding(model_type: str) -> bool:
    """Whether positions start after the padding token's id, as RoBERTa's do."""
    return "padding_idx=self.padding_idx" in _source(model_type, "modeling")
