"""Triton's interpreter runs the kernels without a GPU; they compute the same as PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import quick_python

ROOT = Path(__file__).parents[3]
TRITON = "triton==3.9.0"  # the interpreter of 3.6, which is in the CUDA image, fails with a recent NumPy

ATTENTION = """
import torch
from itertools import product
from bench.training.models.full_attention_operator import full_attention
from bench.training.models.full_attention import OWN_HEAD_WIDTHS
from bench.training.triton.attention import BACKWARD, write_attention, write_gradients

torch.manual_seed(0)
assert tuple(BACKWARD) == OWN_HEAD_WIDTHS
# Positions that blocks do not divide, or do; queries, keys and values of their own, and slices of one tensor.
for length, width, joined in product((1, 33, 128, 197), OWN_HEAD_WIDTHS, (False, True)):
    shape = (1, length, 2, width)
    given = torch.randn(1, length, 3, 2, width).unbind(2) if joined else torch.randn(3, *shape).unbind()
    given = [one.detach().requires_grad_() for one in given]
    expected = full_attention(*given, 0.3)
    change = torch.randn(shape)
    gradients = torch.autograd.grad(expected[0], given, change)
    given, expected = [one.detach() for one in given], [one.detach() for one in expected]
    found = [torch.full_like(one, 9.0) for one in expected]
    write_attention(*given, 0.3, *found)
    found += [torch.full(shape, 9.0) for _ in range(3)]
    along = (change * expected[0]).sum(-1).transpose(1, 2).contiguous()
    write_gradients(change, along, *given, 0.3, expected[1].contiguous(), *found[2:])
    for one, other in zip(found, [*expected, *gradients], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    print("alike", length, width, joined)
"""

DEPTHWISE = """
import torch
from contextlib import nullcontext
from itertools import product
from bench.training.triton import depthwise
from bench.training.models.depthwise import depthwise_in
from bench.training.triton.depthwise import forward_of

# Images that seven does not divide, or does; fewer channels than a program takes, as many, and more.
SHAPES = ((2, 33, 7, 7), (1, 4, 3, 18), (1, 64, 4, 3), (1, 70, 3, 15))
OFF = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}

def results(conv, forward, images, change, context):
    images = images.clone().requires_grad_()
    conv.zero_grad()
    with context:
        out = forward(images)
    out.backward(change.to(out.dtype))
    return [out, images.grad, *(p.grad.clone() for p in conv.parameters())]

torch.manual_seed(0)
for (samples, channels, height, width), dtype, bias, cast in product(
    SHAPES, OFF, (True, False), (False, True)
):
    if cast and dtype is torch.float32:
        continue
    conv = torch.nn.Conv2d(channels, channels, 7, padding=3, groups=channels, bias=bias)
    assert depthwise_in(conv) == [conv]
    images = torch.randn(samples, channels, height, width)
    change = torch.randn_like(images).to(dtype)
    if not cast:
        conv, images = conv.to(dtype), images.to(dtype)
    context = torch.autocast("cpu", dtype=dtype) if cast else nullcontext()
    found = results(conv, forward_of(conv), images, change, context)
    assert found[0].dtype is dtype and all(one.dtype is images.dtype for one in found[1:])
    exact = torch.nn.Conv2d(channels, channels, 7, padding=3, groups=channels, bias=bias).double()
    exact.load_state_dict({name: p.to(dtype) for name, p in conv.state_dict().items()})
    expected = results(exact, exact, images.to(dtype).double(), change.double(), nullcontext())
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < OFF[dtype] * other.norm(), (one, other)
    print("alike", samples, channels, height, width, dtype, bias, cast)

for dtype, bias in product((torch.float32, torch.bfloat16), (True, False)):
    images = torch.randn(1, 5, 8, 9, dtype=dtype, requires_grad=True)
    filters = torch.randn(49, 9, dtype=dtype, requires_grad=True)
    given = (images, filters, torch.randn(9, dtype=dtype, requires_grad=True) if bias else None)
    torch.library.opcheck(depthwise._convolved, given)
"""

ROTARY = """
import torch
from transformers import GPTNeoXConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding
from bench.training.triton.rotary import rotated
from bench.training.models.attention import attention_implementation
from bench.training.models.packed_rotary import PackedRotary, take_over

