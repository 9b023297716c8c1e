"""Any architecture that transformers can build and that has no file here.

Nothing is known of it before it is built: parameters and operations are counted from the module,
on tensors without contents, by torch's own counter. Where transformers is not installed, a plan says
"counted when it runs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from bench.base.errors import BadInput, Mistake, in_json
from bench.training.models import Counted, Flops, Has, Model, Objective, Parts, installed, transformers_source
from bench.training.models.footprint import SDPA, cross_entropy, logits
from bench.training.setting import Setting

if TYPE_CHECKING:
    from torch import Tensor, nn


class TransformersFamily:
    objectives: tuple[Objective, ...] = ("causal-lm", "masked-lm", "image-classification")
    kernels: str | None = SDPA
    body_and_head: tuple[str, str] | None = None
    breaks_graph: str | None = None
    by_blocks: bool = False

    def __init__(self, name: str) -> None:
        self.name = name

    def defaults(self) -> Mapping[str, Any]:
        return {}

    def mistakes(self, model: Model, path: str) -> Iterator[Mistake]:
        yield from self.architecture_mistakes(model.architecture, model.recipe.objective, path)

    def architecture_mistakes(
        self, given: Mapping[str, Any], objective: Objective, path: str
    ) -> Iterator[Mistake]:
        """Only what the data needs to know, and sizes in words; the rest is transformers' to judge."""
        images = objective == "image-classification"
        field, what = ("num_labels", "labels") if images else ("vocab_size", "tokens")
        value = given.get(field)
        if type(value) is not int or value < 2:
            found = "missing" if value is None else f"{in_json(value)} is not a number of {what}"
            yield Mistake(f"{path}/architecture/{field}", found, "allowed: a whole number, at least 2")
        for key, value in given.items():
            if key != field and isinstance(value, str) and (key.startswith("num_") or key.endswith("_size")):
                found = f"{in_json(value)} is not a whole number"
                yield Mistake(f"{path}/architecture/{key}", found, "allowed: a whole number")

    def parameters(self, model: Model) -> Parts:
        _later()

    def forward_flops(self, model: Model) -> Flops:
        _later()

    def kept_bytes(self, model: Model, setting: Setting) -> int:
        _later()

    def activation_bytes(self, model: Model, setting: Setting) -> tuple[int, int]:
        _later()

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        if transformers_source.has_fused_attention(self.name) is False:
            return f"transformers' {self.name} takes no fused attention"
        return None  # PyTorch brings them

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        # Masks stay transformers' business here: a sliding window, say, is part of the mathematics.
        return _build(model, "sdpa" if kernels else "eager")

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        return _repeated(module)


def _repeated(module: nn.Module) -> list[nn.Module]:
    """The longest list of modules that lies in no other list; the whole module if there is none."""
    from torch import nn

    lists = {name: part for name, part in module.named_modules() if isinstance(part, nn.ModuleList)}
    outer = [
        part for name, part in lists.items()
        if not any(name.startswith(f"{other}.") for other in lists if other != name)
    ]  # fmt: skip
    return list(max(outer, key=len, default=[])) or [module]


def counted(model: Model) -> Counted:
    """Trainable parameters, and operations of one forward pass over one sample."""
    pairs = AttentionCount()
    try:
        return _counted(model, pairs.registered(), pairs)
    except (AssertionError, KeyError, RuntimeError):
        # Attention of its own, which cannot be put in the place of: its products are in the counter.
        return _counted(model, "eager", AttentionCount())


def _counted(model: Model, attention: str, attending: AttentionCount) -> Counted:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    aten: Any = torch.ops.aten
    ours = {aten._grouped_mm: _grouped_matmul, aten.bmm: _batched_matmul}
    counter = FlopCounterMode(display=False, custom_mapping=ours)
    with torch.device("meta"):
        # bf16: mixtures of experts multiply in nothing else; the count is the same. Not in training mode:
        # there some draw which layers to leave out.
        module = _build(model, attention).bfloat16().eval()
        # Fake as well: then transformers takes it for tracing, and looks into no mask, where nothing is.
        with FakeTensorMode(allow_non_fake_inputs=True), counter, torch.no_grad():
            batch = _empty_batch(model)
            cross_entropy(logits(module, batch), batch["labels"])
    flops = _sorted_by_kind(counter.get_flop_counts()["Global"], attending.flops, model)
    return Counted(_parts(module, _repeated(module)), flops)


def _parts(module: nn.Module, blocks: Sequence[nn.Module]) -> Parts:
    def trained(part: nn.Module) -> int:
        return sum(p.numel() for p in part.parameters() if p.requires_grad)

    inside = tuple(map(trained, blocks))
    return Parts(trained(module) - sum(inside), inside)


