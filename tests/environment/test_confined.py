"""The rights of a confined process, tried in a real one, and the variables of the login that it keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.environment import confined, landlock, store
from bench.environment.interpreter import this_interpreter
from bench.push import run_script
from bench.push.run_script import Job
from tests.environment.made_wheels import make_wheel

ROOT = Path(__file__).parents[2]


def in_confinement(run: Path, code: str, *data: Path) -> str:
    """Run a piece of code in a confined process whose run folder is `run`; return what it prints."""
    script = (
        "import sys; from pathlib import Path; from bench.environment.confined import confine\n"
        "code, data = ([Path(p) for p in paths if p] for paths in (sys.path, sys.argv[1:]))\n"
        "measures = list(confine(Path.cwd(), code, data))\n"
    )
    for folder in ("out", "tmp"):
        (run / folder).mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", script + code, *map(str, data)],
        cwd=run, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


needs_landlock = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock")


@needs_landlock
def test_a_run_writes_to_its_results_and_its_scratch_alone(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = f"""
def may(path):
    try:
        Path(path).write_text("x")
    except OSError as error:
        return error.strerror
    return "yes"
print(may("out/a"), may("tmp/a"), may("/dev/null"), may("manifest.json"), may("{elsewhere}/a"),
      may("/etc/a"), sep="|")
"""
    refused = "Permission denied"
    assert in_confinement(run, code).split("|") == ["yes", "yes", "yes", refused, refused, refused]


@needs_landlock
def test_a_run_reads_its_data_and_no_other_persons_files(tmp_path: Path) -> None:
    data, private = tmp_path / "data", tmp_path / "private"
    for folder in (data, private):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    code = f"""
def read(path):
    try:
        return Path(path).read_text()
    except OSError as error:
        return error.strerror
print(read("{data}/file"), read("{private}/file"), sep="|")
"""
    assert in_confinement(tmp_path / "run", code, data) == "data|Permission denied"


def test_a_run_gains_no_rights_and_dumps_no_core(tmp_path: Path) -> None:
    code = """
import resource
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
core = resource.getrlimit(resource.RLIMIT_CORE)
print(status["NoNewPrivs"].strip(), int(status["CapBnd"], 16), core, measures, sep="|")
"""
    no_new, bounding, core, measures = in_confinement(tmp_path / "run", code).split("|")
    assert no_new == "1"
    assert core == "(0, 0)"
    assert "no new privileges" in measures
    if os.geteuid() == 0:
        assert bounding == "0"


def test_a_run_and_its_children_may_name_their_threads(tmp_path: Path) -> None:
    """CUDA opens this file as `fopen(path, "w")` does, and starts only if it can."""
    child = "open('/proc/self/comm', 'w').write('worker'); print(open('/proc/self/comm').read().strip())"
    code = f"""
import subprocess
open("/proc/self/comm", "w").write("main")
worker = subprocess.run([sys.executable, "-c", {child!r}], capture_output=True, text=True, check=True)
print(open("/proc/self/comm").read().strip(), worker.stdout.strip())
"""
    assert in_confinement(tmp_path / "run", code) == "main worker"


def test_a_run_cannot_change_the_settings_of_the_kernel(tmp_path: Path) -> None:
    """Root could, without any capability: these files belong to root."""
    code = """
import os
print(*(path for path in Path("/proc/sys").rglob("*") if os.access(path, os.W_OK)), sep="|")
"""
    assert in_confinement(tmp_path / "run", code) == ""


def test_a_kernel_without_landlock_leaves_the_other_measures(tmp_path: Path) -> None:
    script = """
from bench.environment import confined, landlock
from pathlib import Path
landlock._call = lambda *_: -1  # as a kernel answers that does not know the call
print(*confined.confine(Path.cwd(), [], []), sep="|")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    measures = done.stdout.strip().split("|")
    assert [each for each in measures if each != "kernel settings read-only"] == [
        "no core dumps", "no new privileges", "no capabilities",
    ]  # fmt: skip


def test_secrets_of_the_login_do_not_reach_the_run() -> None:
    login = {
        "PATH": "/bin", "HOME": "/x", "CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "secret",
        "RUNPOD_API_KEY": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "LD_PRELOAD": "/x.so",
        "NCCL_SOCKET_IFNAME": "eth0", "PYTHONSTARTUP": "/x.py",
    }  # fmt: skip
    assert dict(confined.kept(login)).keys() == {"PATH", "HOME", "CUDA_VISIBLE_DEVICES"}
    assert "NCCL_SOCKET_IFNAME" in dict(confined.kept(login | {"BENCH_TOGETHER": "yes"}))


def test_of_the_librarys_path_only_folders_of_the_driver_are_kept(tmp_path: Path) -> None:
    driver, toolkit = tmp_path / "driver", tmp_path / "cuda"
    for folder in (driver, toolkit):
        folder.mkdir()
    (driver / "libcuda.so.1").touch()
    (toolkit / "libcublas.so.13").touch()
    path = f"{toolkit}:{driver}:"
    assert dict(confined.kept({"LD_LIBRARY_PATH": path})) == {"LD_LIBRARY_PATH": str(driver)}
    assert dict(confined.kept({"LD_LIBRARY_PATH": str(toolkit)})) == {}


def test_the_libraries_that_were_brought_with_python_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/place/pythons/1234")
    path = "/place/pythons/1234/lib/bundled"
    for others in ("", ":/opt/lib", ":/place/pythons/5678/lib/bundled"):
        assert dict(confined.kept({"LD_LIBRARY_PATH": path + others})) == {"LD_LIBRARY_PATH": path}


def test_an_environment_that_was_changed_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "environment.json").write_text(json.dumps({"lock": "x"}))
    assert confined.main([str(tmp_path), "--", "run"]) == 3
    assert "is not an environment" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sitecustomize.py", "open('/dev/stderr', 'w').write('RAN')"),
        ("a.pth", "import sys; sys.stderr.write('RAN')"),
    ],
)
def test_nothing_in_an_environment_runs_before_it_was_checked(tmp_path: Path, name: str, text: str) -> None:
    """Code that Python starts by itself could replace the check."""
    python = this_interpreter()
    wheel = make_wheel(tmp_path / "wheels", "a")
    described = {"variant": "cpu", "lock": "sha256:" + "1" * 64, "pins": "2" * 64, "without": ()}
    made = store.make(tmp_path, {"a": wheel}, {}, python, described, lambda count: None)
    job = Job(
        "aaaa00000000", "/home/me", "venv", "/home/me/code", None, "", (1, 1), 2**34, None,
        on_cpu=True, environment=made.digest,
    )  # fmt: skip
    folder = store.folder_of(tmp_path, made.digest)
    words = [word.replace(job.in_environment, str(folder)) for word in run_script.argv(job, None)]
    site = folder / f"lib/python{python.text}/site-packages"
    site.chmod(0o755)
    (site / name).write_text(text)
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == f"{folder}: its files were changed\n  {store.PUSH_AGAIN}\n"
