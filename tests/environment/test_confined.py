"""The rights of a confined process, tried in a real one, and the variables of the login that it keeps."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base.names import ENVIRONMENT_VARIABLE
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


@needs_landlock
def test_a_run_opens_no_device_but_those_of_every_system_and_of_gpus(tmp_path: Path) -> None:
    """Root reads a disk by its device, and with it every home folder, and keyboards by theirs."""
    code = """
import os, stat
from bench.environment.confined import _DEVICES
opened = []
for name in os.listdir("/dev"):
    kind = os.stat(f"/dev/{name}").st_mode if os.path.exists(f"/dev/{name}") else 0
    if (stat.S_ISCHR(kind) or stat.S_ISBLK(kind)) and not _DEVICES.fullmatch(name):
        if os.path.islink(f"/dev/{name}"):
            continue  # stdin and others, of this process
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK))
            opened.append(name)
        except OSError:
            pass
os.close(os.open("/dev/urandom", os.O_RDONLY))
print(len(os.listdir("/dev")) > 0, opened)
"""
    assert in_confinement(tmp_path / "run", code) == "True []"


@needs_landlock
def test_a_run_reads_no_other_terminal_of_its_user(tmp_path: Path) -> None:
    typed_here, terminal = os.openpty()
    code = f"""
try:
    os.open("{os.ttyname(terminal)}", os.O_RDWR | os.O_NOCTTY)
except OSError as error:
    print(error.strerror)
"""
    try:
        assert in_confinement(tmp_path / "run", f"import os{code}") == "Permission denied"
    finally:
        os.close(typed_here)
        os.close(terminal)


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


# --- each measure by itself -------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder with devices, links, and a home that is not below /home."""
    for folder in ("bin", "dev/shm", "dev/pts", "home", "proc", "root", "srv/me", "tmp", "usr"):
        (tmp_path / folder).mkdir(parents=True)
    for device in ("null", "sda", "nvidia0", "nvidia-uvm", "mem", "kfd", "xtty"):
        (tmp_path / "dev" / device).touch()
    for name, to in {"homes": "home", "users": "srv", "lib": "usr", "devices": "dev"}.items():
        (tmp_path / name).symlink_to(tmp_path / to)
    monkeypatch.setenv("HOME", str(tmp_path / "srv/me"))
    return tmp_path


def test_a_run_reads_the_system_its_code_its_data_and_itself(machine: Path) -> None:
    run, code, data = Path("/run"), [Path("/code")], [Path("/data")]
    given = list(confined.rules(run, code, data, machine))
    read = [path for path, rights in given if rights == landlock.READ]
    system = [machine / name for name in ("bin", "lib", "proc", "usr")]
    own = [Path(sys.base_prefix), Path(sys.executable).resolve().parent]
    assert read == [*system, *own, *code, *data, run]
    assert [path for path, rights in given if rights == landlock.LIST] == [machine / "dev"]


def test_a_run_writes_to_some_devices_its_results_and_its_scratch(machine: Path) -> None:
    given = list(confined.rules(Path("/run"), [], [], machine))
    devices = [path.name for path, rights in given if rights == landlock.DEVICES]
    assert devices == ["kfd", "null", "nvidia-uvm", "nvidia0"]
    written = [path for path, rights in given if rights == landlock.WRITE]
    assert written == [machine / "dev/shm", Path("/run/out"), Path("/run/tmp")]


def test_a_run_rewrites_files_of_processes_unless_it_could_change_the_kernels_settings(
    machine: Path,
) -> None:
    def on_proc() -> list[int]:
        given = confined.rules(Path("/run"), [], [], machine)
        return [rights for path, rights in given if path == machine / "proc"]

    assert on_proc() == [landlock.READ, landlock.REWRITE]
    (machine / "proc/sys/kernel").mkdir(parents=True)
    (machine / "proc/sys/kernel/core_pattern").touch()
    assert on_proc() == [landlock.READ]


