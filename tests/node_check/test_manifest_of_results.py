"""Results of a node check are held to their manifest, and a profile of the node's own is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import VerificationFailed
from bench.node_check.check_manifest import load
from bench.node_check.check_results import _of_own_profile, _require_manifest
from bench.node_check.judging.standards import Expectations, profile_of
from tests.node_check.checks.node import evidence
from tests.node_check.made import results


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "cpu"}, "the results are of a CPU check, but list GPUs"),
        (
            {"expect": Expectations(ports=3)},
            "the node was judged by other expectations than those of its manifest",
        ),
        ({"require": ("matmul",)}, "the results require other checks than their manifest"),
    ],
)
def test_results_that_are_not_of_their_manifest_are_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    manifest = load(None)
    own = replace(results(evidence(tmp_path)), expect=manifest.expected("cuda"), require=manifest.require)
    _require_manifest(manifest, own)
    on_cpu = replace(own, device="cpu", node=replace(own.node, gpus=()), expect=manifest.expected("cpu"))
    _require_manifest(manifest, on_cpu)
    with pytest.raises(VerificationFailed, match=f"^{why}$"):
        _require_manifest(manifest, replace(own, **changes))


def test_a_profile_of_the_nodes_own_is_told_with_what_judged_instead() -> None:
    shipped = profile_of("NVIDIA H200")
    assert shipped is not None
    own = replace(shipped, name="mine")
    (finding,) = _of_own_profile(own, shipped)
    assert finding.found == f"judged by a profile of its own, mine: judged again by {shipped.name}"
    assert (finding.verdict, finding.counts) == ("warn", False)
    (finding,) = _of_own_profile(own, None)
    assert finding.found.endswith(": judged again without one, since none is shipped")
    assert list(_of_own_profile(shipped, shipped)) == list(_of_own_profile(None, shipped)) == []
