"""A pass in which one block of each kind runs is counted as if all had run; code may read contents."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.jamba.modeling_jamba import JambaMambaMixer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP

from bench.training.models import Model, repeated_blocks
from bench.training.models.counted_memory import counted_memory
from bench.training.models.counted_operations import (
    _OperationCount,
    _sorted_by_kind,
    _Way,
    counted,
    counted_work,
)
from bench.training.models.generic import TransformersFamily
from bench.training.models.model import empty_batch
from bench.training.models.operation_shapes import ShapeCount
from bench.training.models.own_models import resolve_inline
from bench.training.models.repeated_blocks import BlockKind, NoPolynomial, extrapolated, long_kinds
from bench.training.vendor import transformers_inside
from benchmarks import small_architectures
from benchmarks.architectures import described
from tests.training.models.keeping import counted_for, kept_bytes_a_sample

LAYERS = 5  # blocks of a kind between the first and the last one
FIELDS = (
    "num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers",
    "num_encoder_layers", "num_decoder_layers",
)  # fmt: skip
TOGETHER = {  # without contents
    "jamba": "causal-lm", "qwen3_next": "causal-lm", "kimi_linear": "causal-lm", "minimax": "causal-lm",
    "llama": "causal-lm", "bert": "masked-lm", "t5": "sequence-to-sequence", "mamba": "causal-lm",
    "qwen3_moe": "causal-lm", "gemma3_text": "causal-lm", "albert": "masked-lm",
}  # fmt: skip
READING = {  # what they computed
    "longformer": "masked-lm", "switch_transformers": "sequence-to-sequence", "dbrx": "causal-lm",
    "jetmoe": "causal-lm", "gemma3n_text": "causal-lm", "flaubert": "masked-lm",
}  # fmt: skip


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in FIELDS:
        monkeypatch.setitem(small_architectures.SMALL, field, LAYERS)  # type: ignore[arg-type]


def small(model_type: str, objective: str, **recipe: Any) -> Model:
    given = described(model_type, objective)
    model = resolve_inline({**given, "recipe": given["recipe"] | recipe}, "/models/0")
    assert isinstance(model, Model), model
    return model


def way(model_type: str, *, known: bool = False) -> _Way:
    return _Way(TransformersFamily(model_type), torch.float32 if known else torch.bfloat16, known=known)


@pytest.mark.parametrize("model_type", [*TOGETHER, *READING])
@pytest.mark.usefixtures("deep")
def test_one_block_of_each_kind_counts_as_much_as_all_of_them(model_type: str) -> None:
    model = small(model_type, (TOGETHER | READING)[model_type])
    how = way(model_type, known=model_type in READING)
    assert _OperationCount(model, how).counted() == _OperationCount(model, how, each=True).counted()


@pytest.mark.parametrize("layers", [4, 12])
def test_two_blocks_run_of_any_number(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(small_architectures.SMALL, "num_hidden_layers", layers)  # type: ignore[arg-type]
    calls, forward = [], LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda part, x: calls.append(part) or forward(part, x))
    counted_work(small("llama", "causal-lm"))
    assert len(calls) == 2


@pytest.mark.usefixtures("deep")
def test_blocks_that_compute_by_their_place_all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LlamaDecoderLayer.forward

    def by_place(block: Any, hidden: Tensor, *given: Any, **named: Any) -> Tensor:
        last = block.self_attn.layer_idx == LAYERS - 1
        found: Tensor = forward(block, block.mlp(hidden) if last else hidden, *given, **named)
        return found

    plain = counted_work(small("llama", "causal-lm")).flops
    monkeypatch.setattr(LlamaDecoderLayer, "forward", by_place)
    products = 3 * 2 * 32 * 64 * 128  # three of an MLP, for 32 positions
    assert counted_work(small("llama", "causal-lm")).flops == replace(plain, matmul=plain.matmul + products)


# --- loops over positions -------------------------------------------------------------------------------


@pytest.fixture
def short_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fewer positions be a long loop, and shorter samples tell of it: a position takes milliseconds.

    Jamba's mixers loop over positions as long as no test before has let them scan by a kernel's stand-in.
    """
    transformers_inside.scan_mamba1_by("jamba", None)
    monkeypatch.setattr(repeated_blocks, "MOST_CALLS", 250)
    monkeypatch.setattr(repeated_blocks, "STEP", 8)


