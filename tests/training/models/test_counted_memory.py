"""Memory that is counted for any architecture agrees with formulas, with autograd, and with measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from bench.planning.manifest import parse_manifest
from bench.planning.memory_prediction import predict_bytes
from bench.planning.plan import make_plan
from bench.training.methods import Target
from bench.training.models import Counted, Model, Precision, counts_of, families, family_of, known_models
from bench.training.models.biased_gelu import BiasedGelu, GeluLayers, gelu_layers_of, take_over
from bench.training.models.counted_memory import counted_memory
from bench.training.models.counted_operations import counted
from bench.training.models.footprint import Footprint, calls_of
from bench.training.models.generic import TransformersFamily
from bench.training.models.own_module import FAMILY
from bench.training.setting import Setting
from bench.training.vendor.transformers_source import types
from tests.training.models.keeping import counted_for, halved, kept_bytes_a_sample, made_up_batch
from tests.training.models.test_attention import CAUSAL, DECODER, EXPERTS, FULL, IMAGES, WINDOW, model_of
from tests.training.models.test_contract import without_dropout
from tests.training.models.test_generic import TEXT, resolved


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every way of computing, also on a machine whose other work makes this take minutes."""
    monkeypatch.setattr("bench.training.models.counted_memory.MOST_SECONDS", 600)


LLAMA = {
    "model_type": "llama",
    "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
}  # fmt: skip


def as_any(model: Model) -> Model:
    """The model with all fields of its family, as transformers builds it without the family's file."""
    return replace(model, architecture=families()[model.family].complete(model))


def footprint_bytes(counts: Counted, model: Model, setting: Setting) -> int:
    footprint = counts.footprint(model, setting)
    assert footprint is not None, setting
    return footprint.kept(checkpointing="checkpointing" in setting)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("pythia-160m", "bf16"),
        ("roberta-large", "fp32"),
        *(
            pytest.param(name, precision, marks=pytest.mark.sweep)
            for name, precision in (("pythia-160m", "fp32"), ("roberta-large", "bf16"), ("vit-l", "bf16"))
        ),
    ],
)
def test_counts_agree_with_the_formulas_of_known_families(name: str, precision: Precision) -> None:
    model = as_any(without_dropout(known_models()[name]))
    model = replace(model, recipe=replace(model.recipe, precision=precision))
    family, settings = (
        families()[model.family],
        ((), ("checkpointing",), ("kernels",), ("kernels", "checkpointing")),
    )
    counts = counted_for(model, *settings)
    for setting in settings:
        found = footprint_bytes(counts, model, setting) / family.kept_bytes(model, setting)
        assert found == pytest.approx(1, abs=0.05), setting


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["convnext-xl", "vit-l"])
def test_counts_of_image_models_in_bf16_agree_with_formulas(name: str) -> None:
    """Checkpointing is left out: without its family's file, a block of ConvNeXt is a stage."""
    model = as_any(without_dropout(known_models()[name]))
    model = replace(model, recipe=replace(model.recipe, precision="bf16"))
    family = families()[model.family]
    kernels = ("kernels",) if family.kernels else ()
    more = ((), ("half-weights",), ("compile-blocks",), ("half-weights", "compile-blocks"))
    settings = [(*kernels, *each) for each in more]
    counts = counted_for(model, *settings)
    for setting in settings:
        found = footprint_bytes(counts, model, setting) / family.kept_bytes(model, setting)
        assert found == pytest.approx(1, abs=0.07), setting


