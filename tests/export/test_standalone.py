"""The file that bench export writes to take away: its text; test_standalone_losses.py trains with it."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from bench.base.errors import BadInput
from bench.cli.main import main
from bench.export import standalone
from bench.export.origin import TrialOrigin
from bench.export.standalone.model import LISTED_BLOCKS, model_parts
from bench.export.standalone.python_source import joined, literal, mapping_literal, text_literal
from bench.records.trial import Timing, Trial
from bench.training.methods import conflict, known_methods, ordered
from bench.training.models import Model, known_models, own_module
from bench.training.models.generic import TransformersFamily
from bench.training.objectives import known_objectives
from bench.training.optimizers import OPTIMIZERS
from bench.training.setting import GROUPS
from bench.training.vendor.transformers_source import has_experts, head_name
from tests.export.alone import NODE, facts_of, script_of
from tests.report.made import bundle
from tests.training.models.test_generic import model_of

TINY = ("tiny-gpt-neox", "tiny-roberta", "tiny-mamba", "tiny-convnext", "tiny-vit")
WIDTH = "100"
RULES = "E,F,W,I,B,UP,SIM,RUF,PTH,C4,RET,PLE,PLW,TID,ARG"
MUON = OPTIMIZERS["muon"]("muon", 1e-3, 0.9, 0.95, 1e-8, 0.1)
STRANGE = 'a"b\'c\\ """\nimport os\u202e\x00{SEED}\U0001f600'


def trial_of(name: str, setting: tuple[str, ...] = (), gpus: int = 1, **recipe: Any) -> Trial:
    model = known_models()[name]
    model = replace(model, recipe=replace(model.recipe, batch_size=16, **recipe))
    return Trial(model, ordered(setting), 4, gpus, 3, Timing())


def every_trial() -> Iterator[Trial]:
    """Yield trials of each tiny model with methods of every group that a file can express together."""
    sharding = [(), ("half-weights",), *((n,) for n, group in GROUPS.items() if group == "sharding")]
    compiled = [(), ("compile",), ("compile-blocks",)]
    rest = [(), ("kernels", "masked-head", "tf32", "fused-optimizer"), ("checkpointing",)]
    for name, *parts in itertools.product(TINY, sharding, compiled, rest):
        chosen = set(itertools.chain(*parts)) - ({"masked-head"} if name != "tiny-roberta" else set())
        setting = ordered(chosen)
        for gpus, precision in ((1, "bf16"), (2, "fp16")):
            trial = trial_of(name, setting, gpus, precision=precision)
            if conflict(setting) is None and standalone.refuse(trial) is None:
                yield trial


@pytest.fixture(scope="module")
def every_script() -> list[tuple[Trial, str]]:
    return [(trial, standalone.script(trial, facts_of(trial))) for trial in every_trial()]


def test_the_longest_script_can_be_read_in_one_sitting(every_script: list[tuple[Trial, str]]) -> None:
    assert len(every_script) > 100
    assert max(text.count("\n") for _, text in every_script) <= standalone.LONGEST == 300


