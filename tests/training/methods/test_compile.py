"""The parts of a model that are compiled, and the number of their graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from bench.runner.trial.training_loop import WithLoss
from bench.training.methods import known_methods
from bench.training.models import family_of, known_models
from tests.training.models.keeping import made_up_batch
from tests.training.models.test_attention import built
from tests.training.models.test_repeated_blocks import small


class Block(nn.Module):
    """A block with 32 MiB of weights, more than one of DDP's gradient buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1024, 4096), nn.Linear(4096, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    with torch._dynamo.config.patch(optimize_ddp=True):  # restores the value afterwards
        yield
    dist.destroy_process_group()


def test_ddp_does_not_split_a_compiled_block(group_of_one: None, without_inductor: None) -> None:
    """A split block saved other tensors than its recomputed backward pass needs."""
    blocks = [Block(), Block()]
    body = nn.Sequential(*blocks)
    whole = WithLoss(body)
    method = known_methods()["compile-blocks"]
    method.prepare()
    method.apply(known_models()["vit-l"], whole, list(blocks))
    counters.clear()
    replica = DistributedDataParallel(body)
    replica(torch.randn(4, 1024, requires_grad=True)).sum().backward()
    assert counters["aot_autograd"]["total"] == counters["stats"]["unique_graphs"] == 1


def test_compiled_blocks_of_qwen_3_5_compute_the_same(without_inductor: None) -> None:
    """torch traces the gradient of its softplus with other strides than the operator returns."""
    model = small("qwen3_5_text", "causal-lm", precision="fp32")
    norms = []
    for compiled in (False, True):
        module = built(model, kernels=False)
        whole = WithLoss(module, model.recipe.aim)
        if compiled:
            known_methods()["compile-blocks"].apply(model, whole, family_of(model).blocks(module))
        whole(made_up_batch(model, 2)).backward()
        norms.append(nn.utils.get_total_norm(weight.grad for weight in module.parameters()))
    torch.testing.assert_close(norms[1], norms[0], rtol=1e-5, atol=0)
