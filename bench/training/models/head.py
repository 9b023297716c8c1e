"""The head of a language model apart from its body, for any architecture of transformers.

The head is a copy of the model that shares its weights, and whose body hands back the features that it is
given: the architecture's own code computes the logits. An encoder and a decoder may stand in a model without
a body around them, as in T5: then the head is the output embedding alone, and a copy of the model without it
computes the features. Imports torch and transformers only when called, in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from bench.training.models.footprint import FP32
from bench.training.models.probe import at_rest
from bench.training.vendor import transformers_inside

if TYPE_CHECKING:
    from torch import Tensor, nn

Head = Callable[["Tensor"], "Tensor"]  # features [samples, positions, width] to logits
Body = Callable[[Mapping[str, "Tensor"]], "Tensor"]  # a model's inputs to features
# Of the largest logit. Kernels for other shapes add up in another order, and in half precision round more.
TOLERANCE, TOLERANCE_IN_HALF = 1e-3, 5e-2


@cache
def _features() -> Any:
    """Return the class of a body's result: features, and nothing else that heads look for."""
    from transformers.utils import ModelOutput

    @dataclass
    class Features(ModelOutput):
        last_hidden_state: Any = None
        pooler_output: Any = None
        past_key_values: Any = None
        cache_params: Any = None
        hidden_states: Any = None
        attentions: Any = None
        cross_attentions: Any = None
        decoder_hidden_states: Any = None
        decoder_attentions: Any = None
        encoder_last_hidden_state: Any = None
        encoder_hidden_states: Any = None
        encoder_attentions: Any = None
        encoder_global_attentions: Any = None
        encoder_router_logits: Any = None
        decoder_router_logits: Any = None
        router_logits: Any = None

    return Features


def _given(body: nn.Module) -> nn.Module:
    """Return a body that returns the features that it is given in place of embeddings.

    It has the numbers of the model's own body: Falcon-H1's head reads the factor of the logits there.
    """
    from torch import nn

    features = _features()

    class Given(nn.Module):
        def forward(
            self,
            *_: Any,
            inputs_embeds: Tensor | None = None,
            decoder_inputs_embeds: Tensor | None = None,
            **__: Any,
        ) -> Any:
            given = decoder_inputs_embeds if inputs_embeds is None else inputs_embeds
            return features(last_hidden_state=given)

    given = Given()
    for name, value in vars(body).items():
        if isinstance(value, int | float):
            setattr(given, name, value)
    return given


def body_and_head_of(model: nn.Module, given: Mapping[str, Tensor]) -> tuple[Body, Head]:
    """Return body and head of a model that is called with inputs like those given.

    Raises LookupError unless both together give the model's own logits at every position: some heads mix
    positions or read more than the features, and cannot run on their own.
    """
    if "decoder_input_ids" in given and not transformers_inside.body_name(model):
        body, head = _without_output_embedding(model)
    else:
        body, head = _base_model_of(model), unchecked_head(model)
    with at_rest(model):
        _compare(model, body, head, given)
    return body, head


def _base_model_of(model: nn.Module) -> Body:

    def body(given: Mapping[str, Tensor]) -> Tensor:
        features: Tensor = model.base_model(**given).last_hidden_state
        return features

    return body


def _without_output_embedding(model: Any) -> tuple[Body, Head]:
    """Return a model's output embedding, and a copy without it as the body; LookupError if it has none."""
    from torch import nn

    layer = model.get_output_embeddings()
    names = [name for name, part in model.named_children() if part is layer]
    if layer is None or len(names) != 1:
        raise LookupError("the model has neither a body apart from its head nor an output embedding")
    alone = copy(model)
    alone._modules = {**model._modules, names[0]: nn.Identity()}

    def body(given: Mapping[str, Tensor]) -> Tensor:
        features: Tensor = alone(**given).logits
        return features

    def head(features: Tensor) -> Tensor:
        logits: Tensor = layer(features.to(layer.weight.dtype))
        return logits

    return body, head


def unchecked_head(model: nn.Module) -> Head:
    """Return the head of a model that has a body; LookupError without one. Its logits are not compared.

    `body_and_head_of` compares them; a model without contents has none that could be compared.
    """
    part = transformers_inside.body_name(model)
    if part is None:
        raise LookupError("the model has no body apart from its head")
    alone = copy(model)
    alone._modules = {**model._modules, part: _given(model.get_submodule(part))}

    taken = signature(model.forward).parameters
    of_decoder = "decoder_inputs_embeds" in taken and "inputs_embeds" not in taken  # as Whisper
    name = "decoder_inputs_embeds" if of_decoder else "inputs_embeds"

    def head(features: Tensor) -> Tensor:
        # The features of some models, Mamba's for instance, stay fp32 beside a head in half precision.
        logits: Tensor = alone(**{name: features.to(next(alone.parameters()).dtype)}).logits
        return logits

    return head


def _compare(model: nn.Module, body: Body, head: Head, given: Mapping[str, Tensor]) -> None:
    """Raise LookupError unless body and head together give the model's logits, position by position."""
    try:
        expected = model(**given).logits
        features = body(given)
        found = head(features), head(features[:, ::2].flatten(0, 1)[None])
    except Exception as error:  # an architecture's code may raise anything when its body is missing
        raise LookupError(f"the head cannot run on its own: {error}"[:200]) from error
    wanted = expected, expected[:, ::2].flatten(0, 1)[None]
    share = TOLERANCE if expected.element_size() == FP32 else TOLERANCE_IN_HALF
    limit = share * float(expected.abs().max())
    for logits, right in zip(found, wanted, strict=True):
        if logits.shape != right.shape or not float((logits - right).abs().max()) <= limit:
            raise LookupError("the head alone gives other logits than the model")
