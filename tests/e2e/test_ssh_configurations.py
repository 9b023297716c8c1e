"""`bench push` reaches every host that `ssh -F FILE HOST` reaches, and checks host keys on every hop."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.base.errors import BadInput
from bench.push import openssh
from bench.push.connection import HostKeyRefused, Unreachable
from bench.push.hosts import Host, parse_host
from bench.push.remote import Remote
from tests.e2e.nodes import Nodes, ssh_nodes
from tests.ssh_agent import ssh_agent

pytestmark = pytest.mark.e2e


def keygen(*words: object) -> None:
    subprocess.run(["ssh-keygen", "-q", *map(str, words)], check=True, stdin=subprocess.DEVNULL)


def options(folder: Path, port: int) -> Sequence[str]:
    """Make an authority for host keys and one for users, and return sshd's options for them."""
    for name in ("host_ca", "user_ca", "user"):
        keygen("-t", "ed25519", "-N", "", "-f", folder / name)
    keygen("-s", folder / "host_ca", "-I", "a node", "-h", "-n", "farm.example", folder / "host.pub")
    keygen("-s", folder / "user_ca", "-I", "me", "-n", "root", folder / "user.pub")
    keygen("-t", "ed25519", "-N", "secret", "-f", folder / "locked")
    certified = [f"HostCertificate {folder}/host-cert.pub", f"TrustedUserCAKeys {folder}/user_ca.pub"]
    return [*certified, f"ListenAddress [::1]:{port}"]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ssh_nodes(tmp_path_factory.mktemp("n"), 2, options=options) as started:
        locked = (started.folder / "locked.pub").read_text()
        with (started.folder / "authorized").open("a") as authorized:
            authorized.write(locked)
        yield started


NODE, DOOR = "127.77.0.1", "127.77.0.2"
LOGIN = "User root\nIdentityFile {d}/id\n"
KNOWN = "UserKnownHostsFile {d}/known\n"
USUAL = LOGIN + KNOWN + "Port {port}\n"
AT_NODE = "Host node\nHostName 127.77.0.1\n"
FOR_ALL = "Host *\n" + USUAL
OWN_KNOWN = AT_NODE + LOGIN + "Port {port}\n"  # known hosts follow
# Configurations of ssh for the host `node`: {d} is the folder of keys, {own} is one for the case alone.
CONFIGURATIONS = {
    "a name": AT_NODE + USUAL,
    "another file": "Include {own}/more\n",
    "several files": "Include {own}/more*\n",
    "a match": 'Match originalhost node exec "true"\nHostName 127.77.0.1\n' + USUAL,
    "an alias of the host key": OWN_KNOWN + "HostKeyAlias alias\nUserKnownHostsFile {own}/alias\n",
    "a host certificate": OWN_KNOWN + "HostKeyAlias farm.example\nUserKnownHostsFile {own}/authority\n",
    "hashed host names": OWN_KNOWN + "UserKnownHostsFile {own}/hashed\n",
    "a command for known hosts": OWN_KNOWN
    + "UserKnownHostsFile none\nKnownHostsCommand /bin/cat {d}/known\n",
    "IPv6": "Host node\nHostName ::1\nHostKeyAlias alias\nPort {port}\n"
    + LOGIN
    + "UserKnownHostsFile {own}/alias\n",
    "a user certificate": AT_NODE
    + "Port {port}\nUser root\nIdentitiesOnly yes\nIdentityFile {d}/user\n"
    + "CertificateFile {d}/user-cert.pub\n"
    + KNOWN,
    "an agent": AT_NODE
    + "Port {port}\nUser root\nIdentityAgent {d}/agent\nIdentityFile {d}/locked\n"
    + KNOWN,
    "tokens in paths": AT_NODE + "Port {port}\nUser root\nIdentityFile {d}/%r-id\n" + KNOWN,
    "a jump host": AT_NODE + "ProxyJump 127.77.0.2\n" + FOR_ALL,
    "a jump host by name": AT_NODE + "ProxyJump door\nHost door\nHostName 127.77.0.2\n" + FOR_ALL,
    "two jump hosts": AT_NODE + "ProxyJump root@127.77.0.2:{port},127.77.0.1\n" + FOR_ALL,
    "a proxy command of ssh": AT_NODE + "ProxyCommand ssh -F {own}/config -W %h:%p 127.77.0.2\n" + FOR_ALL,
    "a program as a proxy": AT_NODE + "ProxyCommand {d}/forward.py %h %p\n" + USUAL,
    "connections that ssh shares": AT_NODE
    + "ControlMaster auto\nControlPersist 300\nControlPath {own}/%C\n"
    + USUAL,
    "forwarded ports": AT_NODE + "LocalForward 127.0.0.1:1 127.0.0.1:2\nForwardAgent yes\n" + USUAL,
    "a terminal": AT_NODE + "RequestTTY force\nEscapeChar none\n" + USUAL,
    "much to say": AT_NODE + "LogLevel DEBUG3\nVisualHostKey yes\n" + USUAL,
    "nothing to say": AT_NODE + "LogLevel QUIET\n" + USUAL,
    "a local command": AT_NODE + "PermitLocalCommand yes\nLocalCommand echo local\n" + USUAL,
    "compression and chosen ciphers": AT_NODE
    + "Compression yes\nCiphers aes256-ctr\nKexAlgorithms curve25519-sha256\n"
    + "HostKeyAlgorithms ssh-ed25519\n"
    + USUAL,
    "an own address": AT_NODE + "BindAddress 127.0.0.5\nAddressFamily inet\n" + USUAL,
    "variables": AT_NODE + "SendEnv HOME LC_*\nSetEnv WHO=me\n" + USUAL,
}


