"""Reach a node by OpenSSH's own client, so that `bench push HOST` reaches every host that `ssh HOST` reaches.

A connection is one background process of ssh (a control master), through whose socket every command goes.
If the user has such a process already, for example after a one-time password, its socket is used instead.
The process ends with the connection, or a minute after the last command if bench is killed.

bench sets some options in place of the user's configuration: unknown host keys are refused, also those of
jump hosts, ssh asks nothing, and neither agents, tickets of Kerberos, ports nor networks are forwarded.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from bench.base.errors import BadInput, BenchError
from bench.base.files import read_bounded
from bench.base.operating_system import SSH_SHARES_CONNECTIONS
from bench.push.connection import (
    CONNECT_SECONDS,
    KEEPALIVE_SECONDS,
    Channel,
    Connection,
    ConnectionBroke,
    Endpoint,
    HostKeyRefused,
    Unreachable,
    changed_host_key,
    locked_key,
    plain,
    refused_user,
    unknown_host_key,
)
from bench.push.control_socket import ask_to_end
from bench.push.hosts import Host
from bench.push.process_channel import ProcessChannel

_OPEN_SECONDS = 4 * CONNECT_SECONDS  # until a connection through jump hosts is open and the user logged in
LAST_SECONDS = 0.5  # for the processes of ssh to end when bench ends
_IDLE_SECONDS = 60  # after which ssh ends a connection that bench left behind
_LOST = 255  # ssh's exit code if a connection breaks, or the command was killed
_MOST_CONFIG_BYTES = 2**20  # of a configuration file
_LONGEST_FOLDER = 60  # characters; the path of a socket may have about 100

# A line in ssh's debugging output that repeats what the other side sent before it proved its host key.
_OF_THE_SERVER = re.compile("banner line [0-9]+: ")

# The advice of ssh for a changed host key, with the name in known_hosts; a server may have written the line.
_OFFENDING = re.compile(r"ssh-keygen .*-R \"([\w.:%\[][\w.:%\[\]-]*)\"", re.ASCII)

# The first value that ssh finds for an option counts, so the user's files cannot change these.
_CONFIG = f"""\
Host *
  BatchMode yes
  StrictHostKeyChecking yes
  UpdateHostKeys no
  ForwardAgent no
  ForwardX11 no
  GSSAPIDelegateCredentials no
  Tunnel no
  ClearAllForwardings yes
  PermitLocalCommand no
  LogLevel INFO
  ConnectTimeout {CONNECT_SECONDS}
  ServerAliveInterval {KEEPALIVE_SECONDS}
  ServerAliveCountMax 4
"""


@cache
def is_installed() -> bool:
    """Whether there is an OpenSSH client that can share connections, which Windows' client cannot."""
    return SSH_SHARES_CONNECTIONS and shutil.which("ssh") is not None


