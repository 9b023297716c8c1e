"""Find the baseline of a node check: an earlier bundle, verified first, or the newest of a folder."""

from __future__ import annotations

from pathlib import Path

from bench.base.errors import BadInput, BenchError
from bench.base.sysfs import machine_digest
from bench.bundle.verify import verify_bundle
from bench.node_check.check_results import CheckContents
from bench.node_check.checks.drift import facts_of
from bench.node_check.judging.standards import Baseline
from bench.node_check.recompute_any import recompute

MOST_TRIED = 8  # bundles of a folder, the newest first


def find_baseline(path: Path) -> Baseline | None:
    """Return the baseline in a bundle; in a folder, that of the newest complete check of this machine.

    BadInput for a bundle that is not a node check, does not verify, or has no facts; None for a folder that
    has no check of this machine.
    """
    if not path.is_dir():
        baseline, _ = _read(path)
        return baseline
    own = machine_digest()
    bundles = sorted(path.glob("*.tar"), key=lambda bundle: bundle.stat().st_mtime, reverse=True)
    for bundle in bundles[:MOST_TRIED]:
        try:
            baseline, contents = _read(bundle)
        except BadInput:
            continue
        if contents.results.run.complete and contents.evidence.machine == own:
            return baseline
    return None


def _read(bundle: Path) -> tuple[Baseline, CheckContents]:
    """Verify a bundle and return its facts; BadInput if it cannot be a baseline."""
    advice = "name the bundle of an earlier bench check, or a folder with some"
    try:
        verdict = verify_bundle(bundle, recompute)
    except BenchError as error:
        raise BadInput(f"--baseline does not verify: {error}", advice=advice) from None
    contents = verdict.contents
    if not isinstance(contents, CheckContents):
        raise BadInput("--baseline is not a node check", where=str(bundle), advice=advice)
    facts = facts_of(contents.evidence)
    if facts is None:
        raise BadInput(
            "--baseline has no facts of its machine: it is by an older bench, or left out the check drift",
            where=str(bundle),
            advice="check the machine again in a good state, and name that bundle",
        )
    run = contents.results.run
    return Baseline(run.id, run.ended_at, facts, verdict.fingerprint), contents
