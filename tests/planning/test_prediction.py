"""Predicted times follow from counted work, a card's rates and fitted multipliers, and state their errors."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from bench.base.gpu_catalogue import GpuModel, gpu_models, gpu_named
from bench.bundle.verdict import RunContents, Verdict
from bench.cli.main import main
from bench.planning.manifest import Manifest, parse_manifest
from bench.planning.prediction import candidates
from bench.planning.prediction.candidates import NOT_COUNTED, candidates_of
from bench.planning.prediction.card_rates import FEWER_LANES, FP32_LANES, rates_of, ring_seconds, usual_share
from bench.planning.prediction.interruptions import Interruptions
from bench.planning.prediction.predicted_machines import Predicted, Predictor, Unpredicted
from bench.planning.prediction.step_time import (
    Collectives,
    Fit,
    Multipliers,
    StepPart,
    StepTime,
    attention_seconds,
    beside,
    group_of,
    shipped_fit,
    step_time,
    why_unpredicted,
    work_of,
)
from bench.report.read_bundles import check_all
from bench.training.methods import Target
from bench.training.models import Model, counts_by_formula, known_models
from bench.training.models.model import OperationShapes
from bench.training.models.shipped_counts import shipped_counts
from bench.training.models.zoo import zoo_model
from bench.training.setting import Setting

RESULTS = Path(__file__).parents[2] / "results"
LUNCH: Setting = ("tf32", "kernels", "fused-optimizer", "compile-blocks")
PYTHIA = known_models()["pythia-1b"]


def card(name: str) -> GpuModel:
    found = gpu_named(name)
    assert found is not None
    return found


H100, H200 = card("NVIDIA H100 80GB HBM3"), card("NVIDIA H200")


def time_of(
    model: Model = PYTHIA,
    setting: Setting = LUNCH,
    micro_batch: int = 16,
    gpus: int = 1,
    gpu: GpuModel = H200,
) -> StepTime:
    counts = counts_by_formula(model)
    assert counts is not None
    work = work_of(model, setting, gpus, counts)
    assert work is not None
    part = StepPart(micro_batch, model.recipe.batch_size // (gpus * micro_batch))
    return step_time(work, part, gpus, rates_of(gpu), model.recipe.precision, shipped_fit().multipliers)


def manifest(*models: Any, **more: Any) -> Manifest:
    document = {"schema": "bench/manifest/v1", "models": [*models], **more}
    return parse_manifest(json.dumps(document).encode(), "m.json")


# A step


def test_a_pass_of_twice_the_samples_takes_almost_twice_as_long() -> None:
    one, two = (time_of(micro_batch=size).pass_seconds for size in (16, 32))
    assert 1.9 < two / one < 2.0  # weights and gradients move once a pass
    assert time_of(micro_batch=16).limit == "products"


def test_checkpointing_computes_the_forward_pass_again() -> None:
    plain, again = time_of(), time_of(setting=(*LUNCH, "checkpointing"))
    assert again.parts["products"] == pytest.approx(plain.parts["products"] * 4 / 3)
    assert again.seconds > 1.2 * plain.seconds


def test_gpus_share_a_step_and_lose_time_to_exchange() -> None:
    one, eight = time_of(), time_of(gpus=8)
    assert one.parts["exchange"] == 0
    assert 7 < one.seconds / eight.seconds < 8
    slow = replace(H200, link_gb_per_second=10.0)
    assert time_of(gpus=8, gpu=slow).seconds > time_of(gpus=8).seconds
    sharded = (*LUNCH, "fsdp-3")
    slow_exchange = time_of(setting=sharded, gpus=8, gpu=slow).parts["exchange"]
    assert slow_exchange > time_of(setting=sharded, gpus=8).parts["exchange"]


def test_the_rings_of_a_node_leave_it_by_all_of_its_adapters() -> None:
    rates = rates_of(H100)
    assert rates.exchange(8) == pytest.approx(0.7 * 450e9)  # NVLink, one direction
    assert rates.exchange(64) == pytest.approx(0.7 * 8 * 50e9)  # eight adapters of 400 Gb/s
    slow = rates_of(replace(H100, link_gb_per_second=64.0))
    assert slow.exchange(64) == slow.exchange(8)  # every byte crosses the links of a node, too


def test_a_message_goes_through_every_gpu_and_between_nodes_slower() -> None:
    assert ring_seconds(1) == 0
    assert ring_seconds(8) == pytest.approx(7 * 3.4e-6)
    assert ring_seconds(16) == pytest.approx(14 * 3.4e-6 + 14e-6)


def test_weights_in_shards_are_gathered_twice_a_pass_and_whole_ones_once_a_step() -> None:
    counts = counts_by_formula(PYTHIA)
    assert counts is not None
    units, sent = len(counts.parts.blocks) + 1, counts.parts.total * 7 / 8

    def exchanged(*more: str) -> tuple[Collectives, Collectives]:
        work = work_of(PYTHIA, (*LUNCH, *more), 8, counts)
        assert work is not None
        return work.exchanged_each_pass, work.exchanged_each_step

    none = Collectives(0, 0.0)
    assert exchanged() == (none, Collectives(2 * units, sent * 8))
    assert exchanged("fsdp-2") == (Collectives(units, sent * 4), Collectives(units, sent * 2))
    assert exchanged("fsdp-3") == (Collectives(3 * units, sent * 8), none)
    alone = work_of(PYTHIA, LUNCH, 1, counts)
    assert alone is not None and alone.exchanged_each_step == none


def test_exchange_slows_what_is_computed_beside_it() -> None:
    assert beside(1e200, 1e199) == pytest.approx(1e200 * beside(1.0, 0.1))
    assert beside(1.0, 0.0) == 1.0
    assert 1.02 < beside(1.0, 0.1) < 1.03  # hidden, but for the multiprocessors that it takes
    assert beside(0.1, 10.0) == pytest.approx(10, rel=1e-3)


def test_exchange_beside_computing_is_computed_for_many_rows_at_once() -> None:
    """benchmarks/prediction.py fits multipliers to all measured rows in arrays."""
    computing, sent = [1.0, 0.1, 3.0], [0.0, 10.0, 3.0]
    found: Any = beside(np.array(computing), np.array(sent))  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx([beside(c, s) for c, s in zip(computing, sent, strict=True)])


def test_a_card_is_as_fast_as_its_products_and_its_memory() -> None:
    slower = replace(H200, memory_gb_per_second=H200.memory_gb_per_second / 2)
    half, whole = time_of(gpu=slower), time_of()
    assert half.parts["memory"] == pytest.approx(2 * whole.parts["memory"])
    assert half.parts["products"] == whole.parts["products"]
    assert half.parts["elements"] == whole.parts["elements"]


def test_elements_take_cycles_of_multiprocessors_and_not_bytes() -> None:
    slower = replace(H200, fp32_tflops=H200.fp32_tflops / 2)
    assert time_of(gpu=slower).parts["elements"] == pytest.approx(2 * time_of().parts["elements"])
    # 132 multiprocessors with 128 lanes at 1.98 GHz; 108 with 64 at 1.41 GHz
    assert rates_of(H100).cycles == pytest.approx(132 * 1.98e9, rel=0.01)
    assert rates_of(card("NVIDIA A100-SXM4-80GB")).cycles == pytest.approx(108 * 1.41e9, rel=0.01)


def test_an_element_of_four_bytes_takes_as_long_as_one_of_two() -> None:
    counts = counts_by_formula(PYTHIA)
    wide = replace(PYTHIA, recipe=replace(PYTHIA.recipe, precision="fp32"))
    wide_counts = counts_by_formula(wide)
    assert counts is not None and wide_counts is not None
    half, whole = work_of(PYTHIA, LUNCH, 1, counts), work_of(wide, LUNCH, 1, wide_counts)
    assert half is not None and whole is not None
    assert half.kept_elements == half.kept_bytes / 2
    assert whole.kept_elements == whole.kept_bytes / 4


CONVNEXT = ("tf32", "fused-optimizer", "compile-blocks")


def test_logits_are_written_and_read_six_times_and_copied_if_a_row_is_odd() -> None:
    """Logits take two bytes each: those of all words of a sample, or of the positions of a masked head."""
    roberta = known_models()["roberta-large"]
    for model, setting, moved in (
        (PYTHIA, LUNCH, 2048 * 50_304 * 6),
        (roberta, LUNCH, 512 * 50_265 * (6 + 4)),
        (roberta, (*LUNCH, "masked-head"), 77 * 50_265 * (6 + 4)),
        (roberta, (*LUNCH, "padded-head"), 512 * 50_265 * 6),
    ):
        counts = counts_by_formula(model)
        assert counts is not None
        work = work_of(model, setting, 1, counts)
        assert work is not None and work.logit_bytes == 2 * moved


def test_depthwise_convolutions_take_what_their_kernels_take() -> None:
    xl = known_models()["convnext-xl"]
    cudnn, own = (time_of(xl, setting, 128) for setting in (CONVNEXT, (*CONVNEXT, "depthwise")))
    assert 1.8 < cudnn.seconds / own.seconds < 3.5  # 2.2 before and after (results/side-by-side-h200)
    assert cudnn.parts["products"] == own.parts["products"]
    half = replace(xl, recipe=replace(xl.recipe, precision="bf16"))
    assert time_of(half, CONVNEXT, 128).parts["convolutions"] < cudnn.parts["convolutions"] / 3


def test_a_counted_model_has_all_its_convolutions_dense_unless_they_are_depthwise() -> None:
    xl = known_models()["convnext-xl"]
    counts = counts_by_formula(xl)
    assert counts is not None
    work = work_of(xl, CONVNEXT, 1, counts)
    dense = work_of(xl, CONVNEXT, 1, replace(counts, shapes=OperationShapes()))
    assert work is not None and dense is not None
    assert dense.dense_convolutions == dense.convolutions == work.convolutions
    assert dense.depthwise_cycles == 0 < work.depthwise_cycles
    assert work.dense_convolutions == 0 < sum(shape.operations for shape in work.convolution_shapes)


def test_attention_takes_more_of_its_time_at_short_lengths() -> None:
    rates, m = rates_of(H200), shipped_fit().multipliers

    def seconds(length: int) -> float:
        short = replace(PYTHIA, recipe=replace(PYTHIA.recipe, sequence_length=length))
        counts = counts_by_formula(short)
        assert counts is not None
        work = work_of(short, LUNCH, 1, counts)
        assert work is not None
        return attention_seconds(work, rates, "bf16", m) / work.attention

    assert seconds(256) > 1.5 * seconds(2048)


def test_attention_in_fp32_is_as_fast_as_its_kernel() -> None:
    vit = known_models()["vit-l"]
    slow, fast = (time_of(vit, s, 128).parts["attention"] for s in (LUNCH, (*LUNCH, "flex-attention")))
    assert slow == pytest.approx(2.08 * fast, rel=0.01)  # memory-efficient and FlexAttention, by profiles


def test_a_bias_of_positions_takes_cycles_for_each_score() -> None:
    t5 = zoo_model("t5-v1.1-base")
    assert t5 is not None
    counts = shipped_counts(t5.model)
    assert counts is not None and counts.shapes.biased_scores > 0
    biased = work_of(t5.model, LUNCH, 1, counts)
    assert biased is not None
    plain = replace(biased, biased_scores=0.0)
    m = shipped_fit().multipliers
    taken, without = (attention_seconds(work, rates_of(H200), "bf16", m) for work in (biased, plain))
    assert taken - without == pytest.approx(biased.biased_scores * m.bias_cycles / rates_of(H200).cycles)


def test_windows_of_49_positions_take_as_long_as_those_of_64() -> None:
    swin, t5 = zoo_model("swin-tiny"), zoo_model("t5-v1.1-base")
    assert swin is not None and t5 is not None
    windows, whole = shipped_counts(swin.model), shipped_counts(t5.model)
    assert windows is not None and whole is not None
    assert windows.shapes.computed_biased_scores / windows.shapes.biased_scores == pytest.approx(
        (64 / 49) ** 2
    )
    assert 1 <= whole.shapes.computed_biased_scores / whole.shapes.biased_scores < 1.2
    older = replace(windows.shapes, biased_blocks=0)
    assert older.computed_biased_scores == older.biased_scores > 0


def test_products_in_fp16_and_tf32_have_rates_of_their_own() -> None:
    rates = rates_of(H200)
    assert rates.products("fp16") < rates.products("bf16") < 2 * rates.products("fp32")


def test_a_card_whose_products_nobody_measured_reaches_the_usual_share() -> None:
    without = next(gpu for gpu in gpu_models() if gpu.measured_bf16_tflops is None)
    assert rates_of(without).products("bf16") == pytest.approx(without.bf16_tflops * 1e12 * usual_share())
    assert "the median of measured cards" in rates_of(without).product_source
    assert H100.measured_bf16_tflops
    assert rates_of(H100).products("bf16") == pytest.approx(H100.measured_bf16_tflops * 1e12)


@pytest.mark.parametrize(
    ("setting", "precision", "said"),
    [
        (("kernels",), "bf16", "uncompiled code is not predicted"),
        ((*LUNCH, "zero-3", "offload"), "bf16", "offloading is not predicted"),
        (LUNCH, "fp8", "fp8 is not predicted"),
    ],
)
def test_what_is_not_predicted_is_said(setting: Setting, precision: Any, said: str) -> None:
    model = replace(PYTHIA, recipe=replace(PYTHIA.recipe, precision=precision))
    assert said in str(why_unpredicted(model, setting))
    assert why_unpredicted(PYTHIA, LUNCH) is None


# Errors


def test_the_largest_error_that_applies_counts() -> None:
    m = Multipliers(0.9, 0.4, 0.1, 0.1, 0.01, 1.0)
    fit = Fit(m, {"dense": 0.1, "other": 0.5}, 0.2, 0.3, ("NVIDIA H200",), 2, "a test", "2026-11-26")
    assert fit.error("dense", "NVIDIA H200", 2) == 0.1
    assert fit.error("dense", "NVIDIA B200", 1) == 0.2
    assert fit.error("dense", "NVIDIA B200", 64) == 0.3
    assert fit.error("other", "NVIDIA B200", 64) == 0.5


def test_real_training_is_within_the_error_that_is_said() -> None:
    """The proofs of results/proof-h200 and zoo-h100, whose models the shipped fit has seen."""
    found: list[tuple[str, float, float]] = []
    for path in sorted(RESULTS.glob("proof-h200/*.tar")):
        ((_, verdict),) = check_all([path], None)
        assert isinstance(verdict, Verdict) and isinstance(verdict.contents, RunContents)
        for trial in verdict.contents.results.trials:
            model = next(one for one in verdict.contents.results.models if one.name == trial.model)
            counts = counts_by_formula(model)
            if trial.proof is None or counts is None or why_unpredicted(model, trial.setting):
                continue
            predicted = time_of(model, trial.setting, trial.micro_batch).seconds
            error = shipped_fit().error(group_of(model, counts), "NVIDIA H200", 1)
            found.append((model.name, predicted / (trial.proof.seconds / trial.proof.steps), 1 + error))
    assert len(found) >= 6
    outside = [row for row in found if not 1 / row[2] <= row[1] <= row[2]]
    assert len(outside) <= len(found) / 5, outside


# Machines


def test_every_machine_gets_a_setting_that_fits() -> None:
    for gpu in (H200, card("NVIDIA GeForce RTX 5090"), card("AMD Instinct MI300X OAM")):
        (found,) = Predictor(manifest("pythia-1b").models, {}, shipped_fit()).predict(gpu, 1)
        assert isinstance(found, Predicted)
        assert found.memory_bytes is not None and found.memory_bytes < gpu.memory_gib * 2**30
        assert found.least_days < found.days < found.most_days
        assert found.days == pytest.approx(found.step_seconds * PYTHIA.recipe.steps / 86_400)


def test_a_model_that_does_not_fit_is_not_predicted() -> None:
    (found,) = Predictor(manifest("pythia-6.9b").models, {}, shipped_fit()).predict(card("NVIDIA L4"), 1)
    assert isinstance(found, Unpredicted)
    assert "offloading is not predicted" in found.reason


def test_a_batch_that_does_not_divide_is_said_and_stops_no_other_model() -> None:
    small = {"name": "gpt2", "recipe": {"batch_size": 12}}
    whole, odd = Predictor(manifest("pythia-1b", small).models, {}, shipped_fit()).predict(H200, 8)
    assert isinstance(whole, Predicted)
    assert isinstance(odd, Unpredicted) and odd.reason == "a batch of 12 does not divide among 8 GPUs"


def test_a_card_that_nobody_measured_has_the_wider_interval() -> None:
    def width(name: str) -> float:
        (found,) = Predictor(manifest("pythia-1b").models, {}, shipped_fit()).predict(card(name), 1)
        assert isinstance(found, Predicted)
        return found.most_days / found.least_days

    assert width("NVIDIA B200") > width("NVIDIA H200")


# The command


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "m.json"
    path.write_text('{"schema": "bench/manifest/v1", "models": ["pythia-1b", "pythia-6.9b"]}')
    return str(path)


def test_predictions_are_sorted_with_cost_in_80_columns(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", file, "--gpu", "l4,h200,8xh100,rtx pro 6000"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) < 80
    assert shown.index("8x H100") < shown.index("1x H200") < shown.index("1x L4")
    assert "predicted, not measured" in shown and "$" in shown
    assert "1x RTX PRO 6000 Workstation: needs 113.8 GiB or more; offloading is" in " ".join(shown.split())


def test_a_budget_and_a_deadline_leave_machines_out(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    def machines(*options: str) -> set[tuple[str, int]]:
        main(["predict", file, "--json", *options])
        rows = json.loads(capsys.readouterr().out)["predicted"]
        return {(row["predicted"]["gpu"], row["predicted"]["gpus"]) for row in rows}

    every = machines("--gpu", "all")
    assert len(every) > 50
    assert machines("--gpu", "all", "--deadline", "10d") < every
    assert machines("--gpu", "all", "--budget-usd", "5000") < every
    assert main(["predict", file, "--gpu", "h200", "--deadline", "1h"]) == 1


def test_an_unknown_machine_is_answered_with_the_nearest(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", file, "--gpu", "8xb400"]) == 2
    assert "nearest: NVIDIA B200" in capsys.readouterr().err


CARD = {
    "name": "NVIDIA X100", "compute_capability": "10.0", "memory_gib": 288, "bf16_tflops": 4000,
    "tf32_tflops": 2000, "fp32_tflops": 120, "memory_gb_per_second": 13000, "source": "a data sheet",
}  # fmt: skip


def spec(folder: Path, **changes: Any) -> str:
    path = folder / "card.json"
    path.write_text(json.dumps(CARD | changes))
    return str(path)


def test_a_card_that_bench_does_not_know_can_be_described(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", file, "--gpu", "8xx100,h200", "--gpu-spec", spec(tmp_path)]) == 0
    assert "8x X100" in capsys.readouterr().out
    assert main(["predict", file, "--gpu", "x100"]) == 2
    assert "--gpu-spec FILE describes a card" in capsys.readouterr().err


@pytest.mark.parametrize("rate", [1e-3, 1e9])
def test_a_card_at_the_limits_of_what_may_be_described_is_predicted(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: float
) -> None:
    rates = [name for name in CARD if name.endswith(("tflops", "per_second"))]
    card = spec(tmp_path, **dict.fromkeys(rates, rate), memory_gib=1e9, measured_bf16_tflops=None)
    assert main(["predict", file, "--gpu", "x100,8xx100", "--gpu-spec", card]) == 0
    assert "8x X100" in capsys.readouterr().out


def test_a_described_card_comes_before_the_catalogues_card_of_that_name(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def days(*options: str) -> float:
        main(["predict", file, "--gpu", "NVIDIA H200", "--json", *options])
        found: float = json.loads(capsys.readouterr().out)["predicted"][0]["predicted"]["days"]
        return found

    assert days("--gpu-spec", spec(tmp_path, name="NVIDIA H200")) < days() / 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bf16_tflops": -4}, "/bf16_tflops  -4 is not a rate"),
        ({"fp32_tflops": 9.9e-4}, "/fp32_tflops  0.00099 is not a rate"),
        ({"tf32_tflops": 1.1e9}, "/tf32_tflops  1.1e+09 is not a rate"),
        ({"memory_gib": "288"}, "/memory_gib"),
        ({"peak": 3}, "/peak"),
        ({"compute_capability": "ten"}, '/compute_capability  "ten" is not a compute capability'),
        ({"measured_bf16_tflops": 5000}, "5000 is more than the peak of 4000"),
        ({"name": " "}, "/name  empty"),
    ],
)
def test_mistakes_in_a_description_are_named(
    changes: dict[str, Any], said: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", file, "--gpu-spec", spec(tmp_path, **changes)]) == 2
    assert said in capsys.readouterr().err


def test_a_prediction_can_be_explained(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", file, "--gpu", "8xh100", "--explain"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) < 80
    for words in ("products", "attention", "memory", "exchange", "update", "rented run", "owned run"):
        assert words in said
    assert main(["predict", file, "--gpu", "8xh100", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["predicted"][0]["predicted"]
    passes = sum(part["seconds"] for part in row["parts"])
    assert row["accumulation"] * passes + row["update_seconds"] == pytest.approx(row["step_seconds"])


def test_costs_of_owning_and_rows_of_a_spreadsheet(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", file, "--gpu", "8xh100,8xh200", "--format", "csv"]) == 0
    rows = [*csv.DictReader(capsys.readouterr().out.splitlines())]
    assert len(rows) == 4
    owned = {row["gpu"]: row["owned_run"] for row in rows}
    assert float(owned["NVIDIA H100 80GB HBM3"]) > 0
    assert owned["NVIDIA H200"] == ""  # nobody quoted a price
    tokens = PYTHIA.recipe.batch_size * PYTHIA.recipe.steps * PYTHIA.recipe.units_per_sample
    first = rows[0]
    assert float(first["units_per_currency"]) == pytest.approx(tokens / float(first["rented_run"]))
    assert main(["predict", file, "--gpu", "8xh100", "--own"]) == 0
    assert "an owned run" in capsys.readouterr().out


def test_predictions_are_drawn_hollow(file: str, tmp_path: Path) -> None:
    assert main(["predict", file, "--gpu", "8xh100,h200", "--plots", str(tmp_path / "plots")]) == 0
    drawn = (tmp_path / "plots" / "pythia-1b-predicted.svg").read_text()
    assert drawn.count("mark hollow") >= 3
    assert "rent: predicted" in drawn and "rent: measured" not in drawn
    measured = RESULTS / "proof-h200" / "pythia-1b.tar"
    command = ["predict", file, "--gpu", "8xh100,h200", "--plots", str(tmp_path / "both")]
    assert main([*command, "--measured", str(measured)]) == 0
    assert "1x H200, rent: measured" in (tmp_path / "both" / "pythia-1b-predicted.svg").read_text()
    assert main(["predict", file, "--png"]) == 2


# Interruptions


@pytest.mark.parametrize("unknown", ["work_of", "predict_bytes"])
def test_a_setting_whose_work_or_memory_is_not_known_is_none(
    unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, target = counts_by_formula(PYTHIA), Target("cuda", 1, 2**37, elsewhere=True)
    assert counts is not None
    known = candidates_of(PYTHIA, counts, target)
    assert known.settings and NOT_COUNTED not in known.reasons
    monkeypatch.setattr(candidates, unknown, lambda *_: None)
    found = candidates_of(PYTHIA, counts, target)
    assert found.settings == ()
    assert NOT_COUNTED in found.reasons
    assert NOT_COUNTED in found.why_none()


def test_each_part_of_a_pass_has_its_unit() -> None:
    models = [known_models()[name] for name in ("pythia-1b", "mamba-2.8b", "convnext-xl")]
    units: dict[str, set[str]] = {}
    for model in models:
        counts = counts_by_formula(model) or shipped_counts(model)
        assert counts is not None
        for found in Predictor([model], {model.name: counts}, shipped_fit()).predict(H200, 8):
            assert isinstance(found, Predicted), found
            for part in found.parts:
                units.setdefault(part.name, set()).add(part.unit)
    assert units == {
        "products": {"operations"},
        "attention": {"operations"},
        "convolutions": {"operations"},
        "scans": {"operations"},
        "memory": {"bytes"},
        "elements": {"elements"},
    }


@pytest.mark.parametrize(
    ("capability", "lanes"),
    [
        ("6.0", 64),
        ("7.0", 64),
        ("7.5", 64),
        ("8.0", 64),
        ("8.6", 128),
        ("8.9", 128),
        ("9.0", 128),
        ("10.0", 128),
    ],
)
def test_a_multiprocessor_adds_as_many_numbers_in_a_cycle_as_its_vendor_says(
    capability: str, lanes: int
) -> None:
    """NVIDIA's CUDA programming guide, table of arithmetic throughput."""
    assert FEWER_LANES.get(capability, FP32_LANES) == lanes


