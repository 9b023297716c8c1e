"""A run whose node was lost continues on a node of the same kind; its bundle names both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.base.errors import BadInput
from bench.planning.manifest import load_manifest
from bench.planning.plan import make_plan, target_of
from bench.records.trial import Gpu, KernelGpu, KernelGpus, NodeFacts
from bench.runner.run.bundle_parts import predicate
from bench.runner.run.execute import _open_run
from bench.runner.run.journal import Journal
from bench.runner.run.run_folder import require_same
from bench.runner.run.run_state import Run
from bench.runner.run.seal import Seal

GPU = Gpu(0, "NVIDIA H100 80GB HBM3", "GPU-a", 80 * 2**30, "9.0")
FIRST = NodeFacts("EPYC", 64, 2**39, "Debian 12", "6.1", "3.11.2", (GPU,), "580.95.05")
SECOND = dataclasses.replace(FIRST, gpus=(dataclasses.replace(GPU, uuid="GPU-b"),))
MANIFEST = load_manifest(Path(__file__).parents[2] / "manifests/quickstart.json")


def begin(folder: Path, node: NodeFacts) -> Run:
    with Journal(folder) as journal:
        run = Run(MANIFEST, node, make_plan(MANIFEST, target_of(node, 1)), journal, folder)
        _open_run(run)
        return run


def header_of(run: Run) -> dict[str, Any]:
    """Return the first line of a run's journal."""
    return dict(run.journal.events[0])


def test_both_nodes_gpus_are_in_the_statement(tmp_path: Path) -> None:
    for node in (FIRST, FIRST, SECOND, SECOND):
        run = begin(tmp_path, node)
    assert [event["event"] for event in run.journal.events] == ["run", "moved"]
    assert [machine.gpus for machine in run.machines] == [("GPU-a",), ("GPU-b",)]
    seal = Seal(Ed25519PrivateKey.generate())
    found = predicate(run.results(None).run, run.node, MANIFEST.digest, seal, run.gpus)
    assert found.node["gpus"] == ["GPU-a", "GPU-b"]


def test_figures_of_two_machines_are_mixed_only_on_request(tmp_path: Path) -> None:
    header = header_of(begin(tmp_path, FIRST))
    for changed in (header, header | {"machine": "another"}):
        with pytest.raises(BadInput, match="another machine"):
            require_same(tmp_path, changed, MANIFEST, SECOND)
        require_same(tmp_path, changed, MANIFEST, SECOND, moved=True)


def test_only_a_machine_of_the_same_kind_may_continue_a_run(tmp_path: Path) -> None:
    header = header_of(begin(tmp_path, FIRST))
    another = dataclasses.replace(FIRST, gpus=(dataclasses.replace(GPU, name="NVIDIA A100"),))
    for other in (another, dataclasses.replace(FIRST, driver="570.26"), dataclasses.replace(FIRST, gpus=())):
        with pytest.raises(BadInput, match="another machine"):
            require_same(tmp_path, header, MANIFEST, other, moved=True)


@pytest.mark.parametrize("moved", [False, True])
def test_the_places_of_gpus_do_not_make_another_machine(tmp_path: Path, moved: bool) -> None:
    """A reboot may renumber the bus, and the kernel may list a further GPU that the run does not use."""

    def at(bus: str, *others: str) -> NodeFacts:
        listed = KernelGpus(tuple(KernelGpu(place, None, None) for place in (bus, *others)))
        return dataclasses.replace(FIRST, gpus=(dataclasses.replace(GPU, bus=bus),), kernel_gpus=listed)

    header = header_of(begin(tmp_path, at("0000:1b:00.0")))
    for node in (FIRST, at("0000:1b:00.0"), at("0000:2c:00.0", "0000:3d:00.0")):
        require_same(tmp_path, header, MANIFEST, node, moved=moved)
