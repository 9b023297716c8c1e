"""The paper's tables: the calculation in every row, and what the printed days imply."""

from __future__ import annotations

import pytest

from bench.cli.main import main
from bench.report.paper.claims import claim, claims, paper, paper_code, recomputed
from bench.training.models import known_models


def test_every_setting_of_appendix_j_makes_the_recipes_batch() -> None:
    assert len(paper().optimal_settings) == 140
    for setting in paper().optimal_settings:
        batch = known_models()[setting.model].recipe.batch_size
        assert setting.gpus * setting.micro_batch * setting.accumulation == batch, setting


def test_the_settings_are_those_of_the_feasible_cells_of_table_1() -> None:
    feasible = {
        (row.model, row.gpu, gpus)
        for row in paper().optimal_days
        for gpus, days in zip(paper().gpu_counts, row.days, strict=True)
        if isinstance(days, int)
    }
    assert feasible == {(s.model, s.gpu, s.gpus) for s in paper().optimal_settings}


def test_both_tables_have_every_model_on_every_gpu_and_every_count() -> None:
    pairs = [(model, gpu) for model in paper().training_flops for gpu in paper().gpus]
    for table in (paper().optimal_days, paper().naive_days):
        assert [(row.model, row.gpu) for row in table] == pairs
        assert all(len(row.days) == len(paper().gpu_counts) for row in table)


def test_more_gpus_are_faster_in_every_row_of_table_1() -> None:
    for row in paper().optimal_days:
        numbers = [days for days in row.days if isinstance(days, int)]
        assert numbers == sorted(set(numbers), reverse=True), row


def test_the_claims_of_the_text_are_in_the_tables() -> None:
    optimal = {(row.model, row.gpu): row.days for row in paper().optimal_days}
    naive = {(row.model, row.gpu): row.days for row in paper().naive_days}
    assert optimal["pythia-1b", "A100"][2] == 18  # section 1
    assert naive["pythia-1b", "A100"][2] == 41  # section 4
    assert optimal["pythia-1b", "RTX 3090"][3] == 30  # section 4.1
    assert optimal["pythia-1b", "H100"][3] == 4
    # Figure 3: with more than one GPU, 9 of the 20 naive pairs cannot run at all, and all optimal ones can.
    pythia = [m for m in paper().training_flops if m.startswith("pythia")]
    infeasible = [
        (m, g) for m in pythia for g in paper().gpus if not any(isinstance(d, int) for d in naive[m, g][1:])
    ]
    assert len(infeasible) == 9
    assert all(isinstance(d, int) for m in pythia for g in paper().gpus for d in optimal[m, g][1:])


def test_optimal_settings_are_never_slower_than_naive_ones() -> None:
    for fast, slow in zip(paper().optimal_days, paper().naive_days, strict=True):
        pairs = zip(fast.days, slow.days, strict=True)
        assert all(a <= b for a, b in pairs if isinstance(a, int) and isinstance(b, int)), fast


def test_claims_that_imply_more_than_the_chips_peak_are_flagged() -> None:
    impossible = {(c.model, c.gpu, c.gpus) for c in claims() if c.exceeds == "yes"}
    assert ("pythia-1b", "RTX 3090", 2) in impossible
    assert ("pythia-160m", "RTX 3090", 8) in impossible
    assert all(c.method == "optimal" for c in claims() if c.exceeds == "yes")
    assert claim("optimal", "pythia-1b", "A100", 4, 18).utilisation == pytest.approx(0.904, abs=0.001)


def test_rounding_alone_flags_nothing_as_certain() -> None:
    exact = next(c for c in claims() if c.days == 1)
    assert exact.exceeds == "no"
    assert claim("optimal", "pythia-160m", "RTX 3090", 1, 42).exceeds == "perhaps"


def test_fused_kernels_do_not_explain_what_the_paper_counts_for_mamba() -> None:
    """The first product of each mixer, outside fused kernels, has more operations than the paper counts."""
    model = known_models()["mamba-2.8b"]
    a, recipe = model.architecture, model.recipe
    weights = a["num_hidden_layers"] * a["hidden_size"] * 2 * a["expand"] * a["hidden_size"]
    tokens = recipe.steps * recipe.batch_size * recipe.units_per_sample
    assert 2 * weights * tokens == pytest.approx(1.0e21, rel=0.01)
    assert 2 * weights * tokens > paper().training_flops["mamba-2.8b"]
    (said,) = (words for words in paper().contradictions if "Mamba" in words)
    assert "Why is not known" in said
    assert "1.0e21" in said


def test_timings_on_two_gpus_are_not_attributed_to_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert {row.gpus for row in paper_code().rows} == {1, 2}
    assert main(["paper"]) == 0
    assert f"academic-pretraining, on {paper_code().gpu}, " in capsys.readouterr().out


def test_the_papers_code_was_timed_on_models_that_are_here() -> None:
    assert {row.model for row in paper_code().rows} <= set(known_models())
    for row in paper_code().rows:
        batch = known_models()[row.model].recipe.batch_size
        assert row.gpus * row.micro_batch_size * row.accumulation == batch
        # Its passes and updates, timed by the wall clock, give the true days.
        step = row.accumulation * row.true_pass_seconds + row.true_update_seconds
        assert step * known_models()[row.model].recipe.steps / 86_400 == pytest.approx(
            row.true_days, rel=0.002
        )


def test_the_factors_of_the_text_are_held_against_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        claim.factor: [round(each.factor, 2) for each in recomputed(claim)] for claim in paper().text_claims
    }
    assert found.pop(4.3) == [4.37, 3.39]  # of Pythia alone; of all nine models
    assert found.pop(3.0) == [2.96, 2.77]  # with ViT's TPU cores as GPUs; without ViT
    assert not any(found.values())
    assert all((claim.needs is None) == bool(recomputed(claim)) for claim in paper().text_claims)
    assert main(["paper"]) == 0
    said = capsys.readouterr().out
    assert "2.96: 8 models, ViT's TPU cores counted as GPUs" in said
    assert "not checkable: no table has days of every configuration" in said


def test_the_survey_is_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    survey = paper().survey
    assert (survey.respondents, survey.institutions, survey.dated) == (50, 35, "2024-04")
    assert main(["paper"]) == 0
    said = capsys.readouterr().out
    assert "of 50 researchers at 35 institutions, 2024-04" in said
    assert all(f"{share.percent:g}%  {share.who}" in said for share in survey.shares)
