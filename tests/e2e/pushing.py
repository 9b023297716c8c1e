"""An operator who pushes to the nodes of tests/e2e/nodes.py, and ways to disturb a run meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench as package
from tests.e2e.nodes import Nodes, ssh_nodes
from tests.e2e.services import docker_engine, require
from tests.patience import until
from tests.warm import forked_for, python_for, quick_python

ROOT = Path(package.__file__).parent.parent
TINY = {
    "schema": "bench/manifest/v1",
    "name": "tiny",
    "models": ["tiny-gpt-neox", "tiny-vit"],
    "methods": "naive",
    "micro_batch": 16,
    "timing": {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1},
}
# Checks whose verdict depends on this machine and on its other work.
MOODY = ["soak", "host-memory", "disk", "clock"]
# Level of a node check whose time does not end before a busy machine has made all checks.
UNHURRIED = {"minutes": 60, "warm_seconds": 0.1, "seconds": 0.2, "soak_seconds": 2}
# Manifest of two nodes that train together, with one process each.
PAIR: dict[str, Any] = {
    "name": "pair",
    "gpus": 1,
    "micro_batch": 4,
    "timing": {"target_percent": 50, "measure_seconds": 0.1, "warmup_seconds": 0.1},
}


@dataclass(frozen=True)
class Operator:
    """An operator with a home, a manifest and a list of nodes."""

    folder: Path
    nodes: Nodes
    python: str = ""  # the Python of the nodes; if empty, the one of tests/warm.py

    def manifest(self, name: str = "tiny", **changes: Any) -> Path:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(TINY | {"name": name} | changes))
        return path

    def environment(self) -> dict[str, str]:
        own = {f"XDG_{name}_HOME": str(self.folder / name.lower()) for name in ("CONFIG", "STATE", "CACHE")}
        return os.environ | own | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "HOME": str(self.folder)}

    def command(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "bench", *map(str, words)]

    def bench(self, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; the first one of its name by an ordinary Python."""
        done = subprocess.run(
            [python_for(str(words[0])), *self.command(*words)[1:]],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def pushing(self, *words: str | Path) -> list[str | Path]:
        return ["push", *words, "--engine", "none", "--python", self.python or quick_python(), "--device",
                "cpu", "--ssh-config", self.nodes.ssh_config]  # fmt: skip

    def push(self, *words: str | Path, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bench(*self.pushing(*words), "--json", code=code).stdout)
        return found

    def begin(self, *words: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*self.pushing(*words)), cwd=self.folder, env=self.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def journal(self) -> str:
        """Return the mirrored journal of the newest run, or an empty text."""
        paths = sorted(self.folder.glob(_MIRRORED), key=lambda path: path.stat().st_mtime)
        return paths[-1].read_text() if paths else ""

    def mirrored(self) -> int:
        """Count the runs whose mirror contains a trial."""
        return sum(_has_trial([path]) for path in self.folder.glob(_MIRRORED))

    def processes(self, address: str) -> list[int]:
        """Return the processes of the runs on a node."""
        return run_processes(self.nodes.homes[address])

    @contextmanager
    def halfway(self, *addresses: str, watched: bool = True) -> Iterator[None]:
        """Stop the run of each node after its first trial (and after it is mirrored), until the context ends.

        The body of the context therefore always runs in the middle of a run, on slow and fast machines.
        """
        held: dict[str, list[int]] = {}

        def all_held() -> bool:
            for address in addresses:
                if address not in held and _has_trial(self.nodes.homes[address].glob(_JOURNALS)):
                    held[address] = self.processes(address)
                    send(signal.SIGSTOP, held[address])
            return len(held) == len(addresses)

        try:
            until(all_held, "a first trial on each node", every=0.02)
            until(lambda: not watched or self.mirrored() >= len(addresses), "each first trial in the mirror")
            yield
        finally:
            send(signal.SIGCONT, [pid for pids in held.values() for pid in pids])


@dataclass(frozen=True)
class WithImage(Operator):
    """An operator of two nodes with one engine each, who has the CPU image as a file."""

    docker: tuple[str, ...] = ()

    def pushing(self, *words: str | Path) -> list[str | Path]:
        whole = [] if "--index" in words else ["--no-assemble"]
        return ["push", *words, "--engine", "docker", *whole, "--ssh-config", self.nodes.ssh_config]

    def processes(self, address: str) -> list[int]:
        """Return the processes in the containers of a node."""
        docker = ["docker", "-H", self.docker[self.nodes.addresses.index(address)]]
        running = subprocess.run([*docker, "ps", "-q"], check=True, capture_output=True, text=True).stdout
        command = [*docker, "inspect", "-f", "{{.State.Pid}}", *running.split()]
        first = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return descendants({int(pid) for pid in first.split()})

    def compressed(self) -> list[Path]:
        """Return the layers that push has compressed, for all nodes."""
        return [path for path in self.folder.glob("cache/bench/push/blobs/*") if not path.suffix]

    def tags(self, node: int) -> list[str]:
        """Return the image tags that push set."""
        form = "{{.Repository}}:{{.Tag}}"
        command = ["docker", "-H", self.docker[node], "image", "ls", "--format", form, "bench-push"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    def remove(self, node: int, *names: str) -> None:
        command = ["docker", "-H", self.docker[node], "image", "rm", *names]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def images(self, node: int) -> list[str]:
        command = ["docker", "-H", self.docker[node], "image", "ls", "-aq", "--no-trunc"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@contextmanager
def nodes_with_engines() -> Iterator[WithImage]:
    """Start two nodes, each with its own engine that contains no image."""
    require("dockerd", "sshd")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-push-")))
        engines = []
        for name in ("d1", "d2"):
            (folder / name).mkdir()
            engines.append(stack.enter_context(docker_engine(folder / name)))
        own = {number: {"DOCKER_HOST": engine} for number, engine in enumerate(engines)}
        nodes = stack.enter_context(ssh_nodes(folder / "n", 2, {}, own))
        yield WithImage(folder, nodes, docker=tuple(engines))


_MIRRORED = "results/*/journal.jsonl"
_JOURNALS = ".bench/runs/*/out/*/journal.jsonl"


def _has_trial(journals: Iterable[Path]) -> bool:
    return any('"event":"trial"' in path.read_text() for path in journals)


def inside(bundle: str | Path, name: str) -> Any:
    """Read a JSON file of a bundle."""
    with tarfile.open(bundle) as tar:
        return json.load(tar.extractfile(name))  # type: ignore[arg-type]


def run_processes(home: Path) -> list[int]:
    """Return the processes of every run.sh on a node and their descendants, without those of SSH sessions."""
    return descendants({int(path.read_text() or 0) for path in home.glob(".bench/runs/*/pid")})


def descendants(first: set[int]) -> list[int]:
    """Return the given processes that are alive, and all their descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    parents |= {pid: parent for pid, parent in forked_for().items() if pid in parents}
    found, more = set[int](), {pid for pid in first if pid in parents}
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in more} - found
    return sorted(found)


def kill_run(home: Path) -> None:
    """Kill all processes of a run at once, as the reset of a node would."""
    send(signal.SIGKILL, run_processes(home))


def lose(home: Path) -> None:
    """Kill the run and delete bench's folder, as the end of a rented node would."""
    kill_run(home)

    def empty() -> bool:
        shutil.rmtree(home / ".bench", ignore_errors=True)
        return not (home / ".bench").exists()

    until(empty, "the end of processes that write there")


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
