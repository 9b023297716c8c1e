"""What ssh's files of known hosts say, as far as paramiko can use it.

paramiko itself ends at a line with a marker, and at a damaged one. It takes no host certificates: lines of
authorities are passed over, and a host that is known by one alone is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any


def load(client: Any, options: Mapping[str, str]) -> None:
    """Into a client of paramiko's, from where ssh has them. A key that is revoked in one file is nobody's."""
    named = options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    named += options.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts").split()
    files = [path for name in named if (path := Path(name).expanduser()).is_file()]
    texts = [file.read_text(errors="replace") for file in files]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    revoked = {key for line in lines if line.startswith("@revoked") for key in line.split()[3:4]}
    usable = [line for line in lines if _is_entry(line) and line.split()[2] not in revoked]
    with NamedTemporaryFile("w", prefix="bench-known-hosts-") as file:
        file.write("".join(f"{line}\n" for line in usable))
        file.flush()
        client.load_system_host_keys(file.name)


def _is_entry(line: str) -> bool:
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

    if line.startswith(("@", "#")):
        return False
    try:
        return HostKeyEntry.from_line(line) is not None
    except InvalidHostKey:
        return False
