"""Reliance on internals of transformers (see the package's docstring).

What is read from its source files is in transformers_source.py. Attribute names of its modules are in
`layers` of each family in bench/training/models.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module, reload
from typing import TYPE_CHECKING, Any

from bench.training.vendor import torch_inside

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MAMBA = "transformers.models.mamba.modeling_mamba"
# Packages that modeling_mamba imports for its fused kernels. The third is mamba-ssm's own extension, which
# Mamba 1 needs, but without which newer versions can be installed.
MAMBA_PACKAGES = ("mamba_ssm", "causal_conv1d", "selective_scan_cuda")
MAMBA1_MIXERS = ("falcon_mamba", "jamba", "zamba")  # without Mamba itself, which has a family file
MAMBA2_MIXERS = ("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2")
MAMBA_SSM = ("mamba", *MAMBA1_MIXERS, *MAMBA2_MIXERS)  # types whose method "kernels" has mamba-ssm's kernels
# Functions that a mixer calls while it trains: the whole of it, which may return None; a convolution; a scan.
# Zamba's code has no function for the whole.
MAMBA_FUNCTIONS = ("mamba_inner_fn", "causal_conv1d_fn", "mamba_selective_scan")
MAMBA2_FUNCTIONS = ("mamba2_split_conv1d_scan_combined", "causal_conv1d_fn", "mamba2_chunk_scan")
Mamba1Kernels = tuple[Callable[..., Any], Callable[..., Any]]  # a convolution and a scan
_mamba_is_fused: dict[str, bool] = {}  # which code modeling_mamba chose when this process last loaded it


def modeling_module(family: str) -> str:
    """Return the name of the module that defines a family's layers, to be imported ahead of a trial.

    Relies on: the naming of files in transformers. The process that imports it ahead ignores a failure, so a
    moved module costs only start-up time. No issue known. Remove when nothing is imported ahead.
    """
    return f"transformers.models.{family}.modeling_{family}"


def can_build(auto_class: Any, configuration: Any) -> bool:
    """Whether an Auto class, say AutoModelForCausalLM, has a model for this configuration.

    Relies on: the private `_model_mapping` of Auto classes. Why: building to find out takes seconds and
    memory. No issue known. Remove when Auto classes have a public query.
    """
    return type(configuration) in auto_class._model_mapping


def arguments_of(auto_class: Any, model_type: str) -> Mapping[str, Any]:
    """Return the arguments of the class that an Auto class builds for a type; none if it has no such class.

    Relies on: the private `_model_mapping` of Auto classes, as `can_build` does, and on `forward` naming what
    a model takes. No issue known. Remove together with `can_build`.
    """
    from transformers import CONFIG_MAPPING

    found = auto_class._model_mapping.get(CONFIG_MAPPING[model_type], ())
    classes = found if isinstance(found, tuple) else (found,)
    return inspect.signature(classes[0].forward).parameters if classes else {}


def parts_of(model_type: str) -> frozenset[str]:
    """Return the fields of a type's configuration that hold configurations of parts of the model.

    Relies on: `sub_configs` of configuration classes. Why: some types cannot be configured without them.
    No issue known. Remove when transformers documents `sub_configs`.
    """
    from transformers import CONFIG_MAPPING

    return frozenset(CONFIG_MAPPING[model_type].sub_configs)


def configurations() -> type[Any]:
    """Return the base class of configurations. The name is public; only its import is deferred."""
    from transformers import PreTrainedConfig

    base: type[Any] = PreTrainedConfig
    return base


def is_made_of_models(model_type: str) -> bool:
    """Whether a type only joins other models, and has no configuration without those of its parts.

    Relies on: `has_no_defaults_at_init` of configuration classes. No issue known.
    Remove when transformers documents it.
    """
    from transformers import CONFIG_MAPPING

    return bool(CONFIG_MAPPING[model_type].has_no_defaults_at_init)


def field_names(configuration: Any) -> list[str]:
    """Return names that a configuration of this class accepts: its attributes, and aliases of them.

    Relies on: `vars()` of a configuration, and `attribute_map`, which is public only by its name.
    Why: transformers accepts unknown fields silently. No issue known.
    Remove when configurations refuse unknown fields.
    """
    names = [*vars(configuration), *configuration.attribute_map]
    return [name for name in names if not name.startswith("_")]


def field_named(configuration: Any, name: str) -> str:
    """Return the field that a configuration has for a common name, "num_hidden_layers" for instance.

    Relies on: `attribute_map`. No issue known. Remove together with `field_names`.
    """
    return str(configuration.attribute_map.get(name, name))


def has_field(configuration: Any, name: str) -> bool:
    """Whether a configuration has a field or a property of this name. See `value_of`."""
    return name in vars(configuration) or hasattr(configuration, name)


def value_of(configuration: Any, name: str) -> Any:
    """Return the value of a field that layers may override; None if there is no such field.

    Relies on: `vars()` of a configuration. Why: where layers differ, as in Gemma 4, reading such a field as
    an attribute raises an error which is no AttributeError. No issue known.
    Remove when configurations have a method that returns the value for the whole model.
    """
    return vars(configuration)[name] if name in vars(configuration) else getattr(configuration, name, None)


def untagged(value: Any) -> Any:
    """Return a value of a configuration with infinite numbers in place of the objects that stand for them.

    Relies on: the private `_decode_special_floats`. Why: only loading from a file calls it.
    No issue known. Remove when `AutoConfig.for_model` calls it.
    """
    from transformers import PreTrainedConfig

    return PreTrainedConfig._decode_special_floats(value)


@contextmanager
def without_hub() -> Iterator[None]:
    """Let no code inside ask anything of the Hugging Face Hub: it raises OfflineModeIsEnabled instead.

    Relies on: huggingface_hub reading the constant HF_HUB_OFFLINE at each request. Why: configurations may
    name repositories, and the variable of that name counts only before the library is imported. No issue
    known. Remove when a configuration cannot name a repository.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def build_first_class(configuration: Any) -> None:
    """Let `from_config` take the first of several model classes of one configuration (DeiT has two).

    Relies on: `architectures = []`; its default, None, makes transformers iterate over None. No issue known.
    Remove when AutoModelForImageClassification.from_config(DeiTConfig()) works.
    """
    configuration.architectures = []


