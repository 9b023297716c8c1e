"""Who is meant: hosts from the command line, and from an Ansible inventory."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, EnvironmentCannot, Mistake

_HOST = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[^@:\s\[\]]+))(?::(?P<port>\d+))?"
)
# What would put a password into our hands, or turn the check of host keys off.
_REFUSED = ("ansible_password", "ansible_ssh_pass", "ansible_become_password", "ansible_become_pass")


@dataclass(frozen=True, slots=True)
class Host:
    name: str  # as the user wrote it
    address: str  # a name of DNS's, an address, or one of ~/.ssh/config
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    python: str | None = None  # of this node alone

    @property
    def file_name(self) -> str:
        return re.sub(r"[^A-Za-z0-9.-]", "_", self.name)


def parse_host(text: str, identity: Path | None = None) -> Host:
    match = _HOST.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and not 0 < port < 2**16) or text.startswith("-"):
        raise BadInput(
            f'"{text}" is no host', advice="HOST, USER@HOST, HOST:PORT, or a name in ~/.ssh/config"
        )
    return Host(text, match["v6"] or match["host"], match["user"], port, identity)


def find_hosts(
    arguments: Sequence[str], inventory: Path | None, limit: str | None, identity: Path | None
) -> tuple[Host, ...]:
    """All of them, each once; every mistake at once."""
    mistakes, found = [], []
    for number, text in enumerate(arguments):
        try:
            found.append(parse_host(text, identity))
        except BadInput as error:
            mistakes.append(Mistake(f"host {number + 1}", error.message, error.advice or ""))
    if inventory is not None:
        found += read_inventory(inventory, limit, identity)
    seen: dict[tuple[str, str | None, int | None], str] = {}
    for host in found:
        where = (host.address.lower(), host.user, host.port)
        if where in seen:
            same = f"the same machine as {seen[where]}"
            mistakes.append(Mistake(host.name, same, "each is measured once: leave one out"))
        seen.setdefault(where, host.name)
    if mistakes:
        noun = "mistake" if len(mistakes) == 1 else "mistakes"
        raise BadInput(f"the list of hosts has {len(mistakes)} {noun}", mistakes=tuple(mistakes))
    return tuple(found)


def read_inventory(path: Path, limit: str | None, identity: Path | None) -> list[Host]:
    """As Ansible itself reads it: INI, YAML, a script or a plug-in."""
    program = Path(sys.executable).with_name("ansible-inventory")
    command = str(program) if program.exists() else shutil.which("ansible-inventory")
    if command is None:
        raise EnvironmentCannot("there is no ansible-inventory here", advice="pip install 'bench[ansible]'")
    if not path.exists():
        raise BadInput("no such inventory", where=str(path))
    environment = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FATAL": "1", "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1"}
    arguments = [command, "-i", str(path), "--list", *(["--limit", limit] if limit else [])]
    import os

    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env=os.environ | environment
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line or "rror" in line] or [
            done.stderr
        ]
        reason = " ".join(said[0].replace("[ERROR]:", "").split())[:300]
        raise BadInput(f"is no inventory: {reason}", where=str(path))
    return from_inventory(json.loads(done.stdout), str(path), identity)


def from_inventory(listed: Mapping[str, Any], where: str, identity: Path | None) -> list[Host]:
    """From what `ansible-inventory --list` says."""
    variables: Mapping[str, Mapping[str, Any]] = listed.get("_meta", {}).get("hostvars", {})
    names = sorted({name for group in listed.values() for name in group.get("hosts", ())} | set(variables))
    if not names:
        raise BadInput("names no hosts", where=where)
    found, mistakes = [], []
    for name in names:
        facts = variables.get(name, {})
        mistakes += [
            Mistake(f"{name}/{word}", "is a password", "keys and agents only: take it out")
            for word in _REFUSED
            if word in facts
        ]
        port = facts.get("ansible_port", facts.get("ansible_ssh_port"))
        if port is not None and not (str(port).isdigit() and 0 < int(port) < 2**16):
            mistakes.append(Mistake(f"{name}/ansible_port", f"{port!r} is no port", "1 to 65535"))
            continue
        key = facts.get("ansible_ssh_private_key_file", facts.get("ansible_private_key_file"))
        found.append(
            Host(
                name,
                str(facts.get("ansible_host", facts.get("ansible_ssh_host", name))),
                facts.get("ansible_user", facts.get("ansible_ssh_user")),
                int(port) if port is not None else None,
                Path(key).expanduser() if key else identity,
                facts.get("bench_python"),
            )
        )
    if mistakes:
        raise BadInput("has mistakes", where=where, mistakes=tuple(mistakes))
    return found