def imported_by(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a script imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def test_every_script_is_python_from_3_11_on_and_names_nothing_of_bench(
    every_script: list[tuple[Trial, str]],
) -> None:
    for _, text in every_script:
        tree = ast.parse(text, feature_version=(3, 11))
        assert not any(name.partition(".")[0] == "bench" for name in imported_by(tree))
        assert text.isascii()


def test_ruff_finds_nothing_to_change(every_script: list[tuple[Trial, str]], tmp_path: Path) -> None:
    for number, (_, text) in enumerate(every_script):
        (tmp_path / f"s{number}.py").write_text(text)
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", WIDTH, "--target-version", "py311", str(tmp_path)]
    for words in (["format", "--diff", *options], ["check", "--select", RULES, *options]):
        done = subprocess.run([*ruff, *words], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[:3000]


def test_a_script_leaves_out_what_its_setting_does_not_use(every_script: list[tuple[Trial, str]]) -> None:
    for trial, text in every_script:
        used = {
            "deepspeed": "zero-" in " ".join(trial.setting),
            "fully_shard": "fsdp-" in " ".join(trial.setting),
            "torch.compile(": "compile-blocks" in trial.setting,
            "import checkpoint": "checkpointing" in trial.setting,
            "halve_weights": "half-weights" in trial.setting,
            "ASKED]": "masked-head" in trial.setting or trial.model.recipe.objective == "masked-lm",
        }
        assert {word for word in used if word in text} == {word for word, there in used.items() if there}


def test_the_file_says_where_it_comes_from_and_how_it_is_started(tmp_path: Path, capsys: Any) -> None:
    path = bundle(tmp_path / "mine.tar", packages={"torch": "2.11.0", "transformers": "5.17.0"})
    assert main(["export", str(path), "--to", "standalone", str(tmp_path / "made")]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [str(tmp_path / "made" / "train.py")]
    assert f"{tmp_path / 'made' / 'train.py'} says how to start it" in said.err
    (script,) = (tmp_path / "made").iterdir()
    tree = ast.parse(script.read_text())
    (source,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SOURCE"
    )
    assert (source["bundle"], source["model"], source["torch"]) == ("mine.tar", "tiny-gpt-neox", "2.11.0")
    assert len(source["sha256"]) == 64
    started = ast.get_docstring(tree)
    assert started is not None
    assert "python train.py --out checkpoints" in started
    header = script.read_text().split("# ///\n")[0].removeprefix("# /// script\n")
    needs = tomllib.loads("".join(line.removeprefix("# ") for line in header.splitlines(keepends=True)))
    assert needs["dependencies"] == ["torch==2.11.0", "transformers==5.17.0"]


@pytest.mark.parametrize("text", [STRANGE, "", "'", '"', "\\", "\r\n\x0c", "\u2028", "\ud800"])
def test_a_strangers_text_is_a_literal_that_holds_it(text: str) -> None:
    assert ast.literal_eval(text_literal(text)) == text
    assert text_literal(text).isascii()
    value = {text: [text, 1.5, None, True, {"a": text * 9}]}
    assert ast.literal_eval(literal(value)) == value
    long = {str(i): text * 7 for i in range(40)}
    assert (
        ast.literal_eval(mapping_literal("X", long).removeprefix("X = ").removesuffix("  # fmt: skip"))
        == long
    )


def test_a_strangers_texts_change_nothing_but_what_the_file_says() -> None:
    trial = trial_of("tiny-gpt-neox")
    architecture = {**trial.model.architecture, STRANGE: STRANGE}
    trial = replace(trial, model=replace(trial.model, name=STRANGE, architecture=architecture))
    node = replace(NODE, python=STRANGE, packages={"torch": STRANGE}, switches={"TORCH_LOGS": STRANGE})
    origin = TrialOrigin(STRANGE, STRANGE, STRANGE, STRANGE)
    told = standalone.script(trial, facts_of(trial, node=node, origin=origin))
    plain = script_of(trial_of("tiny-gpt-neox"))
    assert told.isascii()
    unlike = ("SOURCE", "ARCHITECTURE")

    def code(text: str) -> list[str]:
        body = ast.parse(text).body[1:]
        return [
            ast.dump(node)
            for node in body
            if getattr(getattr(node, "targets", [None])[0], "id", "") not in unlike
        ]

    assert code(told) == code(plain)


def test_infinite_numbers_of_a_configuration_are_python() -> None:
    assert (
        literal({"time_step_limit": [0.0, {"__float__": "Infinity"}]})
        == '{"time_step_limit": [0.0, float("inf")]}'
    )


def test_an_architecture_that_fills_pages_is_refused() -> None:
    trial = trial_of("tiny-gpt-neox")
    architecture = {**trial.model.architecture, "layer_types": ["full_attention"] * 2000}
    long = replace(trial, model=replace(trial.model, architecture=architecture))
    with pytest.raises(BadInput, match="more than 300") as found:
        script_of(long)
    assert "--to script" in str(found.value)


@pytest.mark.parametrize("name", known_methods())
def test_every_method_is_expressed_or_refused_with_what_is_lost(name: str) -> None:
    reason = known_methods()[name].not_exported_to.get("standalone")
    assert (reason is None) == (name in standalone.EXPRESSED)
    if reason:
        assert name in reason and "bench" in reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"setting": ("kernels", "rotary", "compile-blocks", "cuda-graphs")}, "rotary is a Triton kernel"),
        ({"setting": ("kernels", "rotary", "compile-blocks", "cuda-graphs")}, "cuda-graphs is code of bench"),
        ({"setting": ("fsdp-2", "offload")}, "offload is tuned by bench"),
        ({"data": "/data"}, "data of a folder"),
    ],
)
def test_a_setting_that_cannot_be_expressed_is_refused_with_every_reason(changes: Any, reason: str) -> None:
    assert reason in (standalone.refuse(replace(trial_of("tiny-gpt-neox"), **changes)) or "")


