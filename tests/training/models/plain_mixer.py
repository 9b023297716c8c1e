"""mamba-ssm's kernel for a mixer of Mamba 2, computed by PyTorch on a CPU.

The autograd function takes what that of mamba-ssm 2.3 takes, saves what that saves, and reads the same
attributes of its context: the class MambaSplitConv1dScanCombinedFn of ops/triton/ssd_combined.py.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.training.models.plain_kernels import convolved

Limits = tuple[float, float] | list[float]
custom_fwd, custom_bwd = (
    getattr(torch.amp, name)(device_type="cuda") for name in ("custom_fwd", "custom_bwd")
)


def scanned(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dt_bias: Tensor,
    a: Tensor,
    d: Tensor,
    dt_limit: Limits,
    headdim: int,
    groups: int,
) -> Tensor:
    """Return the result of the recurrence behind the convolution, before norm and gate."""
    heads = len(d)
    inner, channels = heads * headdim, len(weight)
    states = (channels - inner) // groups // 2
    _, entry, steps = projected.split([inner, channels, heads], -1)
    entry = convolved(entry.transpose(1, 2), weight, bias, "silu").transpose(1, 2).float()
    u, b, c = entry.split([inner, groups * states, groups * states], -1)
    u = u.unflatten(-1, (heads, headdim))
    b, c = (part.unflatten(-1, (groups, states)).repeat_interleave(heads // groups, 2) for part in (b, c))
    step = F.softplus(steps.float() + dt_bias.float()).clamp(*dt_limit)
    state = u.new_zeros(len(u), heads, headdim, states)
    read = []
    for t in range(u.shape[1]):
        decayed = torch.exp(step[:, t] * a.float())[..., None, None] * state
        state = decayed + (step[:, t, :, None] * u[:, t])[..., None] * b[:, t, :, None]
        read.append((state * c[:, t, :, None]).sum(-1))
    return (torch.stack(read, 1) + u * d.float()[:, None]).to(projected.dtype)


def behind_gate(
    out: Tensor, gate: Tensor, norm: Tensor | None, eps: float | None, groups: int
) -> tuple[Tensor, Tensor | None]:
    """Return a scan's result behind its gate and its norm, and the inverse deviations."""
    gated = out.flatten(2).float() * F.silu(gate.float())
    if norm is None or eps is None:
        return gated.to(out.dtype), None
    parts = gated.unflatten(-1, (groups, -1))
    deviations = torch.rsqrt(parts.pow(2).mean(-1) + eps)
    return ((parts * deviations[..., None]).flatten(2) * norm.float()).to(out.dtype), deviations.flatten()