def test_a_user_without_a_home_reads_no_home_of_others(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(confined.Path, "home", none)
    assert [path.name for path in confined.public(machine)] == ["bin", "lib", "proc", "srv", "users", "usr"]


@dataclasses.dataclass
class Kernel:
    """A kernel that confines this process, or refuses `refused`: 38 no new privileges, 24 a capability."""

    monkeypatch: pytest.MonkeyPatch
    refused: tuple[int, ...] = ()
    uid: int = 0
    landlock: int = 6
    closes_settings: bool = False
    asked: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    limits: list[tuple[int, tuple[int, int]]] = dataclasses.field(default_factory=list)

    def prctl(self, *arguments: int) -> int:
        self.asked.append(arguments)
        return -1 if arguments[0] in self.refused else 0

    def measures(self, *arguments: Any) -> list[str]:
        with self.monkeypatch.context() as patch:
            patch.setattr(confined.ctypes, "CDLL", lambda _name: self)
            patch.setattr(confined.os, "geteuid", lambda: self.uid)
            patch.setattr(confined.resource, "setrlimit", lambda *limit: self.limits.append(limit))
            patch.setattr(confined.landlock, "confine", self._confine)
            patch.setattr(confined, "close_kernel_settings", lambda: self.closes_settings)
            return list(confined.confine(*(arguments or (Path("/run"), [], []))))

    def _confine(self, rules: Any) -> int:
        self.rules = list(rules)
        return self.landlock


ALL_MEASURES = ["no core dumps", "no new privileges", "no capabilities", "Landlock 6"]


def test_every_capability_is_dropped_and_no_program_gains_one(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch)
    assert kernel.measures(Path("/run"), [Path("/code")], [Path("/data")]) == ALL_MEASURES
    assert kernel.asked == [(38, 1, 0, 0, 0), *((24, number, 0, 0, 0) for number in range(64))]
    assert kernel.limits == [(resource.RLIMIT_CORE, (0, 0))]
    assert {Path("/code"), Path("/data"), Path("/run/out")} <= {path for path, _ in kernel.rules}


@pytest.mark.parametrize(
    ("kernel", "missing"),
    [
        ({"refused": (38,)}, "no new privileges"),
        ({"refused": (24,)}, "no capabilities"),
        ({"refused": (24,), "uid": 1000}, None),  # no program of this user has any
        ({"landlock": 0}, "Landlock 6"),
    ],
)
def test_only_measures_that_are_in_force_are_named(
    monkeypatch: pytest.MonkeyPatch, kernel: dict[str, Any], missing: str | None
) -> None:
    measures = Kernel(monkeypatch, **kernel).measures()
    assert measures == [each for each in ALL_MEASURES if each != missing]


def test_settings_of_the_kernel_are_named_if_they_had_to_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    measures = Kernel(monkeypatch, closes_settings=True).measures()
    assert measures == ["no core dumps", "kernel settings read-only", *ALL_MEASURES[1:]]


def test_settings_of_the_kernel_stay_open_for_root_that_may_not_mount(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confined, "_kernel_settings_are_open", lambda: True)
    monkeypatch.setattr(confined.ctypes, "CDLL", lambda _name: SimpleNamespace(unshare=lambda _flags: -1))
    assert not confined.close_kernel_settings()


def test_one_dropped_capability_tells_that_the_process_had_the_right_to_drop_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(monkeypatch)
    kernel.prctl = lambda *arguments: 0 if arguments[:2] == (24, 5) else -1  # type: ignore[method-assign]
    assert kernel.measures() == ["no core dumps", "no capabilities", "Landlock 6"]


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        *((name, True) for name in ("PATH", "LANG", "TZ", "PYTHONPATH", "TMPDIR", "HOME", "XDG_CACHE_HOME")),
        *((name, True) for name in ("TRITON_CACHE_DIR", "SLURM_JOB_ID", "BENCH_KEY", "CUDA_VISIBLE_DEVICES")),
        *((name, True) for name in ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "XDG_CONFIG_HOME")),
        *((name, False) for name in ("PATH2", "MYPATH", "SLURM", "XBENCH_A", "GLOO_A", "NCCL_A", "USER")),
    ],
)
def test_a_variable_is_kept_by_its_whole_name(name: str, is_kept: bool) -> None:
    assert (name in dict(confined.kept({name: "x"}))) == is_kept


def test_nodes_that_train_together_keep_what_connects_them() -> None:
    connect = {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "eth0", "HF_TOKEN": "secret", "XNCCL_A": "x"}
    together = dict(confined.kept({**connect, "BENCH_TOGETHER": ""}))
    assert together.keys() == {"NCCL_IB_HCA", "GLOO_SOCKET_IFNAME", "BENCH_TOGETHER"}


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_a_folder_with_either_library_of_the_driver_is_kept(tmp_path: Path, library: str) -> None:
    folders = [tmp_path / name for name in ("one", "empty", "two")]
    for folder in folders:
        folder.mkdir()
    for folder in (folders[0], folders[2]):
        (folder / library).touch()
    path = ":".join(map(str, folders))
    kept = dict(confined.kept({"LD_LIBRARY_PATH": f"{path}::"}))
    assert kept == {"LD_LIBRARY_PATH": f"{folders[0]}:{folders[2]}"}


def test_bench_runs_in_its_environment_with_what_confines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = {
        "variant": "cpu", "lock": "l", "python": "3.11.2", "build": "b", "files": "f", "without": ["k"],
    }  # fmt: skip
    checked: list[object] = []
    confine: list[object] = []
    became: list[Any] = []
    monkeypatch.setattr(confined, "this_interpreter", lambda: "this Python")
    monkeypatch.setattr(
        confined.store,
        "require_unchanged",
        lambda *given: checked.extend(given) or SimpleNamespace(**described),
    )
    monkeypatch.setattr(confined, "confine", lambda *given: confine.extend(given) or iter(["a", "b"]))
    monkeypatch.setattr(confined.os, "execve", lambda *given: became.extend(given))
    monkeypatch.setattr(confined.os, "environ", {"PATH": "/bin", "HF_TOKEN": "secret", "USER": "me"})
    monkeypatch.setattr(confined.sys, "path", ["/code", "", "/more"])
    monkeypatch.chdir(tmp_path)
    confined.main(["/env", "--data", "/d 1", "--data", "/d2", "--", "run", "--data", "/d3", "--", "x"])
    assert checked == [Path("/env"), "this Python"]
    assert confine == [
        tmp_path, [Path("/env"), Path("/code"), Path("/more")], [Path("/d 1"), Path("/d2")],
    ]  # fmt: skip
    program, command, variables = became
    assert program == sys.executable
    assert command == [sys.executable, "-m", "bench", "run", "--data", "/d3", "--", "x"]
    assert {name: value for name, value in variables.items() if name != ENVIRONMENT_VARIABLE} == {
        "PATH": "/bin", "USER": "nobody",
    }  # fmt: skip
    assert json.loads(variables[ENVIRONMENT_VARIABLE]) == {**described, "confinement": ["a", "b"]}
