"""Scripts of bench export train: a few steps on the CPU give the losses that the trial measured."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Container, Mapping
from pathlib import Path

import pytest
import torch

from bench import export
from bench.base.strict_json import from_json, strict_loads
from bench.bundle.tar_format import open_bundle
from bench.cli.main import main
from bench.records.run_results import Results
from bench.records.trial import Trial
from bench.training.models import known_models
from tests.conftest import PATH
from tests.patience import PATIENCE_SECONDS
from tests.report import made
from tests.warm import quick_python

pytestmark = [pytest.mark.sweep, pytest.mark.usefixtures("zero_operators")]

ROOT = Path(__file__).parents[2]
TIMING = {"target_percent": 50, "measure_seconds": 0.2, "warmup_seconds": 0.2}
FSDP_ON_CPU = ROOT / "tests/e2e/fsdp_on_cpu"
ENVIRONMENT = {
    **os.environ, "PATH": PATH,
    "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "1",
}  # fmt: skip


def do(
    *command: str | Path, folder: Path, paths: Path = ROOT, without: str = "", cold: bool = False,
    codes: Container[int] = (0,),
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run `python -m`; `cold` uses an ordinary Python as a user does, otherwise the one of tests/warm.py."""
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{paths}{os.pathsep}{ROOT}"}
    environment.pop(without, None)
    done = python("-m", *command, folder=folder, environment=environment, cold=cold)
    assert done.returncode in codes, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-9000:]}"
    return done


def python(
    *words: str | Path, folder: Path, environment: Mapping[str, str], cold: bool = False
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable if cold else quick_python(), *map(str, words)],
        check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip


def bundle_of(
    folder: Path,
    gpus: int,
    settings: list[object],
    recipe: dict[str, object] | None = None,
    model: str = "tiny-gpt-neox",
    architecture: dict[str, object] | None = None,
    needs_figures: bool = True,
) -> Path:
    """Measure a model. A run is repeated if other work of this machine made its figures implausible.

    The scripts of bundles without `needs_figures` are not written by the command, which would refuse such
    figures.
    """
    manifest = folder / "manifest.json"
    own = {"architecture": architecture} if architecture else {}
    document = {
        "schema": "bench/manifest/v1", "models": [{"name": model, "recipe": recipe or {}, **own}],
        "methods": settings, "gpus": gpus,
        "micro_batch": 16, "timing": TIMING, "seed": 3,
    }  # fmt: skip
    manifest.write_text(json.dumps(document))
    for attempt in range(3):
        out = folder / f"out{attempt}"
        do("bench", "run", manifest, "--device", "cpu", "--out", out, folder=folder, codes=(0, 3))
        (found,) = out.glob("*.tar")
        if not needs_figures or all(t.estimate and t.estimate.plausible for t in results_of(found).trials):
            return found
    raise AssertionError("three runs gave no figures for every setting")


def results_of(bundle: Path) -> Results:
    with open_bundle(bundle) as opened:
        return from_json(Results, strict_loads(opened.read("results.json")))


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


def exported(bundle: Path, kind: str, label: str, folder: Path, cold: bool = False) -> Path:
    """Write a script by the command, of which `cold` makes a process of its own."""
    words = ["export", str(bundle), "--to", kind, str(folder), "--setting", label]
    if cold:
        do("bench", *words, folder=folder.parent, cold=True)
    else:
        assert main(words) == 0
    return folder


def trained(
    folder: Path, gpus: int, *arguments: str, paths: Path = ROOT, cold: bool = False
) -> list[dict[str, float]]:
    """Train with an exported script; return the lines of its log."""
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    command = (*launcher, "train.py", "--steps", "3", "--log-every", "1", *arguments)
    done = do(*command, folder=folder, paths=paths, cold=cold)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]


def agree(log: list[dict[str, float]], losses: list[float]) -> None:
    assert [line["step"] for line in log] == [1, 2, 3]
    assert [line["loss"] for line in log] == pytest.approx(losses, rel=1e-5)
    assert all(line["step_seconds"] > 0 for line in log)


