"""`bench reproduce` with a given second run compares each figure and names reasons."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import __version__
from bench.cli.main import main
from bench.records.spread import shipped_spreads
from bench.records.trial import Measured, StepSample
from bench.report.read_bundles import MANY_BUNDLES
from bench.runner.machine.probe import STACK, packages
from tests.builders import measurement
from tests.report.made import CRASH, H100, NO_MEMORY, bundle, copies, manifest, near_copy

ROOT = Path(__file__).parents[2]
WIDE = (0.2, 1.0, 1.8, 1.0, 0.2, 1.8)


def reproduce(capsys: Any, there: Path, here: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["reproduce", str(there), "--with", str(here), "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def pair(folder: Path, **here: Any) -> tuple[Path, Path]:
    there = bundle(folder / "there.tar", run_id="there")
    return there, bundle(folder / "here.tar", **{"run_id": "here", "uuid": "other", **here})


def figure(document: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = document["compared"]
    return next(figure for figure in one["figures"] if figure["name"] == name)


def test_samples_copied_from_another_run_reproduce_nothing(tmp_path: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "there.tar", run_id="there")
    copies(there, tmp_path, 1, own_samples=False)
    assert main(["reproduce", str(there), "--with", str(tmp_path / "000000.tar")]) == 4
    assert "has the original run's samples: it was not run again" in capsys.readouterr().err


@pytest.mark.parametrize("change", [1e-12, -1e-9])
def test_samples_copied_but_for_their_last_digits_reproduce_nothing(
    tmp_path: Path, capsys: Any, change: float
) -> None:
    there = bundle(tmp_path / "there.tar", run_id="there")
    near = near_copy(there, tmp_path / "near.tar", change)
    assert main(["verify", str(near)]) == 0
    assert main(["reproduce", str(there), "--with", str(near)]) == 4
    assert "has the original run's samples: it was not run again" in capsys.readouterr().err


@pytest.mark.parametrize("count", [2, MANY_BUNDLES])
def test_a_directory_of_several_bundles_is_refused(tmp_path: Path, capsys: Any, count: int) -> None:
    there, several = bundle(tmp_path / "there.tar", run_id="there"), tmp_path / "several"
    several.mkdir()
    copies(there, several, count)
    assert main(["reproduce", str(several), "--with", str(there)]) == 2
    assert f"{several}: names {count} bundles\n  name exactly one of them" in capsys.readouterr().err
    assert main(["reproduce", str(there), "--with", str(several)]) == 2
    assert f"{several}: names {count} bundles" in capsys.readouterr().err


def test_the_same_figures_are_reproduced(tmp_path: Path, capsys: Any) -> None:
    code, document = reproduce(capsys, *pair(tmp_path, pass_seconds=0.5001))
    assert (code, document["reproduced"]) == (0, True)
    assert figure(document, "step seconds")["verdict"] == "reproduced"
    assert document["compared"][0]["reasons"] == []


def test_a_slower_run_is_not_reproduced_and_says_by_how_much_and_why(tmp_path: Path, capsys: Any) -> None:
    paths = pair(
        tmp_path, pass_seconds=0.55, watts=300.0, packages={"torch": "2.9.0"}, gpu="NVIDIA H100 PCIe"
    )
    code, document = reproduce(capsys, *paths)
    assert code == 1
    step = figure(document, "step seconds")
    assert step["verdict"] == "not reproduced"
    assert step["percent"] == pytest.approx(10.0, rel=1e-4)
    assert document["compared"][0]["reasons"] == [
        f"1x NVIDIA H100 PCIe here, 1x {H100} there",
        "torch 2.9.0 here, 2.11.0 there",
        "300 W a GPU here, 400 there",
    ]
    assert figure(document, "peak bytes")["verdict"] == "reproduced"


@pytest.mark.parametrize(
    ("ceiling_seconds", "reasons"),
    [(2.5, ["matmul-fp32 4,000 GFLOP/s here, 10,000 there"]), (1.05, [])],
)
def test_a_machine_with_lower_limits_is_named_as_a_reason(
    ceiling_seconds: float, reasons: list[str], tmp_path: Path, capsys: Any
) -> None:
    """The parts are the same, but another process uses them: the difference exceeds the usual scatter."""
    code, document = reproduce(capsys, *pair(tmp_path, pass_seconds=0.7, ceiling_seconds=ceiling_seconds))
    assert (code, document["compared"][0]["reasons"]) == (1, reasons)


def test_another_version_of_bench_is_named(tmp_path: Path, capsys: Any) -> None:
    code, document = reproduce(capsys, *pair(tmp_path, pass_seconds=0.7, version="0.0.9"))
    assert (code, document["compared"][0]["reasons"]) == (1, [f"bench 0.0.9 here, bench {__version__} there"])


def test_lower_limits_alone_do_not_change_the_verdict(tmp_path: Path, capsys: Any) -> None:
    assert reproduce(capsys, *pair(tmp_path, ceiling_seconds=2.5))[0] == 0


def test_different_switches_are_named_if_both_are_known(tmp_path: Path, capsys: Any) -> None:
    there = {"NVIDIA_TF32_OVERRIDE": "1", "NCCL_ALGO": "Ring"}
    paths = pair(tmp_path, pass_seconds=0.6, switches={"OMP_NUM_THREADS": "4"})
    assert reproduce(capsys, *paths)[1]["compared"][0]["reasons"] == []
    bundle(paths[0], run_id="there", switches=there)
    assert reproduce(capsys, *paths)[1]["compared"][0]["reasons"] == [
        "NVIDIA_TF32_OVERRIDE not set here, 1 there",
        "NCCL_ALGO not set here, Ring there",
        "OMP_NUM_THREADS 4 here, not set there",
    ]


def test_the_tolerance_between_runs_is_an_option(tmp_path: Path, capsys: Any) -> None:
    paths = pair(tmp_path, pass_seconds=0.54)
    assert reproduce(capsys, *paths)[0] == 1
    assert reproduce(capsys, *paths, "--tolerance", "10")[0] == 0


@pytest.mark.parametrize(("uuid", "code"), [("GPU-1", 1), ("other", 0)])
def test_another_card_may_differ_by_more_than_the_same_card_on_another_day(
    tmp_path: Path, capsys: Any, uuid: str, code: int
) -> None:
    paths = pair(tmp_path, pass_seconds=0.52, uuid=uuid)
    found, document = reproduce(capsys, *paths)
    spreads = shipped_spreads()
    assert (found, document["same_machine"]) == (code, uuid == "GPU-1")
    assert document["spread"] == (spreads.another_day if code else spreads.another_machine)
    assert main(["reproduce", str(paths[0]), "--with", str(paths[1])]) == code
    between = "the same GPUs differ by between days" if code else "two machines of a kind differ by"
    assert f"% that {between}, or 2%" in capsys.readouterr().out


def test_very_wide_intervals_decide_nothing(tmp_path: Path, capsys: Any) -> None:
    code, document = reproduce(capsys, *pair(tmp_path, spread=WIDE))
    assert code == 1
    assert figure(document, "step seconds")["verdict"] == "undecided"


def test_each_figure_is_shown_with_its_own_interval(tmp_path: Path, capsys: Any) -> None:
    _, document = reproduce(capsys, *pair(tmp_path, spread=WIDE))
    step = figure(document, "step seconds")
    assert step["here_half_width"] > 10 * step["there_half_width"] > 0


def test_an_outcome_is_a_figure_too(tmp_path: Path, capsys: Any) -> None:
    code, document = reproduce(capsys, *pair(tmp_path, settings=[((), NO_MEMORY)]))
    assert code == 1
    assert figure(document, "outcome")["verdict"] == "not measured"
    assert document["compared"][0]["reasons"][0] == "out-of-memory here, measured there"


def test_the_same_failure_is_reproduced(tmp_path: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "a.tar", settings=[((), CRASH)])
    here = bundle(tmp_path / "b.tar", run_id="bbbb", settings=[((), CRASH)])
    assert reproduce(capsys, there, here)[0] == 0


def test_settings_that_were_not_run_here_are_named(tmp_path: Path, capsys: Any) -> None:
    of = manifest(methods=["naive", ["checkpointing"]])
    there = bundle(tmp_path / "a.tar", of=of, settings=[((), 0.5), (("checkpointing",), 0.6)])
    here = bundle(tmp_path / "b.tar", of=of, run_id="bbbb", complete=False)
    code, document = reproduce(capsys, there, here)
    assert code == 1
    assert document["missing"] == ["tiny-gpt-neox, checkpointing, micro-batch 16"]


def test_a_run_without_a_figure_cannot_be_reproduced(tmp_path: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "there.tar", run_id="there", settings=(), complete=False)
    here = bundle(tmp_path / "here.tar", run_id="here", settings=(), complete=False)
    code, document = reproduce(capsys, there, here)
    assert (code, document["reproduced"], document["compared"]) == (1, False, [])
    assert main(["reproduce", str(there), "--with", str(here)]) == 1
    assert "NOT REPRODUCED: run there has no figure" in capsys.readouterr().out


def test_a_run_does_not_reproduce_itself(tmp_path: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "a.tar")
    copy = tmp_path / "b.tar"
    copy.write_bytes(there.read_bytes())
    assert main(["reproduce", str(there), "--with", str(copy)]) == 2
    assert "is the original run itself" in capsys.readouterr().err


FEW = Measured(measurement([StepSample(1, 0.5), StepSample(3, 1.5)]))


@pytest.mark.parametrize(
    ("here", "there", "verdict"),
    [
        (FEW, 0.5, "not measured"),
        (0.5, FEW, "undecided"),
        (0.5, NO_MEMORY, "not reproduced"),
        (NO_MEMORY, CRASH, "not measured"),
    ],
)
def test_outcomes_of_trials_are_described(
    here: Any, there: Any, verdict: str, tmp_path: Path, capsys: Any
) -> None:
    a = bundle(tmp_path / "a.tar", settings=[((), there)])
    b = bundle(tmp_path / "b.tar", run_id="bbbb", settings=[((), here)])
    code, document = reproduce(capsys, a, b)
    assert code == 1
    assert figure(document, "outcome")["verdict"] == verdict


def test_a_loss_of_zero_does_not_divide_by_zero(tmp_path: Path, capsys: Any) -> None:
    steps = [StepSample(n, n * 0.5 * f) for f in (0.99, 1.0, 1.01) for n in (1, 3)]
    flat = Measured(measurement(steps, losses=(0.0, 0.0)))
    a = bundle(tmp_path / "a.tar", settings=[((), flat)])
    b = bundle(tmp_path / "b.tar", run_id="bbbb", settings=[((), flat)])
    assert reproduce(capsys, a, b)[0] == 0


def test_losses_over_different_samples_are_not_compared(tmp_path: Path, capsys: Any) -> None:
    steps = [StepSample(n, n * 0.5 * f) for f in (0.99, 1.0, 1.01) for n in (1, 3)]
    few, many = (Measured(measurement(steps, samples_per_loss=samples)) for samples in (16, 64))
    a = bundle(tmp_path / "a.tar", settings=[((), many)])
    b = bundle(tmp_path / "b.tar", run_id="bbbb", settings=[((), few)])
    code, document = reproduce(capsys, a, b)
    assert code == 1
    losses = figure(document, "first losses")
    assert (losses["verdict"], losses["there"]) == ("undecided", "first losses of 64 samples")


@pytest.mark.parametrize(
    ("fastest_here", "code", "verdict"), [(0.3003, 0, "reproduced"), (0.4, 1, "not reproduced")]
)
def test_a_search_may_reach_the_same_result_by_other_trials(
    fastest_here: float, code: int, verdict: str, tmp_path: Path, capsys: Any
) -> None:
    """The settings that a search skips depend on its measurements; its result must not."""
    of = manifest(methods="guided")
    there = bundle(tmp_path / "a.tar", of=of, settings=[((), 0.5), (("kernels",), 0.3), (("tf32",), 0.303)])
    settings: list[Any] = [((), 0.5), (("tf32",), fastest_here), (("compile",), 0.9)]
    here = bundle(tmp_path / "b.tar", of=of, run_id="bbbb", settings=settings)
    found, document = reproduce(capsys, there, here)
    assert document["missing"] == []
    assert document["not_needed"] == ["tiny-gpt-neox, kernels, micro-batch 16"]
    (answer,) = [one for one in document["compared"] if one["label"] == "fastest"]
    assert [(figure["name"], figure["verdict"]) for figure in answer["figures"]] == [("days", verdict)]
    assert found == code
    if code:
        assert answer["reasons"][0] == "tf32 at micro-batch 16 here, kernels at micro-batch 16 there"
    assert main(["reproduce", str(there), "--with", str(here)]) == found
    assert "kernels, micro-batch 16: the search did not need it here" in capsys.readouterr().out


def test_a_run_of_another_manifest_is_not_a_reproduction(tmp_path: Path) -> None:
    there, here = pair(tmp_path, of=manifest(seed=1))
    assert main(["reproduce", str(there), "--with", str(here)]) == 2


def test_a_bundle_that_does_not_verify_is_not_run(tmp_path: Path) -> None:
    there = bundle(tmp_path / "a.tar")
    data = bytearray(there.read_bytes())
    data[-3000] ^= 1
    there.write_bytes(bytes(data))
    assert main(["reproduce", str(there), "-o", str(tmp_path / "out")]) == 4
    assert not (tmp_path / "out").exists()


def test_different_software_is_refused_before_anything_runs(tmp_path: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "a.tar", packages={"torch": "0.1"})
    assert main(["reproduce", str(there), "--device", "cpu", "-o", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert "torch " in said
    assert "0.1 there" in said
    assert "pip install torch==0.1" in said
    assert "pip uninstall --yes" in said  # packages that are present only here
    assert "--any-stack" in said
    assert not (tmp_path / "out").exists()


def test_other_switches_are_refused_before_anything_runs(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = bundle(tmp_path / "a.tar", packages=packages(STACK), switches={})
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert main(["reproduce", str(there), "--device", "cpu", "-o", str(tmp_path / "out")]) == 3
    assert "NVIDIA_TF32_OVERRIDE 1 here, not set there" in capsys.readouterr().err


PODMAN = """#!{python}
import json, pathlib, shutil, sys
words, here = sys.argv[1:], pathlib.Path(__file__).parent
if words[0] == "info":
    print(json.dumps({{"version": {{"Version": "5"}}, "store": {{}}}}))
