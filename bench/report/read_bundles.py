"""Bundles read and verified, one or thousands of them. Imports no torch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench.base.errors import BadInput, BenchError
from bench.base.paths import ALLOWED_SIGNERS, REVOKED, config_path
from bench.bundle.verdict import C, Verdict
from bench.bundle.verify import Recompute, TrustRules, verify_bundle
from bench.node_check.recompute_any import AnyVerdict, recompute

MANY = 64  # bundles, from which on several processes are worth their start
T = TypeVar("T")
Checked = tuple[Path, AnyVerdict | BenchError]


class Lists(NamedTuple):
    """The files that the user named; without them, those that `bench keys` keeps count, if there are any."""

    trust: Path | None = None
    revoked: Path | None = None


def check_all(paths: Iterable[Path], lists: Lists | None = None) -> Iterator[Checked]:
    return look_at_all(paths, lists, recompute, _whole)


def look_at_all(
    paths: Iterable[Path], lists: Lists | None, gather: Recompute[C], look: Callable[[Path, Verdict[C]], T]
) -> Iterator[tuple[Path, T | BenchError]]:
    """Verifies every bundle, and of each good one keeps what `look` sees: in the process that verified it."""
    gc.freeze()  # what is there stays, and samples are freed as they are read: little of it is worth a look
    gc.set_threshold(50_000)
    rules = _rules(lists or Lists())  # once: a wrong file is one mistake, not one a bundle
    every = list(_bundles(paths))
    work = partial(_checked, rules, gather, look)
    if len(every) < MANY:
        yield from map(work, every)
        return
    from concurrent.futures import ProcessPoolExecutor  # slow to import, and one bundle needs none
    from multiprocessing import get_context

    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        yield from pool.map(work, every, chunksize=MANY // 4)


def _whole(_path: Path, verdict: AnyVerdict) -> AnyVerdict:
    return verdict


def _checked(
    rules: TrustRules, gather: Recompute[C], look: Callable[[Path, Verdict[C]], T], path: Path
) -> tuple[Path, T | BenchError]:
    try:
        return path, look(path, verify_bundle(path, gather, rules))
    except BenchError as error:
        error.where = error.where if error.where and str(path) in error.where else _place(path, error.where)
        return path, error


def _rules(lists: Lists) -> TrustRules:
    """A list that was named must vouch for every bundle. The user's own only adds to what is known of it."""
    own = config_path(ALLOWED_SIGNERS)
    known = lists.trust or (own if own and own.exists() else None)
    listed = (path for path in (lists.revoked, config_path(REVOKED)) if path)
    revoked = [path for path in listed if path == lists.revoked or path.exists()]
    if not known and not revoked:
        return TrustRules()
    from bench.signing.allowed_signers import TrustPolicy
    from bench.signing.revocation import Revoked  # who has no lists need not wait for what reads them

    return TrustRules(
        trust=TrustPolicy.from_file(known) if known else None,
        demanded=lists.trust is not None,
        revoked=tuple(map(Revoked.from_file, revoked)),
    )


def _place(path: Path, inside: str | None) -> str:
    return f"{path}: {inside}" if inside else str(path)


def _bundles(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are named or match; of a directory, every .tar in it."""
    for path in paths:
        if any(sign in str(path) for sign in "*?[") and not path.exists():
            matching = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
            if not matching:
                raise BadInput("matches no file", where=str(path))
            yield from _bundles(map(Path, matching))
            continue
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.rglob("*.tar"))
        if not found:
            raise BadInput("holds no .tar, so no bundle", where=str(path))
        yield from found
