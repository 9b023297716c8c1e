"""How much do gradients of Mamba depend on rounding, by its number of layers?

    python benchmarks/gpu/mamba_rounding.py

Prints, for models of mamba-2.8b's width, how far gradients are from those of the same pass repeated, with
checkpointing, in fp32, with all weights larger by a millionth, and (two layers) with transformers' plain
scan: norms of differences over the norm. Needs one NVIDIA GPU, mamba-ssm and causal-conv1d.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.training.models.mamba import FAMILY, LARGE

Gradients = Mapping[str, Tensor]


def gradients(
    model: Any, tokens: Tensor, *, half: bool, checkpointing: bool = False
) -> tuple[float, Gradients]:
    """Return the loss and the gradients of one pass."""
    model.zero_grad(set_to_none=True)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return float(loss.detach()), {n: p.grad.detach().clone() for n, p in model.named_parameters()}


def difference(one: Gradients, other: Gradients) -> float:
    square = sum(float((one[n].double() - other[n].double()).square().sum()) for n in one)
    return math.sqrt(square / sum(float(g.double().square().sum()) for g in one.values()))


def scale(model: nn.Module, factor: float) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(factor)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.parse_args()
    for layers in (2, 8, 16, 32, 64):
        sized = dataclasses.replace(LARGE, architecture={**LARGE.architecture, "num_hidden_layers": layers})
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = FAMILY.build(sized, kernels=True)
        tokens = torch.randint(0, 50280, (1, 256 if layers == 2 else 4096), device="cuda")
        loss, exact = gradients(model, tokens, half=False)
        loss_half, half = gradients(model, tokens, half=True)
        again = gradients(model, tokens, half=True)[1]
        half_again = gradients(model, tokens, half=True, checkpointing=True)[1]
        exact_again = gradients(model, tokens, half=False, checkpointing=True)[1]
        print(f"{layers} layers: loss {loss:.4f} in fp32, {loss_half:.4f} in bf16")
        repeated, checkpointed = difference(half, again), difference(half, half_again)
        print(f"  bf16: repeated {repeated:.2g}, with checkpointing {checkpointed:.2g}")
        checkpointed, rounded = difference(exact, exact_again), difference(exact, half)
        print(f"  fp32: with checkpointing {checkpointed:.2g}, bf16 {rounded:.2g}")
        if layers == 2:
            with torch.device("cuda"):
                plain = FAMILY.build(sized, kernels=False)
            plain.load_state_dict(model.state_dict())
            print(f"  fp32: plain scan {difference(exact, gradients(plain, tokens, half=False)[1]):.2g}")
        scale(model, 1 + 1e-6)
        moved, moved_half = (gradients(model, tokens, half=half_too)[1] for half_too in (False, True))
        print(
            f"  weights moved: fp32 {difference(exact, moved):.2g}, bf16 {difference(half, moved_half):.2g}"
        )
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
