"""Facts about transformers' architectures, read from its source files with regular expressions.

Relies on: the text of auto_mappings.py, configuration_auto.py and modeling_*.py. Why: importing transformers
takes seconds and imports torch, and planning must work without both. Pure, except for reading these files.
If a file is missing or looks different, the functions return unknown, and the worker finds out later.
No issue known. Remove when transformers ships its list of architectures as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal


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
    return "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())


@cache
def types() -> frozenset[str]:
    """Return all model types; empty if they cannot be read."""
    return frozenset(re.findall(r'"([\w.-]+)"[,:] "(?!AutoConfig)\w+Config"', _mappings()))


@cache
def _folders() -> Mapping[str, str]:
    """Return the folders of model types whose folder has another name."""
    _, _, special = _mappings().partition("SPECIAL_MODEL_TYPE_TO_MODULE_NAME")
    return dict(re.findall(r'\("([\w.-]+)", "([a-z][\w.]*)"\)', special))


@cache
def _source(model_type: str, kind: Literal["modeling", "configuration"]) -> str:
    """Return the source of a type's modules or of its configuration; empty if it cannot be read.

    A bundle's author chooses the type, so only transformers' own types become the name of a folder. Of types
    that share a folder, some have a file of their own: data2vec-vision attends otherwise than data2vec-text.
    """
    models, own = _models_folder(), model_type.replace("-", "_")
    name = _folders().get(model_type, own)
    files = [*(models / name).glob(f"{kind}_*.py")] if models and model_type in types() else []
    if name != own:
        files = [file for file in files if file.stem == f"{kind}_{own}"] or files
    return "".join(file.read_text(encoding="utf-8") for file in files)


@cache
def calls_package(model_type: str, package: str) -> bool:
    """Whether the type's modules import a package, or name it as one that replaces their own functions.

    Relies on: `use_kernel_func_from_hub_with_fallback("function", "package")`, by which transformers 5.17
    takes kernels wherever they can be imported. No issue known. Remove when a model tells its kernels.
    """
    named = rf"""["']{package}["']|\b(?:import|from) {package}\b"""
    return re.search(named, _source(model_type, "modeling")) is not None


def why_not_fused(model_type: str) -> str | None:
    """Return why the type cannot use PyTorch's fused attention; None if it can or its code is unknown."""
    code = _source(model_type, "modeling")
    if code and "_supports_sdpa = True" not in code:
        return f"transformers' {model_type} takes no fused attention"
    if "softcap=" in code:  # transformers passes the cap to fused attention, which ignores it
        return f"{model_type} caps attention's scores, which fused attention cannot do"
    if "create_causal_mask(" in code and "is_causal: bool = False" in code and "is_causal=" not in code:
        return f"no attention of {model_type} is told to be causal, and fused attention gets no causal mask"
    if _makes_other_masks(code):
        return f"attention of {model_type} adds to a causal mask, and fused attention gets none"
    return None


@cache
def _makes_other_masks(code: str) -> bool:
    """Whether attention gives the function that it looks up another mask, made by a method from its own."""
    made = r"(\w+) = self\.\w+\([^()]*\battention_mask=attention_mask\b"
    return any(
        re.search(rf"\battention_mask={name}\b", body)
        for body in re.split(r"^class ", code, flags=re.MULTILINE)
        if _attends(body)
        for name in re.findall(made, body)
    )


CONVOLVED_TOGETHER = 8  # channels that causal-conv1d reads at once, csrc/causal_conv1d.cpp
MOST_STATES = 256  # of a channel in mamba-ssm's selective scan, csrc/selective_scan/selective_scan.cpp


def why_no_mamba_kernel(model_type: str, architecture: Mapping[str, Any]) -> str | None:
    """Return why kernels of mamba-ssm and causal-conv1d cannot compute a type's mixers; None if they can.

    Relies on: the names of a mixer's attributes. No issue known. Remove when the kernels take any of them.
    """
    code = _source(model_type, "modeling")
    if found := re.search(r'self\.activation = (?:"(\w+)"|(config\.\w+))', code):
        activation = found[1] or _field(found[2], model_type, architecture)
        if activation not in (None, "silu", "swish"):
            return f"mamba-ssm's kernel computes silu, and these mixers {activation}"
    width = _size_of_mixers("conv_kernel_size", code, model_type, architecture)
    if width is not None and not 2 <= width <= 4:
        return f"causal-conv1d's kernels convolve 2 to 4 positions, and these mixers {width:g}"
    states = _size_of_mixers("ssm_state_size", code, model_type, architecture)
    if "def mamba_selective_scan(" in code and states is not None and states > MOST_STATES:
        return f"mamba-ssm's scan has at most {MOST_STATES} states a channel, and these mixers {states:g}"
    channels = _convolved_channels(code, model_type, architecture)
    if channels % CONVOLVED_TOGETHER:
        return f"causal-conv1d's kernels convolve multiples of 8 channels, and these mixers {channels:g}"
    return None


def _convolved_channels(code: str, model_type: str, architecture: Mapping[str, Any]) -> int | float:
    """Return the channels that mixers of Mamba 2 convolve; 0 if they are unknown, or for other mixers."""
    if "mamba2_split_conv1d_scan_combined(" not in code:
        return 0
    mixers = _classes_with_convolutions(code)
    names = ("num_heads", "head_dim", "n_groups", "ssm_state_size")
    sizes = [_size_of_mixers(name, mixers, model_type, architecture) for name in names]
    heads, width, groups, states = (size or 0 for size in sizes)
    return heads * width + 2 * groups * states if None not in sizes else 0


def _size_of_mixers(
    attribute: str, code: str, model_type: str, architecture: Mapping[str, Any]
) -> int | float | None:
    """Return a number that mixers take from their configuration; None if it is unknown."""
    found = re.search(rf"self\.{attribute} = (?:self\.)?(config\.\w+)", code)
    value = _field(found[1], model_type, architecture) if found else None
    return value if isinstance(value, int | float) else None


@cache
def layers_read_past(model_type: str) -> tuple[str, ...]:
    """Return the names of linear layers of a type's mixers whose weights its code reads without a call.

    Relies on: `self.dt_proj.weight` and its like. No issue known. Remove when mixers call all their layers.
    """
    code = _source(model_type, "modeling")
    mixers = _classes_with_convolutions(code)
    computed = "".join(mixers.split("def forward(")[1:])
    layers = re.findall(r"self\.(\w+) = nn\.Linear\(", mixers)
    return tuple(name for name in layers if re.search(rf"self\.{name}\.weight\b", computed))


def _classes_with_convolutions(code: str) -> str:
    """Return the classes of a type's code that convolve along positions, as mixers do."""
    classes = re.split(r"^class ", code, flags=re.MULTILINE)
    return "".join(body for body in classes if "self.conv1d = nn.Conv1d(" in body)


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


@cache
def head_name(model_type: str, mapping: str) -> str | None:
    """Return the attribute of a language model that turns features into logits on its own.

    None if the model's class does more than that, scaling logits for instance, or if its code is unknown.
    `mapping` is the table in which the class is found.
    """
    kind = _model_class(model_type, mapping)
    found = re.search(
        rf"^class {kind}\(.*?(?=^class |\Z)", _source(model_type, "modeling"), re.DOTALL | re.MULTILINE
    )
    alone = re.search(
        r"(?:logits|prediction_scores) = self\.(\w+)\("
        r"(?:hidden_states\[:, slice_indices, :\](?:\.to\(self\.lm_head\.weight\.dtype\))?|sequence_output)\)"
        r"(?:\.float\(\))?\n\s*(?:masked_lm_)?loss = None\n",
        found[0] if kind and found else "",
    )
    return alone[1] if alone else None


def has_experts(model_type: str) -> bool:
    """Whether the type's code has mixtures of experts, which run by an implementation of their own."""
    return "use_experts_implementation" in _source(model_type, "modeling")


def has_position_tables(model_type: str) -> bool:
    """Whether the type's code adds tables of positions, which are buffers, to embeddings."""
    return "def make_weights(self, num_embeddings: int" in _source(model_type, "modeling")


def why_not_joined(model_type: str) -> str | None:
    """Return why no layers of an architecture can be joined to one product; None if they can, or if unknown.

    Known are queries, keys and values, and gates with what they let through.
    """
    code = _source(model_type, "modeling")
    names = "k|Wk|k_head|k_lin|k_proj|key|key_proj|gate_proj|wi_0"
    if not code or re.search(rf"self\.(?:{names}) = nn\.Linear\(", code):
        return None
    return f"bench knows no layers of {model_type} to join: two that read the same tensor"


def why_no_linear_head(model_type: str) -> str | None:
    """Return why bench knows no linear layer that computes a type's logits over words; None if it has one."""
    if re.search(r"nn\.Linear\([^()]*\bvocab_size\b", _source(model_type, "modeling")):
        return None
    return f"bench knows no linear layer with logits of {model_type}"


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


def why_no_biased_gelu(model_type: str, mapping: str, architecture: Mapping[str, Any]) -> str | None:
    """Return why no exact GELU of a model reads the output of a linear layer with a bias; None if one does.

    If the code cannot be read, an architecture that names exact GELU is believed to have it.
    """
    return _why_no_biased_gelu(model_type, mapping, json.dumps(architecture, sort_keys=True))


@cache
def _why_no_biased_gelu(model_type: str, mapping: str, architecture_json: str) -> str | None:
    """Compute `why_no_biased_gelu`, cached: a plan asks for every setting, and the code is long."""
    architecture: Mapping[str, Any] = json.loads(architecture_json)
    others: set[str] = set()
    without_layer = False
    for body in _classes_of(model_type, mapping):
        for name, expression in re.findall(_ACTIVATION, body):
            activation = _activation(expression, body, model_type, architecture)
            if activation == "gelu" and name in _after_biased_layers(body, model_type, architecture):
                return None
            without_layer |= activation == "gelu"
            others |= {activation} - {"gelu"} if activation else set()
    if not _source(model_type, "modeling"):
        given = {str(v) for k, v in architecture.items() if k in ("hidden_act", "activation_function")}
        if given == {"gelu"}:
            return None
        others = given - {"gelu"}
    elif without_layer:
        return f"bench knows no linear layer of {model_type} with a bias whose output only exact GELU reads"
    found = " and ".join(f'"{name}"' for name in sorted(others)) or "none that bench knows"
    return f'its kernels are for the activation "gelu"; {model_type} has {found}'


def why_no_paired_norms(model_type: str, mapping: str, architecture: Mapping[str, Any]) -> str | None:
    """Return why no block of a model has two norms that read the same tensor; None if one does.

    If the code cannot be read, an architecture that says `use_parallel_residual` is believed to have them.
    """
    conditional: list[str] = []
    for body in _classes_of(model_type, mapping):
        for conditions in _paired_norms(body):
            unmet = [rule for rule in conditions if not _holds(rule, body, model_type, architecture)]
            if not unmet:
                return None
            conditional.append(unmet[0])
    if conditional:
        return f"two norms of {model_type} read the same tensor only if {conditional[0].rpartition('.')[2]}"
    if not _source(model_type, "modeling") and architecture.get("use_parallel_residual"):
        return None
    return f"bench knows no two norms of {model_type} that read the same tensor"


def why_no_packed_rotary(model_type: str, mapping: str, architecture: Mapping[str, Any]) -> str | None:
    """Return why no attention of a model rotates queries and keys that one layer returns head by head.

    None if one does. If the code cannot be read, an architecture that says `rotary_pct` is believed to.
    """
    spoilt = ""
    for body in _classes_of(model_type, mapping):
        if (asked := _packed_rotary(body)) is not None:
            given = [name for name in asked if _field(f"config.{name}", model_type, architecture) is True]
            if not given and takes_registered_attention(model_type):
                return None
            spoilt = f"only without {given[0]}" if given else "with a mask that it makes itself"
    if spoilt:
        return f"{model_type} rotates queries and keys that are packed by head {spoilt}"
    if not _source(model_type, "modeling") and "rotary_pct" in architecture:
        return None
    return f"bench knows no rotary positions of {model_type} whose queries and keys are packed by head"


@cache
def _packed_rotary(body: str) -> tuple[str, ...] | None:
    """Return the names that a class with packed queries and keys tests; None if it is no such class.

    Its views of a layer's output hold a head's query, key and value in the last dimension, or the last two.
    """
    packed = r"-1, 3 \* self\.\w+\)|self\.num_\w*heads, 3, self\.\w+\)"
    if not (re.search(packed, body) and "apply_rotary_pos_emb(" in body):
        return None
    return tuple(re.findall(r"\b(?:el)?if (?:not )?(?:self\.|config\.)?(\w+)(?: is None)?:", body))


def attention_dropout(model_type: str, mapping: str, architecture: Mapping[str, Any]) -> bool:
    """Whether a model's attention may drop probabilities; true if its code does not tell.

    If the code cannot be read, the architecture's fields decide.
    """
    if not _source(model_type, "modeling"):
        return any(given for name, given in architecture.items() if re.search("att.*dropout", name))
    for body in filter(_attends, _classes_of(model_type, mapping)):
        for expression in re.findall(r"\bdropout=([^\n]*)", body):
            attribute = re.fullmatch(
                r"(?:0\.0 if not self\.training else )?self\.(\w+)(?:\.p)?,?", expression
            )
            assigned = attribute and re.search(
                rf"self\.{attribute[1]} = (?:nn\.Dropout\((?:p=)?)?(config\.\w+)", body
            )
            value = _field(assigned[1], model_type, architecture) if assigned else None
            if value is None or value > 0:
                return True
    return False


def why_no_full_attention(model_type: str, mapping: str) -> str | None:
    """Return why bench knows no attention of a model without a mask or bias, of all positions to all others.

    None if all of its attention is of this form and can be replaced. Code that cannot be read has none.
    """
    if not (code := _source(model_type, "modeling")):
        return f"bench cannot read in transformers' code how {model_type} attends"
    attending = [body for body in _classes_of(model_type, mapping) if _attends(body)]
    if not attending or not takes_registered_attention(model_type):
        return f"{model_type} attends by code of its own"
    if "_supports_flex_attn = True" not in code:
        return f"transformers' {model_type} takes no FlexAttention"
    bodies = "".join(_classes_of(model_type, mapping))
    causal = re.search(r"create_(?!bidirectional_mask)\w*mask|is_causal=True", bodies)
    if causal or not all("self.is_causal = False" in body for body in attending):
        return f"bench knows no attention of {model_type} by which all positions see each other"
    for body in attending:
        if found := re.search(r"\b(sliding_window|position_bias|s_aux|sinks|softcap)\b", body):
            return f"attention of {model_type} takes {found[1]}"
    return None


def _attends(body: str) -> bool:
    """Whether a class calls attention by its registered name."""
    return "ALL_ATTENTION_FUNCTIONS" in body


@cache
def _paired_norms(body: str) -> tuple[tuple[str, ...], ...]:
    """Return for each two neighbouring calls of different norms on one variable the conditions of both.

    Calls are neighbours if the code between them gives the variable no other value.
    """
    norms = {*re.findall(r"self\.(\w+) = (?:nn\.)?\w*(?:Layer|RMS)_?Norm\w*\(", body)}
    calls = [call for call in re.finditer(r"self\.(\w+)\(\s*(\w+)\s*\)", body) if call[1] in norms]
    found = []
    for one, other in pairwise(calls):
        line = body.rfind("\n", 0, one.start()) + 1
        between = body[line : other.start()]
        assigned = re.search(rf"(?<![\w.]){one[2]}\b[^=\n()]*=(?!=)|\bdef |\belse:", between)
        if one[1] != other[1] and one[2] == other[2] and not assigned:
            found.append((*_conditions(body, one.start()), *_conditions(body, other.start())))
    return tuple(found)


def _conditions(body: str, place: int) -> list[str]:
    """Return the conditions of the `if` directly above the statement at this place in a function."""
    *before, line = body[:place].split("\n")
    indent = re.match(r" *", line)[0]  # type: ignore[index]
    for above in reversed(before):
        if above.strip() and len(indent) > len(above) - len(above.lstrip()):
            found = re.fullmatch(r" *if (.*):", above)
            return found[1].split(" and ") if found else []
    return []


def _holds(condition: str, body: str, model_type: str, architecture: Mapping[str, Any]) -> bool:
    """Whether a condition on a field of the configuration is known to hold: `name`, or `name == number`."""
    name, equal, number = condition.partition(" == ")
    if assigned := re.search(rf"\b{re.escape(name)} = (config\.\w+)", body):  # an attribute of the module
        name = assigned[1]
    value = _field(name, model_type, architecture)
    return str(value) == number if equal else value is True


def why_not_recorded(model_type: str, architecture: Mapping[str, Any]) -> str | None:
    """Return why a pass cannot be recorded as a CUDA graph; None if it can, or if the code is unknown.

    A recorded pass repeats what the host decided and copied while it was recorded.
    """
    return _why_not_recorded(model_type, json.dumps(architecture, sort_keys=True))


@cache
def _why_not_recorded(model_type: str, architecture_json: str) -> str | None:
    """Compute `why_not_recorded`, cached: a plan asks for every setting, and the code is long."""
    architecture: Mapping[str, Any] = json.loads(architecture_json)
    code = _source(model_type, "modeling")
    scripts = re.findall(r"@torch\.jit\.script\ndef .*?(?=\n@|\ndef |\nclass |\Z)", code, re.DOTALL)
    if any("torch.tensor(" in script for script in scripts):
        return f"the TorchScript code of transformers' {model_type} copies numbers from the host in each pass"
    for name in re.findall(r"^ +(\w*layerdrop)\b", _own_configuration(model_type), re.MULTILINE):
        if _field(f"config.{name}", model_type, architecture):
            return f"the host chooses which layers of {model_type} each pass skips ({name})"
    if "_compute_mask_indices(" in code and _field("config.apply_spec_augment", model_type, architecture):
        for name in ("mask_time_prob", "mask_feature_prob"):
            if _field(f"config.{name}", model_type, architecture):
                return f"the host chooses which parts of a sound {model_type} masks ({name})"
    return None


# A module's activation: its attribute, and what is looked up by name, or torch's own GELU.
_ACTIVATION = r"self\.(\w+)(?:: \w+)? = (?:torch\.)?((?:ACT2FN\[|get_activation\()[^\])]+|nn\.GELU\(\))"
_LINEAR = r"self\.(\w+) = nn\.Linear\(((?:[^()]|\([^()]*\))*)\)"


@cache
def _classes_of(model_type: str, mapping: str) -> tuple[str, ...]:
    """Return the source of the classes that a model may consist of; of all classes if they are unknown.

    These are the classes that its class names, the classes that those name, and so on. A model that is called
    with tokens does not use its classes for pictures and sound.
    """
    code = _source(model_type, "modeling")
    parts = re.split(r"^class (\w+)", code, flags=re.MULTILINE)
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    start = _model_class(model_type, mapping)
    if start not in bodies:
        return tuple(bodies.values())
    reached, waiting = set(), {start}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        if not name.endswith("PreTrainedModel"):  # names every class whose weights it initialises
            named = {*re.findall(r"\w+", bodies[name])} & bodies.keys()
            waiting |= {one for one in named - reached if "IMAGE" in mapping
                        or not re.search("Vision|Visual|Image|Audio", one)}  # fmt: skip
    return tuple(body for name, body in bodies.items() if name in reached)


def trained_by(model_type: str, mapping: str) -> str:
    """Return the class of a type in an objective's table; empty if it has none, or if that is unknown."""
    return _model_class(model_type, mapping) if mapping else ""


@cache
def _model_class(model_type: str, mapping: str) -> str:
    """Return the class of a type in the table MODEL_FOR_{mapping}_MAPPING_NAMES; empty if unreadable."""
    folder = _models_folder()
    file = folder / "auto" / "modeling_auto.py" if folder else None
    code = file.read_text(encoding="utf-8") if file and file.is_file() else ""
    _, _, table = code.partition(f"\nMODEL_FOR_{mapping}_MAPPING_NAMES")
    found = re.search(rf'\(\s*"{re.escape(model_type)}",\s*\(?\s*"(\w+)"', table.partition("\n)")[0])
    return found[1] if found else ""


def _activation(expression: str, body: str, model_type: str, architecture: Mapping[str, Any]) -> str | None:
    """Return the name of the activation that an expression in a class stands for; None if it is unknown."""
    if expression == "nn.GELU()":
        return "gelu"
    name = re.split(r"[\[(]", expression, maxsplit=1)[1]
    if name.startswith('"'):
        return name.strip('"')
    if assigned := re.search(rf"\b{re.escape(name)} = ((?:self\.)?config\.\w+)", body):  # a variable
        name = assigned[1]
    value = _field(name, model_type, architecture)
    return value if isinstance(value, str) else None


def _after_biased_layers(body: str, model_type: str, architecture: Mapping[str, Any]) -> set[str]:
    """Return the attributes that a class calls on the whole output of its linear layers with biases."""
    found: set[str] = set()
    for layer, given in re.findall(_LINEAR, body):
        bias = re.search(r"(?:bias=|,[^,]*,\s*)(?!bias=)([\w.]+)", given)  # by its name, or third
        if bias and bias[1] != "True" and not _field(bias[1], model_type, architecture):
            continue
        found |= {*re.findall(rf"self\.(\w+)\(\s*self\.{layer}\(", body)}
        line = r"[^\n]*\n(?:\s*#[^\n]*\n)*\s*"  # the rest of a line, and comments after it
        later = re.findall(rf"(\w+) = self\.{layer}\({line}\w+ = self\.(\w+)\((\w+)\)", body)
        found |= {attribute for result, attribute, entry in later if result == entry}
    return found


def field(model_type: str, name: str, architecture: Mapping[str, Any]) -> Any:
    """Return the value of a configuration's field, given or by default; None if it is unknown."""
    return _field(f"config.{name}", model_type, architecture)


def _field(expression: str, model_type: str, architecture: Mapping[str, Any]) -> Any:
    """Return the text, truth value or number that "config.name" stands for; None if it is unknown.

    The value is the architecture's, or else the default of the type's configuration.
    """
    _, dot, name = expression.rpartition("config.")
    if not dot or not name.isidentifier():
        return None
    code = _source(model_type, "configuration")
    names = [name, *re.findall(rf'"{name}": "(\w+)"', code), *re.findall(rf'"(\w+)": "{name}"', code)]
    for one in names:
        if one in architecture:
            return architecture[one]
    for text in (_own_configuration(model_type), code):
        for one in names:
            literal = r'"(\w+)"|(True|False)|(\d+(?:\.\d+)?)'
            if found := re.search(rf"^ +{one}\b[^=\n]*= *(?:{literal})", text, re.MULTILINE):
                return found[1] or (float(found[3]) if found[3] else found[2] == "True")
    return None


@cache
def _own_configuration(model_type: str) -> str:
    """Return the source of the class that configures a type; empty if it cannot be read."""
    code = _source(model_type, "configuration")
    own = re.search(rf'\("{re.escape(model_type)}", "(\w+)"\)', _mappings())
    body = re.search(rf"^class {own[1]}\(.*?(?=^class |\Z)", code, re.DOTALL | re.MULTILINE) if own else None
    return body[0] if body else ""


def takes_registered_attention(model_type: str) -> bool:
    """Whether the type calls attention by its registered name, for any name.

    Types that compare the name with "sdpa" build some masks for that name only, those of sparse attention
    for instance. True if the source cannot be read.
    """
    code = _source(model_type, "modeling")
    compared = re.search(r'_attn_implementation\s*(==|!=|in\b|not in\b).*"sdpa"', code)
    return not code or ("ALL_ATTENTION_FUNCTIONS" in code and compared is None)


# Types whose attention sees all tokens if it gets no mask; CPM-Ant and XLNet do with a mask of ones, too.
SEE_ALL = frozenset({"cpmant", "moshi", "xlnet"})


def sees_following_tokens(model_type: str) -> bool:
    """Whether a token sees those that follow it in the type's class for causal language models.

    The code of some types asks for no masks but those that hide no position, whatever `is_decoder` says.
    SEE_ALL names the others. Tests try a small model of every type.
    """
    return model_type in SEE_ALL or _hides_no_position(model_type)


def _hides_no_position(model_type: str) -> bool:
    """Whether the type's code asks for masks that hide no position, and for no other ones.

    False if the source cannot be read.
    """
    code = _source(model_type, "modeling")
    causal = r"create_\w*causal_mask|causal_mask\b|is_causal=|\btri[lu]\("
    return "create_bidirectional_mask(" in code and re.search(causal, code) is None


def reads_field(model_type: str, field: str) -> bool:
    """Whether the type's code reads this field, which its configuration may not declare.

    For instance, modules of the type read "head_dim", rotary embeddings "partial_rotary_factor", and a
    configuration derives the kind of each layer from "sliding_window_pattern".
    """
    name = re.escape(field)
    read = rf"config\.{name}\b|getattr\((?:self\.)?config, \"{name}\"|kwargs\.(?:get|pop)\(\"{name}\""
    if re.search(read, _source(model_type, "modeling") + _rotary_code()):
        return True
    return bool(re.search(rf'"{name}"|\bself\.{name}\b', _source(model_type, "configuration")))


def declares_field(model_type: str, field: str) -> bool:
    """Whether the type's configuration declares this field."""
    code = _source(model_type, "configuration")
    return bool(re.search(rf"^ +{re.escape(field)}\b *[:=]", code, re.MULTILINE))


def other_names(field: str) -> frozenset[str]:
    """Return the names that configurations of any type use for the same thing: "hidden_size" for "n_embd".

    Relies on: `attribute_map` of configuration classes. Empty if they cannot be read.
    """
    return frozenset(other for pair in _equal_names() if field in pair for other in pair - {field})


@cache
def _equal_names() -> frozenset[frozenset[str]]:
    """Return the pairs of names that an `attribute_map` of any type declares to be equal."""
    models = _models_folder()
    files = models.glob("*/configuration_*.py") if models else ()
    maps = (
        table
        for file in files
        for table in re.findall(
            r"attribute_map(?:: [^=\n]+)? = \{(.*?)\}", file.read_text(encoding="utf-8"), re.DOTALL
        )
    )
    return frozenset(map(frozenset, re.findall(r'"(\w+)": "(\w+)"', "\n".join(maps))))


def default_in_part(model_type: str, part: str, field: str) -> int | None:
    """Return a whole number that the configuration of a model's part ("text_config") has by default.

    None if the source does not tell.
    """
    code = _source(model_type, "configuration")
    for body in re.split(r"^class ", code, flags=re.MULTILINE):
        if f'base_config_key = "{part}"' in body:
            found = re.search(rf"^ +{re.escape(field)}: [^=\n]*= (\d+)$", body, re.MULTILINE)
            return int(found[1]) if found else None
    return None


@cache
def _rotary_code() -> str:
    """Return the source of rotary embeddings' parameters; empty if it cannot be read."""
    models = _models_folder()
    file = models.parent / "modeling_rope_utils.py" if models else None
    return file.read_text(encoding="utf-8") if file and file.is_file() else ""


def counts_positions_after_padding(model_type: str) -> bool:
    """Whether positions start after the padding token's id, as RoBERTa's do."""
    return "padding_idx=self.padding_idx" in _source(model_type, "modeling")
