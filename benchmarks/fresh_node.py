"""Push to a fresh Debian or Ubuntu, in a container without Docker, as docs/push.md says. Needs root.

    PYTHONPATH=. python benchmarks/fresh_node.py [SUITE ...]     default: bookworm
    PYTHONPATH=. python benchmarks/fresh_node.py --mirror URL --keyring FOLDER -- noble     Ubuntu
    PYTHONPATH=. python benchmarks/fresh_node.py --rented [SUITE ...]

Each node is made of its distribution's packages (mmdebstrap): the smallest system, an SSH server, CA
certificates, and the packages of --include. It runs in namespaces of its own, as root with the capabilities
that container engines leave, as rented containers do. It knows nothing of bench. The package index has the
wheels of the CPU's lock.

Prints for each node its system and Pythons, what preflight chose, the seconds from the start of the push to
the fetched bundle, and what `bench verify` says. With --rented, the node is pushed to in each of `FORMS`, up
to the installed environment, and the errors are printed. --conda puts another Python before the system's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.base.paths import cache_path
from bench.environment.store import remove
from bench.images.fetch import wheels
from bench.images.locks import read_pins
from bench.images.variants import find_variant
from benchmarks.slow_lines import served
from tests.e2e.nodes import free_port
from tests.environment.made_wheels import make_index

ROOT = Path(__file__).parents[1]
PACKAGES = "apt,openssh-server,ca-certificates"
# The capabilities of a process in a container of Docker, which are fewer than root's.
CAPABILITIES = (
    "chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service",
    "net_raw", "sys_chroot", "mknod", "audit_write", "setfcap",
)  # fmt: skip
START = """
set -e
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount -t tmpfs -o size=64m tmpfs {root}/dev/shm
mount -t tmpfs tmpfs {root}/run
mkdir -p {root}/run/sshd {root}/workspace
{form}
exec setpriv --bounding-set={kept} --inh-caps=-all chroot {root} /usr/sbin/sshd -D -e -p {port} {path}
"""


@dataclass(frozen=True)
class Form:
    """The mounts of a rented container, and the options of a push to it."""

    name: str
    mounts: str = "true"  # shell commands before the system starts
    options: tuple[str, ...] = ()


def _new_home(options: str) -> str:
    keep, back = "cp -a {root}/root/.ssh {root}/run/ssh", "mv {root}/run/ssh {root}/root/.ssh"
    return f"{keep}; mount -t tmpfs -o mode=700,{options} tmpfs {{root}}/root; {back}"


_WORKSPACE = ("--place", "/workspace/bench")
_READ_ONLY_HOME = "mount --bind -o ro {root}/root {root}/root"
FORMS = (
    Form("as it is"),
    Form("noexec home", _new_home("noexec")),
    Form("noexec home", _new_home("noexec"), _WORKSPACE),
    Form("read-only home", _READ_ONLY_HOME),
    Form("read-only home", _READ_ONLY_HOME, _WORKSPACE),
    Form("noexec /tmp", "mount -t tmpfs -o noexec tmpfs {root}/tmp"),
    Form("read-only /tmp", "mount --bind -o ro {root}/tmp {root}/tmp"),
    Form("300 MB of home", _new_home("size=300m")),
    Form("volume", "mount -t tmpfs -o nosuid,nodev,size=4g tmpfs {root}/workspace", _WORKSPACE),
)


@dataclass(frozen=True)
class FreshSystem:
    """A distribution's smallest system with an SSH server, in a folder."""

    root: Path
    folder: Path  # of the operator's key, known hosts and logs
    path: str | None = None  # what an image would set PATH to

    def ask(self, *words: str) -> str:
        """Run a command inside the system and return its output; it must succeed."""
        command = ["chroot", str(self.root), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    @contextmanager
    def running(self, form: str) -> Iterator[int]:
        """Start its SSH server in a container, and end it afterwards; yield the server's port."""
        port = free_port()
        kept = "-all," + ",".join(f"+{name}" for name in CAPABILITIES)
        path = f"-o SetEnv=PATH={self.path}" if self.path else ""
        form = form.format(root=self.root)
        script = START.format(root=self.root, kept=kept, port=port, form=form, path=path)
        command = [
            "unshare",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            script,
        ]
        with (self.folder / "sshd.log").open("a") as log:
            process = subprocess.Popen(command, stderr=log)
        try:
            (self.folder / ".ssh/known_hosts").write_text(_host_key(port))
            yield port
        finally:
            process.kill()
            process.wait()


def _host_key(port: int) -> str:
    """Return the line of a server for the file of known hosts, as soon as the server answers."""
    for _ in range(100):
        words = ["ssh-keyscan", "-t", "ed25519", "-p", str(port), "127.0.0.1"]
        if found := subprocess.run(words, capture_output=True, text=True, check=False).stdout:
            return found
        time.sleep(0.1)
    raise SystemExit(f"no SSH server answers on port {port}")


def fresh_system(suite: str, folder: Path, asked: argparse.Namespace) -> FreshSystem:
    """Install a system, with the operator's key."""
    root = folder / suite
    include = ",".join([PACKAGES, *asked.include])
    options = ["--components=main,universe"] if asked.mirror else []
    options += [f"--keyring={asked.keyring}"] if asked.keyring else []
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={include}",
        *options,
        suite,
        str(root),
    ]
    subprocess.run([*command, *asked.mirror], check=True)
    keys = root / "root/.ssh"
    keys.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(folder / ".ssh/id_ed25519.pub", keys / "authorized_keys")
    if not asked.conda:
        return FreshSystem(root, folder)
    shutil.copytree(asked.conda, root / "opt/conda", symlinks=True, ignore=shutil.ignore_patterns("test"))
    return FreshSystem(
        root, folder, "/opt/conda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    )


def package_index(folder: Path) -> Path:
    """Make an index of the wheels of the CPU's lock for all of its Pythons."""
    pins, cache = read_pins(ROOT / "docker/cpu.lock").values(), (cache_path("images") / "wheels").resolve()
    pythons = find_variant("cpu").pythons
    found = {path for python in pythons for path in wheels(pins, cache, python).values()}
    return make_index(folder / "index", *sorted(found))


def measure(port: int, index: str, home: Path) -> None:
    """Push the quickstart, print what came of it, and verify the bundle; stop if the push fails."""
    out = home / "results"
    begun = time.monotonic()
    done = push(port, index, home, "--out", str(out))
    seconds = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    print(*(f"  {line}" for line in done.stderr.splitlines() if not line.startswith("run")), sep="\n")
    verified = bench(["verify", *map(str, out.glob("*.tar"))], home)
    print(f"  {seconds:.0f} s to the bundle; verify: exit {verified.returncode}", flush=True)
    shutil.rmtree(out)


def install(form: Form, port: int, index: str, home: Path) -> None:
    """Push up to the installed environment, and print what came of it."""
    done = push(port, index, home, "--no-run", *form.options)
    print(f"- {' '.join([form.name, *form.options])}: exit {done.returncode}")
    print(*(f"    {line}" for line in done.stderr.splitlines()), sep="\n", flush=True)


def push(port: int, index: str, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Push the quickstart to the system behind this port, with wheels of this index."""
    words = ["push", "manifests/quickstart.json", f"root@127.0.0.1:{port}", "--index", index]
    return bench([*words, "--ssh-config", str(home / ".ssh/config"), *options], home)


def bench(words: Sequence[str], home: Path) -> subprocess.CompletedProcess[str]:
    """Run bench of this source tree with another home folder; its output is captured."""
    environment = os.environ | {"HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, encoding="utf-8"
    )


def main() -> None:
    """Make each system and print how pushes to it end; with --rented, in each form of a rented container."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suites", nargs="*", default=["bookworm"])
    sources = "mirrors, or lines of apt's sources; without any, those of this machine"
    parser.add_argument("--mirror", nargs="+", default=[], help=sources)
    parser.add_argument("--keyring", help="folder of the distribution's keys")
    parser.add_argument("--include", nargs="+", default=[], help="packages, such as python3")
    parser.add_argument("--conda", type=Path, help="prefix of a Python that is put before the system's")
    parser.add_argument("--rented", action="store_true", help="each form of a rented container")
    asked = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-fresh-")))
        (home / ".ssh").mkdir(mode=0o700)
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / ".ssh/id_ed25519")]
        subprocess.run(keygen, check=True)
        known, key = home / ".ssh/known_hosts", home / ".ssh/id_ed25519"
        (home / ".ssh/config").write_text(f"Host *\n  UserKnownHostsFile {known}\n  IdentityFile {key}\n")
        index = stack.enter_context(served(package_index(home), "127.0.0.1")) + "/simple"
        for suite in asked.suites:
            system = fresh_system(suite, home, asked)
            about = ". /etc/os-release && echo $PRETTY_NAME; ls /usr/bin/python3.* /opt/conda/bin/python3.*"
            print(*system.ask("sh", "-c", f"{about} 2>/dev/null; true").splitlines(), sep=", ", flush=True)
            if not asked.rented:
                with system.running("true") as port:
                    measure(port, index, home)
                continue
            for form in FORMS:
                with system.running(form.mounts) as port:
                    install(form, port, index, home)
                for left in ("root/.bench", "workspace/bench"):
                    remove(system.root / left)


if __name__ == "__main__":
    main()
