"""Recipes in fp8: the products of the blocks' linear layers multiply in e4m3, everything else is as in bf16.

The CPU computes the same numbers as a GPU's units for fp8, so that this is the arithmetic of the recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.base.errors import BadInput
from bench.planning.plan import guided_settings
from bench.records.estimate import ceiling_of, ceiling_precisions
from bench.records.gradients import MOST_OF_A_PARAMETER, MOST_OF_WHOLE, GradientCheck
from bench.records.trial import Ceiling, Timing
from bench.runner.trial.device import Device
from bench.runner.trial.floor import measure_floor
from bench.runner.trial.gradients import check_gradients
from bench.runner.trial.recorded_computations import recorded
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import free_lunch, ordered, refusal
from bench.training.methods.method import Target
from bench.training.models import Model, Precision, families, family_of, fp8, known_models
from bench.training.models.biased_gelu import gelu_by_pytorch, gelu_layers_of, take_over
from bench.training.models.dry_build import dry_build
from bench.training.models.fp8 import (
    LARGEST,
    fp8_layers,
    linear_in_fp8,
    multiplies_in_fp8,
    multiply_blocks_in_fp8,
    rows_in_fp8,
)
from bench.training.setting import Setting
from tests.builders import trial
from tests.training.models.test_generic import SMALL, TEXT, resolved

CAUSAL = TEXT | {"objective": "causal-lm"}
WIDE = SMALL | {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 2}
TINY = {m.family: m for name, m in known_models().items() if name.startswith("tiny-")}
NARROW = SMALL | {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2}
RELATIVE_ERROR = 2**-4  # of a number of e4m3, which has three bits of mantissa
pytestmark = pytest.mark.usefixtures("compiled_here")


def in_precision(model: Model, precision: Precision) -> Model:
    return replace(model, recipe=replace(model.recipe, precision=precision))


def llama(precision: Precision = "fp8") -> Model:
    return resolved("llama", WIDE, CAUSAL | {"precision": precision})


def run_of(model: Model, setting: Setting, folder: Path) -> TrialRun:
    model = replace(model, recipe=replace(model.recipe, batch_size=8))
    one = trial(model=model, setting=ordered(setting), micro_batch=4, timing=Timing(loss_steps=3), seed=3)
    run = TrialRun(one, Device("cpu"), Team(), folder, lambda _: None)
    run.prepare()
    return run


def losses_of(model: Model, setting: Setting, folder: Path) -> Tensor:
    losses, _, _ = run_of(model, setting, folder).loss_curve()
    return torch.tensor(losses)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


# The product


def with_gradients(product: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = product(*leaves)
    torch.manual_seed(2)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.randn(out.shape).to(out.dtype))]


def inputs(rows: int = 96) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, rows // 3, 64), 0.1 * torch.randn(48, 64), torch.randn(48)]


def test_output_and_gradients_are_within_the_error_of_fp8() -> None:
    found, expected = with_gradients(linear_in_fp8, *inputs()), with_gradients(F.linear, *inputs())
    out, of_entry, of_weight, of_bias = map(relative, found, expected)
    assert RELATIVE_ERROR / 10 < out < RELATIVE_ERROR, "less than a tenth would be no fp8"
    assert RELATIVE_ERROR / 10 < of_entry < RELATIVE_ERROR
    assert of_weight < 2**-7, "the gradient of the weight multiplies in bf16"
    assert of_bias < 2**-7
    assert found[0].dtype == torch.bfloat16


def test_a_weight_that_is_not_trained_gets_no_gradient() -> None:
    entry, weight, _ = inputs()
    entry.requires_grad_()
    linear_in_fp8(entry, weight).float().sum().backward()
    assert entry.grad is not None and weight.grad is None


def test_each_sample_is_computed_as_if_it_were_alone() -> None:
    """The micro-batch would otherwise change the results."""
    entry, weight, bias = inputs()
    entry[1] *= 1000
    together = linear_in_fp8(entry, weight, bias)
    for sample, expected in zip(entry, together, strict=True):
        torch.testing.assert_close(linear_in_fp8(sample, weight, bias), expected, rtol=0, atol=0)


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 447.0, 449.0, 1e20])
def test_rows_of_any_size_are_cast_with_the_same_relative_error(size: float) -> None:
    matrix = size * (torch.rand(8, 32) + 0.1)
    cast, scales = rows_in_fp8(matrix)
    assert (matrix - cast.float() * scales).abs().div(matrix).max() <= RELATIVE_ERROR
    assert LARGEST / 2 < cast.float().amax() <= LARGEST
    assert torch.equal(torch.frexp(scales).mantissa, torch.full_like(scales, 0.5)), "powers of two"


def test_rows_of_zeros_stay_zeros_and_numbers_that_are_not_finite_are_not_hidden() -> None:
    matrix = torch.ones(3, 32)
    matrix[0], matrix[1, 3], matrix[2, 3] = 0, torch.nan, torch.inf
    out = linear_in_fp8(matrix, torch.ones(16, 32))
    assert out[0].eq(0).all()
    assert out[1:].isnan().all()


def test_a_single_row_may_have_no_other_dimension() -> None:
    entry, weight, bias = inputs()
    row = entry[0, 0]
    torch.testing.assert_close(linear_in_fp8(row, weight, bias), linear_in_fp8(entry, weight, bias)[0, 0])


def test_no_rows_give_no_rows() -> None:
    """An expert without tokens, for instance."""
    out, of_entry, of_weight, _ = with_gradients(linear_in_fp8, *inputs(rows=0))
    assert out.shape == (3, 0, 48) and of_entry.shape == (3, 0, 64) and of_weight.eq(0).all()


def test_a_compiled_product_computes_the_same() -> None:
    expected = with_gradients(linear_in_fp8, *inputs())
    found = with_gradients(torch.compile(linear_in_fp8, dynamic=False), *inputs())
    for one, other in zip(found, expected, strict=True):
        # The compiler leaves out a cast to bf16 before the one to fp8, which changes some of the last digits.
        assert relative(one, other.float()) < RELATIVE_ERROR / 2


# Which layers


def test_plain_layers_of_the_blocks_with_sizes_that_fit_multiply_in_fp8(tmp_path: Path) -> None:
    whole = run_of(llama(), (), tmp_path).strategy.whole
    found = {name for name, part in whole.named_modules() if multiplies_in_fp8(part)}
    linear = {name for name, part in whole.named_modules() if type(part) is nn.Linear}
    assert linear - found == {"model.lm_head"}
    assert len(found) == 2 * 7


class _Subclass(nn.Linear):
    pass


def test_other_layers_stay_in_bf16() -> None:
    block = nn.ModuleList([nn.Linear(32, 16), nn.Linear(32, 24), nn.Linear(30, 16), _Subclass(32, 16)])
    model = nn.ModuleList([block, nn.Linear(32, 16)])
    assert fp8_layers(model, [block, block]) == [block[0]]
    assert fp8_layers(model, [model]) == [], "without repeated blocks the model would be its own block"


def test_a_model_without_such_layers_is_refused(tmp_path: Path) -> None:
    narrow = resolved("llama", NARROW, CAUSAL | {"precision": "fp8"})
    with pytest.raises(BadInput, match="no linear layer of its blocks has sizes that are multiples of 16"):
        run_of(narrow, (), tmp_path)


@pytest.mark.parametrize(
    ("capability", "refused"), [("8.0", True), ("8.6", True), ("8.9", False), ("9.0", False), ("10.0", False)]
)
def test_gpus_without_units_for_fp8_are_refused_when_planned(capability: str, refused: bool) -> None:
    target = Target("cuda", 1, 80 << 30, "a GPU", capability)
    reason = f"trains in fp8, which needs compute capability 8.9, this GPU has {capability}"
    for setting in ((), ("half-weights",)):
        assert refusal(setting, llama(), target) == (reason if refused else None)


def test_planning_counts_layers_that_stay_in_bf16_and_refuses_a_model_of_no_others(
    without_footprints: None,
) -> None:
    mixed = resolved("llama", WIDE | {"intermediate_size": 88}, CAUSAL | {"precision": "fp8"})
    built = dry_build(mixed, "/models/0")
    assert not built.mistakes and built.counted is not None
    assert built.remarks == (
        "/models/0/recipe/precision: 6 of the 14 linear layers of its blocks have sizes that are no "
        "multiples of 16, and multiply in bf16",
    )
    assert dry_build(llama(), "/models/0").remarks == ()
    assert dry_build(in_precision(mixed, "bf16"), "/models/0").remarks == ()
    narrow = resolved("llama", NARROW, CAUSAL | {"precision": "fp8"})
    (mistake,) = dry_build(narrow, "/models/0").mistakes
    assert mistake.path == "/models/0/recipe/precision"
    assert "no linear layer of its blocks" in mistake.found


def test_memory_is_predicted_as_in_bf16() -> None:
    eight, bf16 = (dry_build(llama(precision), "/models/0").counted for precision in ("fp8", "bf16"))
    assert eight is not None and eight == bf16
    for setting in ((), ("half-weights",)):
        assert eight.footprint(llama(), setting) == eight.footprint(llama("bf16"), setting) is not None


def test_kernels_that_multiply_by_weights_themselves_are_refused() -> None:
    target = Target("cuda", 1, 80 << 30, "a GPU", "9.0", elsewhere=True)
    mamba = known_models()["mamba-2.8b"]
    reason = "the kernels of mamba multiply by weights themselves, in bf16, and the recipe is fp8"
    assert refusal(("kernels",), in_precision(mamba, "fp8"), target) == reason
    assert refusal(("kernels",), mamba, target) is None
    assert "kernels" not in free_lunch(in_precision(mamba, "fp8"), target)


def test_the_guided_search_tries_the_settings_of_bf16() -> None:
    target = Target("cuda", 2, 80 << 30, "a GPU", "9.0", elsewhere=True)
    pythia = known_models()["pythia-1b"]
    assert [*guided_settings(in_precision(pythia, "fp8"), target)] == [*guided_settings(pythia, target)]


def test_a_worker_refuses_a_gpu_without_units_for_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for a machine whose GPUs are unknown cannot refuse it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with pytest.raises(BadInput, match=r"fp8 needs compute capability 8\.9, this GPU has 8\.6"):
        fp8._require_units(torch.device("cuda", 0), "a-model")
    fp8._require_units(torch.device("cpu"), "a-model")


# Training


def test_a_llama_learns_as_in_bf16(tmp_path: Path) -> None:
    found = []
    for precision in ("fp8", "bf16"):
        run = run_of(llama(precision), ("half-weights",), tmp_path)
        batch, losses = next(run.batches), []
        for _ in range(40):
            losses.append(float(run.strategy.forward_backward(batch, 1, sync=True)))
            run.strategy.update()
        found.append(torch.tensor(losses))
    eight, bf16 = found
    assert eight[-1] < 0.95 * eight[0]
    torch.testing.assert_close(eight, bf16, rtol=2e-2, atol=0)
    assert not torch.equal(eight, bf16), "the products are the same: nothing multiplied in fp8"


@pytest.mark.parametrize("family", list(families()))
def test_every_family_trains_as_in_bf16(family: str, tmp_path: Path) -> None:
    eight, bf16 = (
        losses_of(in_precision(TINY[family], precision), (), tmp_path) for precision in ("fp8", "bf16")
    )
    torch.testing.assert_close(eight, bf16, rtol=1e-2, atol=0)


def test_a_layer_that_computes_gelu_multiplies_in_fp8() -> None:
    """On a GPU, the method gelu lets layers compute it by a kernel of this project."""
    model = in_precision(TINY["roberta"], "fp8")
    found = []
    for taken in (False, True):
        torch.manual_seed(0)
        module = family_of(model).build(model, kernels=False).eval()
        layers = gelu_layers_of(module, model)
        if taken:
            take_over(layers, gelu_by_pytorch)
        blocks = family_of(model).blocks(module)
        multiply_blocks_in_fp8(module, blocks, model.name)
        assert all(map(multiplies_in_fp8, layers.layers))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(module(input_ids=torch.arange(32).view(2, 16)).logits.float())
    assert relative(found[1], found[0]) < 1e-2
    assert len(layers.layers) == len(blocks)


SETTINGS: list[Setting] = [
    ("checkpointing",),
    ("kernels",),
    ("half-weights",),
    ("half-weights", "checkpointing"),
    ("kernels", "half-weights", "joined-products", "fused-optimizer"),
    ("compile-blocks",),
    ("kernels", "compile-blocks", "half-weights", "joined-products", "chunked-loss"),
]


@pytest.fixture(scope="module")
def naive_losses(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    return losses_of(llama(), (), tmp_path_factory.mktemp("naive"))


@pytest.mark.parametrize("setting", SETTINGS, ids="+".join)
def test_every_setting_computes_what_naive_computes(
    setting: Setting, naive_losses: Tensor, tmp_path: Path, without_inductor: None
) -> None:
    torch.testing.assert_close(losses_of(llama(), setting, tmp_path), naive_losses, rtol=2e-3, atol=0)


def checked(model: Model, setting: Setting, folder: Path) -> GradientCheck:
    model = replace(model, recipe=replace(model.recipe, batch_size=8))
    one = trial(model=model, setting=ordered(setting), micro_batch=4, seed=3)
    return check_gradients(one, Device("cpu"), folder, lambda _: None)


@pytest.mark.parametrize("setting", SETTINGS, ids="+".join)
def test_gradients_are_those_of_the_recipe(setting: Setting, tmp_path: Path, without_inductor: None) -> None:
    agree(checked(llama(), setting, tmp_path))


@pytest.mark.sweep
def test_gradients_that_inductor_compiles_are_those_of_the_recipe(tmp_path: Path) -> None:
    """The setting with the most methods; its kernels take a C++ compiler most of a minute."""
    torch._dynamo.reset()
    agree(checked(llama(), SETTINGS[-1], tmp_path))


def agree(check: GradientCheck) -> None:
    assert check.agrees
    assert check.whole_difference is not None and check.whole_difference < MOST_OF_WHOLE / 2
    assert check.worst_difference is not None and check.worst_difference < MOST_OF_A_PARAMETER / 2


# The floor


def test_the_floor_has_products_in_fp8_and_in_bf16() -> None:
    """Of a block's products, two of three multiply in fp8; those of the head multiply in bf16."""
    for setting in ((), ("half-weights",)):
        recording = recorded(llama(), setting, 2)
        names: dict[str, int] = {}
        for key, each in recording.computations.items():
            if each.kind != "products":
                continue
            name = each.function.overloadpacket.__name__  # type: ignore[attr-defined]
            names[name] = names.get(name, 0) + recording.counts[key]
        layers, head = 2 * 7, 3
        assert names.pop("_scaled_mm") == 2 * layers
        assert names["mm"] == layers + head


def test_a_floor_in_fp8_can_be_timed(tmp_path: Path) -> None:
    one = trial(model=llama(), setting=("half-weights",), micro_batch=2, seed=3)
    one = replace(one, timing=Timing(warmup_seconds=0.1, measure_seconds=0.1))
    assert measure_floor(one, Device("cpu"), lambda _: None).products_seconds > 0


def test_ceilings_in_fp8_are_measured_beside_those_in_bf16() -> None:
    assert ceiling_precisions(llama(), ("half-weights",)) == ("fp8", "bf16")
    rates = [
        Ceiling(f"matmul-{name}", 0, "FLOP/s", 8, (1 / rate,)) for name, rate in (("fp8", 4), ("bf16", 2))
    ]
    one = trial(model=llama())
    assert ceiling_of(one, rates) == pytest.approx(8 * 4)
    assert ceiling_of(one, rates[1:]) == pytest.approx(8 * 2)
    assert ceiling_of(one, []) is None
    assert ceiling_of(trial(model=llama("bf16")), rates) == pytest.approx(8 * 2)
