"""Kernels may change speed and memory but not the mathematics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.base.errors import EnvironmentCannot
from bench.training.models import Model, families
from tests.training.models.keeping import loss_of, made_up_batch
from tests.training.models.test_contract import TINY, built, without_dropout

FUSED = [model for model in TINY if families()[model.family].missing_kernels("cpu") is None]
every_fused_model = pytest.mark.parametrize("model", FUSED, ids=lambda model: model.name)


@every_fused_model
def test_losses_and_gradients_agree_with_eager_attention(model: Model) -> None:
    model = without_dropout(model)
    modules = [built(model), built(model, kernels=True)]
    batch = made_up_batch(model, 3)
    losses = [loss_of(module, batch) for module in modules]
    for loss in losses:
        loss.backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)
    largest = max(weight.grad.norm() for weight in modules[0].parameters())
    for plain, fused in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        # The bias of keys has no effect, so its gradient is only rounding.
        assert (plain.grad - fused.grad).norm() <= 1e-5 * plain.grad.norm() + 1e-7 * largest


@every_fused_model
def test_attention_gets_no_mask_even_while_tracing(model: Model) -> None:
    """A mask would rule out the flash kernels; transformers' own "sdpa" makes one under torch.compile."""
    seen: list[tuple[Any, Any]] = []

    def look(graph: Any, _: Any) -> Any:
        for node in graph.graph.nodes:
            if "scaled_dot_product_attention" in str(node.target):
                seen.append((node.kwargs.get("attn_mask"), node.kwargs["is_causal"]))
        return graph.forward

    torch.compiler.reset()
    module = built(model, kernels=True)
    module.compile(backend=look, fullgraph=True)
    loss_of(module, made_up_batch(model, 2))
    assert seen == [(None, model.recipe.objective == "causal-lm")] * 2


@pytest.mark.parametrize("model", [m for m in TINY if m.family == "gpt_neox"], ids=lambda model: model.name)
def test_a_token_sees_nothing_that_follows(model: Model) -> None:
    for kernels in (False, True):
        module, ids = built(model, kernels), made_up_batch(model, 1)["input_ids"]
        changed = ids.clone()
        changed[:, 40:] = 7
        with torch.no_grad():
            early, late = ((module(input_ids=i).logits) for i in (ids, changed))
        torch.testing.assert_close(early[:, :40], late[:, :40])
        assert not torch.allclose(early[:, 40:], late[:, 40:])


# Mamba: transformers uses mamba-ssm if it is installed; this fake only claims to be it.

PRETENDER = """
def mamba_inner_fn(*_, **__):
    raise RuntimeError("fused")
selective_scan_fn = mamba_inner_fn
"""
MAMBA = """
import sys
if sys.argv[1] == "preloaded":  # as the fork server does
    import transformers.models.mamba.modeling_mamba
import torch
from bench.training.models.mamba import FAMILY, MODELS
from tests.training.models.keeping import loss_of
tiny = MODELS[-1]
ids = torch.randint(9, (2, tiny.recipe.sequence_length))
def answer(kernels, compiled=False):
    module = FAMILY.build(tiny, kernels=kernels)
    if compiled:
        for block in FAMILY.blocks(module):
            block.forward = torch.compile(block.forward, backend="eager")
    try:
        loss_of(module, {"input_ids": ids, "labels": ids}).backward()
    except RuntimeError as error:
        return str(error)
    return "plain"
print(answer(False), answer(True), answer(True), answer(True, compiled=True), answer(False))
"""


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["preloaded", "fresh"])
def test_mamba_is_fused_when_asked_and_only_then(how: str, tmp_path: Path) -> None:
    package = tmp_path / "mamba_ssm" / "ops"
    package.mkdir(parents=True)
    for folder in (tmp_path / "mamba_ssm", package):
        (folder / "__init__.py").touch()
    (package / "selective_scan_interface.py").write_text(PRETENDER)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    done = subprocess.run(
        [sys.executable, "-c", MAMBA, how],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["plain", "fused", "fused", "fused", "plain"], done.stderr


def test_mamba_without_mamba_ssm_is_refused_and_never_slow_in_silence() -> None:
    model = next(model for model in TINY if model.family == "mamba")
    with pytest.raises(EnvironmentCannot, match="mamba-ssm cannot be imported"):
        built(model, kernels=True)
