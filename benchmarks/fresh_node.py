"""Push to a freshly installed Debian, in a container without Docker, as docs/push.md says. Needs root.

    PYTHONPATH=. python benchmarks/fresh_node.py [SUITE ...]     default: bookworm

Each node is made of Debian's packages (mmdebstrap): the smallest system, an SSH server, Python with venv, and
CA certificates. It runs in namespaces of its own, as root with the capabilities that container engines leave,
as rented containers do. It knows nothing of bench. The package index has the wheels of the CPU's lock.

Prints for each node its system and Python, what preflight chose, the seconds from the start of the push to
the fetched bundle, and what `bench verify` says.
"""

from __future__ import annotations

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
from bench.images.fetch import wheels
from bench.images.locks import read_pins
from bench.images.variants import find_variant
from benchmarks.slow_lines import served
from tests.e2e.nodes import free_port
from tests.environment.made_wheels import make_index

ROOT = Path(__file__).parents[1]
PACKAGES = "openssh-server,python3,python3-venv,ca-certificates"
# The capabilities of a process in a container of Docker, which are fewer than root's.
CAPABILITIES = (
    "chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service",
    "net_raw", "sys_chroot", "mknod", "audit_write", "setfcap",
)  # fmt: skip
START = """
set -e
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount -t tmpfs tmpfs {root}/dev/shm
mount -t tmpfs tmpfs {root}/run
mkdir -p {root}/run/sshd
exec setpriv --bounding-set={kept} --inh-caps=-all chroot {root} /usr/sbin/sshd -D -e -p {port}
"""


@dataclass(frozen=True)
class FreshNode:
    root: Path
    port: int

    def ask(self, *words: str) -> str:
        command = ["chroot", str(self.root), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def fresh_node(suite: str, folder: Path) -> Iterator[FreshNode]:
    """Install a Debian and start its SSH server in a container; end it and delete its files afterwards."""
    root, port = folder / suite, free_port()
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", suite, str(root)], check=True
    )
    keys = root / "root/.ssh"
    keys.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(folder / ".ssh/id_ed25519.pub", keys / "authorized_keys")
    kept = "-all," + ",".join(f"+{name}" for name in CAPABILITIES)
    script = START.format(root=root, kept=kept, port=port)
    command = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", script]
    with (folder / f"{suite}.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        (folder / ".ssh/known_hosts").write_text(_host_key(port))
        yield FreshNode(root, port)
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


def package_index(folder: Path) -> Path:
    """Make an index of the wheels of the CPU's lock for all of its Pythons."""
    pins, cache = read_pins(ROOT / "docker/cpu.lock").values(), (cache_path("images") / "wheels").resolve()
    pythons = find_variant("cpu").pythons
    found = {path for python in pythons for path in wheels(pins, cache, python).values()}
    return make_index(folder / "index", *sorted(found))


def push(node: FreshNode, index: str, home: Path) -> None:
    """Run the README's commands against a node, print what came of them, and stop if one fails."""
    out = home / "results"
    words = ["push", "manifests/quickstart.json", f"root@127.0.0.1:{node.port}", "--index", index]
    words += ["--ssh-config", str(home / ".ssh/config"), "--out", str(out)]
    begun = time.monotonic()
    done = bench(words, home)
    seconds = time.monotonic() - begun
    system = node.ask("sh", "-c", ". /etc/os-release && echo $PRETTY_NAME && python3 --version")
    print(*system.splitlines(), sep=", ")
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    print(*(f"  {line}" for line in done.stderr.splitlines() if line.startswith("preflight")), sep="\n")
    verified = bench(["verify", *map(str, out.glob("*.tar"))], home)
    print(f"  {seconds:.0f} s to the bundle; verify: exit {verified.returncode}", flush=True)
    shutil.rmtree(out)


def bench(words: Sequence[str], home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, encoding="utf-8"
    )


def main(*suites: str) -> None:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-fresh-")))
        (home / ".ssh").mkdir(mode=0o700)
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / ".ssh/id_ed25519")]
        subprocess.run(keygen, check=True)
        known, key = home / ".ssh/known_hosts", home / ".ssh/id_ed25519"
        (home / ".ssh/config").write_text(f"Host *\n  UserKnownHostsFile {known}\n  IdentityFile {key}\n")
        index = stack.enter_context(served(package_index(home), "127.0.0.1")) + "/simple"
        for suite in suites or ("bookworm",):
            push(stack.enter_context(fresh_node(suite, home)), index, home)


if __name__ == "__main__":
    main(*sys.argv[1:])