elif words[:2] == ["image", "inspect"]:
    found = {{"Id": "{config}", "RootFS": {{"Layers": []}}, "Labels": {{"bench.variant": "cpu"}}}}
    print(json.dumps([found]))
else:
    (here / "told.json").write_text(json.dumps(words))
    (mount,) = [word for word in words if "target=/in/manifest.json," in word]
    shutil.copy(mount.split("source=")[1].split(",")[0], here / "asked.json")
    (out,) = [w.split("=")[1].split(":")[0] for w in words if ":/out:" in w]
    if (here / "here.tar").exists():
        shutil.copy(here / "here.tar", out)
"""
IMAGE = "0" * 64


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace Podman by an engine that runs nothing and leaves the bundle here.tar."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "podman").write_text(PODMAN.format(python=sys.executable, config=IMAGE))
    (folder / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def in_image(there: Path, *more: str) -> int:
    out = there.parent / "out"
    return main(["reproduce", str(there), "--engine", "podman", "--device", "cpu", "-o", str(out), *more])


def test_it_runs_in_the_image_of_the_bundle(tmp_path: Path, podman: Path, capsys: Any) -> None:
    of = manifest(image=f"sha256:{IMAGE}")
    there = bundle(tmp_path / "there.tar", of=of)
    bundle(podman / "here.tar", of=of, run_id="here", uuid="other")
    assert in_image(there, "--budget", "60s") == 0
    assert "1 of 1 settings reproduced" in capsys.readouterr().out
    assert (podman / "asked.json").read_bytes() == of.data
    told = read(podman / "told.json")
    assert told[told.index("run", 1) - 1] == f"sha256:{IMAGE}"
    assert told[-4:] == ["--device", "cpu", "--budget", "60.0s"]


def test_another_image_is_refused_for_reproduction(tmp_path: Path, podman: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "there.tar", of=manifest(image="sha256:" + "1" * 64))
    assert in_image(there, "--image", "bench:cpu") == 3
    assert f"bench:cpu is sha256:{IMAGE}" in capsys.readouterr().err
    assert not (podman / "told.json").exists()


def test_a_run_in_the_image_without_a_bundle_is_reported(tmp_path: Path, podman: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "there.tar", of=manifest(image=f"sha256:{IMAGE}"))
    assert in_image(there) == 3
    assert "left no bundle" in capsys.readouterr().err


def test_without_an_image_there_is_none_to_run_in(tmp_path: Path, podman: Path, capsys: Any) -> None:
    there = bundle(tmp_path / "there.tar")
    assert in_image(there) == 2
    assert "in no image whose identity is known" in capsys.readouterr().err
    assert in_image(there, "--key", "id") == 2


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_text_output_has_one_line_per_setting(tmp_path: Path, capsys: Any) -> None:
    there, here = pair(tmp_path, pass_seconds=0.55)
    assert main(["reproduce", str(there), "--with", str(here)]) == 1
    out = capsys.readouterr().out
    name, step = "tiny-gpt-neox, naive, micro-batch 16", "step 2.2 s ±0.023, was 2 s ±0.021"
    assert f"{name}  {step}: NOT REPRODUCED (+10.0%)" in out
    assert "0 of 1 settings reproduced: run here here, there there" in out


def test_one_setting_at_two_micro_batches_gives_two_distinct_lines(capsys: Any) -> None:
    """The bundles are real searches that measured pythia-410m's free-lunch at two micro-batches each."""
    there, here = (ROOT / f"results/hour-h200/{minutes}-minutes.tar" for minutes in (20, 24))
    _, document = reproduce(capsys, there, here)
    keys = [(one["model"], one["label"], one["micro_batch"]) for one in document["compared"]]
    assert len(set(keys)) == len(keys) > len({key[:2] for key in keys})
    main(["reproduce", str(there), "--with", str(here)])
    out = capsys.readouterr().out
    for model, label, micro_batch in keys:
        if micro_batch is not None:
            assert f"{model}, {label}, micro-batch {micro_batch} " in out
