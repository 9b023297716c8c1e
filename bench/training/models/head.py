"""The head of a language model apart from its body, for any architecture of transformers.

The head is a copy of the model that shares its weights, and whose body hands back the features that it is
given: the architecture's own code computes the logits. Imports torch and transformers only when called, in a
worker.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.training.models.footprint import FP32
from bench.training.models.probe import probing
from bench.training.vendor import transformers_inside

if TYPE_CHECKING:
    from torch import Tensor, nn

Head = Callable[["Tensor"], "Tensor"]  # features [samples, positions, width] to logits
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
        router_logits: Any = None

    return Features


def _given() -> nn.Module:
    """Return a body that returns the features that it is given in place of embeddings."""
    from torch import nn

    features = _features()

    class Given(nn.Module):
        def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
            return features(last_hidden_state=inputs_embeds)

    return Given()


def head_of(model: nn.Module) -> Head:
    """Return the head of a model; raise LookupError unless its logits are the model's own at every position.

    Some heads mix positions or read more than the features; these cannot run on their own.
    """
    head = unchecked_head(model)
    _compare(model, head)
    return head


def unchecked_head(model: nn.Module) -> Head:
    """Return the head of a model that `head_of` has accepted before, or that has no contents to compare."""
    name = transformers_inside.body_name(model)
    if name is None:
        raise LookupError("the model has no body apart from its head")
    alone = copy(model)
    alone._modules = {**model._modules, name: _given()}

    def head(features: Tensor) -> Tensor:
        # The features of some models, Mamba's for instance, stay fp32 beside a head in half precision.
        logits: Tensor = alone(inputs_embeds=features.to(next(alone.parameters()).dtype)).logits
        return logits

    return head


def _compare(model: nn.Module, head: Head) -> None:
    """Raise LookupError unless body and head together give the model's logits, position by position."""
    try:
        with probing(model) as ids:
            expected = model(input_ids=ids).logits
            features = model.base_model(input_ids=ids).last_hidden_state
            found = head(features), head(features[:, ::2].flatten(0, 1)[None])
    except Exception as error:  # an architecture's code may raise anything when its body is missing
        raise LookupError(f"the head cannot run on its own: {error}"[:200]) from error
    wanted = expected, expected[:, ::2].flatten(0, 1)[None]
    share = TOLERANCE if expected.element_size() == FP32 else TOLERANCE_IN_HALF
    limit = share * float(expected.abs().max())
    for logits, right in zip(found, wanted, strict=True):
        if logits.shape != right.shape or not float((logits - right).abs().max()) <= limit:
            raise LookupError("the head alone gives other logits than the model")