def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions with which transformers refuses an architecture.

    Relies on: StrictDataclassError of huggingface_hub, which validates transformers' configurations.
    No issue known. Remove when transformers has an exception class of its own for refusals.
    """
    from huggingface_hub.errors import StrictDataclassError

    return StrictDataclassError, ValueError, TypeError


def expect_no_packed_samples() -> None:
    """Let transformers build masks without looking for several texts packed into one sample.

    Relies on: `find_packed_sequence_indices` in masking_utils, called for every mask. Why: while traced, it
    finds packed texts everywhere, so that each mask holds every pair of positions, which excludes the flash
    kernels; uncompiled, it waits for the device. No issue known.
    Remove when a model can be told that nothing is packed.
    """
    from transformers import masking_utils

    _finds_packed()
    masking_utils.find_packed_sequence_indices = _nothing_is_packed


def expect_packed_samples() -> None:
    """Let transformers look for several texts in a sample again, by positions that begin at 0 again.

    Relies on what `expect_no_packed_samples` relies on. Remove together with it.
    """
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = _finds_packed()


@cache
def _finds_packed() -> Any:
    """Return transformers' own function. The first call is before it is replaced."""
    from transformers import masking_utils

    return masking_utils.find_packed_sequence_indices


def _nothing_is_packed(_position_ids: Any) -> None:
    return None


MOVING = ("dynamic", "longrope")  # rotary embeddings whose frequencies depend on the largest position


