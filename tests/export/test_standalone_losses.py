"""The file that bench export writes to take away has the losses of bench, where bench cannot be imported.

Both start from the same weights and the same samples, and call the same functions of torch in the same order,
so losses are equal to the last digit. A larger tolerance has its reason beside it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.records.trial import Trial
from bench.training.models import Model
from tests.export.alone import losses_of_bench, losses_of_script
from tests.export.test_standalone import MUON, TINY, trial_of

EXACT = 0.0
# The script averages the losses of processes in fp32, bench in fp64.
AVERAGED = 1e-6
# A tied weight has two gradients in a pass: bench adds each to the fp32 sum, the script adds both in half
# precision first. Other weights have one.
TIED_IN_HALF = 1e-5


def small(family: str, objective: str, architecture: dict[str, Any], **sizes: Any) -> Model:
    recipe = replace(trial_of("tiny-gpt-neox").model.recipe, objective=objective, **sizes)  # type: ignore[arg-type]
    return Model(family, family, architecture, recipe)


WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
LLAMA = small(
    "llama", "causal-lm", {**WIDTHS, "vocab_size": 128, "num_key_value_heads": 1}, sequence_length=16
)
T5 = small(
    "t5",
    "sequence-to-sequence",
    {"vocab_size": 128, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
     "decoder_start_token_id": 0, "tie_word_embeddings": False},
    sequence_length=16,
    target_length=8,
)  # fmt: skip
WHISPER = small(
    "whisper",
    "speech-recognition",
    {"vocab_size": 128, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
     "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
     "max_source_positions": 50, "max_target_positions": 8, "pad_token_id": 0, "bos_token_id": 1,
     "eos_token_id": 2, "decoder_start_token_id": 1},
    sequence_length=None,
    audio_seconds=1,
    target_length=8,
)  # fmt: skip


def equal(trial: Trial, folder: Path, tolerance: float = EXACT, **how: Any) -> None:
    script, bench = losses_of_script(trial, folder, **how), losses_of_bench(trial, folder)
    assert len(script) == 3
    assert script == pytest.approx(bench, rel=tolerance, abs=0)


@pytest.mark.slow
def test_a_file_trains_with_an_ordinary_python(tmp_path: Path) -> None:
    """The other tests start their scripts with the Python of tests/warm.py."""
    equal(trial_of("tiny-gpt-neox"), tmp_path, cold=True)


@pytest.mark.sweep
@pytest.mark.parametrize("name", TINY[1:])
def test_every_family_trains_alike(name: str, tmp_path: Path) -> None:
    equal(trial_of(name), tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("model", [LLAMA, T5, WHISPER], ids=lambda model: model.name)
@pytest.mark.parametrize("setting", [(), ("kernels", "checkpointing")])
def test_models_of_transformers_train_alike(model: Model, setting: tuple[str, ...], tmp_path: Path) -> None:
    equal(replace(trial_of("tiny-gpt-neox", setting), model=model), tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "setting", "recipe", "tolerance"),
    [
        ("tiny-gpt-neox", ("kernels", "fused-optimizer"), {"precision": "bf16"}, EXACT),
        ("tiny-gpt-neox", ("half-weights",), {"precision": "bf16"}, EXACT),
        ("tiny-gpt-neox", (), {"optimizer": MUON}, EXACT),
        ("tiny-gpt-neox", ("compile",), {}, EXACT),
        ("tiny-gpt-neox", ("compile-blocks", "checkpointing"), {"precision": "bf16"}, EXACT),
        ("tiny-roberta", ("kernels", "masked-head", "compile-blocks"), {}, EXACT),
        ("tiny-roberta", ("half-weights",), {"precision": "fp16"}, TIED_IN_HALF),
        ("tiny-vit", ("kernels", "half-weights"), {"precision": "fp16"}, EXACT),
        ("tiny-convnext", ("fused-optimizer",), {"precision": "fp16"}, EXACT),
    ],
)
def test_every_method_trains_alike(
    name: str, setting: tuple[str, ...], recipe: Any, tolerance: float, tmp_path: Path
) -> None:
    equal(trial_of(name, setting, **recipe), tmp_path, tolerance)


@pytest.mark.sweep
@pytest.mark.usefixtures("zero_operators")
@pytest.mark.parametrize(
    ("name", "setting", "precision"),
    [
        ("tiny-gpt-neox", ("checkpointing",), "fp32"),
        ("tiny-roberta", ("kernels", "masked-head", "half-weights"), "fp16"),
        ("tiny-vit", ("fsdp-2",), "bf16"),
        ("tiny-gpt-neox", ("fsdp-3", "checkpointing"), "fp32"),
        *(("tiny-gpt-neox", (f"zero-{stage}",), "bf16") for stage in (1, 2, 3)),
    ],
)
def test_two_processes_train_alike(
    name: str, setting: tuple[str, ...], precision: str, tmp_path: Path
) -> None:
    tolerance = TIED_IN_HALF if name == "tiny-roberta" else AVERAGED
    equal(trial_of(name, setting, gpus=2, precision=precision), tmp_path, tolerance)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("setting", "gpus", "precision"),
    [((), 1, "fp16"), (("half-weights",), 1, "bf16"), (("fsdp-2",), 2, "fp32")],
)
def test_training_goes_on_from_a_checkpoint(
    setting: tuple[str, ...], gpus: int, precision: str, tmp_path: Path
) -> None:
    """The tiny model drops no units, so that losses do not depend on random numbers after the start."""
    trial = trial_of("tiny-gpt-neox", setting, gpus, precision=precision)
    whole = losses_of_script(trial, tmp_path, steps=4)
    assert losses_of_script(trial, tmp_path, "--out", "saved", steps=2) == whole[:2]
    assert losses_of_script(trial, tmp_path, "--out", "saved", "--resume", steps=4) == whole[2:]
