"""A machine that systemd has booted, on which nothing lasts: this machine's files under a layer in memory.

It has processes, a network, a host name and a tree of control groups of its own, and few devices. bench lies
in /opt, where services find it from which /home, /root and /tmp are hidden.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.services import SYSTEM, require, require_root
from tests.patience import until
from tests.warm import ROOT

SYSTEMD = Path("/lib/systemd/systemd")
BENCH = f"""#!/bin/sh
PYTHONPATH=/opt/code:/opt/packages exec /opt/python/bin/{Path(sys.executable).resolve().name} -m bench "$@"
"""
_BOOT = """
set -e
cd {folder}
mkdir memory root
mount -t tmpfs tmpfs memory
mkdir memory/changes memory/work
mount -t overlay overlay -o lowerdir=/,upperdir=memory/changes,workdir=memory/work root
cd root
mount -t proc proc proc
mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
for each in dev run tmp; do mount -t tmpfs tmpfs $each; done
for each in null zero full random urandom tty kmsg; do
  touch dev/$each
  mount --bind /dev/$each dev/$each
done
ln -s /proc/self/fd dev/fd
mkdir opt/code opt/packages opt/python
mount --bind {code} opt/code
mount --bind {packages} opt/packages
mount --bind {python} opt/python
mv ../bench usr/local/bin/bench
: > etc/machine-id
exec env -i container=bench PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . {systemd} --unit=basic.target
"""


@dataclass(frozen=True)
class BootedMachine:
    """A running machine; `root` is its file system as seen from outside."""

    pid: int  # of its systemd

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def type(self, line: str, code: int = 0) -> str:
        """Run a line of bash as root, which must end with the code; return what it printed."""
        spaces = ["--pid", "--mount", "--cgroup", "--uts", "--ipc", "--net"]
        enter = ["nsenter", f"--target={self.pid}", *spaces, f"--root={self.root}", f"--wd={self.root}"]
        done = subprocess.run(
            [*enter, "bash", "-c", line], env={"PATH": f"/usr/local/bin:{SYSTEM}", "PYTHONPATH": "/opt/code"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
            errors="replace", check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}"
        return done.stdout


@contextmanager
def booted_machine(folder: Path) -> Iterator[BootedMachine]:
    """Boot a machine; end all of its processes afterwards. `folder` is empty, and its path has no blanks."""
    require_root("a machine of its own for systemd")
    require("systemd-analyze")
    (folder / "bench").write_text(BENCH, encoding="utf-8")
    (folder / "bench").chmod(0o755)
    script = _BOOT.format(
        folder=folder, code=ROOT, packages=sysconfig.get_path("purelib"), python=sys.base_prefix,
        systemd=SYSTEMD,
    )  # fmt: skip
    spaces = ["--pid", "--mount", "--propagation=private", "--cgroup", "--uts", "--ipc", "--net"]
    with (folder / "log.txt").open("wb") as log:
        parent = subprocess.Popen(
            ["unshare", *spaces, "--fork", "--kill-child", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | {"PATH": SYSTEM},
        )  # fmt: skip
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")

        def answers() -> list[int]:
            assert parent.poll() is None, (folder / "log.txt").read_text(errors="replace")
            pids = [int(pid) for pid in children.read_text().split()]
            return [pid for pid in pids if Path(f"/proc/{pid}/root/run/systemd/private").exists()]

        until(answers, "systemd's socket")
        yield BootedMachine(answers()[0])
    finally:
        parent.kill()
        parent.wait()