class AttentionCount:
    """Stands in for attention, and counts the pairs of positions that its mathematics need."""

    flops = 0

    def registered(self) -> str:
        """The name by which transformers finds it."""
        from transformers import AttentionInterface

        AttentionInterface.register("bench_counted", self._attend)
        return "bench_counted"

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any,
        is_causal: bool | None = None, sliding_window: int | None = None, **__: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        samples, heads, length, width = query.shape
        if heads % key.shape[1]:
            raise ValueError(f"{key.shape[1]} heads of keys and values do not divide {heads} of queries")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        seen = _pairs(length, key.shape[2], causal, sliding_window)
        self.flops += 2 * samples * heads * seen * (width + value.shape[-1])
        return query.new_empty(samples, length, heads, value.shape[-1]), None


def _pairs(length: int, keys: int, causal: bool, window: int | None) -> int:
    """Which may meet: all, the lower triangle, or those of them less than a window apart."""
    if length != keys:
        return length * keys
    apart = min(window or length, length)
    triangle = apart * length - apart * (apart - 1) // 2
    return triangle if causal else 2 * triangle - length


def _grouped_matmul(rows: Sequence[int], experts: Sequence[int], *_: Any, **__: Any) -> int:
    """Each row meets one expert's matrix; torch 2.13's counter leaves this operation out."""
    return 2 * rows[0] * rows[1] * experts[-1]


def _batched_matmul(left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    """An outer product, as of positions and frequencies, adds nothing up: it is elementwise."""
    batches, rows, inner = left
    return 0 if inner == 1 else 2 * batches * rows * inner * right[-1]


def _sorted_by_kind(counts: Mapping[Any, int], attending: int, model: Model) -> Flops:
    """Where no attention was counted apart, batched products are taken for it: eager attention has them."""
    matmul = attention = convolution = 0
    for operation, flops in counts.items():
        name = str(operation)
        if "conv" in name:
            convolution += flops
        elif "attention" in name or ("bmm" in name and not attending):
            attention += flops
        else:
            matmul += flops
    if model.recipe.objective == "causal-lm":  # the counter counts the upper triangle too
        length = model.recipe.units_per_sample
        attention = attention * (length + 1) // (2 * length)
    return Flops(matmul, attention + attending, convolution)


def _empty_batch(model: Model) -> dict[str, Tensor]:
    import torch

    recipe = model.recipe
    if recipe.objective == "image-classification":
        assert recipe.image_size is not None
        pixels = torch.empty(1, 3, recipe.image_size, recipe.image_size, dtype=torch.bfloat16)
        return {"pixel_values": pixels, "labels": torch.empty(1, dtype=torch.long)}
    ids = torch.empty(1, recipe.units_per_sample, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def kinds() -> Mapping[Objective, Any]:
    """transformers' classes that build a model for an objective."""
    import transformers

    return {
        "causal-lm": transformers.AutoModelForCausalLM,
        "masked-lm": transformers.AutoModelForMaskedLM,
        "image-classification": transformers.AutoModelForImageClassification,
    }


def configured(model: Model) -> Any:
    with _said_of(model):
        from transformers import AutoConfig

        fields = dict(model.architecture)
        if model.recipe.objective != "image-classification":
            fields["use_cache"] = False
        configuration = AutoConfig.for_model(model.family, **fields)
        # Of several classes for one type (DeiT's, say) the first; transformers would loop over None.
        configuration.architectures = []
        return configuration


def _build(model: Model, attention: str) -> nn.Module:
    configuration, kind = configured(model), kinds()[model.recipe.objective]
    with _said_of(model):
        module: nn.Module = kind.from_config(configuration, attn_implementation=attention)
    if model.recipe.objective == "image-classification":
        _without_masks(module)
    return module.float().train()


def _without_masks(module: nn.Module) -> None:
    """What stands for hidden parts of a picture where a model learns to guess them: no class depends on it.

    DDP refuses a second step of a model with a weight that has no gradient.
    """
    for part in module.modules():
        if "mask_token" in dict(part.named_parameters(recurse=False)):
            part.mask_token = None


@contextmanager
def _said_of(model: Model) -> Iterator[None]:
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except (StrictDataclassError, ValueError, TypeError) as error:
        said = " ".join(str(error).split())[:300]
        raise BadInput(f"transformers refuses this architecture: {said}", where=model.name) from error


def _later() -> NoReturn:
    raise LookupError("counted when it runs")
