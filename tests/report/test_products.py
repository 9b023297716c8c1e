"""Precisions of a pass in a bundle: recomputed, shown in every format, refused if no pass can have them."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.bundle.verify import verify_bundle
from bench.cli.compare import CompareArguments, collect
from bench.node_check.recompute_any import recompute
from bench.records.products import Products
from bench.records.trial import Measured
from bench.report.compare.comparison import Comparison
from bench.report.pages.html import page
from bench.report.text.comparison_table import json_text, table
from bench.report.text.run_table import results_table
from bench.training.methods import arithmetic
from bench.training.models import counts_of
from tests.report.made import bundle, manifest, measured

MANIFEST = manifest()
(MODEL,) = MANIFEST.models
FLOPS = arithmetic((), MODEL, counts_of(MODEL))
PRECISION: Any = MODEL.recipe.precision
PRODUCTS = (
    Products("products", PRECISION, FLOPS.matmul, 2 * FLOPS.matmul),
    Products("attention", PRECISION, FLOPS.attention, 2 * FLOPS.attention),
)
IN_FP64 = (replace(PRODUCTS[0], precision="fp64"), PRODUCTS[1])


def made(path: Path, products: tuple[Products, ...] = PRODUCTS, reason: str | None = None) -> Path:
    one = measured(0.5).measurement
    outcome = Measured(replace(one, products=products, no_products=reason))
    return bundle(path, of=MANIFEST, settings=[((), outcome)])


def lines(path: Path) -> list[str]:
    text = results_table(verify_bundle(path, recompute).contents.results)
    return " ".join(text.split("\n    ")).splitlines()  # wrapped lines continue after four blanks


def compared(path: Path) -> Comparison:
    return collect(CompareArguments((path,)))


def share(part: Products) -> str:
    return f"{100 * part.operations / FLOPS.training:.2g}%"


SHARES = ", ".join(f"{part.kind} in {part.precision} {share(part)}" for part in PRODUCTS)


def test_the_table_of_a_run_says_what_its_fastest_setting_multiplies(tmp_path: Path) -> None:
    assert f"multiplies  {MODEL.name}, naive: {SHARES}" in lines(made(tmp_path / "a.tar"))


def test_a_reason_for_unknown_precisions_is_shown(tmp_path: Path) -> None:
    path = made(tmp_path / "a.tar", (), "a pass without contents fails")
    assert f"multiplies  {MODEL.name}, naive: unknown, a pass without contents fails" in lines(path)
    assert "unknown, a pass without contents fails" in unescape(page(compared(path)))


def test_products_in_another_precision_are_told_beside_the_figures(tmp_path: Path) -> None:
    path = made(tmp_path / "a.tar", IN_FP64)
    told = f'products in fp64 {share(PRODUCTS[0])}: "of limit" compares these with products in {PRECISION}'
    assert any(line.startswith("OTHER PRECISION") and told in line for line in lines(path))
    comparison = compared(path)
    assert "OTHER PRECISION" in table(comparison)
    assert told in unescape(page(comparison))
    assert "OTHER PRECISION" not in table(compared(made(tmp_path / "b.tar")))


def test_a_comparison_has_the_products_in_json_and_in_the_page(tmp_path: Path) -> None:
    comparison = compared(made(tmp_path / "a.tar"))
    (entry,) = json.loads(json_text(comparison))["parts"][0]["entries"]
    assert [part["forward"] for part in entry["row"]["products"]] == [FLOPS.matmul, FLOPS.attention]
    assert entry["row"]["no_products"] is None
    html = unescape(page(comparison))
    assert "What a pass multiplies in which precision" in html
    assert SHARES in html


def test_a_bundle_without_products_says_nothing_of_them(tmp_path: Path) -> None:
    """Older bundles have none, and stay as they are."""
    path = made(tmp_path / "a.tar", ())
    assert "products" not in json.dumps(json.loads(results_json(path))["trials"])
    assert not any("multiplies" in line for line in lines(path))
    assert "What a pass multiplies" not in page(compared(path))


def results_json(path: Path) -> bytes:
    return verify_bundle(path, recompute).contents.results.to_bytes()


@pytest.mark.parametrize(
    ("products", "why"),
    [
        (PRODUCTS[:1], "and the model is counted to have"),
        ((*PRODUCTS, PRODUCTS[0]), "listed twice"),
        ((replace(PRODUCTS[0], precision="fp8"), PRODUCTS[1]), "which its recipe and setting do not use"),
        ((replace(PRODUCTS[0], backward=0), PRODUCTS[1]), "operations backwards"),
        ((replace(PRODUCTS[0], precision="fp4"), PRODUCTS[1]), "is malformed"),  # type: ignore[arg-type]
        ((replace(PRODUCTS[0], forward=0.5), PRODUCTS[1]), "is malformed"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_products_that_no_pass_has_are_refused(
    products: tuple[Products, ...], why: str, tmp_path: Path
) -> None:
    with pytest.raises(VerificationFailed, match=why):
        verify_bundle(made(tmp_path / "a.tar", products), recompute)
