"""The tensors that a compiled block allocates, keeps and frees, found in its graphs without computing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from bench.training.lifetimes import BlockTensors, Lifetime, from_text, to_text
from bench.training.models.kept_attention import kept_attention
from bench.training.models.stand_in import ends_graph
from bench.training.vendor import torch_inside

SAMPLES, WIDTH, INNER = 1009, 512, 1024  # a prime number of samples, whose rows are in fp32
HEADS, LENGTH = 16, 49  # heads of 32
ROW, INNER_ROW, WEIGHT = 4 * WIDTH, 4 * INNER, 4 * WIDTH * INNER


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, entry: Tensor) -> Tensor:
        found: Tensor = self.down(functional.gelu(self.up(entry)))
        return found


class ThreeParts(nn.Module):
    """One product for three parts; the last of them is kept for the backward pass, as attention's values."""

    def __init__(self) -> None:
        super().__init__()
        self.together = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, entry: Tensor) -> Tensor:
        query, key, value = self.together(entry).chunk(3, dim=-1)
        return torch.bmm(torch.bmm(query, key.transpose(1, 2)), value)


class BiasedAttention(nn.Module):
    """Attention with a trained bias, alike for all samples, whose rows are not aligned."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, HEADS, LENGTH, LENGTH))

    def forward(self, entry: Tensor) -> Tensor:
        attend = ALL_ATTENTION_FUNCTIONS[kept_attention()]
        heads = entry.view(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)
        found: Tensor = attend(None, heads, heads, heads, self.bias)[0]
        return found.flatten(2)


def when_compiled(module: type[nn.Module], *shape: int) -> tuple[list[int], BlockTensors]:
    with torch.device("meta"):
        built = module()
    with torch_inside.fake_tensors():
        torch_inside.make_fake(built, None)
        entry = torch.empty(SAMPLES, *shape, WIDTH, requires_grad=True)
        return torch_inside.tensors_when_compiled(
            built, lambda arguments, _: built(*arguments), ([entry], {}), SAMPLES, ends_graph
        )


def test_a_perceptron_keeps_its_input_and_both_sides_of_its_activation() -> None:
    saved, _ = when_compiled(Perceptron, 16)  # samples of 16 rows
    of_samples = [size // SAMPLES for size in saved if size % SAMPLES == 0]
    assert sorted(of_samples) == [16 * ROW, 16 * INNER_ROW, 16 * INNER_ROW]


def test_lifetimes_cover_both_passes() -> None:
    _, tensors = when_compiled(Perceptron, 16)
    forward = [one for one in tensors.lifetimes if one.born < tensors.backward]
    backward = [one for one in tensors.lifetimes if one.born >= tensors.backward]
    # The input, and the activation's two sides. The output belongs to the block that follows.
    assert sorted(one.sample_bytes for one in forward) == [16 * ROW, 16 * INNER_ROW, 16 * INNER_ROW]
    assert all(one.freed and one.freed > tensors.backward for one in forward)
    # The output's gradient, and those of the activation's two sides. The input's belongs to the block before.
    sizes = sorted(one.sample_bytes for one in backward if one.freed)
    assert sizes == [16 * ROW, 16 * INNER_ROW, 16 * INNER_ROW]
    assert [one.bytes for one in backward if one.freed is None] == [WEIGHT, WEIGHT]


class Untrained(Perceptron):
    """A perceptron that computes without gradients, as a part of the model that is not trained does."""

    @torch.no_grad()
    def forward(self, entry: Tensor) -> Tensor:
        return super().forward(entry)


def test_a_block_that_is_not_trained_keeps_nothing() -> None:
    assert when_compiled(Untrained, 16) == ([], BlockTensors(0, ()))


def test_a_part_of_a_product_keeps_all_of_it() -> None:
    saved, tensors = when_compiled(ThreeParts, 16)
    of_samples = sorted(size // SAMPLES for size in saved if size % SAMPLES == 0)
    assert of_samples == [16 * 4 * 16, 16 * ROW, 3 * 16 * ROW]  # scores, the input, and the product once
    assert [one.bytes for one in tensors.gradients] == [3 * 4 * WIDTH * WIDTH]


def test_attention_with_a_bias_writes_sums_of_gradients_and_a_bias_for_every_sample() -> None:
    """Rows of 49 numbers become rows of 64; sums are a tile of 64 by 64 for each sample and head."""
    _, tensors = when_compiled(BiasedAttention, LENGTH)
    in_kernel = [one for one in tensors.lifetimes if one.born == one.freed]
    assert [one.sample_bytes for one in in_kernel] == [HEADS * (16 + 4 * 64 * 64)]
    of_bias = 4 * HEADS * LENGTH * 64
    assert [one.sample_bytes for one in tensors.lifetimes].count(of_bias) == 1


def test_lifetimes_are_read_as_they_were_written() -> None:
    tensors = BlockTensors(7, (Lifetime(8192, 0, 1, 12), Lifetime(0, 4194304, 9, None)))
    assert to_text(tensors) == "7 8192+0@1-12 0+4194304@9-"
    assert from_text(to_text(tensors)) == tensors
    assert [one.size(samples=2) for one in tensors.lifetimes] == [16384, 4194304]


def test_a_backward_pass_adds_what_it_writes_to_what_was_kept() -> None:
    kept, dropped = (
        Lifetime(100, 0, 2, 15),
        Lifetime(40, 0, 3, 5),
    )  # freed in the backward, and in the forward pass
    written = Lifetime(30, 0, 12, 14), Lifetime(50, 0, 14, 20)  # both exist at operation 14
    assert BlockTensors(10, (kept, dropped, *written)).backward_bytes == 80
    after = Lifetime(120, 0, 16, 18)  # where the kept tensor is freed
    assert BlockTensors(10, (kept, *written, after)).backward_bytes == 80
    gradient = Lifetime(0, 10**9, 11, None)  # of a weight, which no sample adds to
    assert BlockTensors(10, (kept, gradient)).backward_bytes == 0