def test_rare_interruptions_cost_half_the_time_between_checkpoints_and_a_restart() -> None:
    rare = Interruptions(every_seconds=1e6, restart_seconds=600, save_seconds=1800)
    assert rare.factor(1) == pytest.approx(1 + (600 + 1800 / 2) / 1e6, rel=1e-5)
    assert rare.factor(8) == pytest.approx(1 + 8 * (600 + 1800 / 2) / 1e6, rel=1e-3)


def test_a_simulated_run_takes_as_long_as_the_formula_says() -> None:
    by, random = Interruptions(3600, 300, 1800), Random(0)
    clock, saves, wanted, ready = 0.0, 0, 4000, 0.0
    while saves < wanted:
        alive = random.expovariate(1 / by.every_seconds)
        reached = min(wanted - saves, max(0, int((alive - ready) // by.save_seconds)))
        saves += reached
        clock += alive if saves < wanted else ready + reached * by.save_seconds
        ready = by.restart_seconds
    assert clock / (wanted * by.save_seconds) == pytest.approx(by.factor(1), rel=0.05)


def test_interruptions_lengthen_days_and_costs(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    def row(*options: str) -> dict[str, Any]:
        assert main(["predict", file, "--gpu", "8xh100", "--json", *options]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["predicted"][0]
        return found

    calm, spot = row(), row("--interrupted-every", "5h", "--restart", "15m", "--save-every", "1h")
    longer = spot["predicted"]["days"] / calm["predicted"]["days"]
    assert 1.1 < longer < 1.3
    assert spot["rented"]["amount"] == pytest.approx(calm["rented"]["amount"] * longer)
    assert main(["predict", file, "--gpu", "8xh100", "--interrupted-every", "1s"]) == 1
    assert "hardly ever reaches a checkpoint" in " ".join(capsys.readouterr().out.split())


def test_what_no_prediction_was_held_against_is_said(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", file, "--gpu", "512xh100"]) == 0
    assert "more than 512 GPUs" not in capsys.readouterr().out
    assert main(["predict", file, "--gpu", "1024xh100"]) == 0
    assert "more than 512 GPUs: no prediction" in capsys.readouterr().out


def test_a_machine_that_is_named_twice_is_shown_once(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", file, "--gpu", "h100,1xh100,h100", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 1  # pythia-6.9b does not fit
    assert main(["predict", file, "--format", "csv", "--json"]) == 2