def test_a_model_whose_code_came_with_its_manifest_is_refused_in_these_words() -> None:
    own = trial_of("tiny-gpt-neox")
    own = replace(own, model=replace(own.model, family=own_module.FAMILY.name))
    why = standalone.refuse(own) or ""
    assert "the model's own code is in no package that the script could import" in why


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ({"precision": "fp8"}, "products in fp8"),
        ({"optimizer": OPTIMIZERS["adamw-8bit"]("adamw-8bit", 1e-3, 0.9, 0.95, 1e-8, 0.1)}, "8 bits"),
    ],
)
def test_a_recipe_that_cannot_be_expressed_is_refused(recipe: Any, reason: str) -> None:
    assert reason in (standalone.refuse(trial_of("tiny-gpt-neox", **recipe)) or "")


@pytest.mark.parametrize(
    ("family", "reason"),
    [("openai-gpt", "mixes precisions"), ("xglm", "xglm adds tables of positions in fp32")],
)
@pytest.mark.parametrize(
    ("setting", "refused"), [((), False), (("half-weights",), True), (("zero-2",), True)]
)
def test_a_model_that_benchs_code_lowers_in_part_is_refused_with_half_precision_weights(
    setting: tuple[str, ...], refused: bool, family: str, reason: str
) -> None:
    trial = trial_of("tiny-gpt-neox", setting, precision="bf16")
    trial = replace(trial, model=replace(trial.model, family=family))
    assert (reason in (standalone.refuse(trial) or "")) == refused


@pytest.mark.parametrize("objective", ["contrastive", "own-loss", "denoising"])
def test_an_objective_of_benchs_own_code_is_refused(objective: str) -> None:
    assert objective in known_objectives()
    model = known_models()["tiny-gpt-neox"]
    model = Model("x", "clip", {}, replace(model.recipe, objective=objective))  # type: ignore[arg-type]
    trial = replace(trial_of("tiny-gpt-neox"), model=model)
    assert f"the loss of {objective}" in (standalone.refuse(trial) or "")


def test_experts_in_half_precision_are_refused() -> None:
    model = known_models()["tiny-gpt-neox"]
    moe = Model("x", "mixtral", {"vocab_size": 64}, replace(model.recipe, precision="bf16"))
    assert "experts of mixtral" in (standalone.refuse(replace(trial_of("tiny-gpt-neox"), model=moe)) or "")
    assert has_experts("mixtral") and not has_experts("llama")


