"""Documents packed into samples: each attends within itself, with every kind of attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.base.errors import BadInput, Mistake
from bench.base.strict_json import from_json, to_json
from bench.planning.manifest import resolve_models
from bench.runner.trial.device import Device
from bench.runner.trial.made_up_data import Batches, samples_of
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team
from bench.training.models import Model, Recipe, family_of
from bench.training.models.attention import fused_attention, register_fused_attention
from bench.training.models.counted_operations import counted
from bench.training.models.generic import TransformersFamily
from bench.training.models.isolation import require_documents_apart
from bench.training.objectives.documents import ENDS, Documents, documents_of, positions_in
from bench.training.vendor import transformers_inside
from tests.builders import trial
from tests.training.models.test_attention import CAUSAL, WINDOWED
from tests.training.models.test_generic import TEXT

PACKED = {"mean_tokens": 6}
ARCHITECTURES = CAUSAL | {
    name: given for name, (objective, given) in WINDOWED.items() if objective == "causal-lm"
}


def stated(architecture: dict[str, Any], **recipe: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "architecture": architecture,
        "recipe": {**TEXT, "objective": "causal-lm", "documents": PACKED, **recipe},
    }


def model_of(name: str, **recipe: Any) -> Model:
    (model,), mistakes = resolve_models([stated({"model_type": name, **ARCHITECTURES[name]}, **recipe)])
    assert mistakes == []
    return model


def mistakes_of(architecture: dict[str, Any], **recipe: Any) -> list[Mistake]:
    models, mistakes = resolve_models([stated(architecture, **recipe)])
    assert models == []
    return mistakes


def batch_of(model: Model, folder: Path) -> dict[str, Tensor]:
    samples = samples_of(trial(model=model, micro_batch=3), folder)
    return next(Batches(samples, 3, torch.device("cpu"), Team(), workers=0))


@pytest.fixture(autouse=True)
def nothing_is_packed() -> Iterator[None]:
    """Restore, after each test, that transformers looks for no packed samples: other tests expect that."""
    yield
    transformers_inside.expect_no_packed_samples()


# Where documents end


def test_made_up_documents_have_the_mean_length_of_the_recipe() -> None:
    documents, tokens = Documents(50), np.zeros(4096, dtype=np.int64)
    found = [documents.ends(tokens, np.random.default_rng(seed)) for seed in range(50)]
    assert {len(ends) for ends in found} == {documents.most(4096)}
    assert all((np.diff(ends) >= 0).all() and ends[0] > 0 and ends[-1] == 4096 for ends in found)
    mean = np.mean([4096 / len(set(ends)) for ends in map(np.ndarray.tolist, found)])
    assert mean == pytest.approx(50, rel=0.1)


def test_documents_of_ones_own_end_after_the_separator() -> None:
    tokens = np.array([5, 0, 7, 7, 0, 8, 8, 0])
    ends = Documents(4, separator=0).ends(tokens, np.random.default_rng(0), own=True)
    assert ends.tolist() == [2, 5, 8, 8, 8, 8, 8, 8]


def test_data_with_far_more_documents_than_stated_are_refused() -> None:
    tokens = np.zeros(1000, dtype=np.int64)
    with pytest.raises(ValueError, match=r"has 1000 documents, .*lower the recipe's documents"):
        Documents(100, separator=0).ends(tokens, np.random.default_rng(0), own=True)


def test_positions_begin_anew_in_each_document() -> None:
    ends = torch.tensor([[2, 5, 6, 6], [6, 6, 6, 6]])
    assert documents_of(ends, 6).tolist() == [[0, 0, 1, 1, 1, 2], [0] * 6]
    assert positions_in(ends, 6).tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("window", [None, 1, 9, 512])
def test_attending_pairs_are_the_average_of_made_up_documents(window: int | None) -> None:
    documents, length = Documents(20), 300
    ends = [documents.ends(np.zeros(length, int), np.random.default_rng(seed)) for seed in range(400)]
    positions = positions_in(torch.from_numpy(np.stack(ends)), length) + 1
    counted_pairs = positions.clamp(max=window or length).sum(1).double().mean()
    assert documents.pairs(length, window) == pytest.approx(float(counted_pairs), rel=0.02)


# Attention


def logits_of(model: Model, batch: dict[str, Tensor], *, kernels: bool) -> Tensor:
    torch.manual_seed(0)
    module = family_of(model).build(model, kernels=kernels).eval()
    with torch.no_grad():
        return model.recipe.aim.answer(module, batch)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fused_attention_separates_documents_as_transformers_does(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    batch = batch_of(model, tmp_path)
    assert len(set(batch[ENDS][0].tolist())) > 2
    whole = {part: data for part, data in batch.items() if part != ENDS}
    expected = logits_of(model, batch, kernels=False)
    torch.testing.assert_close(logits_of(model, batch, kernels=True), expected, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(logits_of(model, whole, kernels=True), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_flash_attention_gets_the_ends_of_all_samples_in_one_row(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU FlashAttention takes documents of different lengths; here each is computed on its own."""
    calls: list[Tensor] = []

    def flash(
        query: Tensor, key: Tensor, value: Tensor, starts: Tensor, also: Tensor, *sizes: Any, scale: float,
        window_size_left: int, window_size_right: int,
    ) -> tuple[Tensor]:  # fmt: skip
        assert starts.dtype == torch.int32 and starts is also and sizes[:2] == (32, 32)
        assert window_size_right == 0
        calls.append(starts)
        out = torch.empty_like(query)
        times = query.size(1) // key.size(1)
        for a, b in zip(starts.tolist(), starts.tolist()[1:], strict=False):
            q, k, v = (t[a:b].transpose(0, 1).float() for t in (query, key, value))
            ahead = torch.arange(b - a)[None, :] - torch.arange(b - a)[:, None]
            mask = (ahead <= 0) & (ahead >= -window_size_left)
            k, v = k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            out[a:b] = attended.transpose(0, 1).to(out.dtype)
        return (out,)

    model = model_of(name)
    batch = batch_of(model, tmp_path)
    expected = logits_of(model, batch, kernels=False)
    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        patch.setattr("torch.cuda.get_device_properties", lambda: type("Properties", (), {"major": 9}))
        patch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
        patch.setattr("bench.training.models.attention.takes_window", lambda *_: True)
        register_fused_attention.cache_clear()
        found = logits_of(model, batch, kernels=True)
    register_fused_attention.cache_clear()
    fused_attention()
    assert calls and all(int(starts[-1]) == 3 * 32 for starts in calls)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_a_document_that_reaches_the_next_one_is_found() -> None:
    """A model that is not told where documents end attends across them."""
    model = model_of("llama")
    module = family_of(model).build(model, kernels=True)
    require_documents_apart(module, model)
    module.config._attn_implementation = "sdpa"
    module.model.forward = _without_positions(module.model.forward)
    with pytest.raises(BadInput, match="in llama, a document changes the prediction for the next one"):
        require_documents_apart(module, model)


