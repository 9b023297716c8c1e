"""The choice of the key that signs a run: an operator's challenge decides, or when the user's key is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.library import sealer as sealing
from bench.library.sealer import make_sealer
from bench.runner.run.seal import OwnKey, OwnKeyReadLast
from tests.report.made import KEY

MINE = Path("mine")


class Keys:
    """The user's key, and how often it was read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[Path | None] = []
        self.made, self.opens = False, True
        monkeypatch.setattr(sealing, "load_or_make_key", self._load)
        monkeypatch.setattr(sealing, "opens_without_asking", lambda key: self.opens)

    def _load(self, key: Path | None) -> Any:
        self.read.append(key)
        return SimpleNamespace(private=KEY, made=self.made, path="/home/me/.config/bench/key")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Keys:
    return Keys(monkeypatch)


@pytest.fixture
def told() -> list[str]:
    return []


def test_the_users_own_key_signs_without_a_challenge(keys: Keys, told: list[str]) -> None:
    assert make_sealer("sha256:aa", MINE, None, told.append) == OwnKey(KEY)
    assert (keys.read, told) == ([MINE], [])


def test_a_key_that_was_made_is_told(keys: Keys, told: list[str]) -> None:
    keys.made = True
    make_sealer("sha256:aa", None, None, told.append)
    assert told == ["new signing key: /home/me/.config/bench/key"]


def test_a_key_that_opens_without_asking_may_be_read_when_the_run_is_over(
    keys: Keys, told: list[str], tmp_path: Path
) -> None:
    late = make_sealer("sha256:aa", MINE, None, told.append, read_last=True)
    assert isinstance(late, OwnKeyReadLast) and keys.read == []
    assert late.seal(tmp_path, told.append, patient=False).key == KEY
    assert keys.read == [MINE]


def test_a_key_that_must_be_made_or_unlocked_is_read_first(keys: Keys, told: list[str]) -> None:
    keys.opens = False
    assert make_sealer("sha256:aa", MINE, None, told.append, read_last=True) == OwnKey(KEY)
    assert keys.read == [MINE]


def test_a_challenge_makes_a_new_key_and_reads_none_of_the_users(
    keys: Keys, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(sealing, "read_challenge", lambda path: f"challenge in {path}")
    monkeypatch.setattr(sealing, "CertifiedKey", lambda *given: asked.append(given) or "certified")
    made: Any = make_sealer("sha256:aa", MINE, Path("c.json"), told.append, read_last=True)
    assert (made, asked) == ("certified", [("challenge in c.json", "sha256:aa")])
    assert (keys.read, told) == ([], [])
