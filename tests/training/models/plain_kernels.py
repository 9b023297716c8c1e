"""Kernels of causal-conv1d 1.7 and mamba-ssm 2.3 for mixers of Mamba 1, computed by PyTorch on a CPU.

They take what the packages' functions take, refuse what these refuse, and keep what these keep: the classes
CausalConv1dFn of causal_conv1d_interface.py and SelectiveScanFn of ops/selective_scan_interface.py.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 2048  # positions


def convolved(entry: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    width, length = weight.shape[-1], entry.shape[-1]
    out = F.conv1d(entry.float(), weight.float()[:, None], None, padding=width - 1, groups=len(weight))
    out = out[..., :length] + (0 if bias is None else bias.float()[:, None])
    return (F.silu(out) if activation else out).to(entry.dtype)


def scanned(given: tuple[Tensor, ...], *, softplus: bool) -> tuple[Tensor, Tensor]:
    """Return the result of the recurrence before the gate and behind it."""
    u, delta, a, b, c, d, z, bias = given
    steps = delta.float() + bias[:, None]
    steps = F.softplus(steps) if softplus else steps
    state = u.new_zeros(*u.shape[:2], a.shape[-1], dtype=torch.float32)
    read = []
    for t in range(u.shape[-1]):
        step = steps[..., t, None]
        state = torch.exp(step * a) * state + step * u[..., t, None].float() * b[:, None, :, t].float()
        read.append((state * c[:, None, :, t].float()).sum(-1))
    out = torch.stack(read, -1) + u.float() * d[:, None]
    return out.to(u.dtype), (out * F.silu(z.float())).to(u.dtype)


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
        assert x.stride(2) == 1 or x.stride(1) == 1
        assert 2 <= weight.shape[-1] <= 4
        ctx.activation = activation
        ctx.save_for_backward(x, weight, bias)
        return torch.empty_like(x).copy_(convolved(x, weight, bias, activation))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x, weight, bias = ctx.saved_tensors
        with torch.enable_grad():
            x, weight, bias = given = [part.detach().requires_grad_() for part in (x, weight, bias)]
            found = convolved(x, weight, bias, ctx.activation)
            return *torch.autograd.grad(found, given, gradient), None


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, softplus: bool, *given: Tensor) -> Tensor:
        *tensors, a, d, bias = given
        u, delta, b, c, z = (part if part.stride(-1) == 1 else part.contiguous() for part in tensors)
        assert delta.dtype == b.dtype == c.dtype == z.dtype == u.dtype
        assert a.dtype == d.dtype == bias.dtype == torch.float32
        assert delta.shape == z.shape == u.shape and b.shape == c.shape == (len(u), a.shape[-1], u.shape[-1])
        with torch.autocast("cpu", enabled=False):
            out, gated = scanned((u, delta, a, b, c, d, z, bias), softplus=softplus)
        chunks = u.new_empty(*u.shape[:2], -(-u.shape[-1] // CHUNK), 2 * a.shape[-1], dtype=torch.float32)
        ctx.softplus = softplus
        ctx.save_for_backward(u, delta, a, b, c, d, z, bias, chunks, out)
        return gated

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        *kept, _, _ = ctx.saved_tensors
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            given = tuple(part.detach().requires_grad_() for part in kept)
            gated = scanned(given, softplus=ctx.softplus)[1]
            u, delta, a, b, c, d, z, bias = torch.autograd.grad(gated, given, gradient)
        return None, u, delta, b, c, z, a, d, bias


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    assert activation in (None, "silu", "swish")
    assert seq_idx is initial_states is final_states_out is None and not return_final_states
    return Convolution.apply(x, weight, bias, activation)  # type: ignore[no-untyped-call]


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,  # noqa: N803 (the names in mamba-ssm)
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor,  # noqa: N803
    z: Tensor,
    delta_bias: Tensor,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    assert not return_last_state
    return Scan.apply(delta_softplus, u, delta, B, C, z, A, D, delta_bias)  # type: ignore[no-untyped-call]


def wrong(*_: Any, **__: Any) -> Any:
    raise AssertionError("mamba_inner_fn has wrong gradients beside norms")


def installed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Tensor]]:
    """Let the packages be found; return the kind and the first argument of each call of their functions."""
    calls: list[tuple[str, Tensor]] = []

    def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Any:
        calls.append(("convolution", x))
        return causal_conv1d_fn(x, weight, bias, activation=activation)

    def scan(
        u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, delta_bias: Tensor,  # noqa: N803
        delta_softplus: bool = False, return_last_state: bool = False,
    ) -> Any:  # fmt: skip
        calls.append(("scan", u))
        return selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)

    contents: dict[str, dict[str, Any]] = {
        "causal_conv1d": {"causal_conv1d_fn": conv},
        "mamba_ssm": {},
        "mamba_ssm.ops": {},
        "mamba_ssm.ops.selective_scan_interface": {"selective_scan_fn": scan, "mamba_inner_fn": wrong},
    }
    for name, functions in contents.items():
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
    return calls
