"""`bench reproduce`: run a bundle's manifest again on this machine, and compare the two runs."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.base.errors import BadInput, EnvironmentCannot, VerificationFailed, printable
from bench.base.operating_system import ELSEWHERE
from bench.base.strict_json import to_json
from bench.base.terminal import print_json, wrapped
from bench.cli.measuring import RepeatArguments, measured_here
from bench.library.this_machine import probed
from bench.planning.manifest import parse_manifest
from bench.planning.own_code import own_files
from bench.report.read_bundles import Lists, own_process
from bench.report.reproduce.read_run import read_run
from bench.report.reproduce.reproduction_text import reproduction_lines
from bench.report.reproduce.verdicts import ReproducibleRun, pip_lines, stack_differences
from bench.report.reproduce.verdicts import reproduce as compare_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceArguments(RepeatArguments):
    """The options of `bench reproduce`, which repeats a bundle's run or a published row."""

    bundle: Path | None
    published: str | None  # name of a published row, in place of a bundle
    published_in: Path | None  # file of published rows; None: those that ship with bench
    any_stack: bool
    run_code: bool


def reproduce(request: ReproduceArguments) -> int:
    """Compare a run with its repetition; return 0 if it was reproduced, 1 if not, 5 if it was cut short."""
    own_process()
    if request.published is not None:
        return _reproduce_published(request, request.published)
    if request.bundle is None:
        raise BadInput("neither a bundle nor --published", advice="bench reproduce BUNDLE")
    if request.published_in is not None:
        raise BadInput("--published-in without --published", advice="--published list shows its rows")
    return _reproduce_bundle(request, request.bundle)


def _reproduce_published(request: ReproduceArguments, row: str) -> int:
    from bench.cli.published import reproduce_published

    if request.bundle is not None:
        advice = "--with BUNDLE compares a run that you have with a published row"
        raise BadInput("both a bundle and --published", where=str(request.bundle), advice=advice)
    for option, given in (("--any-stack", request.any_stack), ("--run-code", request.run_code)):
        if given:
            raise BadInput(f"{option} with --published", advice=f"leave {option} out: no bundle is run again")
    if request.in_image:
        advice = "leave --engine out: a row runs with this machine's own packages"
        raise BadInput("--engine with --published", advice=advice)
    return reproduce_published(row, request.published_in, request)


def _reproduce_bundle(request: ReproduceArguments, bundle: Path) -> int:
    in_image = request.in_image
    original = read_run(bundle, Lists(request.trust, request.revoked))
    again = request.again
    if again is None:
        _ask_about_code(original, bundle, request)
        again = _run_in_image(original, bundle, request) if in_image else _run_here(original, bundle, request)
    repeated = read_run(again, None)
    if repeated.results.run.id == original.results.run.id:
        advice = "--with takes the bundle of another run of the same manifest"
        raise BadInput("is the original run itself: it reproduces nothing", where=str(again), advice=advice)
    if repeated.is_copy_of(original):
        raise VerificationFailed("has the original run's samples: it was not run again", where=str(again))
    if repeated.stated.data != original.stated.data:
        raise BadInput("ran another manifest", where=str(again), advice="bench compare shows what differs")
    found = compare_runs(repeated, original, request.tolerance)
    if request.as_json:
        print_json({"reproduced": found.reproduced, **to_json(found)})
    else:
        print(printable(wrapped(reproduction_lines(found), " " * 4)))
    stopped = repeated.results.run.stopped
    if request.again is None and stopped:
        print(f"incomplete: {stopped}", file=sys.stderr)
        return 5
    return 0 if found.reproduced else 1


def _ask_about_code(original: ReproducibleRun, bundle: Path, request: ReproduceArguments) -> None:
    """Refuse to run code that the bundle brings along, unless the user said that it may run."""
    if request.run_code or not (files := own_files(original.stated.document)):
        return
    raise BadInput(
        f"would run code that the bundle brings along: {', '.join(files)}",
        where=str(bundle),
        advice=f"read it (tar xOf {bundle} manifest.json), then add --run-code",
    )


def _run_here(original: ReproducibleRun, bundle: Path, request: ReproduceArguments) -> Path:
    """Run the manifest with this machine's software, which may differ only with --any-stack."""
    where = str(bundle)
    ours, theirs = probed(ELSEWHERE, gpus_too=not request.on_cpu), original.results.node
    differences = list(stack_differences(ours, theirs))
    if differences and not request.any_stack:
        has_image = theirs.image is not None and theirs.image.config is not None
        remedy = "--engine auto runs in its image" if has_image else "\n  ".join(pip_lines(ours, theirs))
        if theirs.environment is not None:
            remedy = f"bench push MANIFEST HOST --engine venv, then bench reproduce {where} --with BUNDLE"
        message = f"another software stack: {'; '.join(differences)}"
        advice = f"{remedy or 'set what differs'}\n  or --any-stack to run despite the differences"
        raise EnvironmentCannot(message, where=where, advice=advice)
    manifest = parse_manifest(original.stated.data, f"{where}: manifest.json")
    return measured_here(manifest, request)


def _run_in_image(original: ReproducibleRun, bundle: Path, request: ReproduceArguments) -> Path:
    """Run the manifest, byte for byte, in the container image that the bundle ran in."""
    from bench.cli.in_container import run_in_image

    facts = original.results.node.image
    if facts is None or facts.config is None:
        raise BadInput(
            "ran in no image whose identity is known", where=str(bundle), advice="leave --engine out"
        )
    options = ["--device", "cpu"] if request.on_cpu else []
    options += ["--budget", f"{request.budget_seconds}s"] if request.budget_seconds else []
    before = set(request.out.glob("*.tar"))
    with tempfile.TemporaryDirectory(prefix="bench-reproduce-") as folder:
        manifest = Path(folder) / "manifest.json"
        manifest.write_bytes(original.stated.data)
        code = run_in_image("run", manifest, request, options, identity=facts.config)
    bundles = set(request.out.glob("*.tar")) - before
    if len(bundles) != 1:
        raise EnvironmentCannot(
            f"the run in the container left no bundle: exit code {code}", where=str(request.out)
        )
    return bundles.pop()
