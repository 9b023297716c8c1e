"""Operations of a pass by precision: which a recipe has, which may be claimed, and the limit that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.records.estimate import ceiling_of
from bench.records.products import Products, in_other_precisions, shares_of, why_no_products
from bench.records.text import multiplied_text, other_precision_text
from bench.records.trial import Ceiling
from bench.training.models import Flops, Model, Precision, known_models
from bench.training.setting import Setting
from tests.builders import trial

FLOPS = Flops(matmul=600, attention=200, convolution=200)
ALL = (
    Products("products", "bf16", 600, 1200),
    Products("attention", "bf16", 200, 400),
    Products("convolutions", "bf16", 200, 400),
)


def model(precision: Precision = "bf16") -> Model:
    known = known_models()["tiny-gpt-neox"]
    return replace(known, recipe=replace(known.recipe, precision=precision))


def changed(number: int, **changes: Any) -> tuple[Products, ...]:
    return tuple(replace(part, **changes) if at == number else part for at, part in enumerate(ALL))


def test_products_that_add_up_are_possible() -> None:
    assert why_no_products(ALL, FLOPS, model(), ()) is None


@pytest.mark.parametrize(
    ("products", "why"),
    [
        (changed(0, forward=500), "900 operations forwards, and the model is counted to have 1,000"),
        (changed(0, forward=700), "1,100 operations forwards"),
        (changed(0, backward=2000), "2,800 operations backwards, and 1,000 forwards"),
        (changed(0, backward=0), "800 operations backwards"),
        (changed(0, forward=-600), "a kind of its products has no operations"),
        (changed(0, forward=0, backward=0), "a kind of its products has no operations"),
        ((*ALL, ALL[2]), "a kind of its products is listed twice in one precision"),
        (changed(0, precision="fp8"), "it has products in fp8, which its recipe and setting do not use"),
        (changed(1, precision="tf32"), "it has attention in tf32"),
        (
            (
                *changed(0, precision="fp32"),
                Products("scans", "fp32", 10**9, 0),
            ),  # hides the products in fp32
            "its scans have 1,000,000,000 operations, and the model is counted to have 0 forwards",
        ),
    ],
)
def test_products_that_no_pass_has(products: tuple[Products, ...], why: str) -> None:
    assert why in (why_no_products(products, FLOPS, model(), ()) or "")


@pytest.mark.parametrize(
    ("forward", "backward", "possible"),
    [
        (980, 2000, True), (979, 2000, False), (1020, 2000, True), (1021, 2000, False),
        (1000, 900, True), (1000, 899, False), (1000, 2040, True), (1000, 2041, False),
    ],
)  # fmt: skip
def test_a_pass_has_the_counted_operations_within_2_percent_and_at_least_45_percent_backwards(
    forward: int, backward: int, possible: bool
) -> None:
    one = (Products("products", "bf16", forward, backward),)
    assert (why_no_products(one, Flops(matmul=1000), model(), ()) is None) == possible


@pytest.mark.parametrize(("backward", "possible"), [(0, True), (1020, True), (1021, False)])
def test_a_counted_backward_pass_has_no_lower_limit(backward: int, possible: bool) -> None:
    one = (Products("products", "bf16", 1000, backward),)
    assert (why_no_products(one, Flops(matmul=1000, backward=1000), model(), ()) is None) == possible


@pytest.mark.parametrize(("forward", "possible"), [(1170, True), (1171, False)])
def test_half_of_a_scan_may_be_products(forward: int, possible: bool) -> None:
    one = (Products("products", "bf16", forward, 2 * forward),)
    assert (why_no_products(one, Flops(matmul=1000, scan=300), model(), ()) is None) == possible


@pytest.mark.parametrize(("forward", "backward"), [(0, 2), (1, 1), (1, 0)])
def test_a_kind_of_products_may_be_one_operation_of_either_pass(forward: int, backward: int) -> None:
    parts = (Products("products", "bf16", 1000, 1000), Products("attention", "bf16", forward, backward))
    assert why_no_products(parts, Flops(matmul=1000), model(), ()) is None


@pytest.mark.parametrize(("forward", "backward"), [(-1, 3), (3, -1), (0, 0)])
def test_a_kind_of_products_has_no_fewer_operations_than_none(forward: int, backward: int) -> None:
    parts = (Products("products", "bf16", 1000, 1000), Products("attention", "bf16", forward, backward))
    assert "has no operations" in (why_no_products(parts, Flops(matmul=1000), model(), ()) or "")


@pytest.mark.parametrize(
    ("precision", "setting", "possible"),
    [("fp32", ("tf32",), True), ("fp32", (), False), ("bf16", ("tf32",), True), ("bf16", (), False)],
)
def test_products_in_tf32_need_the_method_in_any_recipe(
    precision: Precision, setting: Setting, possible: bool
) -> None:
    """A recipe in half precision has products of fp32 as well, those of a contrastive loss, for instance."""
    one = (Products("products", "tf32", 1000, 2000),)
    assert (why_no_products(one, Flops(matmul=1000), model(precision), setting) is None) == possible


@pytest.mark.parametrize(("few", "told"), [(1, True), (0.99, False)])
def test_one_percent_in_another_precision_is_told_and_less_is_not(few: float, told: bool) -> None:
    parts = (Products("products", "bf16", 9900, 0), Products("attention", "fp32", int(100 * few), 0))
    assert bool(in_other_precisions(parts, model(), ())) == told


def test_a_first_layer_needs_no_gradient_of_its_input() -> None:
    assert why_no_products(changed(0, backward=600), FLOPS, model(), ()) is None


def test_frozen_weights_have_the_backward_pass_that_was_counted() -> None:
    frozen = replace(FLOPS, backward=1000)
    assert "2,000 operations backwards, of 1,000 counted" in (why_no_products(ALL, frozen, model(), ()) or "")
    assert why_no_products(changed(0, backward=200), frozen, model(), ()) is None


def test_a_scan_may_be_computed_by_products_or_by_a_kernel_of_its_own() -> None:
    with_scan = replace(FLOPS, scan=300)
    by_kernel = (*ALL, Products("scans", "fp32", 300, 600))
    for products in (ALL, by_kernel, changed(0, forward=700, backward=1400)):
        assert why_no_products(products, with_scan, model(), ()) is None


@pytest.mark.parametrize(("forward", "possible"), [(1200, True), (1201, False)])
def test_scans_have_the_operations_that_were_counted_or_some_of_them_again(
    forward: int, possible: bool
) -> None:
    scans = Products("scans", "fp32", forward, 600)
    assert (why_no_products((*ALL, scans), replace(FLOPS, scan=300), model(), ()) is None) is possible


@pytest.mark.parametrize(
    ("precision", "setting", "used", "other"),
    [
        ("bf16", (), "bf16", False),
        ("bf16", (), "fp32", True),
        ("fp16", (), "bf16", True),
        ("fp32", (), "fp32", False),
        ("fp32", ("tf32",), "tf32", False),
        ("fp32", ("tf32",), "fp32", False),
        ("fp8", (), "fp8", False),
        ("fp8", (), "bf16", False),
        ("fp8", (), "fp32", True),
    ],
)
def test_a_recipe_has_its_precision_and_those_that_belong_to_it(
    precision: Precision, setting: Setting, used: Any, other: bool
) -> None:
    products = (Products("products", used, 1, 2),)
    assert bool(in_other_precisions(products, model(precision), setting)) is other


def test_less_than_a_percent_in_another_precision_is_not_told() -> None:
    little = (Products("products", "bf16", 1000, 2000), Products("grouped products", "fp32", 10, 19))
    assert other_precision_text(little, model(), ()) is None
    more = (little[0], replace(little[1], backward=30))
    assert other_precision_text(more, model(), ()) == (
        "the recipe is in bf16, and of the operations of a pass are grouped products in fp32 1.3%: "
        '"of limit" compares these with products in bf16'
    )


def test_scans_have_the_precision_of_their_authors() -> None:
    assert in_other_precisions((*ALL, Products("scans", "fp32", 300, 600)), model(), ()) == {}


def test_shares_begin_with_the_largest() -> None:
    assert list(shares_of(ALL).values()) == [0.6, 0.2, 0.2]
    assert (
        multiplied_text(ALL, None) == "products in bf16 60%, attention in bf16 20%, convolutions in bf16 20%"
    )


# --- the limit ------------------------------------------------------------------------------------------


def limit(products: tuple[Products, ...], fp8: float, bf16: float, precision: Precision = "fp8") -> float:
    ceilings = [Ceiling(f"matmul-{name}", 0, "FLOP/s", 1, (1 / rate,)) for name, rate in
                (("fp8", fp8), ("bf16", bf16))]  # fmt: skip
    found = ceiling_of(trial(model=model(precision)), ceilings, products)
    assert found is not None
    return found


HALF_IN_FP8 = (Products("products", "fp8", 100, 100), Products("products", "bf16", 0, 200))


def test_each_part_of_a_recipe_in_fp8_is_held_against_the_rate_of_its_own_precision() -> None:
    assert limit(HALF_IN_FP8, fp8=200.0, bf16=100.0) == pytest.approx(400 / (200 / 200 + 200 / 100))


def test_without_its_products_a_recipe_in_fp8_is_held_against_the_best_rate() -> None:
    assert limit((), fp8=200.0, bf16=100.0) == pytest.approx(200.0)


def test_on_a_cpu_products_in_fp8_have_the_rate_of_bf16_which_is_higher() -> None:
    assert limit(HALF_IN_FP8, fp8=10.0, bf16=100.0) == pytest.approx(100.0)


def test_parts_in_a_precision_without_a_measured_rate_have_the_best_rate() -> None:
    assert limit((Products("products", "fp32", 1, 2),), 200.0, 100.0) == pytest.approx(200.0)
    assert limit((Products("products", "fp32", 1, 2),), 200.0, 100.0, "bf16") == pytest.approx(100.0)
