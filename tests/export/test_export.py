"""The files that bench export writes, without running them; tests/e2e trains with each."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.base.strict_json import from_json
from bench.cli.main import main
from bench.export import KINDS, WITH_BENCH, _about_recording, _plain, _require_known
from bench.export.requirements import MEASURED, TRIED
from bench.records.trial import Trial
from bench.training.models import known_models
from tests.builders import trial
from tests.report.made import CRASH, bundle, manifest, measured

ROOT = Path(__file__).parents[2]
EVERY_SETTING = ROOT / "results/every-setting-h200/pythia-160m-2gpus.tar"


def export(*arguments: str | Path) -> int:
    return main(["export", *map(str, arguments)])


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", WITH_BENCH)
def test_a_real_setting_can_be_exported_to_each_framework(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert export(EVERY_SETTING, "--to", kind, folder, "--setting", "free-lunch + zero-2") == 0
    trial = from_json(Trial, read(folder / "trial.json"))
    assert (trial.model.name, trial.gpus, trial.micro_batch) == ("pythia-160m", 2, 16)
    assert "zero-2" in trial.setting
    compile((folder / "train.py").read_text(), "train.py", "exec")
    readme = (folder / "README.md").read_text()
    assert "passes a step, 2 devices. Measured: " in readme
    assert "3.398 ±0.025 s a step" in readme  # the name in the table
    assert "run ba16513b266c on NVIDIA H200" in readme
    assert "torch==2.11.0" in (folder / "requirements.txt").read_text().splitlines()
    listed = {line[3:-1] for line in readme.splitlines() if line.startswith("- `")}
    assert listed == {path.name for path in folder.iterdir()} - {"README.md"}


def test_an_export_for_one_device_starts_one_process(tmp_path: Path) -> None:
    bundle = EVERY_SETTING.with_name("pythia-160m-1gpu.tar")
    assert export(bundle, "--to", "script", tmp_path / "a", "--setting", "free-lunch") == 0
    assert "passes a step, 1 device. Measured: " in (tmp_path / "a" / "README.md").read_text()


def test_training_arguments_contain_the_recipe_and_the_setting(tmp_path: Path) -> None:
    export(
        EVERY_SETTING, "--to", "trainer", tmp_path / "a", "--setting", "free-lunch + checkpointing + zero-3"
    )
    given = read(tmp_path / "a" / "training_arguments.json")
    assert given["per_device_train_batch_size"] * given["gradient_accumulation_steps"] * 2 == 1024
    assert (given["max_steps"], given["fp16"], given["bf16"]) == (143_000, True, False)
    assert (given["tf32"], given["gradient_checkpointing"]) == (True, True)
    assert given["deepspeed"] == "deepspeed.json"
    zero = read(tmp_path / "a" / "deepspeed.json")
    assert zero["zero_optimization"]["stage"] == 3
    assert zero["train_batch_size"] == 1024
    assert zero["fp16"] == {"enabled": True}


def test_with_a_deepspeed_file_accelerate_gets_no_precision(tmp_path: Path) -> None:
    """accelerate refuses to start if both files name a precision."""
    export(EVERY_SETTING, "--to", "accelerate", tmp_path / "a", "--setting", "free-lunch + zero-2")
    given = read(tmp_path / "a" / "accelerate.json")
    assert given["distributed_type"] == "DEEPSPEED"
    assert "mixed_precision" not in given
    assert read(tmp_path / "a" / "deepspeed.json")["fp16"] == {"enabled": True}


def test_offloading_is_in_deepspeeds_configuration(tmp_path: Path) -> None:
    export(EVERY_SETTING, "--to", "deepspeed", tmp_path / "a", "--setting", "free-lunch + zero-3 + offload")
    zero = read(tmp_path / "a" / "deepspeed.json")["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"


def test_a_step_of_one_pass_is_told_in_the_singular_with_the_memory_of_a_device(tmp_path: Path) -> None:
    of = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"batch_size": 16}}])
    path = bundle(tmp_path / "a.tar", of=of)
    for kind, name in (("script", "README.md"), ("standalone", "train.py")):
        assert export(path, "--to", kind, tmp_path / kind) == 0
        text = " ".join((tmp_path / kind / name).read_text().split())
        assert "1 pass a step, 1 device" in text or "A step has 1 pass of 16 samples on 1 device." in text
        assert re.search(r" days, [\d.]+ [MG]iB a device\. ", text)


def test_the_fastest_setting_is_exported_by_default(tmp_path: Path) -> None:
    assert export(EVERY_SETTING, "--to", "script", tmp_path / "a") == 0
    assert "fsdp-2" in read(tmp_path / "a" / "trial.json")["setting"]


@pytest.mark.parametrize(("chosen", "told"), [([], True), (["--setting", "naive"], False)])
def test_an_uncertain_fastest_setting_is_exported_with_a_hint(
    chosen: list[str], told: bool, tmp_path: Path, capsys: Any
) -> None:
    """If the user names a setting, no hint is needed."""
    wide = measured(0.49, (0.2, 1.0, 1.8, 1.0, 0.2, 1.8))
    path = bundle(tmp_path / "a.tar", settings=[((), 0.5), (("compile",), wide)])
    assert export(path, "--to", "script", tmp_path / "b", *chosen) == 0
    assert ('--setting "compile" exports that' in capsys.readouterr().err) is told


def refused(capsys: Any, *arguments: str | Path) -> str:
    assert export(*arguments) == 2
    return str(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("kind", "setting", "can"),
    [
        ("deepspeed", "free-lunch + fsdp-3", "script, trainer, accelerate, standalone"),
        ("deepspeed", "free-lunch + fsdp-2 + offload", "script"),
        ("trainer", "free-lunch + fsdp-2 + offload", "script"),
        ("accelerate", "free-lunch + fsdp-2 + offload", "script"),
    ],
)
def test_a_setting_that_a_framework_cannot_express_is_refused_with_alternatives(
    kind: str, setting: str, can: str, tmp_path: Path, capsys: Any
) -> None:
    said = refused(capsys, EVERY_SETTING, "--to", kind, tmp_path / "a", "--setting", setting)
    assert f"{setting} cannot be exported to {kind}" in said
    assert said.endswith(f"these can run it: {can}\n")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["trainer", "accelerate", "deepspeed"])
def test_only_benchs_own_loop_supports_half_precision_weights(kind: str, tmp_path: Path, capsys: Any) -> None:
    of = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"precision": "bf16"}}])
    path = bundle(tmp_path / "a.tar", of=of, settings=[(("half-weights",), 0.5)])
    assert "these can run it: script, standalone" in refused(capsys, path, "--to", kind, tmp_path / "b")


@pytest.mark.parametrize(
    ("setting", "divided"), [("free-lunch + fsdp-2", False), ("free-lunch + fsdp-3", True)]
)
def test_fsdp_is_in_the_configuration_of_accelerate_and_trainer(
    setting: str, divided: bool, tmp_path: Path
) -> None:
    """The script shards block by block, so the frameworks have nothing to wrap."""
    assert export(EVERY_SETTING, "--to", "accelerate", tmp_path / "a", "--setting", setting) == 0
    given = read(tmp_path / "a" / "accelerate.json")
    assert (given["distributed_type"], given["mixed_precision"]) == ("FSDP", "fp16")
    assert given["fsdp_config"]["fsdp_version"] == 2
    assert given["fsdp_config"]["fsdp_reshard_after_forward"] is divided
    assert given["fsdp_config"]["fsdp_auto_wrap_policy"] == "NO_WRAP"
    assert export(EVERY_SETTING, "--to", "trainer", tmp_path / "t", "--setting", setting) == 0
    given = read(tmp_path / "t" / "training_arguments.json")
    assert given["fsdp"] is True
    assert (given["fsdp_config"]["version"], given["fsdp_config"]["reshard_after_forward"]) == (2, divided)
    assert "deepspeed" not in given
    assert not (tmp_path / "t" / "deepspeed.json").exists()


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", "bfloat16"), ("fp8", "bfloat16"), ("fp16", "float16"), ("fp32", None)]
)
def test_without_sharding_deepspeed_keeps_fp32_weights_as_the_trial_did(
    precision: str, dtype: str | None, tmp_path: Path
) -> None:
    of = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"precision": precision}}])
    assert export(bundle(tmp_path / "a.tar", of=of), "--to", "deepspeed", tmp_path / "b") == 0
    given = read(tmp_path / "b" / "deepspeed.json")
    assert not given["bf16"]["enabled"] and not given["fp16"]["enabled"]
    assert given.get("torch_autocast", {}).get("dtype") == dtype


def test_every_framework_computes_in_bf16_beside_products_in_fp8(tmp_path: Path) -> None:
    """The script itself lets layers multiply in fp8; "fp8" means other software to accelerate."""
    of = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"precision": "fp8"}}])
    path = bundle(tmp_path / "a.tar", of=of)
    for kind in ("trainer", "accelerate"):
        assert export(path, "--to", kind, tmp_path / kind) == 0
    given = read(tmp_path / "trainer" / "training_arguments.json")
    assert (given["bf16"], given["fp16"]) == (True, False)
    assert read(tmp_path / "accelerate" / "accelerate.json")["mixed_precision"] == "bf16"


ALL_PACKAGES = dict.fromkeys(
    ("torch", "transformers", "numpy", "accelerate", "deepspeed", "triton", "mamba-ssm"), "9.2"
)


def required(path: Path, kind: str, folder: Path, *arguments: str) -> list[str]:
    assert export(path, "--to", kind, folder, *arguments) == 0
    lines = (folder / "requirements.txt").read_text().splitlines()
    return [line.partition("==")[0] for line in lines]


@pytest.mark.parametrize(
    ("kind", "setting", "more"),
    [
        ("script", "naive", []),
        ("script", "zero-2", ["deepspeed", "triton"]),
        ("trainer", "naive", ["accelerate"]),
        ("accelerate", "zero-2", ["accelerate", "deepspeed", "triton"]),
        ("deepspeed", "naive", ["deepspeed"]),
        ("deepspeed", "zero-2", ["deepspeed", "triton"]),
    ],
)
def test_requirements_contain_only_what_the_setting_needs(
    kind: str, setting: str, more: list[str], tmp_path: Path
) -> None:
    settings: list[Any] = [((), 0.9), (("zero-2",), 0.8)]
    path = bundle(tmp_path / "a.tar", settings=settings, packages=ALL_PACKAGES)
    found = required(path, kind, tmp_path / "b", "--setting", setting)
    assert found == ["torch", "transformers", "numpy", *more]


def test_requirements_are_available_from_an_index(tmp_path: Path) -> None:
    """An index accepts no version with a local build label; a comment says where the build is from."""
    packages = {"torch": "2.13.0+cpu", "transformers": "5.17.0", "unrelated": "1", "numpy": "2 -r x"}
    assert export(bundle(tmp_path / "a.tar", packages=packages), "--to", "script", tmp_path / "b") == 0
    build, *pins = (tmp_path / "b" / "requirements.txt").read_text().splitlines()
    assert pins == ["torch==2.13.0", "transformers==5.17.0"]
    assert build.startswith("# Measured with 2.13.0+cpu.")
    assert build.endswith("PyTorch's own index")
    assert "from its repository" in (tmp_path / "b" / "README.md").read_text()


STEPS_AN_HOUR = 1800  # a step of four passes of half a second


@pytest.mark.parametrize(("named", "every"), [(40, 40), (None, STEPS_AN_HOUR)])
@pytest.mark.parametrize("kind", WITH_BENCH)
def test_every_script_saves_as_often_as_the_recipe_or_about_every_hour(
    kind: str, named: int | None, every: int, tmp_path: Path
) -> None:
    of = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"save_every_steps": named}}])
    path = bundle(tmp_path / "a.tar", of=of, settings=[((), 0.5)])
    assert export(path, "--to", kind, tmp_path / "b") == 0
    if kind == "trainer":
        given = read(tmp_path / "b" / "training_arguments.json")
        assert (given["save_strategy"], given["save_steps"]) == ("steps", pytest.approx(every, rel=0.05))
    else:
        (line,) = (
            s for s in (tmp_path / "b" / "train.py").read_text().splitlines() if s[:13] == "SAVE_EVERY = "
        )
        assert int(line.split()[2]) == pytest.approx(every, rel=0.05)
    readme = (tmp_path / "b" / "README.md").read_text()
    assert ("(the recipe's)" in readme) is (named is not None)
    assert "after the last one; `--save-every`" in readme


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("script", "torchrun --nnodes 2 --nproc-per-node 2 "),
        ("trainer", "torchrun --nnodes 2 --nproc-per-node 2 "),
        ("deepspeed", "torchrun --nnodes 2 --nproc-per-node 2 "),
        (
            "accelerate",
            "accelerate launch --config_file accelerate.json --num_machines 2 --machine_rank NODE ",
        ),
    ],
)
def test_the_readme_starts_several_nodes(kind: str, words: str, tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", gpus=4, on_one_node=2)
    assert export(path, "--to", kind, tmp_path / "b") == 0
    readme = (tmp_path / "b" / "README.md").read_text()
    assert words in readme
    assert "on each of 2 nodes" in readme


def test_partially_used_nodes_are_started_with_the_same_number_of_gpus(tmp_path: Path) -> None:
    """Two of four GPUs on each node trained; one node with all four would be another machine."""
    path = bundle(tmp_path / "a.tar", gpus=4, on_one_node=4, of=manifest(gpus=2))
    assert export(path, "--to", "script", tmp_path / "b") == 0
    assert "torchrun --nnodes 2 --nproc-per-node 2 " in (tmp_path / "b" / "README.md").read_text()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("tiny-gpt-neox", "The label of a position is the token that follows it"),
        ("tiny-roberta", "Every sample must have 10 labelled tokens"),
        ("tiny-vit", "`pixel_values`, fp32 of 16 x 3 x 32 x 32"),
    ],
)
def test_the_readme_describes_the_form_of_own_data(model: str, words: str, tmp_path: Path) -> None:
    """Labels in the form of Hugging Face's models would train the model to copy its input."""
    path = bundle(tmp_path / "a.tar", of=manifest(models=[model]))
    assert export(path, "--to", "script", tmp_path / "b") == 0
    assert words in (tmp_path / "b" / "README.md").read_text()


