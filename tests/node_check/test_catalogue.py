"""Find a GPU by name: a driver's name must match completely, a user may give only some of its words."""

from __future__ import annotations

import pytest

from bench.base.gpu_catalogue import find_gpu_model, gpu_named
from bench.node_check.judging.standards import profile_of

# Drivers' names of other cards, which begin like the names of known cards.
LIKE_OTHERS = (
    "NVIDIA H20-3e", "NVIDIA H800", "NVIDIA H100", "NVIDIA H200 NVL", "NVIDIA GH200", "NVIDIA A10M",
    "NVIDIA A100-SXM-64GB", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA A800-SXM4-80GB", "NVIDIA L40G",
    "NVIDIA RTX 5000 Ada Generation", "NVIDIA RTX A600", "NVIDIA GeForce RTX 3090 Ti", "Tesla V100-SXM2-32GB",
    "NVIDIA B100", "NVIDIA RTX PRO 5000 Blackwell", "NVIDIA GeForce RTX 4090 D",
)  # fmt: skip
# Known cards without limits of checks. Some cards with limits have names like theirs.
WITHOUT_PROFILE = (
    "NVIDIA H20", "NVIDIA GH200 480GB", "NVIDIA A10", "NVIDIA L40", "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA B300 SXM6 AC", "NVIDIA GB200", "NVIDIA A10G", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
)  # fmt: skip


@pytest.mark.parametrize("name", LIKE_OTHERS)
def test_a_card_is_never_confused_with_one_of_a_similar_name(name: str) -> None:
    assert gpu_named(name) is None
    assert profile_of(name) is None


@pytest.mark.parametrize("name", WITHOUT_PROFILE)
def test_a_known_card_is_not_checked_by_the_limits_of_another(name: str) -> None:
    assert gpu_named(name) is not None
    assert profile_of(name) is None


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("a100 40gb", "NVIDIA A100-SXM4-40GB"),
        ("a100-sxm4 40", "NVIDIA A100-SXM4-40GB"),
        ("a100 sxm", "NVIDIA A100-SXM4-80GB"),
        ("h100 sxm", "NVIDIA H100 80GB HBM3"),
        ("h100-nvl", "NVIDIA H100 NVL"),
        ("a100-80gb", "NVIDIA A100-SXM4-80GB"),
        ("a100-pcie-40gb", "NVIDIA A100-PCIE-40GB"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("RTX4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA L40S", "NVIDIA L40S"),
    ],
)
def test_words_of_a_name_are_enough(typed: str, name: str) -> None:
    found = find_gpu_model(typed)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("typed", ["h2", "a1", "l4x", "rtx 600", "600", "b20", "mi300", "v100", "", "("])
def test_a_part_of_a_model_number_matches_no_card(typed: str) -> None:
    assert find_gpu_model(typed) is None
