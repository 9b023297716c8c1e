"""A method may change speed and memory, never the mathematics.

For every family and every setting that this machine can run, the losses and gradient norms of the first steps
equal those of the naive setting. Dropout is off here, so that the numbers can be compared. If it
is on, checkpointing must drop the same units twice.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from _pytest.mark.structures import ParameterSet

from bench.records.trial import Timing
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.methods import ordered
from bench.training.models import Model, Precision, families, known_models
from bench.training.setting import NAIVE, Setting
from tests.builders import trial
from tests.training.models.test_generic import SMALL, TEXT, resolved

TINY = {m.family: m for name, m in known_models().items() if name.startswith("tiny-")}
CPU = Device("cpu")
STEP = 0.003  # step that lowers the loss by this share, small enough for a linear loss
pytestmark = pytest.mark.usefixtures("compiled_here")


def without_dropout(model: Model) -> Model:
    off = {key: 0.0 for key in families()[model.family].defaults if "dropout" in key or "drop_path" in key}
    return dataclasses.replace(model, architecture={**model.architecture, **off})


def curve(
    model: Model, setting: Setting, folder: Path, micro_batch: int = 8, batch: int = 16, seed: int = 3
) -> torch.Tensor:
    """Train three steps of one batch each; return the losses and the gradient norms."""
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, batch_size=batch))
    one = trial(model=model, setting=setting, micro_batch=micro_batch, timing=Timing(loss_steps=3), seed=seed)
    run = TrialRun(one, CPU, Team(), folder, lambda event: None)
    run.prepare()
    losses, norms, samples = run.loss_curve()
    assert samples == batch
    assert all(loss > 0 for loss in losses)
    return torch.tensor([*losses, *norms], dtype=torch.float64)


@cache
def naive(family: str, dropout: bool = False) -> torch.Tensor:
    """Return the curve of a family's tiny model in the naive setting, which many tests compare with."""
    model = TINY[family] if dropout else without_dropout(TINY[family])
    with tempfile.TemporaryDirectory() as folder:
        return curve(model, NAIVE, Path(folder))


@pytest.mark.parametrize("family", list(families()))
def test_checkpointing_computes_what_naive_computes(family: str, tmp_path: Path) -> None:
    model, expected = without_dropout(TINY[family]), naive(family)
    torch.testing.assert_close(curve(model, ("checkpointing",), tmp_path), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["flaubert", "xlm"])
def test_blocks_are_computed_again_without_the_cache_that_the_code_makes_for_every_pass(
    name: str, tmp_path: Path
) -> None:
    sizes = {"vocab_size": 1000, "emb_dim": 64, "n_layers": 2, "n_heads": 4}
    off = {"dropout": 0.0, "attention_dropout": 0.0}
    model = resolved(name, sizes | off, TEXT | {"objective": "masked-lm"})
    expected, found = (curve(model, setting, tmp_path) for setting in (NAIVE, ("checkpointing",)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


WITH_KERNELS = [
    name for name, family in families().items() if family.kernels and not family.missing_kernels("cpu")
]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_what_naive_computes(tmp_path: Path) -> None:
    """Only the forward pass is compared, because flex attention cannot train on a CPU."""
    found = []
    for setting in (NAIVE, ("flex-attention",)):
        one = trial(model=without_dropout(TINY["vit"]), setting=setting, micro_batch=8, seed=3)
        run = TrialRun(one, CPU, Team(), tmp_path, lambda event: None)
        run.prepare()
        with torch.no_grad():
            found.append(run.strategy.evaluate(next(run.batches)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("others", [(), ("compile-blocks",), ("checkpointing",)])
def test_full_attention_computes_what_naive_computes(others: Setting, tmp_path: Path) -> None:
    model = without_dropout(TINY["vit"])
    found = curve(model, ("full-attention", *others), tmp_path)
    torch.testing.assert_close(found, naive("vit"), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", WITH_KERNELS)
def test_kernels_compute_what_naive_computes(family: str, tmp_path: Path) -> None:
    model, expected = without_dropout(TINY[family]), naive(family)
    torch.testing.assert_close(curve(model, ("kernels",), tmp_path), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("family", [n for n, family in families().items() if not family.keeps_fp32_weights])
def test_half_weights_compute_what_autocast_computes(
    family: str, precision: Precision, tmp_path: Path
) -> None:
    model = without_dropout(TINY[family])
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, precision=precision))
    few = {"micro_batch": 2, "batch": 4}  # a CPU without units for half precision takes seconds for more
    expected = curve(model, NAIVE, tmp_path, **few)
    found = curve(model, ("half-weights",), tmp_path, **few)
    torch.testing.assert_close(found[:3], expected[:3], rtol=2e-3, atol=0)  # losses
    torch.testing.assert_close(found[3:], expected[3:], rtol=2e-2, atol=0)  # gradient norms


OWN = SMALL | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.mark.parametrize(
    ("name", "architecture", "objective"),
    [
        ("llama", SMALL, "causal-lm"),
        ("albert", OWN | {"embedding_size": 64}, "masked-lm"),  # all layers share one set of weights
        ("deberta", OWN, "masked-lm"),  # modifies the output of a layer in place
        (  # adds a table of positions, which is a buffer, to the embeddings of words
            "xglm",
            {"vocab_size": 1000, "d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 4,
             "dropout": 0.0, "attention_dropout": 0.0},
            "causal-lm",
        ),
    ],
)  # fmt: skip
def test_half_weights_compute_what_fp32_does_in_other_architectures(
    name: str, architecture: dict[str, Any], objective: str, tmp_path: Path
) -> None:
    model = resolved(name, architecture, TEXT | {"objective": objective})
    expected = curve(model, NAIVE, tmp_path)
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, precision="bf16"))
    found = curve(model, ("half-weights",), tmp_path)
    torch.testing.assert_close(found[:3], expected[:3], rtol=2e-3, atol=0)  # losses
    torch.testing.assert_close(found[3:], expected[3:], rtol=2e-2, atol=0)  # gradient norms


@pytest.mark.parametrize("beside", [(), ("kernels", "checkpointing")], ids="+".join)
def test_a_head_at_masked_positions_computes_what_naive_computes(beside: Setting, tmp_path: Path) -> None:
    model, expected = without_dropout(TINY["roberta"]), naive("roberta")
    found = curve(model, ordered(["masked-head", *beside]), tmp_path)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_attention_has_kernels_on_a_cpu_too() -> None:
    assert {"gpt_neox", "roberta", "vit"} <= set(WITH_KERNELS)


def elsewhere(cases: Iterable[tuple[str, Setting]]) -> list[ParameterSet]:
    """Mark compiled families as a sweep, because each takes a C++ compiler many seconds."""
    return [pytest.param(*case, marks=pytest.mark.sweep) for case in cases]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("gpt_neox", ("compile-blocks",)),
        *elsewhere((name, ("compile-blocks",)) for name in families() if name != "gpt_neox"),
        *elsewhere([("gpt_neox", ("checkpointing", "compile")), ("roberta", ("masked-head", "compile"))]),
    ],
)
def test_a_compiled_model_computes_what_naive_computes(family: str, setting: Setting, tmp_path: Path) -> None:
    model = without_dropout(TINY[family])
    torch._dynamo.reset()
    expected = naive(family)
    torch.testing.assert_close(curve(model, setting, tmp_path), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["compile", "compile-blocks"])
