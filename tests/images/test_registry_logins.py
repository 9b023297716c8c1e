"""Where a registry's login is looked for, which one counts, and what is ignored."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.images import registry_logins
from bench.images.registry_logins import Login, find_login


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def write(path: Path, user: str = "", **more: Any) -> Path:
    """Write a file of logins, with one of this user for r.example."""
    auths = {"auths": {"r.example": {"auth": encoded(f"{user}:p:w")}}} if user else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(auths | more))
    return path


def test_a_login_is_sent_as_basic_authorization_and_its_password_is_not_shown() -> None:
    login = Login("me", "sécret")
    assert login.basic == f"Basic {encoded('me:sécret')}"
    assert repr(login) == "Login(user='me')"


def test_the_first_file_with_a_login_counts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    named = write(tmp_path / "named.json", "named")
    write(tmp_path / "run/containers/auth.json", "podman")
    write(tmp_path / "docker/config.json", "docker")
    write(home / ".docker/config.json", "home")
    everything = {
        "REGISTRY_AUTH_FILE": str(named), "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "DOCKER_CONFIG": str(tmp_path / "docker"),
    }  # fmt: skip

    def user(*names: str) -> str:
        login = find_login("r.example", {name: everything[name] for name in names}, home)
        assert login is not None and login.password == "p:w"
        return login.user

    assert user(*everything) == "named"
    assert user("XDG_RUNTIME_DIR", "DOCKER_CONFIG") == "podman"
    assert user("DOCKER_CONFIG") == "docker"
    assert user() == "home"
    named.write_text("{}")
    assert user(*everything) == "podman"
    named.unlink()
    assert user(*everything) == "podman"
    assert find_login("other.example", everything, home) is None


@pytest.mark.parametrize(
    "config",
    [
        "[]", "7", "null", "not json", '{"auths": []}', '{"auths": {"r.example": []}}',
        '{"auths": {"r.example": {"auth": 5}}}', '{"auths": {"r.example": {"auth": "*"}}}',
        '{"auths": {"r.example": {}}}', '{"credHelpers": []}',
        json.dumps({"auths": {"r.example": {"auth": encoded(":password")}}}),
    ],
)  # fmt: skip
def test_a_file_of_another_form_has_no_login(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert find_login("r.example", {"DOCKER_CONFIG": str(tmp_path)}, tmp_path) is None


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let every program that keeps logins know `me` at r.example; return the questions."""
    asked: list[Any] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        asked.append((command, options.pop("input")))
        assert options == {"capture_output": True, "text": True, "encoding": "utf-8", "check": False}
        known = {
            "docker-credential-good": (0, {"Username": "me", "Secret": "s"}),
            "docker-credential-empty": (0, {}),
        }
        code, answer = known.get(command[0], (1, {"Username": "not", "Secret": "this"}))
        return SimpleNamespace(returncode=code, stdout=json.dumps(answer))

    monkeypatch.setattr(registry_logins.subprocess, "run", run)
    return asked


@pytest.mark.parametrize(
    ("config", "asked", "user"),
    [
        ({"credsStore": "good"}, "good", "me"),
        ({"credHelpers": {"r.example": "good"}, "credsStore": "bad"}, "good", "me"),
        ({"credHelpers": {"other.example": "bad"}, "credsStore": "good"}, "good", "me"),
        ({"credsStore": "bad"}, "bad", "stored"),
        ({"credsStore": "empty"}, "empty", "stored"),
        ({}, None, "stored"),
    ],
)
def test_the_program_for_a_registry_is_asked_before_the_file(
    tmp_path: Path, helper: list[Any], config: dict[str, Any], asked: str | None, user: str
) -> None:
    write(tmp_path / "config.json", "stored", **config)
    login = find_login("r.example", {"DOCKER_CONFIG": str(tmp_path)}, tmp_path)
    assert login == (Login("me", "s") if user == "me" else Login("stored", "p:w"))
    assert helper == ([([f"docker-credential-{asked}", "get"], "r.example")] if asked else [])
