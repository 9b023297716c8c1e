"""Where bench keeps what outlives a run: keys and lists, the operator's ledger, and the run's own folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.base.errors import EnvironmentCannot

KEY = "id_ed25519"
ALLOWED_SIGNERS = "allowed_signers"
REVOKED = "revoked.krl"
LEDGER = "ledger.jsonl"


def config_path(name: str) -> Path | None:
    """${XDG_CONFIG_HOME:-~/.config}/bench/name; None where there is no home."""
    return _below("XDG_CONFIG_HOME", ".config", name)


def state_path(name: str) -> Path | None:
    """${XDG_STATE_HOME:-~/.local/state}/bench/name; None where there is no home."""
    return _below("XDG_STATE_HOME", ".local/state", name)


def ledger_path(given: Path | None) -> Path:
    path = given or state_path(LEDGER)
    if path is None:
        raise EnvironmentCannot(
            "there is no home directory for the ledger", advice="--ledger FILE is a place"
        )
    return path


@contextmanager
def making_folders(out: Path) -> Iterator[None]:
    """Below what the user named for results; what the system says against it is told."""
    try:
        yield
    except OSError as error:
        message = f"cannot be written: {error.strerror}"
        raise EnvironmentCannot(message, where=str(out), advice="--out names another directory") from None


def _below(variable: str, default: str, name: str) -> Path | None:
    configured = Path(os.environ.get(variable, ""))
    try:  # a relative path there does not count, says the specification
        base = configured if configured.is_absolute() else Path.home() / default
    except RuntimeError:
        return None
    return base / "bench" / name