@dataclass(frozen=True)
class Place:
    """The files of one case."""

    nodes: Nodes
    own: Path

    @property
    def config(self) -> Path:
        return self.own / "config"

    def prepare(self, text: str) -> None:
        """Write ssh's configuration, and every file that a configuration may name."""
        folder, port = self.nodes.folder, self.nodes.port
        filled = text.format(d=folder, own=self.own, port=port)
        self.config.write_text(filled)
        usual = f"Host node\nHostName {NODE}\n{USUAL}".format(d=folder, port=port)
        (self.own / "more").write_text(usual)
        key = (folder / "host.pub").read_text()
        (self.own / "alias").write_text(f"alias {key}")
        (self.own / "authority").write_text(
            f"@cert-authority *.example {(folder / 'host_ca.pub').read_text()}"
        )
        (self.own / "hashed").write_text((folder / "known").read_text())
        keygen("-H", "-f", self.own / "hashed")
        (folder / "root-id").write_bytes((folder / "id").read_bytes())
        (folder / "root-id").chmod(0o600)
        forward = folder / "forward.py"
        forward.write_text(FORWARDING)
        forward.chmod(0o755)

    def by_ssh(self) -> int:
        command = ["ssh", "-F", str(self.config), "-o", "BatchMode=yes", "node", "true"]
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode


FORWARDING = """\
#!/usr/bin/env python3
import os, socket, sys, threading
node = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send():
    while data := os.read(0, 65536):
        node.sendall(data)
    node.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := node.recv(65536):
    os.write(1, data)
"""


@pytest.fixture
def place(nodes: Nodes) -> Iterator[Place]:
    with TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket may have about 100 characters
        yield Place(nodes, Path(folder))


@pytest.fixture(autouse=True)
def agent(nodes: Nodes, tmp_path: Path) -> Iterator[None]:
    """Have an agent with the key whose file has a passphrase."""
    socket = nodes.folder / "agent"
    askpass = tmp_path / "askpass"
    askpass.write_text("#!/bin/sh\necho secret\n")
    askpass.chmod(0o755)
    asking = {"SSH_AUTH_SOCK": str(socket), "SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force"}
    with ssh_agent(socket):
        subprocess.run(
            ["ssh-add", "-q", str(nodes.folder / "locked")],
            env=os.environ | asking, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        yield


@contextmanager
def connected(host: Host, config: Path) -> Iterator[Remote]:
    node = Remote(host, config)
    try:
        yield node
    finally:
        node.close()


def assert_reached(host: Host, config: Path) -> None:
    """Run scripts with input, output, error output and an exit code over one connection."""
    with connected(host, config) as node:
        for word in (b"first", b"second"):
            found = node.ask("cat; echo problem >&2; exit 7", [word])
            assert (found.code, found.out, found.err) == (7, word, b"problem\n")


@pytest.mark.parametrize("text", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_what_ssh_reaches_is_reached(place: Place, text: str) -> None:
    place.prepare(text)
    assert place.by_ssh() == 0
    assert_reached(parse_host("node"), place.config)


def test_arguments_of_an_inventory_are_arguments_of_ssh(place: Place) -> None:
    place.prepare("Host *\n" + USUAL)
    for words in (f"-J {DOOR}", f"-F {place.own}/config", "-o StrictHostKeyChecking=no"):
        host = Host("r1", NODE, ssh_arguments=tuple(shlex.split(words)))
        assert_reached(host, Path("/dev/null") if "-F" in words else place.config)


def test_a_connection_that_the_user_opened_is_used(place: Place) -> None:
    """A login by a one-time password works so: here, the key is gone after the user's login."""
    text = CONFIGURATIONS["connections that ssh shares"].replace("{d}/id", "{own}/id")
    (place.own / "id").write_bytes((place.nodes.folder / "id").read_bytes())
    (place.own / "id").chmod(0o600)
    place.prepare(text)
    assert place.by_ssh() == 0
    (place.own / "id").unlink()
    assert_reached(parse_host("node"), place.config)
    assert place.by_ssh() == 0  # the user's connection is still there
    subprocess.run(["ssh", "-F", str(place.config), "-O", "exit", "node"], check=True, capture_output=True)
    with pytest.raises(Unreachable, match='user "root" was refused'):
        assert_reached(parse_host("node"), place.config)


def test_each_command_goes_through_one_connection(place: Place) -> None:
    place.prepare(CONFIGURATIONS["a name"])
    with connected(parse_host("node"), place.config) as node:
        ports = {node.ask('echo "$SSH_CONNECTION"').text for _ in range(5)}
    assert len(ports) == 1


def test_a_broken_connection_is_reported_and_the_next_call_opens_a_new_one(place: Place) -> None:
    place.prepare(CONFIGURATIONS["a name"])
    with connected(parse_host("node"), place.config) as node:
        first = node.ask('echo "$SSH_CONNECTION"').text
        with pytest.raises(Unreachable, match="the connection broke"):
            node.ask('kill -9 "$PPID"; sleep 60')
        assert node.ask('echo "$SSH_CONNECTION"').text != first


@pytest.mark.parametrize("strictness", ["no", "accept-new", "ask"])
@pytest.mark.parametrize("unknown", [NODE, DOOR])
def test_an_unknown_host_key_is_refused_on_every_hop(place: Place, unknown: str, strictness: str) -> None:
    place.prepare(
        f"Host node\nHostName {NODE}\nProxyJump {DOOR}\nHost *\nStrictHostKeyChecking {strictness}\n"
        "UserKnownHostsFile {own}/known\nPort {port}\n" + LOGIN
    )
    lines = (place.nodes.folder / "known").read_text().splitlines(keepends=True)
    (place.own / "known").write_text("".join(line for line in lines if unknown not in line))
    fingerprint = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(place.nodes.folder / "host.pub")],
        check=True, capture_output=True, text=True,
    ).stdout.split()[1]  # fmt: skip
    with pytest.raises(HostKeyRefused, match="its host key is not known: ssh-ed25519") as caught:
        assert_reached(parse_host("node"), place.config)
    assert fingerprint in caught.value.message
    assert unknown not in (place.own / "known").read_text()


