"""`bench.verify`: check signatures, and recompute every summary from the raw samples."""

from __future__ import annotations

from pathlib import Path

from bench.base.errors import BenchError
from bench.base.frozen import dataclass
from bench.library.given import AnyPath, AnyPaths, path_of, paths_of
from bench.node_check.recompute_any import AnyVerdict
from bench.report.read_bundles import Lists, check_all


@dataclass(frozen=True, slots=True)
class CheckedBundle:
    """A bundle with its verdict, or with the error that refused it."""

    path: Path
    verdict: AnyVerdict | None  # None: it was refused
    refusal: BenchError | None

    @property
    def valid(self) -> bool:
        """Whether the bundle verified, by the rules that the caller gave."""
        return self.verdict is not None

    def to_json(self) -> dict[str, object]:
        """Return the bundle's object in the list of `bench verify --json`."""
        if self.verdict is not None:
            return {"valid": True} | self.verdict.to_json()
        assert self.refusal is not None
        inside = (self.refusal.where or "").removeprefix(str(self.path)).removeprefix(": ") or None
        return {
            "path": str(self.path),
            "valid": False,
            "where": inside,
            "reason": self.refusal.message,
            "exit_code": self.refusal.exit_code,
        }


def verify(
    bundles: AnyPaths, *, trust: AnyPath | None = None, revoked: AnyPath | None = None
) -> tuple[CheckedBundle, ...]:
    """Verify bundles: files, folders and patterns, one or several. Refused bundles are values, no exceptions.

    `trust`    a public key or an allowed_signers file that must vouch for every bundle
    `revoked`  a revocation list (KRL) of ssh-keygen, in addition to bench's own

    Raises BadInput if a pattern or a folder stands for no bundle, and for lists that cannot be read.

    >>> good, bad = bench.verify(["results/seven-h200/pythia-1b.tar", "manifests/hour.json"])
    >>> good.valid, good.verdict.level, good.verdict.contents.samples
    (True, 'self', 14)
    >>> bad.valid, bad.refusal.message
    (False, 'is a manifest of models, not a bundle')
    """
    lists = Lists(path_of(trust), path_of(revoked))
    return tuple(_checked(path, found) for path, found in check_all(paths_of(bundles), lists))


def _checked(path: Path, found: AnyVerdict | BenchError) -> CheckedBundle:
    if isinstance(found, BenchError):
        return CheckedBundle(path, None, found)
    return CheckedBundle(path, found, None)
