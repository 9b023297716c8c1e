"""results.json of a node check: build it, and recompute it from a bundle's readings.

In:  the readings (samples.jsonl, telemetry.jsonl) and the standards in results.json. Out: `CheckResults`, or
`CheckContents` of a verified bundle; VerificationFailed if a verdict does not follow from the readings.

Bundles outlive the code that judged them. If a bundle names other rules than this version's, its verdicts are
ignored and its readings are judged by this version's rules. Pure, apart from reading the bundle's members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.base.errors import VerificationFailed
from bench.base.frozen import dataclass
from bench.base.stamps import YEAR_10000, utc
from bench.base.strict_json import (
    DecodeError,
    canonical_json,
    from_json,
    later,
    pretty_json,
    strict_loads,
    to_json,
)
from bench.bundle.physical_limits import peak_of
from bench.bundle.plausibility import require_one_line_texts, require_plain, require_same_run, unknown_gpus
from bench.bundle.stated_manifest import check_software, read_document
from bench.bundle.verdict import Contents, Note
from bench.node_check import CHECK_SCHEMA
from bench.node_check.all_checks import known_checks
from bench.node_check.check_manifest import CheckManifest, read
from bench.node_check.judging import Depth
from bench.node_check.judging.evidence import (
    AFTER,
    BEFORE,
    IDLE,
    Evidence,
    Figure,
    Reading,
    figures_of,
    read_course,
)
from bench.node_check.judging.finding import Finding, Question, Verdict, overall
from bench.node_check.judging.standards import Baseline, Expectations, Past, Profile, Standards, profile_for
from bench.records.run_results import RunFacts
from bench.records.trial import NodeFacts

if TYPE_CHECKING:
    from bench.bundle.verify import Files

ROOT = Path(__file__).parents[2]  # the folder that bench is in
PACKAGES = ("bench.node_check", "bench.node_check.judging", "bench.node_check.checks")  # whose sources judge

AHEAD_SECONDS = 86_400  # tolerated lead of a node's clock over the reader's: a time zone set wrongly
MAX_READINGS_BYTES = 16 * 2**20  # parsed, they are twenty times as large; a check writes up to a few MiB
# Findings that only a reader of the bundle makes. They do not count, and every output shows them.
OWN_PROFILE = "profile"  # the bundle was judged by another profile than this version's
UNKNOWN_GPU = "unknown GPU"
LEFT_OUT = "left out"  # checks that the run left out, and not its manifest
ALWAYS_SHOWN = frozenset({OWN_PROFILE, UNKNOWN_GPU, LEFT_OUT})


@cache
def rules_digest() -> str:
    """Hash the sources that judge: equal in a checkout, a wheel and an image of the same code."""
    digest = sha256()
    for package in PACKAGES:
        folder = ROOT.joinpath(*package.split("."))
        for path in sorted(folder.glob("*.py")):
            digest.update(f"{package}/{path.name}\0".encode() + path.read_bytes() + b"\0")
    return "sha256:" + digest.hexdigest()


@dataclass(frozen=True, slots=True)
class CheckResults:
    """results.json of a node check."""

    bench_version: str
    manifest_digest: str
    run: RunFacts
    node: NodeFacts
    level: Depth
    device: Literal["cpu", "cuda"]
    simulated: bool  # the GPUs are those of the fake NVML
    profile: Profile | None  # the one that was applied; other versions of bench may ship another one
    expect: Expectations
    require: tuple[str, ...]
    verdict: Verdict
    findings: tuple[Finding, ...]
    history: Mapping[str, Past] = field(default_factory=dict)
    rules: str = ""  # digest of the code that judged; empty in the first bundles
    baseline: Baseline | None = later(None)
    schema: Literal["bench/check-results/v1"] = CHECK_SCHEMA

    def to_bytes(self) -> bytes:
        """Serialise as results.json, whose bytes the signed statement names by their digest."""
        return pretty_json(to_json(self))

    @property
    def standards(self) -> Standards:
        """The standards by which the readings were judged."""
        return Standards(self.profile, self.expect, self.history, self.baseline)


def judge(evidence: Evidence, standards: Standards, require: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings of every check, in order. A check without a finding gets one that says not-run."""
    return tuple(
        replace(finding, counts=True) if name in require else finding
        for name, check in known_checks().items()
        if check.is_asked_at(evidence.level)
        for finding in _judged(name, evidence, standards)
    )