class Ssh:
    """The command line of ssh for one host. It has a separate folder until it is closed."""

    def __init__(self, host: Host, ssh_config: Path | None) -> None:
        own_config, arguments = _split_config(host.ssh_arguments)
        theirs = _theirs(own_config or ssh_config)
        self.host = host
        self._folder = _short_folder()
        self.socket = self._folder / "s"
        self.log = self._folder / "log"
        config = self._folder / "config"
        config.write_bytes(_CONFIG.encode() + theirs)
        # ssh takes the last -F and the first -o.
        self._words = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", *arguments]
        self._words += ["-F", str(config), "-T"]
        self._words += ["-l", host.user] if host.user else []
        self._words += ["-p", str(host.port)] if host.port else []
        self._words += ["-i", str(host.identity)] if host.identity else []
        self._target = ["--", host.address]

    def words(self, *options: str) -> list[str]:
        """Return a command line of ssh; `options` precede all others."""
        return [self._words[0], *options, *self._words[1:], *self._target]

    def endpoint(self) -> Endpoint:
        """Ask ssh where it would connect to; BadInput if it cannot read its configuration."""
        done = subprocess.run(
            self.words("-G"),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=_environment(),
            check=False,
        )
        if done.returncode:
            lines = [plain(line) for line in done.stderr.splitlines()][:3]
            raise BadInput(f"ssh: {'; '.join(lines)}", where=self.host.name)
        options = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
        gateway = options.get("proxyjump") or options.get("proxycommand") or ""
        gateway = "" if gateway == "none" else gateway
        return Endpoint(options["user"], options["hostname"], int(options["port"]), gateway)

    def run(self, *options: str, seconds: float, command: str = "") -> tuple[int, str]:
        """Run ssh without input; return its exit code and what it says. TimeoutExpired after `seconds`.

        What ssh says goes through a file, because a process that it leaves in the background keeps it open.
        """
        with self.log.open("wb") as log:
            done = subprocess.run(
                [*self.words(*options), *([command] if command else [])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                timeout=seconds,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for bench, and nothing can be asked on the terminal
                check=False,
            )
        return done.returncode, self.log.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Delete the folder of the socket, the log and the configuration."""
        shutil.rmtree(self._folder, ignore_errors=True)


def endpoint_of(host: Host, ssh_config: Path | None) -> Endpoint:
    """Return where ssh would connect to for a host, without connecting; BadInput if ssh refuses its files."""
    with closing(Ssh(host, ssh_config)) as ssh:
        return ssh.endpoint()


def open_connection(host: Host, ssh_config: Path | None) -> Connection:
    """Connect to a host and log in; Unreachable or HostKeyRefused, with advice, if that fails."""
    ssh = Ssh(host, ssh_config)
    try:
        code, _ = ssh.run("-O", "check", seconds=CONNECT_SECONDS)
        if code == 0:
            return SharedConnection(ssh, own=False)
        opening = ("-f", "-N", "-M", "-S", str(ssh.socket), "-o", f"ControlPersist={_IDLE_SECONDS}")
        code, said = ssh.run(*opening, seconds=_OPEN_SECONDS)
        if code:
            raise _refusal(ssh, said)
        return SharedConnection(ssh, own=True)
    except subprocess.TimeoutExpired:
        ssh.close()
        raise Unreachable(f"no answer in {_OPEN_SECONDS} s", where=host.name) from None
    except BaseException:
        ssh.close()
        raise


class SharedConnection:
    """A connection that a background process of ssh holds; `own` if bench started that process."""

    def __init__(self, ssh: Ssh, *, own: bool) -> None:
        self._ssh, self._own = ssh, own
        self._options = ("-S", str(ssh.socket), "-o", "ControlMaster=no") if own else ()
        self._channel: SshChannel | None = None
        if own:
            _OWN.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the socket is there; a connection of the user's own is taken for open."""
        return not self._own or self._ssh.socket.exists()

    def start(self, command: str, seconds: float) -> Channel:
        """Start a process of ssh that uses the socket; that waits for nothing, so `seconds` is not used."""
        options = (*self._options, "-o", "RequestTTY=no", "-E", os.devnull)  # ssh's own messages
        self._channel = SshChannel([*self._ssh.words(*options), command])
        return self._channel

    def close(self) -> None:
        """End the last command, the background process if bench started it, and the folder of its socket."""
        _OWN.discard(self)
        if self._channel:
            self._channel.close()
        socket = self._ssh.socket
        if self._own and socket.exists() and not all(ask_to_end([socket])):
            with suppress(OSError, subprocess.TimeoutExpired):
                self._ssh.run("-O", "exit", "-S", str(socket), seconds=5)
        self._ssh.close()

    @staticmethod
    def end_all() -> None:
        """End the connections that are left when bench ends, all at once.

        A process of ssh that does not end now ends by itself, _IDLE_SECONDS later.
        """
        left = list(_OWN)
        for connection in left:
            if connection._channel:
                connection._channel.kill()
        ask_to_end([connection._ssh.socket for connection in left], LAST_SECONDS)
        for connection in left:
            connection._ssh.close()


_OWN: set[SharedConnection] = set()  # connections whose processes bench has started, and not ended
atexit.register(SharedConnection.end_all)


class SshChannel(ProcessChannel):
    """A process of ssh that carries one command."""

    def __init__(self, words: list[str]) -> None:
        super().__init__(words, _environment())

    def exit_code(self, seconds: float) -> int:
        """Wait for the command to end; ConnectionBroke for the code with which ssh itself fails."""
        code = super().exit_code(seconds)
        if code == _LOST:
            raise ConnectionBroke
        return code


def _refusal(ssh: Ssh, said: str) -> BenchError:
    """Return the error for what ssh said when it failed.

    ssh names the jump host or the host key only in debugging output, so a second attempt reads that.
    """
    where, endpoint = ssh.host.name, ssh.endpoint()
    if network := _network_problem(said, endpoint):
        return Unreachable(network, where=where)
    detail = _said_in_detail(ssh)
    if network := _network_problem(detail, endpoint):
        return Unreachable(network, where=where)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in detail:
        offending = _OFFENDING.search(detail)  # of a jump host, perhaps
        known_as = offending[1] if offending else endpoint.known_as
        return changed_host_key(_offered_key(detail), known_as, where)
    if "REVOKED HOST KEY" in detail:
        return HostKeyRefused("its host key is marked as revoked in known_hosts", where=where)
    if "Host key verification failed" in detail:
        return unknown_host_key(_offered_key(detail), where)
    if denied := re.search(r"^(?:(\S*)@)?\S+: Permission denied(?: \((.*)\))?", detail, re.MULTILINE):
        return _denied(denied[1] or endpoint.user, denied[2] or "", detail, where)
    place = f"{endpoint.address} port {endpoint.port}"
    return Unreachable(f"{place}: no SSH session: {_last_line(said)}", where=where)


def _network_problem(said: str, endpoint: Endpoint) -> str | None:
    """Return why no bytes reach a host or its jump host; None if ssh's message has another cause."""
    if missing := re.search(r"Could not resolve hostname (\S+?):", said):
        return f'no machine is called "{plain(missing[1])}"'
    if failed := re.search(r"^(?:ssh: )?connect to host (\S+) port (\d+): (.*)", said, re.MULTILINE):
        return f"{failed[1]} port {failed[2]}: {plain(failed[3]).lower()}"
    place = f"{endpoint.address} port {endpoint.port}"
    if failed := re.search(r"open failed: (?:connect failed: )?(.*)", said):
        return f"{place}, from {plain(endpoint.gateway)}: {plain(failed[1]).lower()}"
    if re.search(r"^Connection .*timed out", said, re.MULTILINE):
        return f"{place}: no answer in {CONNECT_SECONDS} s"
    return None


def _denied(user: str, methods: str, detail: str, where: str) -> BenchError:
    """Return the error for a login that failed; `methods` are those that the host offers."""
    if detail.count("Server accepts key") > detail.count("Authenticated to"):
        return locked_key(where)
    advice = None
    if {"keyboard-interactive", "password"} & {*methods.split(",")}:
        advice = "if it wants a password, which may be valid once: log in by hand, with ControlMaster, "
        advice += "ControlPath and ControlPersist in ~/.ssh/config, and push while that connection is there"
    return refused_user(user, f"it accepts {methods.replace(',', ', ')}", where, advice)


def _said_in_detail(ssh: Ssh) -> str:
    """Connect once more, with debugging output."""
    try:
        said = ssh.run("-v", "-o", "ControlPath=none", seconds=_OPEN_SECONDS, command="exit")[1]
    except subprocess.TimeoutExpired:
        return ""
    return "\n".join(line for line in said.splitlines() if not _OF_THE_SERVER.search(line))


def _offered_key(detail: str) -> str:
    """Return type and fingerprint of the last host key in debugging output: ssh accepted earlier ones."""
    found = re.findall(r"Server host (?:key|certificate): (\S+?)(?:-cert-\S+)? (SHA256:[\w+/=]+)", detail)
    return plain(" ".join(found[-1])) if found else "ssh does not say which it is"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return plain(lines[-1])[:200] if lines else "no reason given"


def _short_folder() -> Path:
    """Make a folder for a socket, whose path may not be long."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="bench-ssh-", dir=usual if len(usual) <= _LONGEST_FOLDER else "/tmp"))


def _theirs(own: Path | None) -> bytes:
    """Return the user's configuration file, or lines that include the files that ssh reads by default.

    The user's file is copied, not included: ssh would interpret wildcards and quotes in its name, and
    silently ignore a missing file. BadInput if it cannot be read.
    """
    if own is None:
        return b'Include "~/.ssh/config"\nInclude "/etc/ssh/ssh_config"\n'
    return read_bounded(own, _MOST_CONFIG_BYTES, what="", too_large="is no configuration of ssh")


def _split_config(arguments: tuple[str, ...]) -> tuple[Path | None, list[str]]:
    """Take `-F FILE` out of arguments of ssh."""
    left, config = list(arguments), None
    while "-F" in left[:-1]:
        at = left.index("-F")
        config = Path(left[at + 1]).expanduser()
        del left[at : at + 2]
    return config, left


def _environment() -> Mapping[str, str]:
    """Return the environment for ssh: without a locale, so that its messages are in English."""
    return {
        name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")
    }