def readme_of(path: Path, kind: str, folder: Path, *arguments: str) -> str:
    assert export(path, "--to", kind, folder, *arguments) == 0
    return (folder / "README.md").read_text()


def test_the_readme_sets_the_measured_switches(tmp_path: Path) -> None:
    """Memory and time were measured with the variables that README.md sets."""
    switched = ROOT / "results/switches-h200/half-expandable-segments.tar"
    said = readme_of(switched, "script", tmp_path / "a", "--model", "pythia-1b")
    assert "\nexport PYTORCH_ALLOC_CONF=expandable_segments:True\n" in said
    assert "export " not in readme_of(EVERY_SETTING, "script", tmp_path / "b")


def test_the_readme_of_a_framework_says_that_it_does_not_record_passes() -> None:
    recorded = trial(setting=("compile-blocks", "cuda-graphs"))
    assert "`--to script` records passes" in _about_recording("accelerate", recorded)
    assert _about_recording("script", recorded) == ""
    assert _about_recording("accelerate", trial(setting=("compile-blocks",))) == ""


def test_a_strangers_switch_is_quoted_for_the_shell(tmp_path: Path) -> None:
    switches = {"TORCHINDUCTOR_X": "1; rm -rf ~ ```", "TORCHINDUCTOR_Y=1;reboot;Z": "1"}
    said = readme_of(bundle(tmp_path / "a.tar", switches=switches), "script", tmp_path / "b")
    assert "\nexport TORCHINDUCTOR_X='1; rm -rf ~ ???'\n```\n" in said
    assert "reboot" not in said


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\x1b[8m", "\U000e0041"])
def test_a_strangers_switch_with_characters_that_nobody_sees_is_no_line_for_the_shell(
    hidden: str, tmp_path: Path
) -> None:
    """Hidden characters reverse or overwrite the line that a reader sees and is about to type."""
    switches = {"TORCHINDUCTOR_X": f"a{hidden}b", "TORCHINDUCTOR_Y": "1"}
    said = readme_of(bundle(tmp_path / "a.tar", switches=switches), "script", tmp_path / "b")
    assert "export TORCHINDUCTOR_Y=1\n" in said
    assert "TORCHINDUCTOR_X" not in said
    assert all(character.isprintable() or character == "\n" for character in said)


def test_updates_on_the_host_get_their_threads(tmp_path: Path) -> None:
    """By default torchrun gives each of several processes one thread."""
    said = readme_of(EVERY_SETTING, "script", tmp_path / "a", "--setting", "free-lunch + zero-1 + offload")
    assert "\nOMP_NUM_THREADS=32 torchrun --standalone --nproc-per-node 2 train.py" in said
    assert "OMP_" not in readme_of(EVERY_SETTING, "script", tmp_path / "b", "--setting", "free-lunch")


def test_the_readme_states_the_disk_space_and_what_the_script_omits(tmp_path: Path) -> None:
    """The 143 checkpoints contain fp32 weights and two moments of 162 million parameters."""
    said = readme_of(EVERY_SETTING, "script", tmp_path / "a", "--setting", "free-lunch")
    assert "None is deleted: 143 by the end, about 1.8 GiB each" in said
    assert "evaluates on 10,240 samples every 40,000 steps" in said
    assert "`train.py` does not evaluate" in said


@pytest.mark.parametrize(("kind", "name"), [("accelerate", "accelerate"), ("deepspeed", "deepspeed")])
def test_packages_that_were_absent_when_measured_are_still_required(
    kind: str, name: str, tmp_path: Path
) -> None:
    path = bundle(tmp_path / "a.tar", packages={"torch": "2.11.0", "numpy": "2.1.0"})
    assert export(path, "--to", kind, tmp_path / "b") == 0
    lines = (tmp_path / "b" / "requirements.txt").read_text().splitlines()
    assert lines[:2] == ["torch==2.11.0", "numpy==2.1.0"]
    assert lines[-1].startswith(f"{name}>=")


def pins_of(path: Path, kind: str, folder: Path) -> list[str]:
    assert export(path, "--to", kind, folder) == 0
    lines = (folder / "requirements.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("version", ["1.0", "2.9.1", "0", "2"])
def test_a_version_older_than_bench_takes_is_not_pinned(version: str, tmp_path: Path) -> None:
    """The signer of a bundle could otherwise have others install a version with known holes."""
    packages = {"torch": version, "transformers": "4.0.0", "numpy": "2.1.0", "accelerate": "0.1"}
    lines = pins_of(bundle(tmp_path / "a.tar", packages=packages), "trainer", tmp_path / "b")
    assert lines == ["torch>=2.10,<2.14", "transformers>=5.17,<5.18", "numpy==2.1.0", "accelerate>=1.10,<2"]


@pytest.mark.parametrize(
    "version",
    [
        "2.11.0 --index-url http://evil",
        "1!2.11.0",
        "\u0662.11",
        "9" * 5000,
        "2.11.0;x",
        "",
        "v2",
    ],
)
def test_a_version_of_another_form_is_left_out(version: str, tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", packages={"torch": version, "numpy": "2.1.0"})
    assert pins_of(path, "script", tmp_path / "b") == ["numpy==2.1.0"]


def test_the_versions_are_those_that_bench_requires() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = {line for lines in extras.values() for line in lines}
    assert {f"{name}{versions}" for name, versions in (MEASURED | TRIED).items()} <= listed


MARKUP = "<script>alert(1)</script> ![x](http://evil/x.png) `a` [b](javascript:c) **d** # e | ~~f~~"


def test_the_readme_shows_a_strangers_texts_without_markup(tmp_path: Path) -> None:
    said = readme_of(bundle(tmp_path / "a.tar", gpu=MARKUP), "script", tmp_path / "b")
    (line,) = [line for line in said.splitlines() if line.startswith("From run ")]
    assert not set("<>![]`*#|~:\u202e") & set(line.partition(" on ")[2].partition(", trial ")[0])
    assert not set("<>![]`*#|~:\u202e\n") & set(_plain(f"{MARKUP}\n# heading"))


def test_a_model_that_this_version_would_not_run_is_refused() -> None:
    """`verify` takes a model on trust that another version of bench made of its manifest."""
    good = trial()
    _require_known(good)
    wrong = replace(good.model, architecture={**good.model.architecture, "num_attention_heads": 7})
    with pytest.raises(BadInput, match="this version of bench would not run this model"):
        _require_known(replace(good, model=wrong))


@pytest.mark.parametrize(
    ("family", "architecture", "told"),
    [
        (
            "timm",
            {"timm": "resnet18", "num_labels": 10, "pretrained": True},
            "/architecture/pretrained +would load weights",
        ),
        ("timm", {"timm": "hf-hub:evil/repo", "num_labels": 10}, "is not the name of an architecture"),
        ("dpt", {"num_labels": 10, "backbone": "evil/repo"}, "would be looked up on the Hugging Face Hub"),
    ],
)
def test_a_model_that_its_script_would_fetch_from_a_stranger_is_refused(
    family: str, architecture: dict[str, Any], told: str
) -> None:
    """The script would connect to a place that the bundle names, as soon as it is tried."""
    image = known_models()["tiny-vit"]
    strange = replace(image, family=family, architecture=architecture)
    with pytest.raises(BadInput, match=told):
        _require_known(trial(model=strange))


def test_a_folder_that_is_not_empty_is_not_overwritten(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "is not empty" in refused(capsys, EVERY_SETTING, "--to", "script", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "a"
    assert "free-lunch + zero-1" in refused(capsys, EVERY_SETTING, "--to", "script", folder, "--setting", "x")
    assert "pythia-160m" in refused(capsys, EVERY_SETTING, "--to", "script", folder, "--model", "pythia-1b")


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_that_this_version_lacks_is_refused(kind: str, tmp_path: Path, capsys: Any) -> None:
    """`verify` accepts it on trust: a bundle may be by a later version of bench."""
    path = bundle(tmp_path / "a.tar", settings=[((), 0.5), (("compile", "warp-drive"), 0.1)], version="9.9.9")
    why = refused(capsys, path, "--to", kind, tmp_path / "b")
    assert 'this version of bench has no method "warp-drive"' in why
    assert not (tmp_path / "b").exists()


def test_of_several_models_one_must_be_named(tmp_path: Path, capsys: Any) -> None:
    both = manifest(models=["tiny-gpt-neox", "tiny-roberta"])
    path = bundle(tmp_path / "a.tar", of=both)
    assert "--model: tiny-gpt-neox, tiny-roberta" in refused(capsys, path, "--to", "script", tmp_path / "b")
    assert export(path, "--to", "script", tmp_path / "b", "--model", "tiny-roberta") == 0


def test_a_setting_without_a_figure_is_refused(tmp_path: Path, capsys: Any) -> None:
    path = bundle(tmp_path / "a.tar", settings=[((), CRASH)])
    assert "has no figure" in refused(capsys, path, "--to", "script", tmp_path / "b")


def test_a_bundle_that_does_not_verify_is_not_exported(tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"x" * 2000)
    assert export(bad, "--to", "script", tmp_path / "a") == 4
    assert not (tmp_path / "a").exists()