def test_short_lengths_are_as_far_above_a_step_as_the_full_length() -> None:
    lengths = list[int]()

    def kinds_of(short: Model) -> list[BlockKind]:
        lengths.append(short.recipe.units_per_sample)
        return [BlockKind("a loop", {"operations": 3 * lengths[-1]}, 20 * lengths[-1], None)]

    model = small("jamba", "causal-lm", sequence_length=100_000)
    found = long_kinds(model, kinds_of)
    assert found == {0: BlockKind("a loop", {"operations": 300_000}, 2_000_000, None)}
    assert lengths == [96, 160, 224], "in steps of 64, and as far above one as 100,000"


@pytest.mark.usefixtures("short_loops")
def test_a_long_loop_is_counted_at_short_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, forward = set(), JambaMambaMixer.forward

    def seen(part: Any, hidden_states: Tensor, *given: Any, **named: Any) -> Any:
        found = forward(part, hidden_states, *given, **named)
        lengths.add(hidden_states.shape[1])
        return found

    monkeypatch.setattr(JambaMambaMixer, "forward", seen)
    model = small("jamba", "causal-lm", sequence_length=100_003)
    assert counted_work(model).flops.matmul > 0
    assert lengths == {11, 19, 27}


@pytest.mark.parametrize("length", [40, 45])
@pytest.mark.usefixtures("short_loops")
def test_a_long_loop_counts_as_at_its_full_length(length: int) -> None:
    assert_counted_as_at_its_full_length(length)


@pytest.mark.sweep
def test_a_loop_of_more_than_two_thousand_calls_counts_as_at_its_full_length() -> None:
    assert_counted_as_at_its_full_length(333)


def assert_counted_as_at_its_full_length(length: int) -> None:
    model = small("jamba", "causal-lm", sequence_length=length)
    how = _Way(TransformersFamily("jamba"), registered=True)
    every = _OperationCount(model, how, each=True).counted()
    with pytest.raises(repeated_blocks.LongLoop):
        _OperationCount(model, how).counted()
    assert counted_work(model) == every


@pytest.mark.sweep
def test_the_memory_of_a_long_loop_is_that_of_its_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("jamba", "causal-lm", sequence_length=320, precision="bf16")
    family = TransformersFamily("jamba")
    build, ways = partial(family.build_with, model), [(False, [False])]
    count = partial(counted_memory, model, build, family.blocks, ways, [False])
    found = []
    for most in (repeated_blocks.MOST_CALLS, 10**6):
        monkeypatch.setattr(repeated_blocks, "MOST_CALLS", most)
        found.append(count())
    assert found[0] == found[1] != ()


@pytest.mark.parametrize("function", [lambda x: 7, lambda x: 3 * x + 2, lambda x: x * x - x])
def test_polynomials_are_continued(function: Any) -> None:
    assert extrapolated([function(x) for x in range(4)], 60) == function(60)


def test_what_is_no_polynomial_is_not_continued() -> None:
    with pytest.raises(NoPolynomial):
        extrapolated([1, 2, 4, 8], 60)


# --- code that reads what it computed -------------------------------------------------------------------


@pytest.mark.parametrize("model_type", READING)
def test_code_that_reads_what_it_computed_counts_as_with_contents(model_type: str) -> None:
    """The contents are those of a new model and a batch of zeros."""
    model = small(model_type, READING[model_type])
    torch.manual_seed(0)
    module: nn.Module = TransformersFamily(model_type).build_with(model, "eager").eval()
    module.requires_grad_(False)  # products of weights with gradients may be computed in other shapes
    counter = ShapeCount().flop_counter()
    batch = {name: torch.zeros_like(part) for name, part in empty_batch(model, 1, torch.float32).items()}
    with torch.no_grad(), counter:
        model.recipe.aim.answer(module, batch)
    expected = _sorted_by_kind(counter.get_flop_counts()["Global"], 0, model)
    assert _OperationCount(model, way(model_type, known=True)).counted().flops == expected


