"""The operator's side runs on Linux, macOS and Windows: nothing in it needs what Linux or POSIX alone has.

Its modules are those that the commands can reach, except `bench run` and `check`, and except bench/runner,
which measures the machine that it runs on.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.layers import ROOT, imported, modules
from tests.warm import quick_python

SEAM = "base.operating_system"
# Modules with functions that refuse another system, which never calls them: they run on measured machines.
# On Windows, another module takes the place of push.openssh.
OF_SOME_SYSTEMS = {
    "push.control_socket", "push.process_channel",
    "base.kernel_log", "base.machine_share", "environment.interpreter", "node_check.checks.file_systems",
    "node_check.checks.network", "node_check.checks.numa",
}  # fmt: skip
MEASURES = ("runner", "cli.run", "cli.check", "library.run", "training.triton")
POSIX_ALONE = {
    "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios", "tty",
}  # fmt: skip
OTHERS = ("win32", "darwin")
# Reading the types of packages takes mypy half of its time. What comes from them has then no type.
WITHOUT_PACKAGES = (
    "--no-site-packages", "--ignore-missing-imports", "--allow-subclassing-any", "--allow-untyped-calls",
    "--allow-untyped-decorators", "--no-warn-return-any", "--no-warn-unused-ignores",
)  # fmt: skip
REPOSITORY = ROOT.parent
QUICKSTART = REPOSITORY / "manifests/quickstart.json"


@cache
def operators_side() -> dict[str, Path]:
    """Return the modules that the operator's commands reach by imports, also by those inside functions."""
    known = modules()
    todo = [name for name in known if name.startswith("cli.") and not name.startswith(MEASURES)]
    # Engines, programs that rent and checks are imported by their names.
    todo += [
        name for name in known if name.startswith(("images.engines.", "push.rent.", "node_check.checks."))
    ]
    reached: set[str] = set()
    while todo:
        name = todo.pop()
        if name in reached or name.startswith(MEASURES):
            continue
        reached.add(name)
        parents = (name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1))
        todo += [*imported(known[name], known), *(each for each in parents if each in known)]
    return {name: known[name] for name in sorted(reached)}


def test_the_operators_side_is_most_of_bench_and_measures_nothing() -> None:
    assert {
        "cli.push",
        "cli.image",
        "push.remote",
        "operator.ledger",
        "report.pages.html",
        SEAM,
    } <= operators_side().keys()
    assert len(operators_side()) > 200
    assert not [name for name in operators_side() if name.startswith("runner")]
    assert operators_side().keys() >= OF_SOME_SYSTEMS


@pytest.mark.slow
@pytest.mark.parametrize("system", OTHERS)
def test_every_name_that_it_uses_exists_on_the_other_systems(system: str) -> None:
    """The types of the standard library say which of its names a system lacks; packages are left out.

    mypy keeps what it found, so that a later run of the tests looks at changed modules only.
    """
    names = [word for name in operators_side() for word in ("-m", f"bench.{name}" if name else "bench")]
    command = [sys.executable, "-m", "mypy", "--platform", system, "--follow-imports", "silent"]
    command += ["--cache-dir", f".mypy_cache/{system}", *WITHOUT_PACKAGES, *names]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- what types do not say ------------------------------------------------------------------------------


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def test_the_system_is_asked_for_in_one_place() -> None:
    asking = set()
    for name, path in operators_side().items():
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.platform", "os.name"):
                asking.add(name)
            imports = isinstance(node, ast.Import) and {alias.name for alias in node.names} & POSIX_ALONE
            if imports or (isinstance(node, ast.ImportFrom) and node.module in POSIX_ALONE):
                asking.add(name)
    assert asking == {SEAM, *OF_SOME_SYSTEMS}


# Files of a machine that is measured, of an image, of a pod, and of a container engine's machine.
LINUX_FILES = {
    "base.machine_share", "base.smbios", "base.sysfs", "images.container", "images.sbom",
    "images.engines.docker", "node_check.checks.bmc", "node_check.checks.clock", "node_check.checks.disk",
    "node_check.checks.drift", "node_check.checks.file_systems", "node_check.checks.gpudirect",
    "node_check.checks.host_errors", "node_check.checks.network", "node_check.checks.numa",
    "node_check.checks.ports", "packages.apt_sources", "packages.pip_settings",
    "push.kubernetes.kubectl",
}  # fmt: skip


def test_files_that_linux_alone_has_are_opened_by_what_runs_on_linux() -> None:
    """The test looks for a `Path` of a Linux file; strings in scripts for nodes do not count."""
    opening = {
        name
        for name, path in operators_side().items()
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Path", "open"))
        for word in node.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value.startswith("/")
    }
    assert opening <= LINUX_FILES