@pytest.mark.parametrize("label", ["checkpointing", "free-lunch"])
@pytest.mark.parametrize("kind", ["script", "trainer", "accelerate", "deepspeed"])
def test_on_one_device(one: Path, kind: str, label: str, tmp_path: Path) -> None:
    """test_training_goes_on_where_it_stopped has naive."""
    label = _spelled(one, label)
    folder = exported(one, kind, label, tmp_path / "made")
    agree(trained(folder, 1), measured_losses(one, label))


def _spelled(bundle: Path, label: str) -> str:
    """ "kernels" alone may be called a free lunch."""
    labels = [trial.label for trial in results_of(bundle).trials]
    return label if label in labels else "kernels"


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        *((kind, "naive") for kind in ("script", "trainer", "accelerate")),
        ("trainer", "zero-2"),
        ("script", "fsdp-2"),
        *(("trainer", label) for label in ("fsdp-2", "fsdp-3")),
    ],
)
def test_on_two_devices(two: Path, kind: str, label: str, tmp_path: Path) -> None:
    """test_training_goes_on_where_it_stopped has the kinds and settings that are not here."""
    folder = exported(two, kind, label, tmp_path / "made")
    paths = FSDP_ON_CPU if label.startswith("fsdp-") else ROOT
    agree(trained(folder, 2, paths=paths), measured_losses(two, label))


TOLD = """
import weakref
from torch import distributed
from torch.nn.parallel import DistributedDataParallel as Replica

made, destroy, alive = Replica.__init__, distributed.destroy_process_group, weakref.WeakSet()

def told(self, *given, **more):
    made(self, *given, **more)
    alive.add(self)
    print(f"gradients in buckets: {self.gradient_as_bucket_view}", flush=True)

def tell(*given, **more):
    print(f"replicas at the end: {len(alive)}", flush=True)
    destroy(*given, **more)

Replica.__init__, distributed.destroy_process_group = told, tell
"""


@pytest.mark.parametrize("kind", ["script", "trainer", "accelerate"])
def test_replicas_store_their_gradients_once(kind: str, tmp_path: Path) -> None:
    """DDP must not keep gradients a second time beside its buckets: they might not fit where the trial did.

    No replica may outlive the process group: freeing the last one would then wait for gloo's thread, which
    waits for Python's lock (pytorch issue 56297).
    """
    folder = exported(made.bundle(tmp_path / "a.tar", gpus=2), kind, "naive", tmp_path / "made")
    script = folder / "train.py"
    head, future, body = script.read_text().partition("from __future__ import annotations\n")
    script.write_text(head + future + TOLD + body)
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = do(*launcher, "train.py", "--steps", "1", folder=folder)
    # The output of both processes may be on one line.
    assert done.stdout.count("gradients in buckets: True") == 2
    assert "gradients in buckets: False" not in done.stdout
    ends = [line for line in done.stdout.splitlines() if "replicas at the end" in line]
    assert len(ends) == (2 if kind == "accelerate" else 0) and all(line.endswith(": 0") for line in ends)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: list[object] = ["naive", ["half-weights"]]
    # A trial without a figure is accepted, because a CPU's bf16 may be implausible.
    folder, recipe = tmp_path_factory.mktemp("half"), {"precision": "bf16"}
    return bundle_of(folder, 1, settings, recipe, needs_figures=False)


def written(bundle: Path, kind: export.Kind, label: str, folder: Path) -> Path:
    """Write a script directly from the trial, because the command may refuse a CPU's bf16 as implausible."""
    results = results_of(bundle)
    (found,) = (one for one in results.trials if one.label == label)
    trial = Trial(
        results.models[0], found.setting, found.micro_batch, found.gpus,
        results.seed, results.timing, results.memory_cap_bytes,
    )  # fmt: skip
    export.write(kind, folder, trial, found, results.node, export.TrialOrigin("a.tar", "", "1", "a test"))
    return folder


