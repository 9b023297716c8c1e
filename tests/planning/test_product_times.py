"""Products take what their operations, their bytes and the number of products take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from bench.base.gpu_catalogue import gpu_named
from bench.bundle.verdict import RunContents
from bench.bundle.verify import Verdict
from bench.planning.prediction.card_rates import rates_of
from bench.planning.prediction.product_times import PRODUCT_SECONDS, fixed_seconds, slowed_by_memory
from bench.planning.prediction.step_time import computed_products, product_seconds, shipped_fit, work_of
from bench.report.read_bundles import check_all
from bench.training.models import counts_by_formula, family_of, known_models
from bench.training.models.counted_operations import counted_work
from bench.training.models.generic import TransformersFamily
from bench.training.models.model import ProductShape
from bench.training.models.shipped_counts import shipped_counts
from bench.training.setting import Setting

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
TIMED = ROOT / "docs" / "evidence" / "operations-h200" / "operations.txt"
OPERATIONS, BYTES = 1e12, 1e9  # a second: a thousand operations take as long as a byte
LUNCH: Setting = ("tf32", "kernels", "fused-optimizer", "compile-blocks")
# Floors of half-precision recipes, one for each model and card. Models with an odd number of words are left
# out, because older floors multiplied their heads without aligned rows.
FLOORS = (
    "frontier-h100/cuda-graphs",
    "frontier-h200/llama-1.2b-guided",
    "frontier-h200/modernbert-base",
    "proof-h200/qwen3-1.7b",
    "proof-h200/t5-v1.1-xl",
    "settings-h200/pythia-160m-1gpu-again-64",
    "side-by-side-h200/convnext-large-depthwise",
)
ODD_HEADS = {"bert-large"}


def slower(shape: ProductShape, samples: int = 1) -> float:
    return slowed_by_memory((shape,), samples, 2, OPERATIONS, BYTES)


def test_large_products_take_the_time_of_their_operations() -> None:
    assert slower(ProductShape(inner=8192, columns=8192, rows=8192, number=1)) == 1
    assert slowed_by_memory((), 1, 2, OPERATIONS, BYTES) == 1


def test_products_with_a_small_side_take_the_time_of_their_bytes() -> None:
    """Per row, 2 x 96 x 192 operations, and 2 x (96 + 192) bytes of half precision, in all three products."""
    found = slower(ProductShape(inner=96, columns=192, rows=10**9, number=1))
    assert found == pytest.approx(1000 * 2 * (96 + 192) / (2 * 96 * 192), rel=1e-3)


def test_products_of_few_samples_are_limited_by_reading_their_weights() -> None:
    shape = ProductShape(inner=4096, columns=4096, rows=10 * 64, number=10)
    assert slower(shape) > slower(shape, 8) > slower(shape, 256) == 1


def test_each_product_takes_a_fixed_time_three_times() -> None:
    shapes = (ProductShape(8, 8, 64, 5), ProductShape(8, 16, 64, 2))
    assert fixed_seconds(shapes) == pytest.approx(3 * 7 * PRODUCT_SECONDS)


def test_a_step_has_the_fixed_time_once_a_pass_and_again_with_checkpointing() -> None:
    model, m = known_models()["pythia-160m"], shipped_fit().multipliers
    gpu, counts = gpu_named("NVIDIA H200"), counts_by_formula(model)
    assert gpu is not None and counts is not None

    def fixed(*more: str) -> float:
        work = work_of(model, (*LUNCH, *more), 1, counts)
        assert work is not None
        return product_seconds(work, 0, rates_of(gpu), "fp16", m)

    assert fixed() == pytest.approx(fixed_seconds(counts.shapes.products))
    assert fixed("checkpointing") == pytest.approx(4 / 3 * fixed())
    none = replace(counts, shapes=replace(counts.shapes, products=()))
    plain = work_of(model, LUNCH, 1, none)
    assert plain is not None and product_seconds(plain, 0, rates_of(gpu), "fp16", m) == 0


def test_a_masked_head_has_rows_of_hidden_positions_only() -> None:
    model = known_models()["roberta-large"]
    counts = counts_by_formula(model)
    assert counts is not None
    words = model.architecture.get("vocab_size", 50_265)

    def rows(*more: str) -> int:
        work = work_of(model, (*LUNCH, *more), 1, counts)
        assert work is not None
        return next(shape.rows for shape in work.product_shapes if shape.columns == words)

    assert (rows(), rows("masked-head")) == (512, 77)


@cache
def floors() -> tuple[tuple[float, float, float], ...]:
    """Return the seconds of products of each floor, those by operations or bytes, and how many there are."""
    return tuple(_floors())


def _floors() -> Iterator[tuple[float, float, float]]:
    for name in FLOORS:
        ((_, verdict),) = check_all([RESULTS / f"{name}.tar"], None)
        assert isinstance(verdict, Verdict) and isinstance(verdict.contents, RunContents)
        results = verdict.contents.results
        gpu = gpu_named(results.node.gpus[0].name)
        assert gpu is not None
        rates = rates_of(gpu)
        for trial in results.trials:
            model = next(one for one in results.models if one.name == trial.model)
            if trial.floor is None or model.name in ODD_HEADS:
                continue
            family = family_of(model)
            generic = family if isinstance(family, TransformersFamily) else None
            counts = counts_by_formula(model) or counted_work(model, generic)
            rate = rates.products(model.recipe.precision)
            shapes = computed_products(model, trial.setting, counts.shapes.products)
            ideal = sum(6 * shape.inner * shape.columns * shape.rows for shape in shapes) / rate
            ideal *= trial.micro_batch * slowed_by_memory(shapes, trial.micro_batch, 2, rate, rates.memory)
            yield trial.floor.products_seconds, ideal, fixed_seconds(shapes) / PRODUCT_SECONDS


def test_the_fixed_time_is_what_few_rows_take_beside_their_share_of_many() -> None:
    text, found = TIMED.read_text(), []

    def seconds(precision: str, rows: int) -> float:
        line = re.search(rf"^mm {precision} {rows} 1024 4096 .* ([\d.]+) [\d.]+ ms$", text, re.M)
        assert line is not None
        return float(line[1]) * 1e-3

    for precision in ("bf16", "fp16", "tf32"):
        found.append(seconds(precision, 2048) - seconds(precision, 32_768) / 16)
    assert sum(found) / 3 == pytest.approx(PRODUCT_SECONDS, rel=0.02)


def test_products_of_floors_take_a_share_of_the_rate_after_memory_and_starts_are_added() -> None:
    """Large decoders, T5, ModernBERT and ConvNeXt, whose products differ in size by a factor of ten."""
    shares = [measured / (ideal + number * PRODUCT_SECONDS) for measured, ideal, number in floors()]
    assert len(shares) == 8
    assert min(shares) > 1.08 and max(shares) < 1.21


def test_narrow_products_of_swin_take_what_a_floor_took_after_memory_and_starts_are_added() -> None:
    """The floor of results/zoo-h200/swin-tiny.tar, which is not part of the fit above."""
    ((_, verdict),) = check_all([RESULTS / "zoo-h200/swin-tiny.tar"], None)
    assert isinstance(verdict, Verdict) and isinstance(verdict.contents, RunContents)
    results = verdict.contents.results
    trial = next(each for each in results.trials if each.floor)
    counts, gpu = shipped_counts(results.models[0]), gpu_named("NVIDIA H200")
    assert counts is not None and gpu is not None and trial.floor
    rates, shapes, samples = rates_of(gpu), counts.shapes.products, trial.micro_batch
    rate = rates.products("fp16")
    operations = samples * 3 * counts.flops.matmul / rate
    slower = slowed_by_memory(shapes, samples, 2, rate, rates.memory)
    assert trial.floor.products_seconds / operations == pytest.approx(1.93, rel=0.01)
    assert 1.2 < trial.floor.products_seconds / (slower * operations + fixed_seconds(shapes)) < 1.3