def test_a_refusal_names_the_method_and_what_can_run_it(tmp_path: Path, capsys: Any) -> None:
    path = bundle(tmp_path / "a.tar", settings=[(("kernels", "rotary"), 0.5)])
    assert main(["export", str(path), "--to", "standalone", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert "rotary is a Triton kernel of bench" in said and "these can run it: script" in said
    assert "--plain" in said
    assert not (tmp_path / "b").exists()


def test_plain_leaves_out_what_only_makes_steps_faster_and_says_so(tmp_path: Path, capsys: Any) -> None:
    """A GPU's fastest setting nearly always has kernels of bench."""
    setting = ("tf32", "kernels", "rotary", "gelu", "fused-optimizer")
    path = bundle(tmp_path / "a.tar", settings=[(setting, 0.5)])
    assert main(["export", str(path), "--to", "standalone", str(tmp_path / "b"), "--plain"]) == 0
    text = (tmp_path / "b/train.py").read_text()
    told = " ".join(text.split())
    assert "Left out here: rotary, gelu, code of bench without which a step takes longer." in told
    assert "fused=True" in text and '"rotary"' in text.partition("ARCHITECTURE")[0]
    assert main(["export", str(path), "--to", "script", str(tmp_path / "c"), "--plain"]) == 2
    assert "--plain with script" in capsys.readouterr().err


def test_plain_does_not_leave_out_what_memory_depends_on(tmp_path: Path, capsys: Any) -> None:
    path = bundle(
        tmp_path / "a.tar", settings=[(("kernels", "rotary", "compile-blocks", "chunked-loss"), 0.5)]
    )
    for option in ([], ["--plain"]):
        assert main(["export", str(path), "--to", "standalone", str(tmp_path / "b"), *option]) == 2
        said = capsys.readouterr().err
        assert "chunked-loss" in said and "; or leave out" not in said


def test_plain_leaves_out_exactly_the_methods_of_bench_that_only_make_steps_faster() -> None:
    every = replace(trial_of("tiny-gpt-neox"), setting=tuple(known_methods()))
    assert {*known_methods()} - {*standalone.plain(every).setting} == {
        "rotary", "gelu", "norms", "depthwise", "full-attention", "flex-attention", "joined-products",
        "padded-head", "transposed-factors", "cuda-graphs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "setting", "reason"),
    [
        ("tiny-roberta", ("masked-head",), None),
        ("tiny-gpt-neox", ("kernels",), None),
        ("tiny-mamba", (), None),
        (
            "tiny-mamba",
            ("kernels",),
            "kernels: bench loads mamba-ssm in a way of its own, without which the plain scan could run",
        ),
        (
            "tiny-vit",
            ("masked-head",),
            "masked-head: the head of vit is not one layer that the script could call",
        ),
    ],
)
def test_a_method_is_refused_for_the_family_that_it_cannot_be_expressed_for(
    model: str, setting: tuple[str, ...], reason: str | None
) -> None:
    assert standalone.refuse(replace(trial_of(model), setting=setting)) == reason


def test_mamba_2_trains_by_transformers_plain_code_or_not_at_all() -> None:
    trial = trial_of("tiny-mamba")
    trial = replace(trial, model=replace(trial.model, family="mamba2"))
    text = joined(model_parts(replace(trial, setting=())))
    hidden = 'sys.modules.update(dict.fromkeys(["mamba_ssm", "causal_conv1d", "selective_scan_cuda"]))'
    assert text.index(hidden) < text.index("AutoModelForCausalLM.from_config")
    reason = standalone.refuse(replace(trial, setting=("kernels",)))
    assert reason and "bench loads mamba-ssm in a way of its own" in reason


@pytest.mark.parametrize(
    ("family", "mapping", "head"),
    [
        ("gpt_neox", "CAUSAL_LM", "lm_head"),
        ("mamba", "CAUSAL_LM", "lm_head"),
        ("llama", "CAUSAL_LM", "lm_head"),
        ("roberta", "MASKED_LM", "lm_head"),
        ("bert", "MASKED_LM", "cls"),
        ("gemma2", "CAUSAL_LM", None),  # caps its logits
        ("granite", "CAUSAL_LM", None),  # scales them
        ("no-such-model", "CAUSAL_LM", None),
    ],
)
def test_a_head_is_called_apart_only_if_it_gives_the_logits_alone(
    family: str, mapping: str, head: str | None
) -> None:
    assert head_name(family, mapping) == head


@pytest.mark.parametrize("setting", [(), ("kernels", "compile-blocks", "checkpointing")])
def test_a_model_of_timm_is_built_by_timm_alone(setting: tuple[str, ...]) -> None:
    trial = trial_of("tiny-vit", setting)
    architecture = {"timm": "resnet18", "num_classes": 10, "num_labels": 10, "drop_rate": 0.1}
    trial = replace(trial, model=Model("r", "timm", architecture, trial.model.recipe))
    text = script_of(trial)
    ast.parse(text, feature_version=(3, 11))
    assert 'TIMM_MODEL = "resnet18"' in text and 'ARCHITECTURE = {\n    "drop_rate": 0.1,\n}' in text
    assert "import timm" in text and "from transformers" not in text
    assert max(map(len, text.splitlines())) <= int(WIDTH)


@pytest.mark.parametrize("name", ["poolformer", "swin", "resnet", "bert"])
def test_a_script_finds_the_blocks_that_bench_finds(name: str) -> None:
    scope: dict[str, Any] = {"nn": nn}
    exec(LISTED_BLOCKS.code, scope)
    family, model = TransformersFamily(name), model_of(name)
    module = family.build(model, kernels=False)
    assert scope["blocks_of"](module) == family.blocks(module)


def test_muon_has_the_groups_of_the_recipe() -> None:
    text = script_of(trial_of("tiny-gpt-neox", optimizer=MUON))
    assert "class Muon(" in text and "torch.optim.AdamW(" in text