def keep_frequencies(model: nn.Module) -> None:
    """Let the rotary embeddings of a model without contents keep their frequencies for any positions.

    Relies on: `rope_type` of rotary embeddings, or `rope_parameters` of their configuration, by which their
    code decides whether it looks for the largest position. Why: positions without contents have none, and
    frequencies change no shape. No issue known. Remove when transformers decides by shapes.
    """
    from copy import deepcopy

    for part in model.modules():
        kinds = getattr(part, "rope_type", None)
        if kinds in MOVING:
            part.rope_type = "default"
            part.config = deepcopy(part.config)
            part.config.rope_parameters["rope_type"] = "default"
        elif isinstance(kinds, dict):  # by the kind of layer; its code reads no configuration
            part.rope_type = {name: "default" if kind in MOVING else kind for name, kind in kinds.items()}


FULL_MASK = "attention_mask is None and not is_torchdynamo_compiling()"  # decoders then make a mask of ones


def make_no_full_masks(model: nn.Module) -> None:
    """Let the code of a model make no mask for samples without padding, as if all of it was compiled.

    Relies on: `is_torchdynamo_compiling` in BART's and related modules, asked only before such a mask is
    made. Why: code that reads the mask waits for the device, and a pass that waits cannot be recorded as a
    CUDA graph. No issue known. Remove when decoders make no mask of ones.
    """
    names = {type(part).__module__ for part in model.modules()}
    for name in (one for one in names if one.startswith("transformers.models.")):
        module: Any = sys.modules[name]
        if hasattr(module, "is_torchdynamo_compiling"):
            code = inspect.getsource(module)
            if code.count("is_torchdynamo_compiling()") == code.count(FULL_MASK):
                module.is_torchdynamo_compiling = lambda: True


def keep_no_results_without_contents() -> None:
    """Let functions whose results transformers keeps compute them again wherever tensors have no contents.

    Relies on: `is_torchdynamo_compiling` in pytorch_utils, by which `compile_compatible_method_lru_cache`
    decides. Why: BEiT keeps its index of positions by the size of a window. A model that was trained after it
    was counted took the index without contents, and its loss had none either. No issue known.
    Remove when transformers keeps no tensors that are fake.
    """
    from transformers import pytorch_utils

    pytorch_utils.is_torchdynamo_compiling = _computes_again


def _computes_again() -> bool:
    from transformers.utils import is_torchdynamo_compiling

    return bool(is_torchdynamo_compiling()) or torch_inside.makes_no_contents()


@dataclass
class Asked:
    """How often code asked for the name of its attention."""

    often: int = 0


@contextmanager
def asked_attention() -> Iterator[Asked]:
    """Within the context, count how often code asks a configuration for the name of its attention.

    Relies on: the property `_attn_implementation` of configurations, by which a layer finds its attention. No
    issue known. Remove when transformers tells which modules attend.
    """
    from transformers import PreTrainedConfig

    asked, given = Asked(), PreTrainedConfig._attn_implementation

    def ask(configuration: Any) -> Any:
        asked.often += 1
        return given.fget(configuration)

    PreTrainedConfig._attn_implementation = property(ask, given.fset)
    try:
        yield asked
    finally:
        PreTrainedConfig._attn_implementation = given


def use_experts(configuration: Any, implementation: str) -> None:
    """Let mixtures of experts run by the implementation of this name; other models ignore it.

    Relies on: the private `_experts_implementation` of configurations. Why: `from_config` takes it as an
    argument for some classes of models only. No issue known.
    Remove when every model class takes `experts_implementation`, as it takes `attn_implementation`.
    """
    configuration._experts_implementation = implementation


def body_name(model: nn.Module) -> str | None:
    """Return the attribute that holds a model's body; None if the model has no head apart from it.

    Relies on: `base_model_prefix` of model classes, with which transformers loads checkpoints of bodies.
    No issue known. Remove when transformers has a public name for the attribute of `base_model`.
    """
    name = getattr(model, "base_model_prefix", "")
    return name if name in dict(model.named_children()) else None


def is_exact_gelu(module: nn.Module) -> bool:
    """Whether a module computes exact GELU, not one of its approximations.

    Relies on: `act` of GELUActivation, which is the function that it calls. Why: a model holds objects of
    this class in place of torch's. No issue known. Remove when transformers uses torch's GELU.
    """
    import torch.nn.functional as F
    from torch import nn
    from transformers.activations import GELUActivation

    if type(module) is GELUActivation:
        return module.act is F.gelu
    return type(module) is nn.GELU and module.approximate == "none"


