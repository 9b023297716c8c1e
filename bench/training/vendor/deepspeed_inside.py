"""Reliance on internals of DeepSpeed (see the package's docstring). Imports nothing at module level."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def choose_accelerator(device_type: str) -> None:
    """Set the device type that DeepSpeed uses. Call this before `import deepspeed`.

    Relies on: the variable DS_ACCELERATOR, read when deepspeed.accelerator is imported. Why: on a machine
    with a GPU a trial on the CPU must not use it. No issue known.
    Remove when `deepspeed.initialize` takes the device.
    """
    os.environ["DS_ACCELERATOR"] = device_type


def begin_pass(engine: Any, *, last: bool) -> None:
    """Tell the engine whether the next pass is the last one of its step.

    Relies on: `set_gradient_accumulation_boundary`. Why: the training loop, not the engine's counter,
    decides how many passes a step has. https://github.com/deepspeedai/DeepSpeed/issues/8183
    Remove when `managed_gradient_accumulation` of that issue is in all supported versions.
    """
    engine.set_gradient_accumulation_boundary(last)


def backward(engine: Any, loss: Tensor) -> None:
    """Run the backward pass of a loss that is already divided by the number of passes.

    Relies on: the argument `scale_wrt_gas` of `engine.backward`.
    https://github.com/deepspeedai/DeepSpeed/issues/7439
    Remove together with `begin_pass`.
    """
    engine.backward(loss, scale_wrt_gas=False)


def gradient_norm(engine: Any) -> float:
    """Return the norm of the last update's gradients, before clipping.

    Relies on: `get_global_grad_norm`, which the API documentation does not list. No issue known.
    Remove when `engine.step` returns the norm.
    """
    return float(engine.get_global_grad_norm())
