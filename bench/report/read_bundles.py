"""Read and verify bundles, one or thousands of them, given as files, patterns and directories.

A failure with one bundle becomes the error that refuses this bundle; all others still get their verdicts.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench.base.errors import DEFECT, BadInput, BenchError, EnvironmentCannot, VerificationFailed
from bench.base.paths import ALLOWED_SIGNERS, REVOKED, config_path
from bench.bundle.verdict import C, Verdict
from bench.bundle.verify import Recompute, TrustRules, verify_bundle
from bench.node_check.recompute_any import AnyVerdict, recompute

MANY_BUNDLES = 64  # from this many on, several processes verify them
T = TypeVar("T")
Checked = tuple[Path, AnyVerdict | BenchError]
_OWNED: ContextVar[bool] = ContextVar("owned", default=False)  # whether `own_process` was called


class Lists(NamedTuple):
    """Lists of trusted and revoked keys that the user named; None: those that `bench keys` keeps, if any."""

    trust: Path | None = None
    revoked: Path | None = None


def check_all(paths: Iterable[Path], lists: Lists | None = None) -> Iterator[Checked]:
    """Verify every bundle; yield its path, and its verdict or the error that refused it."""
    return look_at_all(_bundles(paths), lists, recompute, _whole)


def look_at_all(
    files: Iterable[Path], lists: Lists | None, gather: Recompute[C], look: Callable[[Path, Verdict[C]], T]
) -> Iterator[tuple[Path, T | BenchError]]:
    """Verify every bundle; for each valid one yield the result of `look`, called in the verifying process.

    Each of `files` is one bundle: names of folders and patterns are expanded before, and only once, because
    what is found in a folder may have been named by a stranger.
    """
    rules = _rules(lists or Lists())  # read once, so that a wrong list is one mistake and not one per bundle
    every = list(files)
    work = partial(_checked, rules, gather, look)
    if len(every) < MANY_BUNDLES or not _may_fork():
        yield from map(work, every)
        return
    yield from _in_processes(work, every)


def own_process() -> None:
    """Let bench treat this process as its own: it may fork, and searches for garbage rarely.

    Commands call this. The process of a caller of the library keeps its settings, and is forked only while it
    has a single thread: what another thread holds at that moment would stay locked in the fork.
    """
    _OWNED.set(True)
    collect_rarely()


def collect_rarely() -> None:
    """Search for garbage rarely: verifying makes little, and frees samples as it goes."""
    gc.freeze()  # objects made so far stay
    gc.set_threshold(50_000)


def _may_fork() -> bool:
    import threading  # few bundles are verified without asking

    return _OWNED.get() or threading.active_count() == 1


def _in_processes(
    work: Callable[[Path], tuple[Path, T | BenchError]], every: Sequence[Path]
) -> Iterator[tuple[Path, T | BenchError]]:
    """Verify bundles in several processes; once one of these died, each bundle in a separate process."""
    from concurrent.futures import ProcessPoolExecutor  # slow to import, and not needed for one bundle
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    fork = get_context("fork")
    done = 0
    with ProcessPoolExecutor(mp_context=fork, initializer=collect_rarely) as pool, suppress(Exception):
        for checked in pool.map(work, every, chunksize=MANY_BUNDLES // 4):
            done += 1
            yield checked
    for path in every[done:]:
        try:
            with ProcessPoolExecutor(1, mp_context=fork) as alone:
                checked = alone.submit(work, path).result()
        except BrokenProcessPool:
            why = "the process that verified it was ended, perhaps for want of memory"
            checked = path, EnvironmentCannot(why, where=str(path))
        except Exception as error:  # its contents cannot be sent to this process
            checked = path, _confusing(path, error)
        yield checked


def distinct_bundles(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return each bundle that the paths name once, in an order that does not depend on theirs."""
    found: dict[str, Path] = {}
    for path in sorted(_bundles(paths)):
        found.setdefault(os.path.realpath(path), path)  # Path.resolve raises for a link to itself
    return tuple(found.values())


def verify_one(path: Path, lists: Lists | None, gather: Recompute[C]) -> Verdict[C]:
    """Verify the only bundle that `path` names; BadInput if it names several."""
    bundles = list(_bundles([path]))
    if len(bundles) != 1:
        raise BadInput(f"names {len(bundles)} bundles", where=str(path), advice="name exactly one of them")
    ((_, verdict),) = look_at_all(bundles, lists, gather, _whole)
    if isinstance(verdict, BenchError):
        raise verdict
    return verdict


def _whole(_path: Path, verdict: Verdict[C]) -> Verdict[C]:
    return verdict


def _checked(
    rules: TrustRules, gather: Recompute[C], look: Callable[[Path, Verdict[C]], T], path: Path
) -> tuple[Path, T | BenchError]:
    try:
        return path, look(path, verify_bundle(path, gather, rules))
    except BenchError as error:
        if error.where is None or str(path) not in error.where:
            error.where = f"{path}: {error.where}" if error.where else str(path)
        return path, error
    except Exception as error:  # a signer can write anything
        return path, _confusing(path, error)


def _confusing(path: Path, error: Exception) -> VerificationFailed:
    """Return the refusal of a bundle that confuses bench; for BENCH_DEBUG=1 raise the exception."""
    if os.environ.get("BENCH_DEBUG") == "1":
        raise error
    why = f"cannot be judged: {type(error).__name__}: {error}"
    return VerificationFailed(why, where=str(path), advice=DEFECT)


def _rules(lists: Lists) -> TrustRules:
    """Make the rules from the lists. If a trust list is given, a key in it must vouch for every bundle."""
    kept = config_path(ALLOWED_SIGNERS)
    trust = lists.trust or (kept if kept and kept.exists() else None)
    listed = (path for path in (lists.revoked, config_path(REVOKED)) if path)
    revoked = [path for path in listed if path == lists.revoked or path.exists()]
    if not trust and not revoked:
        return TrustRules()
    from bench.signing.allowed_signers import TrustPolicy
    from bench.signing.revocation import Revoked  # slow to import, and not needed without lists

    return TrustRules(
        trust=TrustPolicy.from_file(trust) if trust else None,
        demanded=lists.trust is not None,
        revoked=tuple(map(Revoked.from_file, revoked)),
    )


def _bundles(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files as named, the matches of a pattern, and every .tar below a directory."""
    for path in paths:
        if any(sign in str(path) for sign in "*?[") and not path.exists():
            matching = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
            if not matching:
                raise BadInput("matches no file", where=str(path), advice="name a bundle, or its folder")
            yield from _bundles(map(Path, matching))
        elif not path.is_dir():
            yield path
        elif inside := sorted(path.rglob("*.tar")):
            yield from inside
        else:
            advice = "bench run writes its bundle to out/RUN.tar"
            raise BadInput("holds no .tar, so no bundle", where=str(path), advice=advice)
