"""What bench export writes really trains: a few steps on the CPU give the losses that the trial measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import export
from bench.bundle import open_bundle
from bench.codec import from_json, strict_loads
from bench.result import Trial
from bench.summary import Results

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
TIMING = {"target_percent": 50, "measure_seconds": 0.2, "warmup_seconds": 0.2}
PATHS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
FSDP_ON_CPU = ROOT / "tests/e2e/fsdp_on_cpu"
ENVIRONMENT = {
    **os.environ, "PATH": PATHS,
    "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "1",
}  # fmt: skip


def do(*command: str | Path, folder: Path, paths: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{paths}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-9000:]}"
    return done


def bundle_of(
    folder: Path,
    gpus: int,
    settings: list[object],
    recipe: dict[str, object] | None = None,
    model: str = "tiny-gpt-neox",
) -> Path:
    manifest = folder / "manifest.json"
    document = {
        "schema": "bench/manifest/v1", "models": [{"name": model, "recipe": recipe or {}}],
        "methods": settings, "gpus": gpus,
        "micro_batch": 16, "timing": TIMING, "seed": 3,
    }  # fmt: skip
    manifest.write_text(json.dumps(document))
    do("bench", "run", manifest, "--device", "cpu", "--out", folder / "out", folder=folder)
    (found,) = (folder / "out").glob("*.tar")
    return found


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp("one"), 1, ["naive", ["checkpointing"], ["kernels"]])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp("two"), 2, ["naive", ["zero-2"], ["fsdp-2"], ["fsdp-3"]])


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp("tied"), 1, ["naive"], model="tiny-roberta")


def measured_losses(bundle: Path, label: str) -> list[float]:
    with open_bundle(bundle) as opened:
        results = json.loads(opened.read("results.json"))
        (trial,) = (t["id"] for t in results["trials"] if t["label"] == label)
        lines = map(json.loads, opened.read("samples.jsonl").splitlines())
        (losses,) = (line["measurement"]["losses"] for line in lines if line["trial"] == trial)
    assert len(losses) == 3
    return [float(loss) for loss in losses]


def exported(bundle: Path, kind: str, label: str, folder: Path) -> Path:
    do("bench", "export", bundle, "--to", kind, folder, "--setting", label, folder=folder.parent)
    return folder


def trained(folder: Path, gpus: int, *arguments: str, paths: Path = ROOT) -> list[dict[str, float]]:
    """The lines of its log."""
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    command = (*launcher, "train.py", "--steps", "3", "--log-every", "1", *arguments)
    done = do(*command, folder=folder, paths=paths)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]


def agree(log: list[dict[str, float]], losses: list[float]) -> None:
    assert [line["step"] for line in log] == [1, 2, 3]
    assert [line["loss"] for line in log] == pytest.approx(losses, rel=1e-5)
    assert all(line["step_seconds"] > 0 for line in log)


@pytest.mark.parametrize("label", ["naive", "checkpointing", "free-lunch"])
@pytest.mark.parametrize("kind", ["script", "trainer", "accelerate", "deepspeed"])
def test_on_one_device(one: Path, kind: str, label: str, tmp_path: Path) -> None:
    label = _spelled(one, label)
    folder = exported(one, kind, label, tmp_path / "made")
    agree(trained(folder, 1), measured_losses(one, label))


def _spelled(bundle: Path, label: str) -> str:
    """ "kernels" alone may be called a free lunch."""
    with open_bundle(bundle) as opened:
        labels = [t["label"] for t in json.loads(opened.read("results.json"))["trials"]]
    return label if label in labels else "kernels"


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        *((kind, "naive") for kind in ("script", "trainer", "accelerate")),
        *((kind, "zero-2") for kind in ("script", "trainer", "deepspeed")),
        *((kind, label) for kind in ("script", "trainer", "accelerate") for label in ("fsdp-2", "fsdp-3")),
    ],
)
def test_on_two_devices(two: Path, kind: str, label: str, tmp_path: Path) -> None:
    folder = exported(two, kind, label, tmp_path / "made")
    paths = FSDP_ON_CPU if label.startswith("fsdp-") else ROOT
    agree(trained(folder, 2, paths=paths), measured_losses(two, label))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: list[object] = ["naive", ["half-weights"]]
    return bundle_of(tmp_path_factory.mktemp("half"), 1, settings, {"precision": "bf16"})


def written(bundle: Path, kind: export.Kind, label: str, folder: Path) -> Path:
    """From the trial, not by the command: whether a CPU's bf16 is plausible is not the matter here."""
    with open_bundle(bundle) as opened:
        results = from_json(Results, strict_loads(opened.read("results.json")))
    (found,) = (one for one in results.trials if one.label == label)
    trial = Trial(
        results.models[0], found.setting, found.micro_batch, found.gpus,
        results.seed, results.timing, results.memory_cap_bytes,
    )  # fmt: skip
    export.write(kind, folder, trial, found, results.node, "a test")
    return folder


