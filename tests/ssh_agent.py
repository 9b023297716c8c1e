"""An agent of OpenSSH that holds keys for one test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CANNOT_CONTACT = 2
"""The exit code with which ssh-add says that no agent answers."""


@contextmanager
def ssh_agent(socket: Path) -> Iterator[None]:
    """Start an agent on a socket, and yield once it answers.

    The socket's file exists a moment before the agent accepts connections, so the file alone proves nothing.
    """
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    asking = os.environ | {"SSH_AUTH_SOCK": str(socket)}
    try:
        while _listed(asking) == CANNOT_CONTACT:
            assert agent.poll() is None, "the agent ended before it answered"
        yield
    finally:
        agent.terminate()
        agent.wait()
        socket.unlink(missing_ok=True)


def _listed(environment: dict[str, str]) -> int:
    """Return the exit code with which ssh-add lists the agent's keys."""
    return subprocess.run(["ssh-add", "-l"], env=environment, capture_output=True, check=False).returncode