def _judged(name: str, evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    check = known_checks()[name]
    reading = evidence.readings.get(name)
    if reading is not None and reading.reason is not None:
        yield Question(name).unread(reading.reason, counts=reading.counts)
        return
    if reading is None and check.has_older_bundles:
        yield Question(name).unread("the bundle is older than this check", counts=False)
        return
    findings = list(check.judge(evidence, standards))
    yield from findings
    if not findings:
        yield Question(name).unread("there was nothing to judge" if evidence.gpus else "no GPU answers")


def results_of(
    evidence: Evidence, standards: Standards, require: Sequence[str], **header: Any
) -> CheckResults:
    """Judge a node's readings and return its results.json; `header` has the fields about run and machine."""
    findings = judge(evidence, standards, require)
    return CheckResults(
        level=evidence.level,
        device=evidence.device,
        profile=standards.profile,
        expect=standards.expect,
        require=tuple(require),
        verdict=overall(findings),
        findings=findings,
        history=standards.history,
        baseline=standards.baseline,
        rules=rules_digest(),
        **header,
    )


def readings_bytes(readings: Mapping[str, Reading]) -> bytes:
    """Serialise as samples.jsonl: one line for each reading, in the order in which they were made."""
    return b"".join(canonical_json(to_json(reading)) + b"\n" for reading in readings.values())


@dataclass(frozen=True, slots=True)
class CheckContents(Contents):
    """A node check, judged again from its readings."""

    results: CheckResults  # by the rules of this version
    evidence: Evidence
    claimed: Verdict  # the bundle's own verdict; it differs only if the bundle was judged by other rules
    shipped_profile: bool  # the bundle was judged against the profile that this version has
    dated_ahead: bool = False  # it states a time that the reader's clock has not reached

    def facts(self) -> dict[str, object]:
        """Return the field "recomputed" of `bench verify --json`, with the verdict by these rules."""
        return Contents.facts(self) | {
            "on_trust": self.notes,
            "check_verdict": self.results.verdict,
            "check_level": self.results.level,
            "claimed_verdict": self.claimed,
            "shipped_profile": self.shipped_profile,
        }


def recompute_check(document: Any, files: Files) -> CheckContents:
    """Judge the readings again; VerificationFailed if they make no sense, or if a verdict differs.

    `document` is the parsed results.json. Verdicts that were made by other rules may differ.
    """
    data = files.read("manifest.json")
    manifest = read_document(data)
    require_plain(document, manifest)
    try:
        results = from_json(CheckResults, document)
        if results.manifest_digest != "sha256:" + files.sha256["manifest.json"]:
            raise VerificationFailed("the results belong to another manifest")
        check_software(manifest, results.node)
        asked = read(data)
        _require_manifest(asked, results)
        require_same_run(results.run, results.node, files.run)
        contents = _judged_again(asked, results, _read_evidence(results, files))
    except DecodeError as error:
        raise VerificationFailed(f"is malformed: {error}", where="results.json") from None
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as error:
        # A node may sign values of any type and size, in readings that each check decodes by itself.
        raise VerificationFailed(f"the results or the readings make no sense: {error}") from None
    return _dated(contents, max(files.run.started_at, files.run.ended_at), files.now)


def _dated(contents: CheckContents, last: str, now: float) -> CheckContents:
    """Note a date that lies in the future: a check that chooses its date could count as the newest for years.

    `last` is the later of the times that the statement has.
    """
    if last <= utc(min(YEAR_10000 - 1, now + AHEAD_SECONDS)):
        return contents
    note = Note(None, f"by its own clock it ran until {last}, which lies in the future: taken on trust")
    return replace(contents, notes=(*contents.notes, note), dated_ahead=True)


def _read_evidence(results: CheckResults, files: Files) -> Evidence:
    """Read the readings and the telemetry that the node was judged by; each reading may be there once."""
    lines, size = [], 0
    for line in files.lines("samples.jsonl"):
        lines.append(line)
        size += len(line)
        if size > MAX_READINGS_BYTES:
            raise VerificationFailed(f"has more than {MAX_READINGS_BYTES:,} bytes", where="samples.jsonl")
    readings = [from_json(Reading, strict_loads(line)) for line in lines]
    named = {reading.name: reading for reading in readings}
    if len(named) != len(readings):
        raise VerificationFailed("contains a reading twice", where="samples.jsonl")
    unknown = named.keys() - known_checks().keys() - {BEFORE, AFTER, IDLE}
    if unknown and results.rules == rules_digest():
        raise VerificationFailed(f"has a reading of no check: {min(unknown):.60}", where="samples.jsonl")
    asked = {name: check for name, check in known_checks().items() if check.is_asked_at(results.level)}
    measuring = {name for name, check in asked.items() if check.measure is not None}
    if results.rules == rules_digest() and (missing := measuring - named.keys()):
        raise VerificationFailed(f"has no reading of {min(missing)}, nor why", where="samples.jsonl")
    for reading in readings:
        for figure in figures_of(reading):
            _require_possible(results, figure)
    course = read_course(strict_loads(line) for line in files.lines("telemetry.jsonl"))
    return Evidence(results.level, results.device, results.node.gpus, named, course)


def _require_possible(results: CheckResults, figure: Figure) -> None:
    """Refuse a figure that is faster than its GPU, its links or its host can be."""
    node, gpus = results.node, results.node.gpus
    whole_node = figure.gpu is None and figure.unit == "B/s"
    of_host = not gpus or (whole_node and figure.name.startswith(("host-memory", "disk", "numa")))
    own = [gpu for gpu in gpus if figure.gpu == gpu.index or whole_node]
    if not of_host and not own:
        raise VerificationFailed(f"{figure.name} is of a GPU that the node does not have")
    where = "" if figure.gpu is None else f" of GPU {figure.gpu}"
    for name in {figure.name, figure.kind or figure.name}:
        peaks = [peak_of(node, gpu, name, figure.unit) for gpu in ([None] if of_host else own)]
        fastest = max(peaks, key=lambda peak: peak.rate * peak.margin)
        fastest.require(f"{figure.name}{where}", figure.rate, figure.unit)


def _judged_again(manifest: CheckManifest, results: CheckResults, evidence: Evidence) -> CheckContents:
    """Judge a node by this version's rules and profile, since a node could choose rules by which it passes.

    If the bundle was judged by the same rules and profile, its findings must be the same.
    """
    own, shipped, claimed = results.profile, profile_for(results.node.gpus), results.verdict
    results = replace(results, profile=shipped)
    findings = judge(evidence, results.standards, results.require)
    require_one_line_texts(to_json(findings), "samples.jsonl")
    if results.rules == rules_digest() and own == shipped:
        _require_equal(results, findings)
    notes = tuple(unknown_gpus([gpu for gpu in evidence.gpus if gpu.memory_bytes]))
    findings = (
        *findings,
        *_of_own_profile(own, shipped),
        *map(_on_trust, notes),
        *_of_left_out(_left_out(manifest, evidence)),
    )
    results = replace(results, findings=findings, verdict=overall(findings))
    made = [reading for reading in evidence.readings.values() if reading.reason is None]
    figures = [figure for reading in made for figure in reading.data.get("figures", ())]
    return CheckContents(
        results=results,
        evidence=evidence,
        claimed=claimed,
        shipped_profile=own == shipped,
        notes=notes,
        samples=sum(len(figure["samples"]) for figure in figures),
        measured_seconds=_covered_seconds([(r.started_at, r.ended_at) for r in made]),
    )


def _of_own_profile(own: Profile | None, shipped: Profile | None) -> Iterator[Finding]:
    """Yield a warning if a node was judged by a profile that this version does not ship.

    As a finding it is in every output. It does not count, because an honest bundle of another version has it
    too, and because the verdict no longer depends on that profile.
    """
    if own is not None and own != shipped:
        instead = f"by {shipped.name}" if shipped else "without one, since none is shipped"
        yield _remark(
            OWN_PROFILE,
            f"judged by a profile of its own, {own.name}: judged again {instead}",
            expected="the profile that this version of bench ships",
            advice="check the node again with this version of bench",
        )


def _remark(check: str, found: str, *, expected: str, advice: str) -> Finding:
    """Make a warning that only a reader of the bundle makes, and that does not count."""
    return Question(check).judged(
        "warn", found, expected=expected, source="bench", advice=advice, counts=False
    )


def _left_out(manifest: CheckManifest, evidence: Evidence) -> Iterator[str]:
    """Yield the checks that a node says do not count, though level, machine and manifest ask for them."""
    places = sum(gpu.memory_bytes > 0 for gpu in evidence.gpus) or 1
    for name, check in known_checks().items():
        reading = evidence.readings.get(name)
        if reading is None or reading.reason is None or reading.counts or name in manifest.skip:
            continue
        if check.is_made_at(evidence.level) and not check.refuse(evidence.device, evidence.gpus, places):
            yield name


def _of_left_out(names: Iterator[str]) -> Iterator[Finding]:
    """Yield a warning if a run left out checks by its own choice, as `bench check --skip` does.

    It does not count, since an owner may leave out a check on purpose. A node may also leave out what it
    fails; a push, which never asks to leave out anything, refuses such a check.
    """
    if listed := ", ".join(names):
        yield _remark(
            LEFT_OUT,
            f"its run left out what its manifest asks for: {listed}",
            expected="every check that level and manifest ask for",
            advice='check the node again, or name them in "skip" of the manifest',
        )


def _on_trust(note: Note) -> Finding:
    """Make the finding of a note about an unknown GPU. It does not count: honest nodes have such GPUs too."""
    return _remark(
        UNKNOWN_GPU,
        note.text,
        expected="a GPU with a vendor's peak in data/gpus.json",
        advice="a newer version of bench may know it",
    )


def shown_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Select the findings that every summary shows: those not passed that count, or are of ALWAYS_SHOWN."""
    return tuple(f for f in findings if f.verdict != "pass" and (f.counts or f.check in ALWAYS_SHOWN))


def _require_manifest(manifest: CheckManifest, results: CheckResults) -> None:
    """Refuse results whose expectations or required checks are not those of the manifest."""
    # A CPU check is exempt from the expected number of GPUs.
    if results.device == "cpu" and results.node.gpus:
        raise VerificationFailed("the results are of a CPU check, but list GPUs")
    if results.expect != manifest.expected(results.device):
        raise VerificationFailed("the node was judged by other expectations than those of its manifest")
    if results.require != manifest.require:
        raise VerificationFailed("the results require other checks than their manifest")


def _require_equal(results: CheckResults, findings: tuple[Finding, ...]) -> None:
    for theirs, ours in zip(results.findings, findings, strict=False):
        if theirs != ours:
            what = f"{theirs.check}: {theirs.subject} {theirs.verdict}"
            raise VerificationFailed(
                f"the verdict does not follow from the readings: {what}; recomputed: {ours.verdict}"
            )
    if len(results.findings) != len(findings):
        raise VerificationFailed("the results do not hold every verdict that follows from the readings")
    if results.verdict != overall(findings):
        raise VerificationFailed(f"the overall verdict is {results.verdict}; recomputed: {overall(findings)}")


def _covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return how much time the spans cover together; the spans of checks between nodes overlap."""
    covered, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        covered += max(0.0, last - max(first, end))
        end = max(end, last)
    return covered