def _without_positions(forward: Any) -> Any:
    def call(*given: Any, position_ids: Tensor, **named: Any) -> Any:
        return forward(*given, **named)

    return call


# Recipes


def test_a_recipe_without_documents_is_written_as_before() -> None:
    recipe = model_of("llama").recipe
    assert recipe.documents == Documents(6)
    assert to_json(recipe)["documents"] == {"mean_tokens": 6}
    assert from_json(Recipe, to_json(recipe)) == recipe
    assert "documents" not in to_json(replace(recipe, documents=None))


@pytest.mark.parametrize(
    ("architecture", "recipe", "place", "said"),
    [
        ({"model_type": "llama"}, {"documents": {}}, "documents/mean_tokens", "missing"),
        ({"model_type": "llama"}, {"documents": 5}, "documents", "5 is not an object"),
        ({"model_type": "llama"}, {"documents": {"mean_tokens": 1}}, "documents/mean_tokens", "1"),
        ({"model_type": "llama"}, {"documents": PACKED | {"length": 1}}, "documents/length", "no such field"),
        ({"model_type": "bert"}, {"objective": "masked-lm", "masked_fraction": 0.15}, "documents",
         "means nothing for masked-lm"),
        ({"model_type": "gpt_neox"}, {}, "documents", "bench cannot tell the attention of gpt_neox"),
        ({"model_type": "bloom"}, {}, "documents", "bench cannot tell the attention of bloom"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(
    architecture: dict[str, Any], recipe: dict[str, Any], place: str, said: str
) -> None:
    found = {
        mistake.path.removeprefix("/models/0/recipe/"): mistake.found
        for mistake in mistakes_of({"vocab_size": 128, **architecture}, **recipe)
    }
    assert said in found[place]


# Counts


def test_only_attention_within_documents_is_counted() -> None:
    model = model_of("llama")
    whole = replace(model, recipe=replace(model.recipe, documents=None))
    packed, plain = (counted(one, TransformersFamily("llama")) for one in (model, whole))
    length = model.recipe.units_per_sample
    assert packed.flops.matmul == plain.flops.matmul
    share = Documents(6).pairs(length) / (length * (length + 1) / 2)
    assert packed.flops.attention == pytest.approx(plain.flops.attention * share, rel=1e-6)
    assert len(packed.footprints) == len(plain.footprints) > 0


def test_counts_of_a_model_do_not_depend_on_the_models_that_came_before() -> None:
    """After a model with documents, others were once counted with a mask for every pair of positions."""
    packed = model_of("llama")
    whole = replace(packed, recipe=replace(packed.recipe, documents=None))
    transformers_inside.expect_no_packed_samples()
    first = counted(whole, TransformersFamily("llama"))
    transformers_inside.expect_packed_samples()  # as the passes of a model with documents do
    assert counted(whole, TransformersFamily("llama")) == first


def test_code_that_keeps_the_ends_from_its_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", lambda *_, **__: None)
    with pytest.raises(BadInput, match="the code of llama does not tell all of its attention"):
        counted(model, TransformersFamily("llama"))


def test_code_that_computes_with_its_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")

    def mask(*_: Any, attention_mask: Tensor, **__: Any) -> Tensor:
        return attention_mask.nonzero()

    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", mask)
    with pytest.raises(BadInput, match="the code of llama computes with its mask"):
        counted(model, TransformersFamily("llama"))


@pytest.mark.parametrize(
    "setting",
    [
        ("kernels",),
        ("compile",),
        ("kernels", "compile"),
        ("kernels", "compile-blocks"),
        ("kernels", "joined-products", "checkpointing"),
    ],
)
def test_settings_agree(setting: tuple[str, ...], tmp_path: Path, without_inductor: None) -> None:
    model = model_of("llama", batch_size=4)
    losses = []
    for one in ((), setting):
        run = TrialRun(
            trial(model=model, setting=one, micro_batch=2), Device("cpu"), Team(), tmp_path, lambda _: None
        )
        run.prepare()
        losses.append([float(run.step(2)) for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
