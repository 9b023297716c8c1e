"""The lower bound of a step in digits: what each change of setting and of micro-batch can gain at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.planning.search import lower_bounds
from bench.planning.search.lower_bounds import (
    LowerBounds,
    PassCost,
    TimedTrial,
    pass_cost_of,
    with_updates,
)
from bench.records.trial import Timing, Trial
from bench.training.models import Model, known_models, parameters_of
from bench.training.optimizers import Optimizer
from bench.training.optimizers.adamw_8bit import AdamW8bit
from bench.training.setting import Setting

PYTHIA = known_models()["pythia-1b"]  # in half precision, with 1,024 samples a step
PARAMETERS = parameters_of(PYTHIA) or 0


def untried(setting: Setting, micro_batch: int = 16, gpus: int = 1, model: Model = PYTHIA) -> Trial:
    return Trial(model, setting, micro_batch, gpus, 0, Timing())


def bound(trial: Trial, timed: Sequence[TimedTrial], pass_cost: PassCost | None) -> float:
    return LowerBounds(timed)(trial, pass_cost)


def timed(trial: Trial, a_pass: float = 1.0, update: float = 0.0) -> TimedTrial:
    return TimedTrial(trial, trial.accumulation * a_pass + update, update)


def test_a_bound_is_reached_if_one_measured_setting_shows_it() -> None:
    trial = untried(("checkpointing",))
    measured = [timed(untried(())), timed(untried(("kernels",)), a_pass=0.1)]
    for several in (measured, measured[::-1]):
        least, bounds = bound(trial, several, None), LowerBounds(several)
        assert least == bound(trial, measured[:1], None) > bound(trial, measured[1:], None)
        assert bounds.reach(least, trial, None)
        assert not bounds.reach(least + 1e-6, trial, None)


@pytest.mark.parametrize(
    ("measured", "wanted", "share"),
    [
        ((), (), 1.0),
        ((), ("checkpointing",), 1.1),
        (("checkpointing",), (), 0.65),
        ((), ("kernels",), 0.3),
        (("kernels",), (), 1.0),
        (("kernels",), ("gelu",), 0.3),
        (("compile",), ("compile-blocks",), 1.0),
        ((), ("cuda-graphs",), 0.3),
        ((), ("half-weights",), 0.95),
        (("half-weights",), (), 0.96),
        ((), ("zero-2",), 0.95),
        ((), ("fsdp-2",), 0.97),
        (("half-weights",), ("fsdp-2",), 1.0),
        (("zero-1",), ("zero-2",), 1.0),
        (("zero-2",), ("zero-1",), 0.3),
        (("zero-2",), ("fsdp-2",), 0.3),
        (("zero-2",), ("half-weights",), 0.3),
        (("zero-2",), (), 0.3 * 0.96),
        (("zero-2", "offload"), ("zero-2",), 0.1),
        (("zero-2", "offload"), ("zero-1", "offload"), 0.3),
        (("zero-2", "offload"), ("zero-3", "offload"), 1.0),
        (("zero-2", "offload"), ("fsdp-2", "offload"), 0.1),
        (("fsdp-2", "offload"), ("fsdp-2",), 0.02),
        (("fsdp-2", "offload"), ("zero-2", "offload"), 0.02),
        (("fsdp-2", "offload"), ("fsdp-3", "offload"), 1.0),
    ],
)
def test_the_least_share_of_a_pass_that_another_setting_leaves(
    measured: Setting, wanted: Setting, share: float
) -> None:
    found = bound(untried(wanted), [timed(untried(measured))], None)
    assert found == pytest.approx(64 * share)


@pytest.mark.parametrize(
    ("measured", "wanted", "gpus", "seconds"),
    [
        ((), (), 1, 0.5),
        ((), ("checkpointing",), 1, 0.9 * 0.5),
        ((), ("norms",), 4, 0.9 * 0.5),
        (("zero-2",), ("zero-2",), 4, 0.5),
        (("zero-2",), ("zero-3",), 4, 0.9 * 0.5 / 4),
        (("zero-2", "offload"), ("zero-2",), 4, 0.0),
        (("zero-2", "offload"), ("zero-3", "offload"), 4, 0.9 * 0.5 / 4),
        # An update on the host that was not measured takes 0.4 ns for each parameter of a GPU.
        (("zero-2",), ("zero-2", "offload"), 4, 0.9 * 0.5 / 4 + 0.4e-9 * PARAMETERS / 4),
        (("zero-2",), ("zero-2", "offload"), 1, 0.9 * 0.5 + 0.4e-9 * PARAMETERS),
    ],
)
def test_the_least_time_of_an_update(measured: Setting, wanted: Setting, gpus: int, seconds: float) -> None:
    """Passes of no time leave the update alone."""
    found = bound(untried(wanted, gpus=gpus), [timed(untried(measured, gpus=gpus), 0.0, 0.5)], None)
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("precision", "wanted", "seconds"),
    [
        ("bf16", ("half-weights",), 64 * (0.95 - 0.6 * 0.5) + 0.9 * 0.5),
        ("bf16", ("zero-2",), 64 * (0.95 - 0.6 * 0.5) + 0.9 * 0.5),
        ("bf16", ("fsdp-2",), 64 * 0.97 + 0.9 * 0.5),  # casts every gradient instead
        ("fp32", ("half-weights",), 64 * 1.0 + 0.9 * 0.5),
        ("fp32", ("zero-2",), 64 * 1.0 + 0.9 * 0.5),
    ],
)
def test_halved_weights_save_casts_only_in_half_precision(
    precision: str, wanted: Setting, seconds: float
) -> None:
    model = replace(PYTHIA, recipe=replace(PYTHIA.recipe, precision=precision))
    found = bound(untried(wanted, model=model), [timed(untried((), model=model), 1.0, 0.5)], None)
    assert found == pytest.approx(seconds)


def test_weights_that_were_halved_already_save_no_casts() -> None:
    found = bound(untried(("half-weights", "norms")), [timed(untried(("half-weights",)), 1.0, 0.5)], None)
    assert found == pytest.approx(64 * 1.0 + 0.9 * 0.5)


def test_parameters_that_only_the_built_model_can_count_take_no_time_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lower_bounds, "parameters_of", lambda _: None)
    offloaded = untried(("fsdp-2", "offload"))
    assert lower_bounds.host_update_seconds(offloaded) == 0
    assert lower_bounds.host_sum_seconds(offloaded, 1.0) == 0


def test_under_fsdp_with_offloading_no_pass_ends_before_its_gradients_have_crossed_the_bus() -> None:
    found = bound(untried(("fsdp-2", "offload")), [timed(untried(("fsdp-2",)), 0.001)], None)
    assert found == pytest.approx(64 * PARAMETERS * 4 / 64e9 + PARAMETERS * 0.4e-9)


@pytest.mark.parametrize(
    ("measured", "wanted", "cost", "setting", "share"),
    [
        (16, 8, None, (), 0.98 * 8 / 16),
        (16, 32, None, (), (32 + 0.18 * 16) / (16 + 0.18 * 16)),
        (4, 8, None, (), (8 + 2.5) / (4 + 2.5)),
        (16, 8, PassCost(4.0, 8), (), (8 + 4) / (16 + 4)),
        (16, 32, PassCost(4.0, 8), (), (32 + 4) / (16 + 4)),
        (16, 32, PassCost(4.0, 16), (), (32 + 4) / (16 + 4)),  # as small as the passes that showed the cost
        (16, 32, PassCost(4.0, 32), (), 0.0),  # a pass of 16 samples may be kernel launches alone
        (16, 8, None, ("fsdp-2", "offload"), 8 / 16),  # all of it may be the host's work
        (16, 32, None, ("fsdp-2", "offload"), 1.0),
    ],
)
def test_the_least_time_of_a_pass_at_another_micro_batch(
    measured: int, wanted: int, cost: PassCost | None, setting: Setting, share: float
) -> None:
    trial = untried(setting, wanted)
    found = bound(trial, [timed(untried(setting, measured), 1.0)], cost)
    assert found == pytest.approx(trial.accumulation * share)


def test_an_unknown_update_may_be_from_nothing_to_most_of_a_step_of_one_pass() -> None:
    half, whole = untried((), 512), TimedTrial(untried((), 1024), 2.0, None)
    assert bound(half, [whole], None) == pytest.approx(2 * 0.98)
    sharded = untried(("zero-2",), 1024)
    # If 1.4 s were the update, the casts saved would be more than the pass, and 0.9 of the update is left.
    assert bound(sharded, [whole], None) == pytest.approx(0.9 * 1.4)


def test_one_unknown_update_of_a_setting_leaves_all_of_them_open() -> None:
    whole, known = TimedTrial(untried((), 1024), 2.0, None), timed(untried((), 512), 1.0, 0.5)
    assert bound(untried(("norms",), 1024), [whole, known], None) == pytest.approx(0.3 * 2.0 + 0.9 * 1.4)


def test_where_samples_are_compared_a_step_of_one_pass_computes_it_once() -> None:
    """A step of several passes computes each forward twice, so it shows less about a step of one."""
    model = replace(PYTHIA, recipe=replace(PYTHIA.recipe, objective="contrastive"))
    measured = [timed(untried((), 512, model=model))]
    cost = PassCost(0.0, 1)
    assert bound(untried((), 1024, model=model), measured, cost) == pytest.approx(0.7 * 2)
    assert bound(untried((), 256, model=model), measured, cost) == pytest.approx(4 * 0.5)
    assert bound(untried((), 1024), [timed(untried((), 512))], cost) == pytest.approx(2.0), "a text model"


@pytest.mark.parametrize(
    ("optimizer", "wanted", "update"),
    [
        (AdamW8bit("adamw-8bit", 1e-3, 0.9, 0.95, 1e-8, 0.0), ("fused-optimizer",), 0.0),
        (AdamW8bit("adamw-8bit", 1e-3, 0.9, 0.95, 1e-8, 0.0), ("norms",), 0.9 * 0.5),
        (PYTHIA.recipe.optimizer, ("fused-optimizer",), 0.9 * 0.5),
    ],
)
def test_an_update_of_many_kernels_shows_nothing_about_a_compiled_one(
    optimizer: Optimizer, wanted: Setting, update: float
) -> None:
    model = replace(PYTHIA, recipe=replace(PYTHIA.recipe, optimizer=optimizer))
    found = bound(untried(wanted, model=model), [timed(untried((), model=model), 0.0, 0.5)], None)
    assert found == pytest.approx(update)


def test_of_several_measured_settings_the_highest_bound_counts() -> None:
    known = [timed(untried(()), 1.0), timed(untried(("checkpointing",)), 2.0)]
    assert bound(untried(("checkpointing", "norms")), known, None) == pytest.approx(64 * 2.0)
    assert bound(untried(("norms",)), known, None) == pytest.approx(64 * max(1.0, 0.65 * 2.0))


@pytest.mark.parametrize(
    ("passes", "cost"),
    [
        ({16: 2.5}, None),
        ({8: 1.5, 16: 2.5}, PassCost(4.0, 8)),
        ({16: 2.5, 8: 1.5}, PassCost(4.0, 8)),
        ({4: 1.4, 8: 1.5, 16: 2.5}, PassCost(4.0, 8)),  # the two largest show it
        ({8: 2.4, 16: 2.5}, PassCost(64.0, 8)),  # a sample takes at least a fifth of its mean time
        ({8: 0.5, 16: 2.5}, PassCost(0.0, 8)),  # and at most all of it
    ],
)
def test_two_micro_batches_of_a_setting_show_the_overhead_of_a_pass(
    passes: dict[int, float], cost: PassCost | None
) -> None:
    known = [timed(untried((), size), a_pass, 0.25) for size, a_pass in passes.items()]
    assert pass_cost_of(known) == cost


def test_a_pass_whose_update_is_unknown_includes_it() -> None:
    whole = TimedTrial(untried((), 1024), 2.5, None)
    assert (whole.pass_seconds, whole.sample_seconds) == (2.5, 2.5 / 1024)
    assert pass_cost_of([whole, timed(untried((), 512), 1.5)]) == PassCost(256.0, 512)


def test_the_largest_overhead_counts_and_of_equal_ones_that_of_the_smaller_micro_batch() -> None:
    def shown(setting: Setting, *passes: tuple[int, float]) -> list[TimedTrial]:
        return [timed(untried(setting, size), a_pass) for size, a_pass in passes]

    plain, kernels = shown((), (8, 1.5), (16, 2.5)), shown(("kernels",), (16, 1.25), (32, 2.25))
    assert pass_cost_of(kernels) == PassCost(4.0, 16)
    assert pass_cost_of([*kernels, *plain]) == pass_cost_of([*plain, *kernels]) == PassCost(4.0, 8)
    more = shown(("gelu",), (32, 1.25), (64, 2.0))
    assert pass_cost_of([*plain, *more]) == pass_cost_of(more)
    for engine, counts in (("fsdp-2", False), ("zero-2", True)):
        on_host = shown((engine, "offload"), (32, 1.25), (64, 2.0))
        assert pass_cost_of([*plain, *on_host]) == pass_cost_of(more if counts else plain)


def test_an_unknown_update_is_that_of_the_setting_with_several_passes_a_step() -> None:
    whole = TimedTrial(untried((), 1024), 1.0, None)
    several = [timed(untried((), size), 0.1, update) for size, update in ((16, 0.5), (32, 0.4))]
    found = with_updates([whole, *several])
    assert [one.update_seconds for one in found] == [0.4, 0.5, 0.4]
    assert [one.update_seconds for one in with_updates([whole])] == [None]
    longer, slow = replace(whole, step_seconds=2.0), timed(untried((), 16), 0.1, 1.5)
    assert with_updates([longer, slow])[0].update_seconds == 1.4  # at most this share of the step
    other = timed(untried(("kernels",), 16), 0.1, 0.3)
    assert with_updates([whole, other])[0].update_seconds is None


def test_the_measured_micro_batch_that_is_nearest_counts() -> None:
    known = [timed(untried((), 8), 0.8), timed(untried((), 32), 1.6)]
    cost = PassCost(0.0, 1)
    assert bound(untried((), 16), known, cost) == pytest.approx(64 * 0.8 * 2)
    assert bound(untried((), 64), known, cost) == pytest.approx(16 * 1.6 * 2)


def test_the_least_update_of_a_setting_counts_and_a_sharded_one_is_divided() -> None:
    known = [timed(untried((), 16), 0.0, 0.5), timed(untried((), 32), 0.0, 0.25)]
    assert bound(untried((), 64), known, None) == pytest.approx(0.25)
    assert bound(untried(("norms",), 64), known, None) == pytest.approx(0.9 * 0.25)
