"""Choose the engine of a run from the node's survey and this machine's images, and say why. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.push.node_findings import Need, PreflightFinding, judge_engine
from bench.push.node_survey import Survey

_NOT_INSTALLED = "not installed"


@dataclass(frozen=True, slots=True)
class EngineCandidate:
    """An engine that the request allows, and the requirements of a run with it."""

    need: Need
    trouble: PreflightFinding | None = None  # why this machine cannot bring what the engine would run


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine of a run, and why it is this one."""

    need: Need
    why: str
    findings: tuple[PreflightFinding, ...] = ()  # stops: no engine can run; warnings: engines passed over

    @property
    def engine(self) -> str:
        """Name of the engine, as `--engine` takes it."""
        return self.need.engine


def choose_engine(survey: Survey, candidates: Sequence[EngineCandidate]) -> EngineChoice:
    """Return the first engine that can run; if none can, the first candidate with its obstacles."""
    passed: list[tuple[str, PreflightFinding]] = []
    for candidate in candidates:
        stops = [*_stops(survey, candidate)]
        if not stops:
            return EngineChoice(candidate.need, _why(survey, candidate, passed), _warnings(survey, passed))
        passed.append((candidate.need.engine, stops[0]))
    if len(candidates) == 1:
        return EngineChoice(candidates[0].need, "", tuple(_stops(survey, candidates[0])))
    what = f"nothing there can run bench: {_obstacles(survey, passed)}"
    installed = [finding for engine, finding in passed if _is_installed(survey, engine)]
    easiest = passed[-1 if passed[-1][0] == "venv" else 0][1]
    advice = (installed[0] if installed else easiest).advice
    return EngineChoice(candidates[0].need, "", (PreflightFinding("stop", what, advice),))


def _stops(survey: Survey, candidate: EngineCandidate) -> Iterator[PreflightFinding]:
    yield from (finding for finding in judge_engine(survey, candidate.need) if finding.level == "stop")
    if candidate.trouble is not None:
        yield candidate.trouble


def _why(survey: Survey, candidate: EngineCandidate, passed: Sequence[tuple[str, PreflightFinding]]) -> str:
    engine = survey.engines.get(candidate.need.engine)
    answers = f"{engine.facts.name} {engine.facts.version} answers" if engine and engine.facts else ""
    return "; ".join(filter(None, (answers, _obstacles(survey, passed))))


def _warnings(survey: Survey, passed: Sequence[tuple[str, PreflightFinding]]) -> tuple[PreflightFinding, ...]:
    """Return a warning for each engine that is installed on the node and cannot be used."""
    return tuple(replace(found, level="warn") for name, found in passed if _is_installed(survey, name))


def _obstacles(survey: Survey, passed: Sequence[tuple[str, PreflightFinding]]) -> str:
    """Say why engines cannot be used; those that are not installed are named together."""
    absent = [name for name, _ in passed if name in survey.engines and not _is_installed(survey, name)]
    others = [_named(name, found.what) for name, found in passed if name not in absent]
    together = f"{', '.join(absent)}: {_NOT_INSTALLED}" if absent else ""
    return "; ".join(filter(None, (together, *dict.fromkeys(others))))


def _named(engine: str, what: str) -> str:
    return what if what.startswith(engine) else f"{engine}: {what}"


def _is_installed(survey: Survey, engine: str) -> bool:
    found = survey.engines.get(engine)
    return found is not None and found.why != _NOT_INSTALLED