torch.manual_seed(0)
for heads, width, share in ((3, 20, 0.3), (1, 16, 0.25), (2, 8, 1.0)):
    config = GPTNeoXConfig(
        hidden_size=heads * width, num_attention_heads=heads, rotary_pct=share,
        attn_implementation=attention_implementation(kernels=True),
    )
    module = GPTNeoXAttention(config, 0)
    ours = torch.randn(2, 11, heads * width, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    tables = GPTNeoXRotaryEmbedding(config)(ours, torch.arange(11)[None])
    assert tables[0].shape[-1] == int(share * width)
    change = torch.randn_like(ours)
    expected = module(theirs, None, position_embeddings=tables)[0]
    expected.backward(change)
    expected = [expected, theirs.grad, *(p.grad.clone() for p in module.parameters())]
    module.zero_grad()
    layers = module.query_key_value, module.dense
    take_over([PackedRotary(module, *layers, width, module.scaling, 0.0)], rotated)
    found = module(ours, attention_mask=None, position_embeddings=tables)[0]
    found.backward(change)
    for one, other in zip([found, ours.grad, *(p.grad for p in module.parameters())], expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    packed = torch.randn(2, 11, heads, 3 * width, requires_grad=True)
    torch.library.opcheck(rotated, (packed, *tables))
    print("alike", heads, width, share)
"""

ADDING = """
import torch
from bench.training.triton.add import add

torch.manual_seed(0)
for shape, dtype in (((5, 1001), torch.float16), ((3,), torch.bfloat16), ((64, 64), torch.bfloat16)):
    total, more = torch.randn(shape), torch.randn(shape).to(dtype)
    expected = total + more
    add(total, more)
    torch.testing.assert_close(total, expected, rtol=0, atol=0)
    print("alike", shape, dtype)
"""

GELU = """
import torch
from bench.training.models.biased_gelu import GeluLayers, take_over
from bench.training.triton.gelu import gelu
from bench.runner.trial.fused_gradient_sums import add_up_in_products

torch.manual_seed(0)
for shape, dtype, off in (((2, 11, 100), torch.float32, 1e-6), ((3, 70, 520), torch.float16, 1e-3)):
    ours = [(3 * torch.randn(shape)).to(dtype), torch.randn(shape[-1]).to(dtype)]
    theirs = [one.double().requires_grad_() for one in ours]
    ours = [one.requires_grad_() for one in ours]
    change = torch.randn(shape).to(dtype)
    found, expected = gelu(*ours), torch.nn.functional.gelu(theirs[0] + theirs[1])
    found.backward(change)
    expected.backward(change.double())
    pairs = zip([found, *(o.grad for o in ours)], [expected, *(t.grad for t in theirs)], strict=True)
    for one, other in pairs:
        assert (one - other).norm() < off * other.norm()
    torch.library.opcheck(gelu, ours)
    print("alike", shape, dtype)

layer, activation = torch.nn.Linear(8, 24), torch.nn.GELU()
entry = torch.randn(5, 8, requires_grad=True)
expected = activation(layer(entry))
expected.sum().backward()
of_weight, of_bias = layer.weight.grad.clone(), layer.bias.grad.clone()
layer.zero_grad()
sums = torch.zeros(24, 8)
for together in ("gelu alone", "products, too"):
    if together == "gelu alone":
        take_over(GeluLayers((layer,), (activation,)), gelu)
    else:
        add_up_in_products(layer, sums)
    found = activation(layer(entry))
    found.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(layer.bias.grad, of_bias)
    torch.testing.assert_close(layer.weight.grad if together == "gelu alone" else sums, of_weight)
    layer.zero_grad()
    print("alike", together)
"""

NORMS = """
import torch
from torch.nn.functional import layer_norm
from bench.training.triton.norms import NormsFunction

torch.manual_seed(0)
for shape, dtype, off in (((2, 9, 40), torch.float32, 1e-6), ((3, 300, 80), torch.float16, 1e-3)):
    width = shape[-1]
    given = [2 * torch.randn(shape) + 0.5, *(torch.randn(width) for _ in range(4))]
    ours = [one.to(dtype).requires_grad_() for one in given]
    theirs = [one.detach().double().requires_grad_() for one in ours]
    changes = [torch.randn(shape).to(dtype) for _ in range(3)]
    found = NormsFunction.apply(*ours, 1e-5)
    x, w, b, w2, b2 = theirs
    expected = [layer_norm(x, (width,), w, b, 1e-5), layer_norm(x, (width,), w2, b2, 1e-5), x * 1]
    torch.autograd.backward(found, changes)
    torch.autograd.backward(expected, [change.double() for change in changes])
    pairs = zip([*found, *(o.grad for o in ours)], [*expected, *(t.grad for t in theirs)], strict=True)
    for one, other in pairs:
        assert (one - other).norm() < off * other.norm()
    print("alike", shape, dtype)
"""

TRAINING = """
import dataclasses, tempfile
from pathlib import Path
import torch
from bench.training.methods import ordered
from tests.training.test_equivalence import TINY, curve, without_dropout

def compared(family, precision, setting, off):
    model = without_dropout(TINY[family])
    length = model.recipe.sequence_length and 16  # interpreted, each program of a kernel takes milliseconds
    recipe = dataclasses.replace(model.recipe, precision=precision, sequence_length=length)
    model = dataclasses.replace(model, recipe=recipe)
    with tempfile.TemporaryDirectory() as folder:
        expected, found = (curve(model, ordered(one), Path(folder), 2, batch=2) for one in ((), setting))
    torch.testing.assert_close(found, expected, rtol=off, atol=0)
    print("alike", family, precision, *setting)

compared("gpt_neox", "fp32", ["kernels", "rotary", "gelu", "checkpointing"], 1e-5)
compared("roberta", "fp32", ["gelu", "masked-head"], 1e-5)
compared("vit", "fp32", ["gelu"], 1e-5)
compared("convnext", "fp32", ["gelu", "depthwise"], 1e-5)
compared("convnext", "bf16", ["gelu", "depthwise", "checkpointing"], 1e-2)
compared("gpt_neox", "fp16", ["kernels", "rotary", "gelu", "norms", "half-weights"], 1e-3)
compared("roberta", "bf16", ["gelu", "half-weights", "checkpointing"], 1e-2)
"""

SEVERAL = """
import dataclasses, tempfile
from pathlib import Path
from bench.training.setting import NAIVE
from bench.runner.processes.supervisor import Supervisor
from tests.runner.test_parallel import PRELOAD, TINY, agree, measured, small

if __name__ == "__main__":
    folder, model = Path(tempfile.mkdtemp()), small(TINY["gpt_neox"])
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, sequence_length=16))
    with Supervisor(PRELOAD, lambda event: None, folder / "server.txt") as owner:
        expected = measured(owner, folder, model, NAIVE, 1)
        for gpus, beside in (
            (2, ()), (2, ("checkpointing", "zero-3")), (2, ("checkpointing", "fsdp-3")),
            (1, ("zero-3", "offload")),
        ):
            agree(expected, measured(owner, folder, model, ("gelu", *beside), gpus))
            print("alike", gpus, *beside)
