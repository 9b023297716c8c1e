"""Fabric's connections: host keys as strictly as by ssh, and no error of paramiko's own."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paramiko import BadHostKeyException, ECDSAKey

from bench.base.errors import BadInput, EnvironmentCannot
from bench.push import openssh, over_fabric
from bench.push.connection import ConnectionBroke, HostKeyRefused, Unreachable
from bench.push.hosts import Host, parse_host
from bench.push.over_fabric import FabricConnection
from bench.push.remote import Remote, refuse_twins
from tests.push.strange_nodes import mark_of, ssh_server


@pytest.fixture
def without_openssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssh, "is_installed", lambda: False)


def answers(channel: Any, command: bytes) -> None:
    """Answer as a shell does that runs a script of one line, `head -c 5`."""
    size = int(command.partition(b"head -c ")[2].partition(b")")[0])
    said = channel.recv(size + 5)
    while len(said) < size + 5:
        said += channel.recv(size + 5 - len(said))
    channel.sendall(mark_of(command) + said[-5:])
    channel.sendall_stderr(b"a warning")
    channel.send_exit_status(7)
    channel.close()


def test_a_script_runs_by_fabric(tmp_path: Path, without_openssh: None) -> None:
    with ssh_server(tmp_path, answers) as (port, _):
        node = Remote(Host("n", "127.0.0.1", "me", port), tmp_path / ".ssh/config")
        for word in (b"first", b"again"):
            found = node.ask("head -c 5", [word], seconds=30.0)
            assert (found.code, found.out, found.err) == (7, word, b"a warning")
        node.close()


def test_arguments_for_ssh_need_openssh(without_openssh: None) -> None:
    with pytest.raises(EnvironmentCannot, match="need OpenSSH's client: -J door"):
        Remote(Host("n", "n", ssh_arguments=("-J", "door"))).ask("true")


def test_two_names_of_one_machine_are_one(tmp_path: Path, without_openssh: None) -> None:
    (tmp_path / "config").write_text("Host a b\n  HostName 10.0.0.1\n")
    with pytest.raises(BadInput, match="names a machine twice"):
        refuse_twins([parse_host("a"), parse_host("b")], tmp_path / "config")


def test_paramikos_error_on_a_malformed_packet_is_a_broken_connection() -> None:
    """paramiko hands on what its parser raised: IndexError, UnicodeDecodeError and others."""

    def raises(_command: str) -> None:
        raise IndexError("index out of range")

    channel = SimpleNamespace(exec_command=raises, close=lambda: None)
    line: Any = SimpleNamespace(transport=SimpleNamespace(open_session=lambda timeout: channel))
    with pytest.raises(ConnectionBroke, match="IndexError"):
        FabricConnection(line).start("date", 1.0)


def test_a_malformed_packet_while_connecting_is_an_error_of_the_node() -> None:
    def opening() -> None:
        raise IndexError("index out of range\x1b]0;owned\x07")

    line = SimpleNamespace(open=opening, user="me", host="gpu1", port=22)
    with pytest.raises(Unreachable, match=r"IndexError: index out of range\?\]0;owned\?"):
        over_fabric.connect(line, Host("gpu1", "gpu1"))


def test_paramikos_log_does_not_reach_stderr() -> None:
    """The log has texts of machines whose host key is not checked yet."""
    assert logging.getLogger("paramiko").handlers


@pytest.mark.parametrize(("port", "known_as"), [(22, "gpu1"), (2222, "[gpu1]:2222")])
def test_the_advice_for_a_changed_host_key_uses_sshs_name(port: int, known_as: str) -> None:
    key = ECDSAKey.generate()

    def refuse() -> None:
        raise BadHostKeyException("gpu1", key, key)

    line = SimpleNamespace(open=refuse, user="me", host="gpu1", port=port)
    with pytest.raises(HostKeyRefused) as caught:
        over_fabric.connect(line, Host("gpu1", "gpu1"))
    assert f"ssh-keygen -R {shlex.quote(known_as)}" in str(caught.value.advice)


def test_known_hosts_is_read_with_its_markers_and_in_spite_of_damage(tmp_path: Path) -> None:
    good, bad, authority = (ECDSAKey.generate() for _ in range(3))
    lines = [f"{k.get_name()} {k.get_base64()}" for k in (good, bad, authority)]
    (tmp_path / "known_hosts").write_text(
        f"# mine\n@cert-authority *.example.org {lines[2]}\ngpu1 {lines[0]}\ngpu2 {lines[1]}\n"
        f"gpu3 {lines[0][:-9]}\n@revoked * {lines[1]}\n\n"
    )
    (tmp_path / "config").write_text(
        f"Host *\n  UserKnownHostsFile {tmp_path}/known_hosts\n  GlobalKnownHostsFile {tmp_path}/none\n"
    )
    known = over_fabric.line_to(Host("gpu1", "gpu1"), tmp_path / "config").client._system_host_keys
    assert known.check("gpu1", good)
    assert not known.check("gpu2", bad)
    assert known.keys() == ["gpu1"]
