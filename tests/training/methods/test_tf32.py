"""The units that fp32 products use, by all names that torch has for this setting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench.training.methods import prepare_all


@pytest.fixture
def afterwards_as_before() -> Iterator[None]:
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution


def test_all_names_of_torchs_tf32_switch_agree(afterwards_as_before: None) -> None:
    """max-autotune reads the oldest name, which crashed vit-l and convnext-xl on an H200 (torch 2.11)."""
    prepare_all(("tf32",))
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def test_without_the_method_convolutions_do_not_use_tf32(afterwards_as_before: None) -> None:
    """TF32 in convolutions is torch's default, and naive must not use it."""
    torch.backends.cudnn.allow_tf32 = True
    prepare_all(())
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"
