"""A machine of a reader of the documents: root's rights, a network of its own, and nothing it does lasts.

Its file system is this machine's, under a layer in memory that takes every change, but for /tmp. Its network
has the addresses and names of the documents' nodes, which are a real sshd; each node has a home of its own.
Commands run in it as they are printed, also those that install files below /etc or need a fixed port.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.services import SYSTEM, require, require_root
from tests.environment.made_wheels import lock_lines, make_wheel
from tests.patience import PATIENCE_SECONDS
from tests.warm import ROOT

BIN = Path(sys.executable).parent
# Addresses and names of the documents' nodes; each node has a home of its own.
NODES = {
    "203.0.113.7": (), "10.0.0.1": ("gpu1",), "10.0.0.2": ("gpu2",), "10.0.0.9": ("login.cluster",),
    "10.0.0.10": ("registry.site",),
}  # fmt: skip
SSH_PORTS = (22, 40022)

_SET_UP = """
set -e
ip link set lo up
for address in {addresses}; do ip address add $address/32 dev lo; done
mkdir -p {folder}/memory {folder}/root
mount -t tmpfs tmpfs {folder}/memory
mkdir {folder}/memory/changes {folder}/memory/work
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/memory/changes,workdir={folder}/memory/work {folder}/root
for each in /proc /sys /dev /tmp /run {code}; do
  mkdir -p {folder}/root$each
  mount --rbind $each {folder}/root$each
done
mount -t tmpfs tmpfs {folder}/root/dev/shm
exec chroot {folder}/root sh -c 'echo $$ && exec sleep infinity'
"""  # noqa: E501


@dataclass(frozen=True)
class ReaderMachine:
    """A running machine, with a home folder of its reader."""

    folder: Path
    pid: int  # of a process inside of it
    python: str  # a Python with torch already imported

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def environment(self, **more: str) -> dict[str, str]:
        own = {
            "PATH": f"{self.folder}/bin:{BIN}:{SYSTEM}", "HOME": str(self.home), "PYTHONPATH": str(ROOT),
            "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1",
        }  # fmt: skip
        return own | more

    def inside(self, line: str, folder: Path) -> list[str]:
        """Return the command that runs a line of shell in the machine, in a folder."""
        root = f"--root=/proc/{self.pid}/root"
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", root, "--wd"]
        return [*enter, "bash", "-c", f"cd {shlex.quote(str(folder))} && {line}"]

    def run(
        self, line: str, folder: Path, environment: Mapping[str, str], seconds: float = PATIENCE_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a line of shell; return the text of both of its outputs together."""
        return subprocess.run(
            self.inside(line, folder), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", timeout=seconds, check=False,
            cwd="/",
        )  # fmt: skip


@contextmanager
def reader_machine(folder: Path) -> Iterator[ReaderMachine]:
    """Start a machine, and the nodes that it reaches; end all of their processes afterwards."""
    require_root("a machine with an own file system and network")
    require("sshd", "ssh-keygen", "ip")
    for name in ("home/.ssh", "bin", "nodes"):
        (folder / name).mkdir(parents=True)
    script = _SET_UP.format(folder=folder, code=ROOT, addresses=" ".join(NODES))
    holder = subprocess.Popen(
        ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script],
        stdout=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | {"PATH": SYSTEM},
    )  # fmt: skip
    started = [holder]
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == str(holder.pid)
        machine = ReaderMachine(folder, holder.pid, "")
        warm = _start(machine, f"exec {BIN}/python -m tests.e2e.reader_machine", stdin=subprocess.PIPE)
        started.append(warm)
        assert warm.stdout is not None
        machine = ReaderMachine(folder, holder.pid, warm.stdout.readline().strip())
        _add_programs(machine)
        _add_hosts(machine)
        started.append(_start(machine, f"exec /usr/sbin/sshd -D -e -f {folder}/nodes/sshd_config"))
        yield machine
    finally:
        for each in reversed(started):
            _end(each)
        shutil.rmtree(folder, ignore_errors=True)


def _start(machine: ReaderMachine, line: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    with (machine.folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            machine.inside(line, ROOT), env=machine.environment(), stdin=stdin, stdout=subprocess.PIPE,
            stderr=log, text=True, start_new_session=True, cwd="/",
        )  # fmt: skip


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _add_programs(machine: ReaderMachine) -> None:
    """Give the reader `bench`, and the nodes this machine's programs but container engines."""
    program = machine.folder / "bin/bench"
    program.write_text(f'#!/bin/sh\nexec {machine.python} -m bench "$@"\n')
    program.chmod(0o755)


# A run in an environment writes bytecode below its own folder, and would compile torch and transformers each
# time. This environment lends the packages of the tests, which have bytecode beside them: it is read there.
_THESE = f"{sysconfig.get_path('purelib')}\nimport sys; sys.pycache_prefix = None\n"


def _add_hosts(machine: ReaderMachine) -> None:
    """Make the nodes' homes and sshd's configuration, and let the reader's ssh know their key."""
    nodes, home = machine.folder / "nodes", machine.home
    for path in (nodes / "host", home / ".ssh/id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    lines = [f"Port {port}" for port in SSH_PORTS]
    lines += [
        f"HostKey {nodes}/host", f"AuthorizedKeysFile {home}/.ssh/id_ed25519.pub", "PidFile none",
        "UsePAM no", "PermitRootLogin prohibit-password", "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "StrictModes no", "MaxStartups 500", "MaxSessions 50", "LogLevel ERROR", "PermitUserEnvironment yes",
    ]  # fmt: skip
    wheels = nodes / "wheels"
    lock = lock_lines(make_wheel(wheels, "these-packages", files={"these.pth": _THESE.encode()}))
    (machine.folder / "cpu.lock").write_text(lock)
    for address in NODES:
        node = nodes / address
        (node / ".config/pip").mkdir(parents=True)
        (node / ".config/pip/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {wheels}\n")
        values = {"HOME": node, "PATH": f"{nodes}/bin", "OMP_NUM_THREADS": "1"}
        lines.append(f"Match LocalAddress {address}")
        lines.append("  SetEnv " + " ".join(f'"{name}={value}"' for name, value in values.items()))
    (nodes / "sshd_config").write_text("\n".join([*lines, ""]))
    _link_programs(nodes / "bin", Path(machine.python))
    key = " ".join((nodes / "host.pub").read_text().split()[:2])
    (home / ".ssh/known_hosts").write_text(f"* {key}\n")
    names = "".join(f"{address} {' '.join(own)}\n" for address, own in NODES.items() if own)
    script = (
        f"mkdir -p /run/sshd && printf {shlex.quote(names)} >> /etc/hosts"
        f" && sed -i 's|^root:[^:]*:0:0:[^:]*:[^:]*:|root:x:0:0::{home}:|' /etc/passwd"
        f" && echo 'ubuntu:x:0:0::{home}:/bin/sh' >> /etc/passwd"
        f" && echo 'ubuntu:*:19000::::::' >> /etc/shadow"
    )
    done = machine.run(script, machine.folder, machine.environment())
    assert done.returncode == 0, done.stdout


def _link_programs(folder: Path, python: Path) -> None:
    """Make a folder with the programs of this machine but container engines, and with one Python."""
    folder.mkdir()
    for place in ("/usr/bin", "/usr/sbin"):
        for program in Path(place).iterdir():
            taken = program.name.startswith(("python", "docker", "podman", "apptainer", "singularity"))
            if not taken and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    (folder / "python3.11").symlink_to(python)


def main() -> None:
    """Print the path of a Python with torch imported, and keep it until the standard input ends."""
    from tests.warm import quick_python

    print(quick_python(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
