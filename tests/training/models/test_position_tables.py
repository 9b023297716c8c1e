"""Tables of positions that are added to embeddings have the precision of the embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import apply_all
from bench.training.models import family_of
from bench.training.models.position_tables import lower_position_tables
from bench.training.setting import Setting
from bench.training.vendor import transformers_source
from tests.training.methods.test_joined_products import TRAINED, small, trained


@pytest.mark.parametrize(
    ("setting", "precision"),
    [(("half-weights",), torch.bfloat16), (("zero-1",), torch.bfloat16), ((), torch.float32)],
)
def test_tables_of_positions_have_the_precision_of_weights_that_a_setting_lowers(
    setting: Setting, precision: torch.dtype
) -> None:
    """DeepSpeed leaves buffers as they are, so that ZeRO of M2M-100 crashed."""
    model = small("m2m_100", "sequence-to-sequence")
    module: nn.Module = family_of(model).build(model, kernels=False)
    apply_all(setting, model, WithLoss(module, model.recipe.aim), [])
    tables = [
        table for name, table in module.named_buffers() if "embed_positions" in name and table.dim() == 2
    ]
    assert tables
    assert {table.dtype for table in tables} == {precision}


@pytest.mark.sweep
def test_the_code_tells_which_architectures_have_such_tables() -> None:
    """Scripts of one file are refused by the code, before a model is built."""
    built, told = set[str](), set[str]()
    for model_type, objective in (*TRAINED, *trained("speech-recognition")):
        model = small(model_type, objective)
        with torch.device("meta"):
            module = family_of(model).build(model, kernels=False)
        before = {table.dtype for table in module.buffers()}
        lower_position_tables(module, "bf16")
        built |= {model_type} if {table.dtype for table in module.buffers()} != before else set()
        told |= {model_type} if transformers_source.has_position_tables(model_type) else set()
    assert built == told != set()
