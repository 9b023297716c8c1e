"""Depthwise kernels, without a GPU: Triton interprets them, and they compute what PyTorch computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRITON = "triton==3.9.0"  # the interpreter of 3.6, which is in the CUDA image, fails with a recent NumPy
PROGRAM = """
import torch
from bench.methods.depthwise_kernels import fits, forward_of

torch.manual_seed(0)
for samples, channels, height, width in ((2, 33, 7, 7), (1, 4, 9, 18)):
    conv = torch.nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
    assert fits(conv)
    ours = torch.randn(samples, channels, height, width, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    change = torch.randn_like(ours)
    conv(theirs).backward(change)
    expected = [conv(theirs), theirs.grad, *(p.grad.clone() for p in conv.parameters())]
    conv.zero_grad()
    out = forward_of(conv)(ours)
    out.backward(change)
    found = [out, ours.grad, *(p.grad for p in conv.parameters())]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
    print("alike", samples, channels, height, width)

assert not any(map(fits, (
    torch.nn.Conv2d(8, 8, 7, padding=3), torch.nn.Conv2d(8, 8, 5, padding=2, groups=8),
    torch.nn.Conv2d(8, 8, 7, padding=3, groups=8, stride=2), torch.nn.Conv2d(8, 16, 7, padding=3, groups=8),
    torch.nn.Conv2d(8, 8, 7, padding=3, groups=8, dilation=2), torch.nn.Linear(3, 3),
)))
"""


@pytest.mark.e2e
def test_interpreted_they_compute_what_pytorch_computes(tmp_path: Path) -> None:
    """Triton lies in a folder of its own: beside a torch for the CPU it would change what that compiles."""
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path),
        TRITON,
    ]
    subprocess.run(install, check=True)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("alike") == 2
