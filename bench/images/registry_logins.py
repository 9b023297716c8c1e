"""Find the login of a registry where `docker login` and `podman login` store it."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Login:
    """The user name and the password of a registry."""

    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


def find_login(host: str, environment: Mapping[str, str], home: Path) -> Login | None:
    """Return the login of a registry; None if no readable file has one."""
    for path in _files(environment, home):
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            found = _from_helper(config, host) or _stored(config, host)
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            continue
        if found:
            return found
    return None


def _files(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    if named := environment.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers/auth.json"
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _stored(config: Any, host: str) -> Login | None:
    entry = config.get("auths", {}).get(host, {}).get("auth")
    user, _, password = base64.b64decode(entry).decode().partition(":") if entry else ("", "", "")
    return Login(user, password) if user else None


def _from_helper(config: Any, host: str) -> Login | None:
    """Ask the program that keeps logins, if the configuration names one."""
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if not helper:
        return None
    command = [f"docker-credential-{helper}", "get"]
    done = subprocess.run(command, input=host, capture_output=True, text=True, encoding="utf-8", check=False)
    answer = json.loads(done.stdout) if done.returncode == 0 else {}
    return Login(answer["Username"], answer["Secret"]) if answer.get("Username") else None
