"""The hosts of a push: parsed from arguments, and read from an Ansible inventory.

In:  HOST arguments or the path of an inventory. Out: `Host` values, or BadInput that lists every mistake.
Runs ansible-inventory to read an inventory; otherwise pure.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.base.distribution import pip_install
from bench.base.errors import BadInput, EnvironmentCannot, Mistake

_HOST = re.compile(
    r"(?:(?P<user>\S+)@)?(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[^@:\s\[\]]+))(?::(?P<port>\d+))?"
)
# Variables of an inventory that hold passwords, which bench does not accept.
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_become_password", "ansible_become_pass")
# Variables of an inventory that hold arguments for ssh, in the order in which Ansible adds them.
_SSH_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_BY_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh", "libssh", "ansible.netcommon.libssh")


@dataclass(frozen=True, slots=True)
class Host:
    """A host to push to, and how ssh reaches it."""

    name: str  # as the user wrote it; names bundles and rows of tables
    address: str  # DNS name, IP address, or a name in ~/.ssh/config
    user: str | None = None
    port: int | None = None
    identity: Path | None = None  # private key to log in with
    python: str | None = None  # overrides --python for this host
    ssh_arguments: tuple[str, ...] = ()  # more of ssh's command line, as an inventory gives it


def parse_host(text: str, identity: Path | None = None) -> Host:
    """Parse HOST, USER@HOST or HOST:PORT; an IPv6 address with a port is in brackets."""
    match = _HOST.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and not 0 < port < 2**16) or text.startswith("-"):
        raise BadInput(
            f'"{text}" is not a host', advice="HOST, USER@HOST, HOST:PORT, or a name in ~/.ssh/config"
        )
    return Host(text, match["v6"] or match["host"], match["user"], port, identity)


def find_hosts(
    arguments: Sequence[str], inventory: Path | None, limit: str | None, identity: Path | None
) -> tuple[Host, ...]:
    """Return the hosts of arguments and inventory; BadInput lists all mistakes, duplicates included."""
    mistakes: list[Mistake] = []
    hosts: list[Host] = []
    for number, text in enumerate(arguments):
        try:
            hosts.append(parse_host(text, identity))
        except BadInput as error:
            mistakes.append(Mistake(f"host {number + 1}", error.message, error.advice or ""))
    if inventory is not None:
        hosts += read_inventory(inventory, limit, identity)
    mistakes += twins((host.name, (host.address.lower(), host.user, host.port), "") for host in hosts)
    if mistakes:
        noun = "mistake" if len(mistakes) == 1 else "mistakes"
        raise BadInput(f"the list of hosts has {len(mistakes)} {noun}", mistakes=tuple(mistakes))
    return tuple(hosts)


def twins(machines: Iterable[tuple[str, Hashable, str]]) -> Iterator[Mistake]:
    """Yield a mistake for each machine that an earlier name in the list names already."""
    names: dict[Hashable, str] = {}
    for name, machine, description in machines:
        if machine in names:
            what = f"the same machine as {names[machine]}{description}"
            yield Mistake(name, what, "leave one out: a machine is measured once")
        names.setdefault(machine, name)


def read_inventory(path: Path, limit: str | None, identity: Path | None) -> list[Host]:
    """Read an inventory through ansible-inventory, so that INI, YAML, scripts and plug-ins all work."""
    program = Path(sys.executable).with_name("ansible-inventory")
    command = str(program) if program.exists() else shutil.which("ansible-inventory")
    if command is None:
        raise EnvironmentCannot("ansible-inventory is not installed", advice=pip_install("ansible"))
    if not path.exists():
        raise BadInput("no such inventory", where=str(path), advice="--inventory takes a file or a folder")
    environment = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FATAL": "1", "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1"}
    arguments = [command, "-i", str(path), "--list", *(["--limit", limit] if limit else [])]
    done = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        encoding="utf-8",
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "rror" in line]
        first = errors[0] if errors else done.stderr
        reason = " ".join(first.replace("[ERROR]:", "").split())[:300]
        advice = f"ansible-inventory -i {path} --list shows the whole message"
        raise BadInput(f"cannot be read as an inventory: {reason}", where=str(path), advice=advice)
    return from_inventory(json.loads(done.stdout), str(path), identity)


def from_inventory(document: Mapping[str, Any], where: str, identity: Path | None) -> list[Host]:
    """Convert the output of `ansible-inventory --list`; BadInput lists all mistakes."""
    variables: Mapping[str, Mapping[str, Any]] = document.get("_meta", {}).get("hostvars", {})
    listed = {name for group in document.values() for name in group.get("hosts", ())}
    names = sorted(listed | set(variables))
    if not names:
        advice = "add hosts to it, or check --limit"
        raise BadInput("names no hosts", where=where, advice=advice)
    hosts: list[Host] = []
    mistakes: list[Mistake] = []
    for name in names:
        facts = variables.get(name, {})
        mistakes += _mistakes(name, facts)
        port = facts.get("ansible_port", facts.get("ansible_ssh_port"))
        if mistakes:
            continue
        key = facts.get("ansible_ssh_private_key_file", facts.get("ansible_private_key_file"))
        address = str(facts.get("ansible_host", facts.get("ansible_ssh_host", name)))
        user = facts.get("ansible_user", facts.get("ansible_ssh_user"))
        own_identity = Path(key).expanduser() if key else identity
        number = int(port) if port is not None else None
        python, arguments = facts.get("bench_python"), _ssh_arguments(facts)
        hosts.append(Host(name, address, user, number, own_identity, python, tuple(arguments)))
    if mistakes:
        raise BadInput("has mistakes", where=where, mistakes=tuple(mistakes))
    return hosts


def _mistakes(name: str, facts: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield mistakes in the variables of one host of an inventory."""
    for variable in _PASSWORDS:
        if variable in facts:
            yield Mistake(
                f"{name}/{variable}", "is a password", "remove it: only keys and agents are supported"
            )
    port = facts.get("ansible_port", facts.get("ansible_ssh_port"))
    if port is not None and not (str(port).isdigit() and 0 < int(port) < 2**16):
        yield Mistake(f"{name}/ansible_port", f"{port!r} is not a port", "1 to 65535")
    connection = str(facts.get("ansible_connection", "ssh"))
    if connection.removeprefix("ansible.builtin.") not in _BY_SSH:
        advice = "leave the host out: bench push reaches hosts by ssh"
        yield Mistake(f"{name}/ansible_connection", f'"{connection}" is not ssh', advice)
    try:
        _ssh_arguments(facts)
    except ValueError as error:
        yield Mistake(f"{name}/ansible_ssh_common_args", f"no list of arguments: {error}", "close the quotes")


def _ssh_arguments(facts: Mapping[str, Any]) -> list[str]:
    """Return the arguments for ssh in a host's variables; ValueError if a quote is not closed."""
    return [word for name in _SSH_ARGUMENTS for word in shlex.split(str(facts.get(name) or ""))]
