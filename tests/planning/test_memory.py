"""Predicted device memory is within 10% of the peaks of the measured bundles in results/."""

from __future__ import annotations

import json
import tarfile
from functools import partial
from pathlib import Path

import pytest
import torch

from bench.bundle.verdict import RunContents
from bench.bundle.verify import Verdict
from bench.planning.memory_prediction import (
    host_bytes,
    predict_bytes,
)
from bench.report.read_bundles import check_all
from bench.training.methods import known_methods
from bench.training.models import Counted, Flops, Model, Parts, families, family_of, parameters_of
from bench.training.models.counted_memory import counted_memory
from bench.training.models.counted_operations import _parts
from bench.training.models.generic import TransformersFamily
from bench.training.models.paper_code import find_model
from bench.training.models.shipped_counts import digest_of, shipped_counts
from bench.training.setting import Setting, halves_weights, in_group

RESULTS = Path(__file__).parents[2] / "results"

# Measured before head and loss were compiled together: models compiled by blocks stored the logits twice.
LOGITS_TWICE = {
    "every-setting-h200/pythia-160m-1gpu", "every-setting-h200/pythia-160m-2gpus",
    "compiled-how-h200/32-pythia-160m", "compiled-how-h200/16-pythia-410m",
    "proof-2xh200/pythia-1b-fsdp-2", "side-by-side-h200/head-and-loss-apart", "hour-h200/24-minutes",
}  # fmt: skip

# Measured before the head of a model with an encoder was compiled with the loss: the copies of logits of odd
# length, which padded-head saves, remained. zoo-h200/whisper-small was measured later, without these copies.
HEAD_APART = {"zoo-h100/zoo-1"}

# Its timed passes, which were recorded, took 5.7 GiB less than those of its proof, and than those of an H100
# (zoo-h100/zoo-2). Why is not known: the plan says what the proof took.
LESS_THAN_ITS_PROOF = {"zoo-h200/smollm2-135m"}

SUMS = 4  # bytes per parameter: in these bundles FSDP2 added gradients up itself, without additional sums
WITHOUT_SUMS = {
    "hour-h200/20-minutes", "hour-h200/24-minutes", "settings-h200/mamba-2.8b-1gpu-2",
    "settings-h200/mamba-2.8b-1gpu-rest-2",
}  # fmt: skip


def logits_bytes(model: Model) -> int:
    """Return the bytes of a sample's logits in half precision; logits of picture models are negligible."""
    recipe = model.recipe
    all_predict = recipe.objective != "masked-lm" and recipe.target_length is None
    positions = recipe.units_per_sample if all_predict else recipe.asked_per_sample
    return 2 * positions * model.architecture.get("vocab_size", 0)


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


COUNTS: dict[tuple[str | bool, ...], Counted] = {}  # of brought models, by what counts depend on


def counts_of_brought(model: Model, setting: Setting) -> Counted | None:
    """Return the counts of a model whose family has no formulas; None if the family has some.

    Counting takes seconds, so the footprint is counted for this setting alone.
    """
    if model.family in families():
        return None
    if shipped := shipped_counts(model):
        return shipped
    kernels, halved = "kernels" in setting, halves_weights(setting)
    compiled = in_group(setting, "compilation") is not None
    key = digest_of(model), kernels, compiled, halved
    if key not in COUNTS:
        family = family_of(model)
        assert isinstance(family, TransformersFamily)
        ways = [(fused, (how,)) for fused, hows in family.counted_ways() for how in hows]
        asked = [way for way in ways if way == (kernels, (compiled,))]
        memory = counted_memory(
            model, partial(family.build_for_memory, model), family.blocks, asked, (halved,)
        )
        COUNTS[key] = Counted(parts_of(model, family), Flops(0), footprints=memory.footprints)
    return COUNTS[key]


def parts_of(model: Model, family: TransformersFamily) -> Parts:
    """Count a model's weights, and not its operations, on which memory does not depend."""
    with torch.device("meta"):
        module = family.build_with(model, "eager")
    return _parts(module, family.blocks(module))


def bundles() -> list[Path]:
    return sorted(RESULTS.rglob("*.tar"))


@pytest.mark.parametrize("path", bundles(), ids=named)
def test_a_committed_bundle_verifies_and_its_peaks_are_predicted_within_10_percent(path: Path) -> None:
    ((_, verdict),) = check_all([path], None)
    assert isinstance(verdict, Verdict), verdict
    if not isinstance(verdict.contents, RunContents):  # a node check
        return
    results = verdict.contents.results
    for trial in results.trials:
        # Trials with a removed method, or with CUDA graphs, whose peaks lack memory, are left out.
        graphs = "TORCHINDUCTOR_CUDAGRAPHS" in (results.node.switches or {})
        if trial.estimate and not graphs and known_methods().keys() >= {*trial.setting}:
            model = next(one for one in results.models if one.name == trial.model)
            counts = counts_of_brought(model, trial.setting)
            predicted = predict_bytes(model, trial.setting, trial.micro_batch, trial.gpus, counts)
            assert predicted is not None
            if named(path) in LOGITS_TWICE and "compile-blocks" in trial.setting:
                predicted += trial.micro_batch * logits_bytes(model)
            if named(path) in HEAD_APART and "padded-head" in trial.setting and model.recipe.target_length:
                predicted += 2 * trial.micro_batch * logits_bytes(model)
            measured = trial.estimate.peak_bytes
            if named(path) in LESS_THAN_ITS_PROOF and trial.proof:
                measured = trial.proof.peak_bytes
            assert predicted == pytest.approx(measured, rel=0.1), trial.label


# In hour-h200/17-minutes, the other GPU of the machine worked on the same host.
@pytest.mark.parametrize(
    "name", [*sorted(WITHOUT_SUMS), "settings-h200/mamba-2.8b-1gpu-fsdp-2",
             "settings-h200/pythia-1b-1gpu-fsdp-16"],
)  # fmt: skip
def test_the_host_memory_of_offloading_is_predicted(name: str) -> None:
    """Only large models show it clearly. The peak counts, which a trial that failed later has reached too."""
    with tarfile.open(RESULTS / f"{name}.tar") as bundle:
        results = json.loads(member(bundle, "results.json"))
        telemetry = [json.loads(line) for line in member(bundle, "telemetry.jsonl").splitlines()]
    idle = max(sample["available_bytes"] for sample in telemetry)
    offloading = [trial for trial in results["trials"] if "offload" in trial["setting"]]
    assert offloading
    for trial in offloading:
        model = find_model(trial["model"])
        assert model
        parameters = parameters_of(model) or 0
        predicted = host_bytes(parameters, tuple(trial["setting"]), 1)
        if "fsdp-2" in trial["setting"] and name in WITHOUT_SUMS:
            predicted -= SUMS * parameters
        if "SIGKILL" in str(trial["failure"]):  # the host ran out of memory
            assert predicted > results["node"]["memory_bytes"]
            continue
        least = min(sample["available_bytes"] for sample in telemetry if sample["trial"] == trial["id"])
        assert predicted == pytest.approx(idle - least, rel=0.15), trial["label"]


def member(bundle: tarfile.TarFile, name: str) -> bytes:
    file = bundle.extractfile(name)
    assert file
    return file.read()


def test_there_are_committed_bundles() -> None:
    assert len(bundles()) > 30