@pytest.mark.parametrize("kind", export.WITH_BENCH)
def test_in_half_precision_without_sharding(half: Path, kind: export.Kind, tmp_path: Path) -> None:
    """Each script keeps fp32 weights under autocast, which is not the default of every framework."""
    agree(trained(written(half, kind, "naive", tmp_path / "made"), 1), measured_losses(half, "naive"))


@pytest.fixture(scope="module", params=["muon", "adamw-8bit"])
def updated_otherwise(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp(request.param), 1, ["naive"], {"optimizer": request.param})


@pytest.mark.parametrize("kind", ["script", "trainer", "accelerate"])
def test_every_optimizer_trains_and_resumes(updated_otherwise: Path, kind: str, tmp_path: Path) -> None:
    folder = exported(updated_otherwise, kind, "naive", tmp_path / "made")
    goes_on(folder, 1, measured_losses(updated_otherwise, "naive"))


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe: dict[str, object] = {"precision": "fp8", "batch_size": 32}
    settings: list[object] = ["naive", ["half-weights"]]
    return bundle_of(tmp_path_factory.mktemp("fp8"), 1, settings, recipe, needs_figures=False)


@pytest.mark.parametrize("kind", export.WITH_BENCH)
def test_in_fp8_each_script_multiplies_as_the_trial_did(fp8: Path, kind: export.Kind, tmp_path: Path) -> None:
    agree(trained(written(fp8, kind, "naive", tmp_path / "made"), 1), measured_losses(fp8, "naive"))


@pytest.mark.parametrize("kind", export.WITH_BENCH)
def test_the_last_step_is_always_logged_and_saved(tied: Path, kind: str, tmp_path: Path) -> None:
    """The last step is saved also for a model with tied embeddings."""
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
    done = do(*command, "--steps", "3", "--log-every", "1", folder=folder, cold=True)
    agree([json.loads(s) for s in done.stdout.splitlines() if s[:1] == "{"], measured_losses(one, "naive"))


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model whose vocabulary is no multiple of eight: an odd-sized bias precedes other weights."""
    tiny = known_models()["tiny-roberta"]
    architecture = {**tiny.architecture, "model_type": "roberta", "vocab_size": 509}
    recipe = {"batch_size": 64, "steps": 9, "precision": "fp32", "sequence_length": 64}
    return bundle_of(tmp_path_factory.mktemp("odd"), 1, [["zero-1", "offload"]], recipe, "odd", architecture)


@pytest.mark.parametrize("kind", export.WITH_BENCH)
def test_deepspeed_has_the_weights_in_the_trials_order(odd: Path, kind: str, tmp_path: Path) -> None:
    """Odd-sized weights come last, because kernels read misaligned weights after them slowly."""
    folder = exported(odd, kind, "zero-1 + offload", tmp_path / "made")
    launchers = {
        "accelerate": ("accelerate.commands.launch", "--config_file", "accelerate.json"),
        "trainer": ("torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
    }
    if kind in launchers:  # with ACCELERATE_USE_CPU, both frameworks would ignore DeepSpeed
        command = (*launchers[kind], "train.py", "--steps", "3", "--out", "checkpoints")
        do(*command, folder=folder, without="ACCELERATE_USE_CPU")
    else:
        trained(folder, 1, "--out", "checkpoints")
    (file,) = (folder / "checkpoints").rglob("mp_rank_00_model_states.pt")
    (shapes,) = torch.load(file, weights_only=False)["param_shapes"]
    odd_sized = [math.prod(shape) % 8 != 0 for shape in shapes.values()]
    assert any(odd_sized)
    assert odd_sized == sorted(odd_sized)


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        *(("script", label) for label in ("naive", "fsdp-3", "zero-2")),
        *(("accelerate", label) for label in ("naive", "fsdp-2", "fsdp-3")),
        *(("deepspeed", label) for label in ("naive", "zero-2")),
        ("trainer", "naive"),
    ],
)
def test_training_goes_on_where_it_stopped(
    one: Path, two: Path, kind: str, label: str, tmp_path: Path
) -> None:
    """Each kind of script is started once with an ordinary Python; the other tests here use tests/warm.py."""
    bundle, gpus = (one, 1) if label == "naive" else (two, 2)
    paths = FSDP_ON_CPU if label.startswith("fsdp-") else ROOT
    cold = label == "naive"
    folder = exported(bundle, kind, label, tmp_path / "made", cold)
    goes_on(folder, gpus, measured_losses(bundle, label), paths, cold)


def test_benchs_script_resumes_with_half_weights(half: Path, tmp_path: Path) -> None:
    folder = written(half, "script", "half-weights", tmp_path / "made")
    goes_on(folder, 1, measured_losses(half, "half-weights"))


def goes_on(folder: Path, gpus: int, losses: list[float], paths: Path = ROOT, cold: bool = False) -> None:
    """Train three steps with the measured losses; then the second and third from the first's checkpoint."""
    whole = trained(folder, gpus, "--out", "checkpoints", "--save-every", "1", paths=paths, cold=cold)
    agree(whole, losses)
    latest = folder / "checkpoints" / "latest-step"
    if latest.exists():
        latest.write_text("1")
    elif unfinished := list((folder / "checkpoints").glob("checkpoint-[23]/trainer_state.json")):
        for last_file in unfinished:  # as if it was killed while saving
            last_file.unlink()
    else:  # DeepSpeed's own file
        latest.with_name("latest").write_text("step-1")
    resumed = trained(folder, gpus, "--out", "checkpoints", "--resume", paths=paths)
    assert [line["step"] for line in resumed] == [2, 3]
    later = [line["loss"] for line in whole[1:]]
    assert [line["loss"] for line in resumed] == pytest.approx(later, rel=1e-6)