def test_code_that_reads_what_it_computed_is_counted_at_any_size() -> None:
    """Two of the forty layers of DBRX-132B: their weights alone would take 31 GB of memory."""
    feed_forward = {"hidden_size": 6144, "ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4}
    architecture = {
        "model_type": "dbrx", "vocab_size": 100_352, "d_model": 6144, "n_heads": 48, "n_layers": 2,
        "max_seq_len": 32_768, "ffn_config": feed_forward,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 500_000.0},
    }  # fmt: skip
    recipe = {
        "objective": "causal-lm",
        "batch_size": 8,
        "steps": 10,
        "precision": "bf16",
        "sequence_length": 64,
    }
    model = resolve_inline({"name": "dbrx", "architecture": architecture, "recipe": recipe}, "/models/0")
    assert isinstance(model, Model), model
    counts = counted_work(model)
    active = 4 * 3 * 6144 * 10_752 + 6144 * (16 + 2 * 6144 + 2 * 8 * 128)  # of four experts, of attention
    assert counts.flops.matmul == 2 * 64 * (2 * active + 6144 * 100_352)
    assert counts.parts.total > 7 * 10**9


# --- memory ---------------------------------------------------------------------------------------------


def test_blocks_without_attention_are_counted_once_with_kernels_and_without() -> None:
    model = small("qwen3_next", "causal-lm", precision="bf16")
    family, ran = TransformersFamily("qwen3_next"), list[str]()
    ways = [(kernels, [False]) for kernels in (False, True)]

    def blocks(module: nn.Module) -> list[nn.Module]:
        for part in module.modules():
            if type(part).__name__ in ("Qwen3NextGatedDeltaNet", "Qwen3NextAttention"):
                part.register_forward_hook(lambda part, *_: ran.append(type(part).__name__))
        return family.blocks(module)

    count = partial(counted_memory, model, partial(family.build_with, model), blocks, ways, [False])
    apart, shared = (count(kernels_of_attention=shared).footprints for shared in (False, True))
    assert len(apart) == 2 and apart[0] != apart[1]
    assert shared == apart
    # Of each kind, the first block runs forwards, and again before its backward pass.
    assert ran.count("Qwen3NextAttention") == 4 + 4
    assert ran.count("Qwen3NextGatedDeltaNet") == 4 + 2


def test_the_place_of_a_block_makes_no_kind_of_its_own(deep: None) -> None:
    model = small("wavlm", "audio-classification", precision="bf16")
    family = TransformersFamily("wavlm")
    build = partial(family.build_with, model)
    (found,) = counted_memory(model, build, family.blocks, [(False, [False])], [False]).footprints
    assert [block.count for block in found.footprint.blocks][-2:] == [1, LAYERS - 1]


@pytest.mark.parametrize("model_type", ["longformer", "dbrx", "funnel", "flaubert"])
def test_the_memory_of_code_that_reads_what_it_computed_is_what_autograd_keeps(model_type: str) -> None:
    model = small(model_type, (READING | {"funnel": "masked-lm"})[model_type])
    family = TransformersFamily(model_type)
    build = partial(family.build_with, model)
    (found,) = counted_memory(model, build, family.blocks, [(False, [False])]).footprints
    kept = kept_bytes_a_sample(family, build("eager"), model)
    assert found.footprint.kept(checkpointing=False) == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize(
    ("model_type", "reasons"),
    [
        ("flaubert", []),  # reads before its blocks how long the samples are
        ("dbrx", ["its memory is not counted: a block reads what it computed"]),
    ],
)
def test_compiled_blocks_are_counted_unless_they_read_what_they_computed(
    model_type: str, reasons: list[str]
) -> None:
    model, said = small(model_type, READING[model_type]), list[str]()
    family = TransformersFamily(model_type)
    build = partial(family.build_with, model)
    found = counted_memory(model, build, family.blocks, [(False, [True])], tell=said.append)
    assert [one.compiled for one in found.footprints] == [True] * (not reasons)
    assert said == reasons


