"""Settings for all tests: each uses one thread, so that parallel tests do not compete for cores."""

import atexit
import gc
import itertools
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.warm import OWNER, SHARED, quick_python

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Runs of tests share what they compile: each would compile the same code again in a folder of its own.
_COMPILED = Path(tempfile.gettempdir(), f"bench-tests-compiled-{os.getuid()}")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_COMPILED))
if shutil.which("g++"):
    os.environ.setdefault("CXX", str(Path(__file__).parent / "compiler" / "g++"))
# pyenv's `python3` is a shell script in a folder named shims, which takes longer to find a Python than
# that Python takes to start. Tests start many: the folder of Python itself stands in the place of shims.
_PROGRAMS = str(Path(sys.base_prefix, "bin"))
os.environ["PATH"] = os.pathsep.join(
    _PROGRAMS if Path(folder).name == "shims" else folder for folder in os.environ["PATH"].split(os.pathsep)
)
os.environ.pop("COLUMNS", None)  # xdist sets it for its workers, which have no terminal
# A busy machine takes its time, also to make up the data of a test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# A shell starts background jobs with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup does the same with SIGHUP
gc.disable()  # while modules are imported and tests collected: millions of objects, all of which stay

# The slowest files of end-to-end tests and of sweeps, in the order in which they start: by processor time,
# and by how long they wait. All others come later, so that none of these runs alone at the end.
# Those that use the image come after the file that builds it, by several others: they would wait for it.
FIRST = (
    "tests/e2e/test_image.py", "tests/e2e/test_push.py", "tests/runner/test_parallel.py",
    "tests/e2e/test_documented_pages.py", "tests/e2e/test_own_models.py", "tests/e2e/test_site.py",
    "tests/training/test_equivalence.py", "tests/training/models/test_repeated_blocks.py",
    "tests/training/models/test_counted_memory.py", "tests/e2e/test_push_kubernetes.py",
    "tests/e2e/test_export.py",
    "tests/e2e/test_image_build.py", "tests/e2e/test_push_venv.py", "tests/e2e/test_push_together.py",
    "tests/e2e/test_push_image.py", "tests/runner/test_nodes.py", "tests/e2e/test_fabric.py",
    "tests/e2e/test_pip_lines.py", "tests/training/objectives/test_contrastive.py",
    "tests/e2e/test_documented_images.py", "tests/e2e/test_documented_builds.py",
    "tests/e2e/test_fabric_slurm.py", "tests/e2e/test_push_slurm.py",
    "tests/training/methods/test_interpreted.py", "tests/e2e/test_tunnels.py",
    "tests/e2e/test_documented_facts.py", "tests/training/models/test_attention.py",
    "tests/e2e/test_rent.py", "tests/test_pip_lines.py",
    "tests/e2e/test_report.py", "tests/e2e/test_what_if.py", "tests/e2e/test_readme_tasks.py",
    "tests/runner/test_run.py",
    "tests/e2e/test_push_assembled.py", "tests/release/test_release.py", "tests/e2e/test_push_ansible.py",
)  # fmt: skip
MARKED = ("e2e", "sweep")  # marks of tests that make test leaves out
LONG_SECONDS = 120.0  # of a file with end-to-end tests or a sweep: one that takes longer belongs in FIRST
_seconds: defaultdict[str, float] = defaultdict(float)  # that these tests took, by file


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if any(mark in report.keywords for mark in MARKED):
        _seconds[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in late_files(_seconds):
        terminalreporter.write_line(line)


def late_files(seconds: Mapping[str, float]) -> list[str]:
    """Say which files take long and start late, the longest first, by what the tests of each took."""
    late = {file: took for file, took in seconds.items() if took > LONG_SECONDS and file not in FIRST}
    return [
        f"{file} took {late[file]:.0f} s, and started late: name it in FIRST of tests/conftest.py, "
        "or it may run alone at the end"
        for file in sorted(late, key=lambda file: -late[file])
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        if not any(map(item.get_closest_marker, MARKED)):
            return -1  # other tests keep their order and come first
        file = item.nodeid.partition("::")[0]
        return FIRST.index(file) if file in FIRST else len(FIRST)

    items.sort(key=place)


SWEEPS_END = "BENCH_TESTS_SWEEPS_END"  # variable with the time in seconds after which no sweep's test begins


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of a sweep if the time for sweeps is over: those of a slow machine would have no end."""
    if item.get_closest_marker("sweep") and time.time() > float(os.environ.get(SWEEPS_END, "inf")):
        pytest.skip("no time was left for this combination")


def pytest_collection_finish() -> None:
    """Let the garbage collector look only at objects that tests make, and not at those that exist already."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)  # tests that trace models make many objects, and few cycles
    _known_modules[0] = len(sys.modules)


_MANY_MODULES = 50
_known_modules = [0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let the garbage collector leave out what a test imported, such as torch's compiler.

    A check of gradients collects garbage twice, which would take a second each time.
    """
    if len(sys.modules) - _known_modules[0] > _MANY_MODULES:
        gc.collect()
        gc.freeze()
        _known_modules[0] = len(sys.modules)


_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an empty folder for one test.

    The fixture of pytest reads the names of all folders of the session to find a number for the next one.
    After some thousands of tests, that takes longer than most tests do.
    """
    name = re.sub(r"\W", "_", request.node.name)[:25]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers):05}"
    folder.mkdir(mode=0o700)
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder that all workers of this session share, and remove it when the session ends."""
    if SHARED not in os.environ:
        _make_shared_folder()
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(SHARED)))


def _make_shared_folder() -> None:
    os.environ[SHARED] = tempfile.mkdtemp(prefix="bench-shared-")
    Path(os.environ[SHARED], OWNER).write_text(str(os.getpid()))


def shared_folder() -> Path:
    """Return the folder for files that take long to make: gigabytes, which pytest's folders would keep.

    A benchmark that uses the helpers of tests has no session of pytest, and gets a folder of its own.
    """
    if SHARED not in os.environ:
        _make_shared_folder()
        atexit.register(shutil.rmtree, os.environ[SHARED], ignore_errors=True)
    return Path(os.environ[SHARED])


@pytest.fixture
def quick_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python processes that the code under test starts begin with torch imported."""
    monkeypatch.setattr(sys, "executable", quick_python())


LIKE_INDUCTOR = "aot_eager_decomp_partition"  # the backend that traces as Inductor does, and writes no code


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch.compile trace graphs, and PyTorch's own operators compute them and their gradients.

    A test of what is traced, and of what the graph computes, needs no C++ compiler, which takes seconds for
    each graph. docs/testing.md lists the tests that compile with Inductor. As for Inductor, operators with a
    decomposition are taken apart: torch traces the gradient of softplus with other strides than its operator
    returns, and the backend "aot_eager", which calls it, then fails for Qwen 3.5.
    """
    import torch

    torch._dynamo.reset()  # a code object has room for the graphs of few tests
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=LIKE_INDUCTOR))
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def compiled_here() -> Iterator[None]:
    """Let Inductor compile in this process, and take the CPU's instructions for known.

    Compiler processes, and code that tries the instructions, take longer than a compilation in these tests.
    """
    import torch._inductor.config

    with torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": True}):
        yield


# PATH with the programs of this environment, such as ninja. A system's own ninja comes first, as in all other
# tests: a ninja of another version would compile DeepSpeed's operators again, and so would the next test.
PATH = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
_COMPILE_OPERATORS = """
from bench.runner.trial.zero_strategy import drop_stale_locks
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder, ShareMemCommBuilder

drop_stale_locks()
for builder in (CPUAdamBuilder, ShareMemCommBuilder):
    builder().load()
"""


@pytest.fixture(scope="session")
def zero_operators() -> None:
    """Compile DeepSpeed's operators before a trial or a script needs them, which then load them.

    They take a C++ compiler two minutes of processor time. The supervisor ends a trial that says nothing for
    five minutes, and the next trial would begin to compile again.
    """
    from tests.e2e.services import locked  # which imports this module

    done = shared_folder() / "zero-operators"
    with locked(done.with_suffix(".lock")):
        if not done.exists():
            command = [quick_python(), "-c", _COMPILE_OPERATORS]
            own = {"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(Path(__file__).parents[1]), "PATH": PATH}
            subprocess.run(command, check=True, env=os.environ | own)
            done.touch()


@pytest.fixture(scope="module")
def timm_beside_cpu_torch() -> Iterator[None]:
    """Let a module's tests import timm. Processes that other tests start do not inherit its folder."""
    before = list(sys.path)
    runpy.run_path(str(Path(__file__).parent / "timm_on_cpu" / "sitecustomize.py"))
    yield
    sys.path[:] = before
