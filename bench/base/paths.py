"""Paths of the files that outlive a run: keys, trust lists, the operator's ledger, and results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.base.errors import EnvironmentCannot
from bench.base.system_advice import advice_on

KEY = "id_ed25519"
ALLOWED_SIGNERS = "allowed_signers"
REVOKED = "revoked.krl"
LEDGER = "ledger.jsonl"


def config_path(name: str) -> Path | None:
    """Return ${XDG_CONFIG_HOME:-~/.config}/bench/name; None if there is no home directory."""
    return _below("XDG_CONFIG_HOME", ".config", name)


def state_path(name: str) -> Path | None:
    """Return ${XDG_STATE_HOME:-~/.local/state}/bench/name; None if there is no home directory."""
    return _below("XDG_STATE_HOME", ".local/state", name)


def cache_path(name: str) -> Path:
    """Return ${XDG_CACHE_HOME:-~/.cache}/bench/name; RuntimeError if there is no home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bench" / name


def ledger_path(given: Path | None) -> Path:
    """Return the ledger that the operator named, or the operator's usual one."""
    path = given or state_path(LEDGER)
    if path is None:
        message = "there is no home directory for the ledger"
        raise EnvironmentCannot(message, advice="name a file with --ledger")
    return path


@contextmanager
def using(path: Path, failure: str = "cannot be written", advice: str | None = None) -> Iterator[None]:
    """Turn an OSError into EnvironmentCannot, with the message `failure` and the system's reason."""
    try:
        yield
    except OSError as error:
        advice = advice or advice_on(error, path, reading=False)
        raise EnvironmentCannot(f"{failure}: {error.strerror}", where=str(path), advice=advice) from None


def making_folders(out: Path) -> AbstractContextManager[None]:
    """Turn an OSError while writing below --out into EnvironmentCannot."""
    return using(out, advice="name another directory with --out")


def _below(variable: str, default: str, name: str) -> Path | None:
    configured = Path(os.environ.get(variable, ""))
    try:  # the XDG specification says to ignore relative paths
        base = configured if configured.is_absolute() else Path.home() / default
    except RuntimeError:
        return None
    return base / "bench" / name