"""

TRANSPOSE = """
import torch
from bench.training.models.transposed_factors import room_for_transposed
from bench.training.triton.transpose import write_transposed

for rows, columns in ((300, 70), (128, 64), (5, 8), (1000, 16)):
    matrix = torch.randn(rows, columns)
    out = room_for_transposed(matrix)
    write_transposed(matrix, out)
    assert torch.equal(out, matrix.t())
    print("alike", rows, columns)
"""

LOSS = """
import torch
from bench.training.triton.loss import loss_and_gradient
from loss_kernels import cross_entropy, rows_of

torch.manual_seed(0)
for rows, width, dtype, off in ((7, 1001, torch.float32, 1e-5), (5, 20_000, torch.float16, 1e-3)):
    ours, labels = (4 * torch.randn(1, rows, width)).to(dtype), torch.randint(0, width, (1, rows))
    labels[0, 1] = -100
    theirs = ours.double().requires_grad_()
    ours.requires_grad_()
    found = cross_entropy(ours, labels)
    expected = torch.nn.functional.cross_entropy(theirs[0], labels[0], ignore_index=-100)
    found.backward()
    expected.backward()
    assert abs(found - expected) < 1e-5 and (ours.grad - theirs.grad).norm() < off * theirs.grad.norm()
    torch.library.opcheck(rows_of, (ours[0], labels[0]))
    losses, gradient = loss_and_gradient(ours[0].detach(), labels[0], torch.tensor(1 / (rows - 1)), -100)
    assert abs(losses.sum() / (rows - 1) - expected) < 1e-5 and losses[1] == 0
    assert (gradient - theirs.grad[0]).norm() < off * theirs.grad.norm()
    print("alike", rows, width, dtype)
"""


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install Triton into its own folder, because it would change what a CPU build of torch compiles."""
    folder = tmp_path_factory.mktemp("triton")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--target",
        str(folder),
        TRITON,
    ]
    subprocess.run(install, check=True)
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("program", "times"),
    [
        (ATTENTION, 24),
        (DEPTHWISE, 40),
        (ROTARY, 3),
        (ADDING, 3),
        (GELU, 4),
        (NORMS, 2),
        (TRANSPOSE, 4),
        (LOSS, 2),
        (TRAINING, 7),
        (SEVERAL, 4),
    ],
    ids=[
        "attention",
        "depthwise",
        "rotary",
        "adding",
        "gelu",
        "norms",
        "transpose",
        "loss",
        "training",
        "several",
    ],
)
def test_interpreted_they_compute_what_pytorch_computes(triton: Path, program: str, times: int) -> None:
    environment = os.environ | {
        "PYTHONPATH": f"{triton}:{ROOT}:{ROOT / 'benchmarks/gpu'}",
        "TRITON_INTERPRET": "1",
    }
    python = quick_python(str(triton), TRITON_INTERPRET="1")
    done = subprocess.run(
        [python, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("alike") == times