@pytest.mark.parametrize("kind", export.KINDS)
def test_in_half_precision_without_sharding(half: Path, kind: export.Kind, tmp_path: Path) -> None:
    """fp32 weights under autocast, which is not what each of them does by default."""
    agree(trained(written(half, kind, "naive", tmp_path / "made"), 1), measured_losses(half, "naive"))


@pytest.mark.parametrize("kind", export.KINDS)
def test_the_last_step_is_logged_and_saved_whatever_the_recipe_names(
    tied: Path, kind: str, tmp_path: Path
) -> None:
    """Of a model, too, whose two tables are one."""
    folder = exported(tied, kind, "naive", tmp_path / "made")
    log = trained(folder, 1, "--log-every", "2", "--out", "checkpoints")
    assert [line["step"] for line in log] == [2, 3]
    (saved,) = (path for path in (folder / "checkpoints").iterdir() if path.is_dir() and "3" in path.name)
    assert any(path.stat().st_size > 1000 for path in saved.rglob("*") if path.is_file())
    assert trained(folder, 1, "--out", "checkpoints", "--resume", "--steps", "4")[-1]["step"] == 4


@pytest.mark.parametrize(
    ("kind", "label"), [("accelerate", "naive"), ("accelerate", "fsdp-2"), ("deepspeed", "zero-2")]
)
def test_two_devices_save_their_last_step(two: Path, kind: str, label: str, tmp_path: Path) -> None:
    folder = exported(two, kind, label, tmp_path / "made")
    paths = FSDP_ON_CPU if label.startswith("fsdp-") else ROOT
    trained(folder, 2, "--out", "checkpoints", "--save-every", "2", paths=paths)
    assert {path.name for path in (folder / "checkpoints").glob("step-*")} == {"step-2", "step-3"}


def test_accelerate_reads_its_configuration(one: Path, tmp_path: Path) -> None:
    folder = exported(one, "accelerate", "naive", tmp_path / "made")
    command = ("accelerate.commands.launch", "--cpu", "--config_file", "accelerate.json", "train.py")
    done = do(*command, "--steps", "3", "--log-every", "1", folder=folder)
    agree([json.loads(s) for s in done.stdout.splitlines() if s[:1] == "{"], measured_losses(one, "naive"))


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        *(("script", label) for label in ("naive", "fsdp-3", "zero-2")),
        *(("accelerate", label) for label in ("naive", "fsdp-2", "fsdp-3")),
        *(("deepspeed", label) for label in ("naive", "zero-2")),
    ],
)
def test_training_goes_on_where_it_stopped(
    one: Path, two: Path, kind: str, label: str, tmp_path: Path
) -> None:
    bundle, gpus = (one, 1) if label == "naive" else (two, 2)
    paths = FSDP_ON_CPU if label.startswith("fsdp-") else ROOT
    goes_on(exported(bundle, kind, label, tmp_path / "made"), gpus, paths)


def test_our_script_goes_on_with_half_weights(half: Path, tmp_path: Path) -> None:
    folder = written(half, "script", "half-weights", tmp_path / "made")
    agree(trained(folder, 1), measured_losses(half, "half-weights"))
    goes_on(folder, 1)


def goes_on(folder: Path, gpus: int, paths: Path = ROOT) -> None:
    """With the second and the third step from what was saved after the first."""
    whole = trained(folder, gpus, "--out", "checkpoints", "--save-every", "1", paths=paths)
    latest = folder / "checkpoints" / "latest-step"
    if latest.exists():
        latest.write_text("1")
    else:  # DeepSpeed's own
        latest.with_name("latest").write_text("step-1")
    resumed = trained(folder, gpus, "--out", "checkpoints", "--resume", paths=paths)
    assert [line["step"] for line in resumed] == [2, 3]
    losses = [line["loss"] for line in whole[1:]]
    assert [line["loss"] for line in resumed] == pytest.approx(losses, rel=1e-6)


def test_another_number_of_devices_is_refused(two: Path, tmp_path: Path) -> None:
    folder = exported(two, "script", "naive", tmp_path / "made")
    done = subprocess.run(
        [sys.executable, "train.py", "--steps", "1"],
        check=False, cwd=folder, env=ENVIRONMENT | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 1
    assert "measured on 2 devices, here are 1" in done.stderr