def ended(folder: Path, *arguments: str, gpus: int = 1, **more: str) -> str:
    """Return the message of a script that ends without a traceback."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)) if gpus else ()
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT)} | more
    done = python(*launcher, "train.py", *arguments, folder=folder, environment=environment)
    assert done.returncode == 1
    return done.stdout + done.stderr.partition("torch.distributed.elastic")[0]


def test_another_number_of_devices_is_refused(one: Path, two: Path, tmp_path: Path) -> None:
    folder = exported(two, "script", "naive", tmp_path / "two")
    assert "measured on 2 devices, here are 1" in ended(folder, "--steps", "1", gpus=0)
    folder = exported(one, "script", "naive", tmp_path / "one")
    said = ended(folder, "--steps", "1", "--out", "checkpoints", gpus=2)
    assert "measured on 1 device, here are 2" in said
    assert '{"step"' not in said


@pytest.mark.parametrize("kind", export.WITH_BENCH)
def test_a_new_run_of_a_script_does_not_overwrite_checkpoints(one: Path, kind: str, tmp_path: Path) -> None:
    folder = exported(one, kind, "naive", tmp_path / "made")
    trained(folder, 1, "--out", "checkpoints")
    before = sorted((folder / "checkpoints").rglob("*"))
    assert "checkpoints holds checkpoints: --resume continues" in ended(folder, "--out", "checkpoints")
    assert sorted((folder / "checkpoints").rglob("*")) == before


@pytest.mark.parametrize("kind", export.WITH_BENCH)
def test_a_loss_that_is_not_finite_ends_a_script_before_saving(one: Path, kind: str, tmp_path: Path) -> None:
    folder = exported(one, kind, "naive", tmp_path / "made")
    trial = json.loads((folder / "trial.json").read_text())
    trial["model"]["recipe"]["optimizer"]["learning_rate"] = 1e30
    (folder / "trial.json").write_text(json.dumps(trial))
    often = ("--steps", "9", "--log-every", "9", "--save-every", "4", "--out", "checkpoints")
    said = ended(folder, *often)
    assert "the loss is nan by step 4" in said
    assert '{"step"' not in said
    assert not [*(folder / "checkpoints").glob("*step-*"), *(folder / "checkpoints").glob("checkpoint-*")]
