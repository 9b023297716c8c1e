"""`bench check`: from arguments to what a person, a program or a monitoring system reads."""

from __future__ import annotations

import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import BadInput, nearest
from bench.base.strict_json import pretty_json, to_json
from bench.node_check.all_checks import known_checks
from bench.node_check.judging import Depth
from bench.node_check.judging.finding import EXITS, NAGIOS

if TYPE_CHECKING:
    from bench.node_check.check_manifest import CheckManifest
    from bench.runner.check.check_node import CheckedNode
    from bench.runner.run.seal import Sealer


@dataclass(frozen=True, slots=True)
class CheckArguments:
    """The command's arguments."""

    manifest: Path | None
    level: Depth | None
    out: Path
    skip: tuple[str, ...]
    scratch: Path | None
    history: tuple[Path, ...]
    on_cpu: bool
    junit: Path | None
    html: Path | None
    as_json: bool
    nagios: bool
    key: Path | None
    challenge: Path | None


def check(request: CheckArguments) -> int:
    from bench.node_check import check_manifest
    from bench.runner.check import history
    from bench.runner.check.check_node import check_node
    from bench.runner.check.check_progress import CheckProgress
    from bench.runner.check.request import CheckRequest

    asked_for = check_manifest.load(request.manifest)
    _check_names(request.skip, asked_for.require)
    _check_scratch(request.scratch)
    _check_history(request.history)
    talk = CheckProgress(quiet=request.nagios)
    places = request.history or ((request.out,) if request.out.is_dir() else ())
    past, refused = history.read(places)
    for reason in refused if request.history else ():
        talk.say(f"not used as history: {reason}")
    done = check_node(
        CheckRequest(
            asked_for, request.level or asked_for.level, request.out, "cpu" if request.on_cpu else "cuda",
            request.skip, request.scratch, past,
        ),
        _sealer(asked_for, request),
        talk,
    )  # fmt: skip
    talk.stop()
    return _show(done, request)


def _show(done: CheckedNode, request: CheckArguments) -> int:
    from bench.report.text.check_text import nagios_line, text

    results = done.results
    if request.junit is not None:
        from bench.report.text.junit import write_junit

        write_junit(request.junit, results, socket.gethostname())
    if request.html is not None:
        from bench.report.pages.check_html import write_check_html

        write_check_html(request.html, results, done.evidence)
    if request.nagios:
        print(nagios_line(results))
        return NAGIOS[results.verdict]
    if request.as_json:
        found = {"bundle": str(done.bundle), "results": to_json(results)}
        sys.stdout.write(pretty_json(found).decode())
    else:
        print(text(results))
    print(f"bundle {done.bundle}", file=sys.stderr)
    if results.run.stopped:
        print(f"incomplete: {results.run.stopped}", file=sys.stderr)
        return 5
    if request.challenge is not None and done.seal.certificate is None:
        print("no certificate came: the bundle's level is self", file=sys.stderr)
        return 5
    return EXITS[results.verdict]


def _check_names(skipped: tuple[str, ...], required: tuple[str, ...]) -> None:
    for name in skipped:
        if name not in known_checks():
            raise BadInput(f"--skip {name}: no such check", advice=nearest(name, known_checks()))
        if name in required:
            raise BadInput(f"--skip {name}: the manifest requires it", advice="leave one of them out")


def _check_scratch(scratch: Path | None) -> None:
    """By the first thing that the check of the disk does there, minutes before it."""
    try:
        if scratch is not None:
            with tempfile.TemporaryFile(dir=scratch):
                pass
    except OSError as error:
        raise BadInput(
            f"--scratch {scratch}: no file can be written there: {error.strerror}",
            advice="name a folder on the disk to check that is there and that you may write to",
        ) from None


def _check_history(places: tuple[Path, ...]) -> None:
    """Without the past that was named, a GPU that grows worse would pass."""
    for place in places:
        if not place.exists():
            raise BadInput(
                f"--history {place}: no such file or folder",
                advice="name bundles of earlier checks, or a folder that holds them; it may be empty",
            )


def _sealer(asked_for: CheckManifest, request: CheckArguments) -> Sealer:
    from bench.runner.run.seal import CertifiedKey, OwnKey, read_challenge
    from bench.signing.key_file import load_or_make_key

    if request.challenge is not None:
        return CertifiedKey(read_challenge(request.challenge), asked_for.digest)
    signer = load_or_make_key(request.key)
    if signer.made:
        print(f"made a key to sign with: {signer.path}", file=sys.stderr)
    return OwnKey(signer.private)


def list_checks() -> int:
    width = max(map(len, known_checks()))
    for name, found in known_checks().items():
        print(f"{name:<{width}}  {found.question}")
    return 0