def test_an_image_model_that_convolves_first_is_counted_with_half_weights() -> None:
    """The model's pixels have the precision of its weights; the convolution takes no others."""
    stages = {"num_labels": 10, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
    model = model_of("convnextv2", "image-classification", stages)
    model = replace(model, recipe=replace(model.recipe, precision="bf16"))
    module = halved(family_of(model).build(model, kernels=False), model)
    kept = kept_bytes_a_sample(family_of(model), module, model)
    assert footprint_bytes(counted_for(model, ("half-weights",)), model, ("half-weights",)) == pytest.approx(
        kept, rel=0.02
    )


EVERYDAY = ("llama", "albert", "dinov2")
EAGER = [
    *(model_of(name, "causal-lm", CAUSAL[name]) for name in ("llama", "gpt2", "olmo2", "qwen3")),
    *(model_of(name, "masked-lm", FULL[name]) for name in ("bert", "albert", "distilbert")),
    model_of("dinov2", "image-classification", IMAGES["dinov2"]),
]


@pytest.mark.parametrize(
    "model",
    [m if m.family in EVERYDAY else pytest.param(m, marks=pytest.mark.sweep) for m in EAGER],
    ids=lambda model: model.family,
)
def test_counts_agree_with_what_autograd_keeps(model: Model) -> None:
    """Eager attention on real tensors, block by block, against tensors without contents."""
    family = TransformersFamily(model.family)
    kept = kept_bytes_a_sample(family, family.build(model, kernels=False), model)
    assert footprint_bytes(counted_for(model, ()), model, ()) == pytest.approx(kept, rel=0.02)


FALCON = DECODER | {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2}
CALLING = {  # architectures whose code calls PyTorch's attention, and takes none by a registered name
    "grouped heads": FALCON,
    "biased scores": FALCON | {"alibi": True},
    "one head of keys": FALCON | {"new_decoder_architecture": False, "multi_query": True},
}


@pytest.mark.parametrize("form", CALLING)
def test_kernels_of_code_that_calls_fused_attention_itself_are_counted(form: str) -> None:
    model = model_of("falcon", "causal-lm", CALLING[form])
    model = replace(model, recipe=replace(model.recipe, precision="bf16"))
    family = TransformersFamily(model.family)
    kept = kept_bytes_a_sample(family, family.build(model, kernels=True), model)
    counts = counted_for(model, (), ("kernels",), ("kernels", "compile-blocks"))
    assert footprint_bytes(counts, model, ("kernels",)) == pytest.approx(kept, rel=0.02)
    without = footprint_bytes(counts, model, ())
    assert (footprint_bytes(counts, model, ("kernels",)) < without) == (form != "one head of keys")
    assert counts.footprint(model, ("kernels", "compile-blocks"))


def test_every_way_that_a_type_can_be_computed_is_counted() -> None:
    """A type that takes kernels is counted with them, compiled and not."""
    for family in map(TransformersFamily, types() - families().keys()):
        takes_kernels = family.missing_kernels("cuda", lambda _: True) is None
        assert (takes_kernels, (False, True)) in family.counted_ways(), family.name


DROPPING = """
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, dropout, values):
        super().__init__()
        self.dropout = dropout
        self.read = nn.Linear(64, 128 + values)
        self.write = nn.Linear(values, 64)

    def forward(self, x):
        query, key, value = self.read(x).unsqueeze(1).split([64, 64, self.write.in_features], -1)
        found = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=True)
        return x + self.write(found.squeeze(1))


class Body(nn.Module):
    def __init__(self, vocab_size, dropout=0.0, values=64):
        super().__init__()
        self.words = nn.Embedding(vocab_size, 64)
        self.layers = nn.ModuleList(Layer(dropout, values) for _ in range(2))
        self.head = nn.Linear(64, vocab_size)

    def forward(self, input_ids):
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""


def test_attention_that_only_gpus_fuse_is_counted_as_on_a_gpu() -> None:
    """PyTorch's attention on a CPU keeps every score with dropout, or if values are wider than keys."""

    length = 256

    def kept(**config: float) -> int:
        architecture = {
            "module": "body.py:Body",
            "code": DROPPING.split("\n"),
            "config": {"vocab_size": 100, **config},
        }
        recipe = TEXT | {"objective": "causal-lm", "sequence_length": length}
        model = resolved("body", architecture, recipe)
        return footprint_bytes(counted_for(model, (), family=FAMILY), model, ())

    plain, of_scores = kept(), 4 * length * length
    assert kept(dropout=0.5) == plain
    assert 0 < kept(values=72) - plain < of_scores


SQUARES = {
    "num_labels": 10, "image_size": 64, "patch_size": 16, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "use_relative_position_bias": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ["beit", "data2vec-vision"])
def test_blocks_that_are_told_the_size_of_pictures_are_counted(name: str) -> None:
    """A size among a block's arguments is no tensor; each type of data2vec attends by its own code."""
    model = model_of(name, "image-classification", SQUARES)
    model = replace(model, recipe=replace(model.recipe, precision="bf16"))
    family, counts = (
        TransformersFamily(name),
        counted_for(model, (), ("kernels",), ("kernels", "compile-blocks")),
    )
    kept = kept_bytes_a_sample(family, family.build(model, kernels=False), model)
    assert footprint_bytes(counts, model, ()) == pytest.approx(kept, rel=0.02)
    assert footprint_bytes(counts, model, ("kernels",)) < kept  # its scores have a bias, which a GPU fuses
    assert counts.footprint(model, ("kernels", "compile-blocks"))  # a table of positions is made once a model
    batch = made_up_batch(model, 2)
    assert family.build(model, kernels=True)(pixel_values=batch["pixel_values"]).logits.shape == (2, 10)


STAGES = {
    "num_labels": 10, "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 3],
    "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip


def test_blocks_of_several_kinds_are_counted_in_their_order() -> None:
    """Every second block of Swin moves its windows, and a layer between two stages makes pictures smaller."""
    model = model_of("swin", "image-classification", STAGES)
    footprint = counted_for(model, ()).footprint(model, ())
    assert footprint
    calls = calls_of(footprint.order)
    assert [call.kind for call in calls] == [0, 1, 2, 3, 2]
    first, second, third, *rest = (call.ends_before for call in calls)
    assert first == second == footprint.before < third
    assert rest == [third, third] and third < footprint.ends
    llama = model_of("llama", "causal-lm", DECODER)
    alike = counted_for(llama, ()).footprint(llama, ())
    assert alike and alike.order == ""


@pytest.mark.parametrize("window", [None, WINDOW])
def test_fused_attention_keeps_the_mask_of_a_window_in_every_layer(window: int | None) -> None:
    model = model_of("mistral", "causal-lm", DECODER | {"num_key_value_heads": 4, "sliding_window": window})
    family = TransformersFamily(model.family)
    kept = kept_bytes_a_sample(family, family.build(model, kernels=True), model)
    assert footprint_bytes(counted_for(model, ("kernels",)), model, ("kernels",)) == pytest.approx(
        kept, rel=0.02
    )


def test_in_half_precision_a_window_keeps_no_mask() -> None:
    """FlashAttention takes it as two numbers."""
    sizes = []
    for window in (None, WINDOW):
        model = model_of("mistral", "causal-lm", DECODER | {"sliding_window": window})
        model = replace(model, recipe=replace(model.recipe, precision="bf16"))
        sizes.append(footprint_bytes(counted_for(model, ("kernels",)), model, ("kernels",)))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_gelu_and_its_bias_in_one_operation_keep_what_pytorch_keeps(name: str) -> None:
    """`Counted.footprint` assumes this. The operation stands for the kernels, which need a GPU."""
    model = model_of(name, "masked-lm", FULL[name])
    model = replace(model, recipe=replace(model.recipe, precision="bf16"))
    family = TransformersFamily(name)
    real = family.build(model, kernels=False)
    names = {part: path for path, part in real.named_modules()}
    found = gelu_layers_of(real, model)

    def build(gelu: bool, attention: str) -> torch.nn.Module:
        module = TransformersFamily(model.family).build_with(model, attention)
        if gelu:
            layers, activations = (
                tuple(module.get_submodule(names[part]) for part in parts)
                for parts in (found.layers, found.activations)
            )
            take_over(GeluLayers(layers, activations), kept_gelu())  # type: ignore[arg-type]
        return module

    plain, ours = (
        [
            replace(each, footprint=without_positions(each.footprint))
            for each in counted_memory(
                model, partial(build, gelu), family.blocks, family.counted_ways()
            ).footprints
        ]
        for gelu in (False, True)
    )
    assert len(plain) == 6 and ours == plain


def without_positions(footprint: Footprint) -> Footprint:
    """Leave the sizes of a block's tensors: their positions depend on how many operations a graph has."""

    def sizes(tensors: str) -> str:
        return " ".join(sorted(tensor.split("@")[0] for tensor in tensors.split()[1:]))

    blocks = tuple(replace(block, tensors=sizes(block.tensors)) for block in footprint.blocks)
    return replace(footprint, blocks=blocks)


@cache
def kept_gelu() -> BiasedGelu:
    """Return an operation that computes nothing, and keeps what bench/training/triton/gelu.py keeps."""
    operation = partial(torch.library.custom_op, mutates_args=())
    gradients = "(Tensor gradient, Tensor product, Tensor bias) -> (Tensor, Tensor)"
    forward = operation("bench_tests::gelu", schema="(Tensor product, Tensor bias) -> Tensor")(output_of)
    backward = operation("bench_tests::gelu_gradient", schema=gradients)(gradients_of)
    forward.register_fake(output_of)
    backward.register_fake(gradients_of)
    forward.register_autograd(
        lambda ctx, gradient: backward(gradient, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return forward


def output_of(product: Tensor, _bias: Tensor) -> Tensor:
    return torch.empty_like(product)


def gradients_of(_gradient: Tensor, product: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(product), torch.empty_like(bias)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_mixtures_of_experts_are_counted_in_half_precision(precision: Precision) -> None:
    """In fp32 their experts run in a loop over data, which tensors without contents lack."""
    model = model_of("olmoe", "causal-lm", DECODER | EXPERTS)
    model = replace(model, recipe=replace(model.recipe, precision=precision))
    counts = counted(model)
    for setting in ((), ("kernels",), ("kernels", "compile"), ("kernels", "half-weights")):
        assert (predict_bytes(model, setting, 1, 1, counts) is not None) == (precision != "fp32"), setting


def test_a_trial_counts_operations_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.training.models.counted_memory.counted_memory", None)  # takes seconds
    assert counts_of(model_of("llama", "causal-lm", DECODER)).flops.total > 0


def test_the_plan_of_a_new_architecture_begins_with_a_micro_batch_that_fits() -> None:
    recipe = {"batch_size": 256, "steps": 10, "precision": "bf16", "sequence_length": 4096}
    entry = {"name": "mine", "architecture": LLAMA, "recipe": recipe | {"objective": "causal-lm"}}
    document = {"schema": "bench/manifest/v1", "models": [entry], "methods": ["free-lunch"]}
    manifest = parse_manifest(json.dumps(document).encode(), "m.json")
    target = Target("cuda", 1, 80 * 2**30, "NVIDIA H100 80GB HBM3", "9.0", elsewhere=True)
    (cell,) = make_plan(manifest, target, {"mine": counted(manifest.models[0])}).cells
    assert cell.trials[0].micro_batch < 256
    assert all(need is not None and need < target.memory_bytes for need in cell.needs.values())