def drop_mask_tokens(module: nn.Module) -> None:
    """Remove the parameters that stand for hidden image patches, in place.

    Relies on: the attribute name `mask_token` of vision models. Why: no class prediction depends on them, and
    DDP refuses the second step of a model with a parameter that gets no gradient. No issue known.
    Remove when classification models are built without them.
    """
    for part in module.modules():
        if "mask_token" in dict(part.named_parameters(recurse=False)):
            part.mask_token = None


def hand_no_caches(module: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Let blocks get no cache from code that makes one for every pass, whether it was asked to or not.

    Relies on: `Cache` of cache_utils, and `use_cache`, which the `forward` of other models asks before it
    makes one. Why: a block that is called twice, to compute it again, would find the keys of the first call
    in XLM's and FlauBERT's cache. No issue known.
    Remove when XLM and FlauBERT read `use_cache`.
    """
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache

    def without(_block: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        kept = {name: None if isinstance(value, Cache) else value for name, value in named.items()}
        return tuple(None if isinstance(value, Cache) else value for value in given), kept

    bodies = (part for part in module.modules() if isinstance(part, PreTrainedModel))
    if any(_makes_unasked_cache(type(body).forward) for body in bodies):
        for block in blocks:
            block.register_forward_pre_hook(without, with_kwargs=True)


@cache
def _makes_unasked_cache(forward: Callable[..., Any]) -> bool:
    code = inspect.getsource(forward)
    return "Cache(" in code and "use_cache" not in code


def separate_head(module: nn.Module) -> None:
    """Give the head weights of its own, in place, if it shares those of the embedding.

    Relies on: the classes of T5, mT5 and UMT5 sharing them whatever `tie_word_embeddings` says. Why: T5 1.1
    was trained with separate ones. https://github.com/huggingface/transformers/pull/42815
    Remove when these classes do as that field says.
    """
    from torch import nn

    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        head.weight = nn.Parameter(head.weight.detach().clone())


def load_mamba(*, fused: bool) -> Any:
    """Return transformers' modeling_mamba, with mamba-ssm's fused kernels or with its own plain code.

    Raises ImportError if `fused` and mamba-ssm cannot be imported.

    Relies on: transformers 5.17 has no switch. The module takes mamba-ssm whenever it can be imported, once,
    when it is loaded itself (use_kernel_func_from_hub_with_fallback). So it is loaded, again if necessary,
    with the packages hidden or not. No issue known.
    Remove when MambaConfig or an argument of `from_config` selects the code.
    """
    module: Any = sys.modules.get(MAMBA)
    loaded_fused = _mamba_is_fused.get(MAMBA, sys.modules.get("mamba_ssm") is not None)
    with nullcontext() if fused else _hidden(MAMBA_PACKAGES):
        if module is None:
            module = import_module(MAMBA)
        elif loaded_fused != fused:
            module = reload(module)
    if fused:
        module.mamba_inner_fn = _untraced_mamba_inner()
    _mamba_is_fused[MAMBA] = fused
    return module


def scan_mamba1_by(model_type: str, kernels: Mamba1Kernels | None) -> None:
    """Let a type's mixers of Mamba 1 convolve and scan by two functions, or by transformers' plain code.

    `kernels` is None for the plain code. The scan gets its tensors in the precision of its first one, as
    mamba-ssm's demands: norms of Jamba return B and C in fp32 where their weights have fp32.
    mamba-ssm's function for the whole mixer is left out: its gradients beside norms are wrong (decision 86).

    Relies on: the names of the functions that a mixer's forward calls. Why: transformers wraps its plain
    functions, and takes mamba-ssm's wherever it can be imported. No issue known.
    Remove when a configuration or an argument of `from_config` selects the code.
    """
    module = import_module(modeling_module(model_type))
    functions = {name: _plain(model_type, name) for name in _functions_of_mixers(model_type)}
    if kernels is not None:
        convolve, scan = kernels
        functions |= zip(MAMBA_FUNCTIONS[1:], (convolve, partial(_scan_in_one_precision, scan)), strict=True)
    for name, function in functions.items():
        setattr(module, name, function)


def _scan_in_one_precision(
    scan: Callable[..., Any],
    entry: Tensor,
    time_step: Tensor,
    decay: Tensor,
    into: Tensor,
    out_of: Tensor,
    **more: Any,
) -> Any:
    time_step, into, out_of = (tensor.to(entry.dtype) for tensor in (time_step, into, out_of))
    return scan(entry, time_step, decay, into, out_of, **more)


def mamba1_kernels() -> Mamba1Kernels:
    """Return the functions of causal-conv1d and mamba-ssm for the convolution and the scan of a mixer.

    torch.compile calls them without looking into them. Raises ImportError if one cannot be imported.

    Relies on: the paths of the functions. Why: as for `mamba2_kernel`. Remove together with it.
    """
    from causal_conv1d import causal_conv1d_fn
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return _untraced(causal_conv1d_fn), _untraced(selective_scan_fn)


@contextmanager
def mamba1_scans_by(model_type: str, scan: Callable[..., Any]) -> Iterator[None]:
    """Within the context, let a type's mixers of Mamba 1 scan by this function, and convolve plainly.

    It relies on what `scan_mamba1_by` relies on.
    """
    module = import_module(modeling_module(model_type))
    before = {name: getattr(module, name) for name in _functions_of_mixers(model_type)}
    scan_mamba1_by(model_type, (_plain(model_type, MAMBA_FUNCTIONS[1]), scan))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def scan_mamba2_by(model_type: str, scan: Callable[..., Any] | None) -> None:
    """Let a type's mixers of Mamba 2 train by a function that computes all after their first product.

    `scan` is None to use transformers' plain code instead.

    Relies on: the names of three functions that a mixer's forward calls. Why: transformers wraps its plain
    functions, and takes mamba-ssm's wherever it can be imported. No issue known.
    Remove when a configuration or an argument of `from_config` selects the code.
    """
    evaluate_mamba2_plainly(model_type)
    fused = MAMBA2_FUNCTIONS[0]
    module = import_module(modeling_module(model_type))
    setattr(module, fused, scan or _plain(model_type, fused))


def evaluate_mamba2_plainly(model_type: str) -> None:
    """Let a type's mixers of Mamba 2 compute by transformers' plain code unless they train.

    The code by which models in this process train stays. It relies on what `scan_mamba2_by` relies on.
    """
    module, (_, *parts) = import_module(modeling_module(model_type)), MAMBA2_FUNCTIONS
    for name in parts:
        setattr(module, name, _plain(model_type, name))


def precision_of_products(given: Tensor, weight: Tensor) -> torch.dtype:
    """Return the precision in which a weight multiplies a tensor: autocast's, or without autocast its own."""
    import torch

    device = given.device.type
    autocast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else weight.dtype


def _plain(model_type: str, name: str) -> Callable[..., Any]:
    """Return transformers' own function of this name, without the wrapper that prefers another package's."""
    plain: Callable[..., Any] = inspect.unwrap(_functions_of_mixers(model_type)[name])
    return plain


def _is_replaced(model_type: str, fused: Callable[..., Any]) -> bool:
    """Whether a type's function for a whole mixer of Mamba 2 is not transformers' own."""
    name = MAMBA2_FUNCTIONS[0]
    return fused not in (_functions_of_mixers(model_type)[name], _plain(model_type, name))


@cache
def _functions_of_mixers(model_type: str) -> Mapping[str, Callable[..., Any]]:
    """Return the functions that a mixer calls, as transformers has them. The first call precedes changes."""
    module = import_module(modeling_module(model_type))
    return {name: getattr(module, name) for name in _names_of_functions(model_type, module)}


def _names_of_functions(model_type: str, module: Any) -> list[str]:
    """Return the names of the functions that a mixer calls, those of its convolution and its scan last."""
    names = MAMBA2_FUNCTIONS if model_type in MAMBA2_MIXERS else MAMBA_FUNCTIONS
    return [name for name in names if hasattr(module, name)]


def mamba2_kernel() -> Callable[..., Any]:
    """Return mamba-ssm's function for a mixer of Mamba 2, which torch.compile calls without looking into it.

    The kernel gets its first argument in the precision of products, as Mamba 2 itself passes it: Falcon-H1
    multiplies it by a buffer in fp32 before. Raises ImportError if mamba-ssm cannot be imported.

    Relies on: the path of the function in mamba-ssm. Why: under torch.compile, transformers' wrapper would
    run the plain code (see `_untraced_mamba_inner`). https://github.com/pytorch/pytorch/issues/176347
    Remove when the oldest supported torch is 2.14.
    """
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined as kernel

    @wraps(kernel)
    def lowered(projected: Tensor, *given: Any, outproj_weight: Tensor, **more: Any) -> Any:
        precision = precision_of_products(projected, outproj_weight)
        return kernel(projected.to(precision), *given, outproj_weight=outproj_weight, **more)

    return _untraced(lowered)


def _untraced(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile does not look into.

    It leaves out, as transformers' wrapper does, arguments that the kernel does not take.
    """
    import torch

    taken = inspect.signature(kernel).parameters

    def call(*given: Any, **more: Any) -> Any:
        return kernel(*given, **{name: value for name, value in more.items() if name in taken})

    untraced: Callable[..., Any] = torch.compiler.disable(call)
    return untraced


@contextmanager
def mamba_in_parts(instead: Callable[..., Any]) -> Iterator[None]:
    """Within the context, call a Mamba mixer's convolution and scan through `instead`, not in one kernel.

    `instead` takes the kind ("convolutions" or "scans"), the function that the mixer would call, and the
    function's arguments.

    Relies on: the names of the functions that mixers of Mamba and of Mamba 2 call, of which the first has the
    whole mixer in one kernel or returns None. Why: that kernel does not run on tensors without contents.
    No issue known. Remove when mamba-ssm's kernels are operators of torch.
    """
    before: list[tuple[Any, str, Any]] = []
    for model_type in MAMBA_SSM:
        module: Any = sys.modules.get(modeling_module(model_type))
        if module is None:
            continue
        names = _names_of_functions(model_type, module)
        *inner, convolve, scan = functions = [getattr(module, name) for name in names]
        convolving = partial(instead, "convolutions", convolve)
        # A kernel of `scan_mamba2_by` has the parts' kernels, which read what it lowers.
        if model_type in MAMBA2_MIXERS and _is_replaced(model_type, inner[0]):
            _, convolve, scan = _functions_of_mixers(model_type).values()
            convolving = partial(_lowering, partial(instead, "convolutions", convolve))
        before += ((module, name, function) for name, function in zip(names, functions, strict=True))
        parts = (
            lambda *_, **__: None,
            convolving,
            partial(instead, "scans", scan),
        )
        for name, part in zip(names, parts[-len(names) :], strict=True):
            setattr(module, name, part)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def _lowering(convolve: Callable[..., Any], entry: Tensor, weight: Tensor, *given: Any, **more: Any) -> Any:
    """Convolve in the precision of products, in which a kernel for the whole mixer computes."""
    return convolve(entry.to(precision_of_products(entry, weight)), weight, *given, **more)


def _untraced_mamba_inner() -> Any:
    """Return mamba-ssm's own function, which torch.compile calls without looking into it.

    Why: transformers' wrapper asks `torch.compiler.is_exporting()`, and until torch 2.14 that is true under
    torch.compile as well, so that the plain scan would silently run.
    https://github.com/pytorch/pytorch/issues/176347
    Remove when the oldest supported torch is 2.14.
    """
    import torch
    from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn

    return torch.compiler.disable(mamba_inner_fn)


@contextmanager
def _hidden(packages: Sequence[str]) -> Iterator[None]:
    """Make imports of these packages fail as if they were not installed.

    None in sys.modules has that effect: Python reference, 5.3.1.
    """
    before = {package: sys.modules[package] for package in packages if package in sys.modules}
    sys.modules.update(dict.fromkeys(packages))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for package in packages:
            del sys.modules[package]
        sys.modules.update(before)
