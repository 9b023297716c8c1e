"""Recompute the summaries of a bundle, of a run that trained or of a node check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from bench.base.errors import BadInput, VerificationFailed
from bench.base.strict_json import DecodeError, strict_loads
from bench.bundle.recompute_run import recompute_run
from bench.bundle.verdict import RunContents, Verdict
from bench.node_check import CHECK_SCHEMA

if TYPE_CHECKING:
    from bench.bundle.verify import Files
    from bench.node_check.check_results import CheckContents


AnyContents = Union["RunContents", "CheckContents"]
AnyVerdict = Verdict[AnyContents]


def recompute(files: Files) -> AnyContents:
    """Recompute every summary from the raw samples or readings; VerificationFailed where one differs."""
    try:
        document = strict_loads(files.read("results.json"))
    except DecodeError as error:
        raise VerificationFailed(f"is malformed: {error}", where="results.json") from None
    if isinstance(document, dict) and document.get("schema") == CHECK_SCHEMA:
        from bench.node_check.check_results import recompute_check  # imports every check

        return recompute_check(document, files)
    return recompute_run(document, files)


def trained_run(verdict: AnyVerdict) -> RunContents:
    """Return what a verified bundle says of a run that trained; BadInput for a node check."""
    if not isinstance(verdict.contents, RunContents):
        raise BadInput("is a node check, without models", where=verdict.path, advice="bench compare shows it")
    return verdict.contents