@pytest.mark.parametrize("changed", [NODE, DOOR])
def test_a_changed_host_key_is_refused_on_every_hop(place: Place, changed: str) -> None:
    place.prepare(
        f"Host node\nHostName {NODE}\nProxyJump {DOOR}\nHost *\nUserKnownHostsFile {{own}}/known\n"
        "Port {port}\n" + LOGIN
    )
    other = " ".join((place.nodes.folder / "id.pub").read_text().split()[:2])
    lines = (place.nodes.folder / "known").read_text().splitlines()
    new = [f"{line.split()[0]} {other}" if changed in line else line for line in lines]
    (place.own / "known").write_text("".join(f"{line}\n" for line in new))
    with pytest.raises(HostKeyRefused, match="its host key has changed: ssh-ed25519 SHA256") as caught:
        assert_reached(parse_host("node"), place.config)
    assert f"ssh-keygen -R '[{changed}]:{place.nodes.port}'" in str(caught.value.advice)


def test_a_revoked_host_key_is_refused(place: Place) -> None:
    place.prepare("Host *\nUserKnownHostsFile {own}/known\nPort {port}\n" + LOGIN)
    key = (place.nodes.folder / "host.pub").read_text()
    (place.own / "known").write_text((place.nodes.folder / "known").read_text() + f"@revoked * {key}")
    with pytest.raises(HostKeyRefused, match="revoked"):
        assert_reached(parse_host(NODE), place.config)


def test_a_key_with_a_passphrase_is_named(place: Place) -> None:
    place.prepare(f"Host *\nIdentityFile {{d}}/locked\nIdentityAgent none\nUser root\nPort {{port}}\n{KNOWN}")
    with pytest.raises(Unreachable, match="the SSH key has a passphrase") as caught:
        assert_reached(parse_host(NODE), place.config)
    assert "ssh-add" in str(caught.value.advice)


@pytest.mark.parametrize(
    ("node", "door", "said"),
    [
        (NODE, "127.77.0.9", "127.77.0.9 port {port}: connection refused"),
        (NODE, "no-such-door.invalid", 'no machine is called "no-such-door.invalid"'),
        ("127.77.0.9", DOOR, "127.77.0.9 port {port}, from [127.77.0.2]: connection refused"),
    ],
    ids=["no jump host", "no name of a jump host", "nothing behind the jump host"],
)
def test_what_cannot_be_reached_is_named(place: Place, node: str, door: str, said: str) -> None:
    place.prepare(f"Host node\nHostName {node}\nProxyJump {door}\n{FOR_ALL}")
    with pytest.raises(Unreachable) as caught:
        assert_reached(parse_host("node"), place.config)
    assert said.format(port=place.nodes.port) in caught.value.message


def test_a_mistake_in_the_configuration_is_shown(place: Place) -> None:
    place.prepare("Host *\nPortt 22\n")
    with pytest.raises(BadInput, match="Bad configuration option: portt"):
        assert_reached(parse_host(NODE), place.config)


def test_openssh_is_what_these_tests_try() -> None:
    openssh.is_installed.cache_clear()
    assert openssh.is_installed()
