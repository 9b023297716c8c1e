"""A pass of a model that takes cuda-graphs never waits for the GPU, and computes the same while recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.training.methods import known_methods
from bench.training.models import Model, family_of
from bench.training.models.generic import TransformersFamily
from bench.training.models.model import empty_batch
from bench.training.models.zoo import zoo_names
from bench.training.vendor import transformers_source
from tests.targets import H200
from tests.training.models.test_generic import CAUSAL, TEXT, resolved
from tests.training.models.test_zoo import of_zoo

FIRST_BLOCKS = 6  # of Gemma's, the sixth is the first with full attention
GPU = "meta"  # stands for the GPU: its numbers cannot be read, and copies to it can be seen


class Operations(TorchDispatchMode):
    """Notes the operations of a pass; copying between host and GPU and reading a number are mistakes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: Iterable[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        answer = operation(*given, **(named or {}))
        devices = {t.device.type for t in tree_leaves((given, named, answer)) if isinstance(t, torch.Tensor)}
        assert devices != {"cpu", GPU}, f"{operation} copies between host and GPU"
        if devices == {GPU}:
            self.names.append(str(operation))
        return answer


def shorten(module: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Keep the first blocks of each stack, among them every kind: later ones repeat their operations."""
    for stack in module.modules():
        if isinstance(stack, nn.ModuleList) and all(block in blocks for block in stack):
            del stack[FIRST_BLOCKS:]


def operations_of(model: Model) -> list[str]:
    """The operations of a forward pass and its loss, of a model with a few blocks."""
    with torch.device(GPU):
        family = family_of(model)
        module = family.build(model, kernels=not family.missing_kernels("cuda")).to(GPU).to(torch.bfloat16)
        shorten(module, family.blocks(module))
        batch, aim = empty_batch(model, 2, torch.bfloat16), model.recipe.aim
    with Operations() as operations:
        answer = aim.answer(module, batch)
        aim.loss(answer, aim.labels(batch, answer, module))
    return operations.names


RECORDED = [
    name
    for name in zoo_names()
    if known_methods()["cuda-graphs"].refuse(of_zoo(name).model, H200) is None
    and isinstance(family_of(of_zoo(name).model), TransformersFamily)
]


@pytest.mark.parametrize("name", RECORDED)
def test_a_pass_that_is_recorded_computes_the_same_and_never_waits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers asks whether a stream is recorded, and then builds masks that it leaves out otherwise."""
    model = of_zoo(name).model
    before = operations_of(model)
    monkeypatch.setattr("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True)
    assert operations_of(model) == before


def test_what_the_host_decides_in_each_pass_is_not_recorded() -> None:
    refused = {
        (name, *given): transformers_source.why_not_recorded(name, dict(given))
        for name, given in (
            ("opt", ()),
            ("opt", (("layerdrop", 0.1),)),
            ("wav2vec2", ()),
            ("wav2vec2", (("layerdrop", 0.0),)),
            ("wav2vec2", (("layerdrop", 0.0), ("apply_spec_augment", False))),
            ("whisper", ()),
            ("deberta-v2", ()),
            ("llama", ()),
            ("a-type-of-no-file", ()),
        )
    }
    reasons = {key: str(reason).split()[-1] for key, reason in refused.items() if reason}
    assert reasons == {
        ("opt", ("layerdrop", 0.1)): "(layerdrop)",
        ("wav2vec2",): "(layerdrop)",
        ("wav2vec2", ("layerdrop", 0.0)): "(mask_time_prob)",
        ("deberta-v2",): "pass",
    }


def test_the_plan_says_why_a_pass_is_not_recorded() -> None:
    layers = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 64}
    model = resolved("opt", layers | {"vocab_size": 128, "ffn_dim": 128, "layerdrop": 0.1}, TEXT | CAUSAL)
    reason = known_methods()["cuda-graphs"].why_not(model, H200)
    assert reason == "the host chooses which layers of opt each pass skips (layerdrop)"