def test_experts_that_drop_tokens_have_no_counted_memory_and_a_reason() -> None:
    model, said = small("switch_transformers", "sequence-to-sequence"), list[str]()
    sparse = {"num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2}
    model = replace(model, architecture={**model.architecture, **sparse})
    assert counted(model, tell=said.append).footprints == ()
    (reason,) = said
    assert reason.endswith("its experts drop tokens, and how many depends on what they learn")


def test_a_model_that_cannot_compute_with_half_weights_has_a_reason_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.training.models.mixed_precisions.MIXING", frozenset())
    model, said = small("minimax", "causal-lm", precision="bf16"), list[str]()
    counts = counted(model, tell=said.append)
    assert {one.halved for one in counts.footprints} == {False}
    (reason,) = said
    begins = (
        "its memory is not counted with half weights: its code fails where weights are in half precision: "
    )
    assert reason.startswith(f"{begins}RuntimeError: expected scalar")
    assert [one.kernels for one in counts.failing] == [False, True]
    assert counts.why_not(model, ("half-weights",)) == reason.partition(" with half weights: ")[2]


def test_a_model_that_cannot_compute_under_autocast_has_a_reason_for_that() -> None:
    """DeBERTa fills scores in half precision with the least number of its queries, which are in fp32."""
    model, said = small("deberta", "masked-lm", precision="bf16"), list[str]()
    counts = counted(model, tell=said.append)
    assert {one.halved for one in counts.footprints} == {True}
    (reason,) = said
    begins = "its memory is not counted without half weights: its code fails under autocast: -3.4"
    assert reason.startswith(begins)
    assert [(one.kernels, one.halved) for one in counts.failing] == [(False, False)]
    assert counts.why_not(model, ()) == reason.partition(" without half weights: ")[2]
    assert counts.why_not(model, ("half-weights",)) is None


def test_what_bench_cannot_count_is_nothing_that_fails() -> None:
    model = small("switch_transformers", "sequence-to-sequence", precision="bf16")
    sparse = {"num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2}
    counts = counted(replace(model, architecture={**model.architecture, **sparse}))
    assert counts.footprints == counts.failing == ()


def test_a_tower_that_the_model_never_calls_keeps_nothing() -> None:
    """Tokens alone reach no block of the tower for pictures."""
    model = small("git", "causal-lm")
    family = TransformersFamily("git")
    footprint = counted_for(model, ()).footprint(model, ())
    kept = kept_bytes_a_sample(family, family.build(model, kernels=False), model)
    assert footprint is not None
    assert footprint.kept(checkpointing=False) == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize("model_type", ["segformer", "pvt_v2"])
def test_a_deep_stage_of_an_image_model_is_no_loop_over_positions(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_blocks, "MOST_CALLS", 10)
    model = small(model_type, "image-classification")
    family = TransformersFamily(model_type)
    settings = ((), ("kernels", "compile-blocks"))
    counts = counted_for(model, *settings)
    plain, compiled = (counts.footprint(model, setting) for setting in settings)
    kept = kept_bytes_a_sample(family, family.build(model, kernels=False), model)
    assert plain is not None and (compiled is not None) == (model_type == "segformer")
    assert plain.kept(checkpointing=False) == pytest.approx(kept, rel=0.02)


def test_blocks_are_of_one_kind_whose_chances_to_be_skipped_rise() -> None:
    """The first block is never skipped: it computes no random number, and is of another kind."""
    architecture = {
        "model_type": "beit", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 6,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 16, "num_labels": 10, "drop_path_rate": 0.3,
    }  # fmt: skip
    recipe = {"batch_size": 2, "steps": 1, "precision": "fp32", "image_size": 32}
    recipe |= {"objective": "image-classification"}
    model = resolve_inline({"name": "mine", "architecture": architecture, "recipe": recipe}, "/models/0")
    assert isinstance(model, Model)
    family = TransformersFamily("beit")
    first, *others = map(repeated_blocks.described, family.blocks(family.build_with(model, "eager")))
    assert len(others) == 5 and len({*others}) == 1 and first not in others