class MambaSplitConv1dScanCombinedFn(torch.autograd.Function):
    @staticmethod
    @custom_fwd
    def forward(
        ctx: Any, zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor,
        A: Tensor, D: Tensor, chunk_size: int, initial_states: Tensor | None = None,  # noqa: N803
        seq_idx: Tensor | None = None, dt_limit: Limits = (0.0, float("inf")),
        return_final_states: bool = False, activation: str | None = "silu",
        rmsnorm_weight: Tensor | None = None, rmsnorm_eps: float | None = 1e-6,
        outproj_weight: Tensor | None = None, outproj_bias: Tensor | None = None, headdim: int | None = None,
        ngroups: int = 1, norm_before_gate: bool = True,
    ) -> Tensor:  # fmt: skip
        assert activation == "silu" and chunk_size > 0 and outproj_weight is not None and headdim
        assert initial_states is seq_idx is None and not return_final_states
        assert rmsnorm_weight is None or not norm_before_gate
        assert zxbcdt.dtype == outproj_weight.dtype
        out = scanned(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, dt_limit, headdim, ngroups)
        gate = zxbcdt[..., : len(D) * headdim]
        gated, deviations = behind_gate(out, gate, rmsnorm_weight, rmsnorm_eps, ngroups)
        ctx.save_for_backward(
            zxbcdt, conv1d_weight, conv1d_bias, out, A, D, dt_bias, initial_states, seq_idx, rmsnorm_weight,
            deviations, outproj_weight, outproj_bias,
        )  # fmt: skip
        ctx.dt_limit, ctx.rmsnorm_eps, ctx.headdim, ctx.ngroups = dt_limit, rmsnorm_eps, headdim, ngroups
        ctx.return_final_states, ctx.activation, ctx.chunk_size = return_final_states, activation, chunk_size
        ctx.norm_before_gate = norm_before_gate
        return F.linear(gated, outproj_weight, outproj_bias)

    @staticmethod
    @custom_bwd
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (
            zxbcdt, weight, bias, out, a, d, dt_bias, _, _, norm, deviations, product, product_bias,
        ) = ctx.saved_tensors  # fmt: skip
        assert out.shape == (*zxbcdt.shape[:2], len(d), ctx.headdim)
        assert (deviations is None) == (norm is None)
        assert ctx.activation == "silu" and not ctx.return_final_states
        kept = (zxbcdt, weight, bias, dt_bias, a, d, norm, product, product_bias)
        given = [one for one in kept if one is not None]

        def mixed(*tensors: Tensor) -> Tensor:
            remaining = iter(tensors)
            zxbcdt, weight, bias, dt_bias, a, d, norm, product, product_bias = (
                None if one is None else next(remaining) for one in kept
            )
            assert zxbcdt is not None
            out = scanned(zxbcdt, weight, bias, dt_bias, a, d, ctx.dt_limit, ctx.headdim, ctx.ngroups)
            gate = zxbcdt[..., : len(d) * ctx.headdim]
            gated, _ = behind_gate(out, gate, norm, ctx.rmsnorm_eps, ctx.ngroups)
            return F.linear(gated, product, product_bias)

        # An operator of torch is called where autograd records nothing, and torch.func records all the same.
        found = iter(torch.func.vjp(mixed, *given)[1](gradient))
        *six, of_norm, of_product, of_bias = (None if one is None else next(found) for one in kept)
        return *six, *[None] * 6, of_norm, None, of_product, of_bias, None, None, None


def applied(**given: Any) -> Tensor:
    """Return what mamba-ssm's own function returns."""
    _, *parameters = inspect.signature(MambaSplitConv1dScanCombinedFn.forward).parameters.values()
    in_order = (given.get(one.name, one.default) for one in parameters)
    result: Tensor = MambaSplitConv1dScanCombinedFn.apply(*in_order)  # type: ignore[no-untyped-call]
    return result


def installed(monkeypatch: pytest.MonkeyPatch, form: Callable[..., None] | None = None) -> list[Tensor]:
    """Let mamba-ssm be found; return the first argument of each call of its function's forward pass.

    `form` has the arguments of another version's forward pass, for each of which the backward pass returns
    something.
    """
    calls: list[Tensor] = []
    passes = MambaSplitConv1dScanCombinedFn
    form = form or passes.forward
    more = len(inspect.signature(form).parameters) - len(inspect.signature(passes.forward).parameters)

    @wraps(form)
    def recorded(ctx: Any, zxbcdt: Tensor, **others: Any) -> Tensor:
        calls.append(zxbcdt)
        result: Tensor = passes.forward(ctx, zxbcdt, **others)
        return result

    def backward(ctx: Any, gradient: Tensor) -> Any:
        return *passes.backward(ctx, gradient), *[None] * more

    contents: dict[str, dict[str, Any]] = {
        "mamba_ssm": {"__version__": "2.3.2"},
        "mamba_ssm.ops": {},
        "mamba_ssm.ops.triton": {},
        "mamba_ssm.ops.triton.ssd_combined": {
            passes.__name__: type(
                passes.__name__, (), {"forward": staticmethod(recorded), "backward": staticmethod(backward)}
            )
        },
    }
    for name, found in contents.items():
        module = ModuleType(name)
        vars(module).update(found)
        monkeypatch.setitem(sys.modules, name, module)
    return calls
