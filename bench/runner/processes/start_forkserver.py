"""Starts the fork server, with the environment that all jobs have."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path


def start_server(
    command: list[str], arguments: list[str], log: Path
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process, and our end of the socket to it."""
    ours, theirs = socket.socketpair()
    log.parent.mkdir(parents=True, exist_ok=True)
    with theirs, log.open("ab") as file:
        # Threads that spin for long at barriers stand still for each other on a machine that has other
        # work; threads that do not spin at all take twice as long on an idle one (GNU OpenMP).
        # OpenBLAS would start threads as numpy is imported, and threads do not survive a fork.
        environment = {"GOMP_SPINCOUNT": "10000"} | os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        # In the order that NVML counts in, or figures would be said of the wrong card.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        server = subprocess.Popen(
            [*command, str(theirs.fileno()), *arguments],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    return server, ours