def text_without_form(call: ast.Call) -> bool:
    """Whether a call reads or writes text in the encoding, or with the ends of lines, of the system."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    keywords = {keyword.arg for keyword in call.keywords}
    if name == "read_text":
        return not call.args and "encoding" not in keywords
    if name == "write_text":
        return not {"encoding", "newline"} <= keywords
    return name in ("run", "Popen") and "text" in keywords and "encoding" not in keywords


def test_text_has_one_encoding_and_one_end_of_line() -> None:
    """Windows would write another encoding and other ends of lines into files whose bytes are signed."""
    bad = [
        f"{name}:{node.lineno}: {ast.unparse(node)[:60]}"
        for name, path in operators_side().items()
        for node in nodes(path)
        if isinstance(node, ast.Call) and text_without_form(node)
    ]
    assert bad == []


def test_paths_of_nodes_are_posix_paths() -> None:
    """A Path of Windows would put backslashes into the commands of a node."""
    for name in ("push.run_script", "push.slurm", "push.node_survey"):
        assert not [
            ast.unparse(node)
            for node in nodes(operators_side()[name])
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Path"
        ]


# --- commands on a system that has only what Windows, or macOS, has -------------------------------------

# Runs in a separate process: makes Python look like another system, then calls the commands.
OTHER_SYSTEM = """
import sys
import asyncio, ctypes, encodings.idna, getpass, json, multiprocessing, os, pathlib, shutil, signal
import subprocess, tempfile, concurrent.futures, webbrowser, xml.etree.ElementTree
import cryptography.hazmat.primitives.serialization.ssh, jsonschema, rich.live, rich.progress, tabulate
import fabric, paramiko, docker, packaging.version, torch, transformers
from fcntl import LOCK_EX, LOCK_NB, lockf
system, posix_alone, lacking, calls = json.loads(sys.argv[1])
for name in posix_alone:
    sys.modules[name] = None
for module, names in ((os, lacking["os"]), (signal, lacking["signal"])):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = system
if system == "win32":
    import types
    os.O_BINARY, signal.SIGBREAK = 0, signal.SIGTERM
    def locking(number, mode, count):
        lockf(number, LOCK_EX | LOCK_NB, count, os.lseek(number, 0, os.SEEK_CUR))
    sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
from bench.cli.main import main
for words in calls:
    code = main(words)
    print("CODE", code, flush=True)
"""
LACKING = {
    "win32": {
        "os": ["geteuid", "getuid", "getegid", "getgid", "fork", "killpg", "setsid", "statvfs", "chown",
               "sysconf", "confstr", "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECT", "getloadavg",
               "sched_getaffinity", "posix_fadvise", "mkfifo", "uname", "fchmod"],
        "signal": ["SIGHUP", "SIGKILL", "SIGUSR1", "SIGALRM", "SIGCHLD"],
    },
    "darwin": {
        "os": ["sched_getaffinity", "posix_fadvise", "O_DIRECT", "O_PATH", "pidfd_open"],
        "signal": [],
    },
}  # fmt: skip
BUNDLE = REPOSITORY / "results/hour-h200/17-minutes.tar"


@pytest.mark.slow
@pytest.mark.parametrize("system", OTHERS)
def test_commands_run_without_what_linux_alone_has(system: str, tmp_path: Path) -> None:
    out = tmp_path / "rent"
    calls = [
        (["verify", str(BUNDLE)], 0),
        (["compare", str(BUNDLE), "--html", str(tmp_path / "report.html")], 0),
        (["predict", str(QUICKSTART), "--gpu", "h100"], 0),
        (["plan", str(QUICKSTART), "--gpu", "h100"], 0),
        (["challenge", str(QUICKSTART), "-o", str(tmp_path / "challenge.json")], 0),
        (["challenge", str(QUICKSTART), "-o", str(tmp_path / "another.json")], 0),
        (["rent", "dstack", str(QUICKSTART), "--gpu", "h100", "-o", str(out)], 0),
        (["export", str(BUNDLE), str(tmp_path / "script"), "--to", "script", "--model", "pythia-160m"], 0),
        (["status"], 0),
        (["push", str(QUICKSTART), "nobody@127.0.0.1:1", "--dry-run"], 3),
        (["image", "build", "cpu", "--source", str(REPOSITORY)], 3),
        (["run", str(QUICKSTART)], 3),
        (["check"], 3),
        (["plan", str(QUICKSTART)], 3),
    ]
    posix_alone = sorted(POSIX_ALONE) if system == "win32" else ["spwd"]
    words = json.dumps([system, posix_alone, LACKING[system], [call for call, _ in calls]])
    environment = {
        "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "LC_ALL": "C.UTF-8",
        "USERNAME": "me",
    }  # fmt: skip
    done = subprocess.run(
        [quick_python(), "-c", OTHER_SYSTEM, words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    codes = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("CODE ")]
    assert codes == [code for _, code in calls], done.stdout[-2000:] + done.stderr[-4000:]
    named = {"win32": "Windows", "darwin": "macOS"}[system]
    assert done.stderr.count(f"this machine has {named}") == 4
    assert "a defect of bench" not in done.stderr
    assert b"\r\n" not in (out / "bench.dstack.yml").read_bytes()


def test_one_process_at_a_time_has_a_lock_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes: the first holds the byte, the second is refused, and has it when the first has ended."""
    script = """
import os, sys, types, fcntl, json
def locking(number, mode, count):
    try:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB, count, os.lseek(number, 0, os.SEEK_CUR))
    except OSError:
        raise PermissionError(13, "locked") from None
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
import signal
os.O_BINARY, signal.SIGBREAK, sys.platform = 0, signal.SIGTERM, "win32"
from pathlib import Path
from bench.base.files import AppendOnlyLines
try:
    lines = AppendOnlyLines(Path(sys.argv[1]), wait=sys.argv[2] == "wait")
except BlockingIOError:
    print("locked", flush=True)
    raise SystemExit
print(json.dumps([line.decode() for line in lines.read()]), flush=True)
lines.append(sys.argv[2].encode())
sys.stdin.read()
"""
    path = tmp_path / "lines"

    def start(word: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(path), word]
        return subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    first = start("first")
    assert first.stdout is not None and first.stdout.readline() == "[]\n"
    second = start("second")
    assert second.communicate()[0] == "locked\n"
    third = start("wait")
    first.communicate("")
    assert third.communicate("")[0] == '["first"]\n'
    assert path.read_text() == "first\nwait\n"