@pytest.mark.parametrize("beside", [(), ("checkpointing",)], ids="+".join)
def test_compiled_half_weights_add_up_every_gradient(how: str, beside: Setting, tmp_path: Path) -> None:
    """Products write to their sums without telling the compiler (bench.runner.trial.fused_gradient_sums)."""
    model = without_dropout(TINY["gpt_neox"])
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, precision="bf16"))
    torch._dynamo.reset()
    expected = curve(model, ordered(["half-weights", *beside]), tmp_path)
    with torch._inductor.config.patch({"cpp.simdlen": 1}):  # g++ refuses its vectors of halves
        found = curve(model, ordered(["half-weights", how, *beside]), tmp_path)
    torch.testing.assert_close(found[:3], expected[:3], rtol=2e-3, atol=0)  # losses
    torch.testing.assert_close(found[3:], expected[3:], rtol=2e-2, atol=0)  # gradient norms


@pytest.mark.parametrize("family", list(families()))
@pytest.mark.parametrize("micro_batch", [1, 4, 16])
def test_accumulation_computes_what_one_pass_computes(family: str, micro_batch: int, tmp_path: Path) -> None:
    model, expected = without_dropout(TINY[family]), naive(family)
    torch.testing.assert_close(curve(model, NAIVE, tmp_path, micro_batch), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", list(families()))
def test_checkpointing_drops_the_same_units_twice(family: str, tmp_path: Path) -> None:
    expected = naive(family, dropout=True)
    torch.testing.assert_close(
        curve(TINY[family], ("checkpointing",), tmp_path), expected, rtol=1e-5, atol=1e-7
    )


@pytest.mark.sweep
@pytest.mark.parametrize("setting", [("compile-blocks",), ("compile-blocks", "checkpointing")], ids="+".join)
@pytest.mark.parametrize("family", ["roberta", "vit", "convnext"])
def test_compiled_code_drops_the_same_units_in_the_backward_pass(
    family: str, setting: Setting, tmp_path: Path
) -> None:
    """Compiled code drops other units than naive, so a step's change of the loss is compared instead."""
    run = TrialRun(
        trial(model=TINY[family], setting=setting, micro_batch=8, seed=3),
        CPU,
        Team(),
        tmp_path,
        lambda event: None,
    )
    run.prepare()
    whole, batch = run.strategy.whole, next(run.batches)

    def loss() -> torch.Tensor:
        torch.manual_seed(5)
        return whole(batch)

    weights = list(whole.parameters())
    gradients = torch.autograd.grad(loss(), weights)
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    before = loss().item()
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=float(STEP / norm**2))
    assert before - loss().item() == pytest.approx(STEP, rel=0.03)


@pytest.mark.parametrize("family", list(families()))
def test_a_seed_gives_the_same_losses_and_another_seed_others(family: str, tmp_path: Path) -> None:
    again, other = (curve(TINY[family], NAIVE, tmp_path, seed=seed) for seed in (3, 4))
    assert torch.equal(naive(family, dropout=True), again)
    assert not torch.equal(again, other)
