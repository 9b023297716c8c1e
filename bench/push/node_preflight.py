"""Preflight of one node: survey it, choose engine and image, report problems and the time of sending."""

from __future__ import annotations

import dataclasses
import shlex
from contextlib import suppress
from dataclasses import dataclass

from bench.base.errors import BadInput, BenchError, EnvironmentCannot
from bench.base.names import ANY_PYTHON, CONTAINER_ENGINES
from bench.base.sizes import size_text
from bench.images.engines.preflight import OUT_BYTES, check_identity
from bench.images.standalone_python import StandalonePython
from bench.images.variants import Variant, find_variant, images, variant_for
from bench.node_check.check_manifest import wanted_environment, wanted_image
from bench.push import ship
from bench.push.assembly import SMALL_BYTES
from bench.push.connection import Unreachable
from bench.push.engine_choice import EngineCandidate, EngineChoice, choose_engine
from bench.push.forecast import Forecast
from bench.push.host_push import HostPush
from bench.push.image_store import Shippable
from bench.push.install_environment import EnvironmentInstaller, PlannedInstall, folder_of_code, forecast
from bench.push.line_rate import measured_rate
from bench.push.locked_environment import LockedEnvironment, read_locked
from bench.push.missing_kernels import (
    capabilities_of,
    code_of_kernels,
    cost_findings,
    missing_in_image,
    who_waits,
)
from bench.push.node_findings import (
    Need,
    PreflightFinding,
    can_have_python,
    judge_machine,
    machine_text,
    python_for,
    pythons_text,
    resources_text,
    stops_first,
)
from bench.push.node_survey import NodePython, Survey, survey_node
from bench.push.request import PushRequest
from bench.push.shared_place import claimed


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """A surveyed node, and the engine and the image that it will use."""

    survey: Survey
    engine: str
    image: Shippable | None  # None: no container, --pull, or no engine that answers
    variant: Variant | None = None  # of the environment, for the engine "venv"
    python: NodePython | None = None  # that runs the environment; None: the node has none that fits
    locked: LockedEnvironment | None = None
    planned: PlannedInstall | None = None
    line_rate: float | None = None  # bytes per second of the way there, if it was measured
    send_bytes: int = 0  # of the image's layers that the engine lacks; an upper bound
    brought: StandalonePython | None = None  # the Python, if it is bench's own
    brought_bytes: int = 0  # that preflight sent for it

    @property
    def libraries(self) -> str | None:
        """The folder on the node of the shared libraries of bench's own Python."""
        return ship.libraries_of(self.brought, self.survey.place) if self.brought else None


class NodePreflight:
    """The preflight of one push, which reports its findings as the push's own progress."""

    def __init__(self, push: HostPush) -> None:
        self._push = push

    @property
    def _request(self) -> PushRequest:
        return self._push.request

    def choose(self) -> ChosenEngine:
        """Survey the node; return its engine and image; EnvironmentCannot if a finding stops the run."""
        request = self._request
        place = f'"{request.place}"' if request.place else '"$HOME/.bench"'
        survey = survey_node(
            self._push.node, place, self._push.engines, self._push.part.host.python or request.python
        )
        self._push.enter("preflight", machine_text(survey))
        choice, image = self._choose(survey)
        self._push.update(engine=choice.engine, image=image.config if image else None)
        self._stop_at([*choice.findings, *judge_machine(survey, choice.need)])
        chosen = self._chosen(survey, choice, image)
        self._stop_at(self._missing_kernels(chosen))
        chosen = self._with_line_rate(chosen)
        self._say_what_it_takes(chosen, choice.why)
        identity = chosen.image.facts.identity if chosen.image else None
        required = None if request.pull else wanted_image(request.manifest)
        check_identity(identity, required, request.image or "the image", chosen.engine)
        if chosen.engine != "venv" and (environment := wanted_environment(request.manifest)):
            asked = f"the manifest asks for the environment {environment}"
            raise EnvironmentCannot(f"{asked}; --engine {chosen.engine} has none", advice="--engine venv")
        return chosen

    def _with_line_rate(self, chosen: ChosenEngine) -> ChosenEngine:
        """Measure the line to the node, unless the layers to send are too few to wait for that."""
        if chosen.send_bytes < SMALL_BYTES:
            return chosen
        return dataclasses.replace(chosen, line_rate=measured_rate(self._push.node))

    def _missing_kernels(self, chosen: ChosenEngine) -> list[PreflightFinding]:
        """Return the losses by compiled kernels that the image or the environment lacks."""
        survey, manifest = chosen.survey, self._request.manifest
        if self._request.on_cpu:
            return []
        if chosen.locked is not None:
            advice = "give their wheels, compiled for the image's Python: --wheelhouse DIR"
            return cost_findings(manifest, survey, chosen.locked.without, advice)
        if chosen.image is None:
            return []
        missing = missing_in_image(chosen.image.facts.labels, capabilities_of(survey))
        return cost_findings(manifest, survey, missing, "add a kernel layer: bench image add IMAGE LAYER")

    def _stop_at(self, findings: list[PreflightFinding]) -> None:
        """Report findings; EnvironmentCannot for the first that stops the run, unless the request goes on."""
        findings = stops_first(findings)
        self._push.update(findings=(*self._push.result.findings, *findings))
        for finding in findings:
            advice = f"  ({finding.advice})" if finding.advice else ""
            self._push.enter("preflight", f"{finding.level}: {finding.what}{advice}")
        stops = [finding for finding in findings if finding.level == "stop"]
        if stops and not self._request.despite_findings:
            more = f" (and {len(stops) - 1} more)" if len(stops) > 1 else ""
            raise EnvironmentCannot(f"{stops[0].what}{more}", advice=stops[0].advice or None)

    def _choose(self, survey: Survey) -> tuple[EngineChoice, Shippable | None]:
        """Choose the engine; return it with the image that it would run."""
        image, trouble = self._image_for(survey)
        candidates = [self._candidate(survey, engine, image, trouble) for engine in self._push.engines]
        if self._needs_image:
            with_containers = [each for each in candidates if each.need.engine in CONTAINER_ENGINES]
            candidates = with_containers or candidates  # an engine that was named is judged as it is
        choice = choose_engine(survey, candidates)
        answers = choice.engine in survey.engines and survey.engines[choice.engine].facts is not None
        return choice, image if answers else None

    def _image_for(self, survey: Survey) -> tuple[Shippable | None, PreflightFinding | None]:
        """Return the image for the node's driver, if an engine there answers, or why it is not here."""
        if self._request.pull or not any(engine.facts for engine in survey.engines.values()):
            return None, None
        driver = None if self._request.on_cpu else survey.host.driver
        try:
            return self._push.shared.store.image(self._request.image, driver), None
        except EnvironmentCannot as error:
            return None, PreflightFinding("stop", error.message, error.advice or "")

    def _candidate(
        self, survey: Survey, engine: str, image: Shippable | None, trouble: PreflightFinding | None
    ) -> EngineCandidate:
        if engine == "venv":
            variant = self._variant_for(None if self._request.on_cpu else survey.host.driver)
            return EngineCandidate(self._need(survey, engine, None, variant), self._without_lock(variant))
        if engine == "none":
            return EngineCandidate(self._need(survey, engine, None, None))
        answers = survey.engines[engine].facts is not None
        image = image if answers else None
        need = self._need(survey, engine, image, image.variant if image else None)
        return EngineCandidate(need, trouble if answers else None)

    def _without_lock(self, variant: Variant) -> PreflightFinding | None:
        """Return why this machine cannot read the lock of an environment; None if it can."""
        try:
            read_locked(self._request.source, variant, variant.pythons[0], None)
        except BadInput as error:
            return PreflightFinding("stop", f"{error.where} {error.message}", error.advice or "")
        return None

    def _variant_for(self, driver: str | None) -> Variant:
        """Return the variant of the environment; the oldest one, which preflight judges, if none fits."""
        if self._request.variant:
            return find_variant(self._request.variant)
        return variant_for(driver) or images().oldest_cuda

    @property
    def _needs_image(self) -> bool:
        """Whether the run needs a container. A Slurm job does: preflight does not see its nodes."""
        request = self._request
        return bool(request.image or request.pull or wanted_image(request.manifest) or request.slurm)

    def _need(self, survey: Survey, engine: str, image: Shippable | None, variant: Variant | None) -> Need:
        request, to_ship = self._request, image
        if image is not None and engine != "apptainer":  # Apptainer's images are not in the survey
            to_ship = None if ship.installed_as(survey, engine, image) else image
        send_bytes = self._bytes_to_send(survey, engine, to_ship) if to_ship else 0
        return Need(
            engine=engine,
            variant=variant,
            on_cpu=request.on_cpu or (variant is not None and variant.driver is None),
            gpus=None if request.on_cpu else request.manifest.gpus,
            checks=request.checks,
            place_bytes=OUT_BYTES + send_bytes,
            engine_bytes=to_ship.unpacked_bytes if to_ship else 0,
            send_bytes=send_bytes,
            slurm=request.slurm is not None,
            brings_python=engine == "venv" and (self._push.part.host.python or request.python) == ANY_PYTHON,
        )

    def _chosen(self, survey: Survey, choice: EngineChoice, image: Shippable | None) -> ChosenEngine:
        """Complete a choice with how its software gets to the node, if that is known."""
        variant = choice.need.variant
        if choice.engine != "venv" or variant is None:
            return ChosenEngine(survey, choice.engine, image, send_bytes=choice.need.send_bytes)
        chosen = ChosenEngine(survey, "venv", None, variant, python_for(survey, variant))
        try:
            if chosen.python is None and choice.need.brings_python and can_have_python(survey, variant):
                chosen = self._with_python(chosen)
            if chosen.python is None:  # only if the request goes on despite findings
                return chosen
            locked = read_locked(
                self._request.source, variant, chosen.python.version, self._request.wheelhouse
            )
            chosen = dataclasses.replace(chosen, locked=locked)
            return self._planned(chosen)
        except Unreachable:
            raise
        except EnvironmentCannot as error:
            where = f"{error.where}: " if error.where else ""
            self._stop_at([PreflightFinding("stop", f"{where}{error.message}", error.advice or "")])
            return chosen

    def _with_python(self, chosen: ChosenEngine) -> ChosenEngine:
        """Bring bench's own Python to a node that has none that fits."""
        push, survey = self._push, chosen.survey
        python = push.shared.store.python(push.request.source, push.request.mirror)
        size = size_text(python.path.stat().st_size)
        has = f"the node has {pythons_text(survey)}"
        push.say(f"{has}: Python {python.version} of Debian's packages, {size}, is brought there")
        with claimed(push.node, push.claim(survey.place)) as node:
            count = ship.ship_python(node, python, push.progress)
        path = f"{python.folder(survey.place)}/bin/python{python.version}"
        there = NodePython(python.version, path)
        return dataclasses.replace(chosen, python=there, brought=python, brought_bytes=count)

    def _planned(self, chosen: ChosenEngine) -> ChosenEngine:
        """Ask the node for its plan; after a dry run, leave no Python there that was not there before."""
        push, place = self._push, chosen.survey.place
        claim = push.claim(place)
        try:
            with folder_of_code(push.node, claim, push.shared.store.code()) as code:
                return dataclasses.replace(chosen, planned=installer_for(push, chosen, code).ask())
        finally:
            if chosen.brought and chosen.brought_bytes and push.request.until == "preflight":
                folder = chosen.brought.folder("").lstrip("/")
                with suppress(BenchError):
                    push.node.ask(f"{claim.discard([folder])}; rmdir {shlex.quote(place)} 2>/dev/null")

    def _say_what_it_takes(self, chosen: ChosenEngine, why: str) -> None:
        """Report in one sentence the engine of the run, why it was chosen, and the time to bring it there."""
        python = f"{chosen.python.version} ({chosen.python.path})" if chosen.python else None
        resources = resources_text(chosen.survey, chosen.engine, python)
        stopped = any(finding.level == "stop" for finding in self._push.result.findings)
        self._push.enter("preflight", f"{'continuing despite findings' if stopped else 'ok'}: {resources}")
        expected = self._forecast(chosen)
        if expected is None:
            self._push.update(engine_reason=why)
            return
        to_send = expected.send_bytes
        self._push.update(engine_reason=why, expected_seconds=expected.seconds, to_send_bytes=to_send)
        reason = f" ({why})" if why else ""
        self._push.enter("preflight", f"{chosen.engine}{reason}: {expected.sentence}")
        if waits := self._who_waits(chosen):
            self._push.enter("preflight", waits)

    def _who_waits(self, chosen: ChosenEngine) -> str | None:
        """Say which models wait for the kernel layer of an image that is sent to the node."""
        image = chosen.image
        if image is None or not chosen.send_bytes:
            return None
        kernels = [*code_of_kernels(image.facts.labels)]
        if not kernels:
            return None
        layer_bytes = self._push.shared.store.packed_bytes(image, len(image.facts.layers) - 1)
        return who_waits(self._request.manifest, chosen.survey, kernels, layer_bytes, chosen.line_rate)

    def _forecast(self, chosen: ChosenEngine) -> Forecast | None:
        """Return the forecast; None if the node pulls the image (--pull) or already has the Python."""
        if chosen.planned is not None and chosen.locked is not None:
            return forecast(chosen.planned, chosen.locked)
        if chosen.image is None:
            return None
        return Forecast(
            what=f"the image {chosen.image.variant.name}",
            send_bytes=chosen.send_bytes,
            up_bytes_per_second=chosen.line_rate,
            at_most=True,
        )

    def _bytes_to_send(self, survey: Survey, engine: str, image: Shippable) -> int:
        """Return the bytes of an image's layers that the engine of a node lacks; an upper bound."""
        if ship.installed_as(survey, engine, image):
            return 0
        held = ship.layers_held(survey, engine, image)
        numbers = range(held, len(image.facts.layers))
        return sum(self._push.shared.store.packed_bytes(image, number) for number in numbers)


def installer_for(push: HostPush, chosen: ChosenEngine, code: str) -> EnvironmentInstaller:
    """Return the installer of the chosen environment; EnvironmentCannot without a Python for it."""
    request, python, locked = push.request, chosen.python, chosen.locked
    if python is None or locked is None:
        raise EnvironmentCannot("has no Python for the locked wheels", advice="--python FILE")
    return EnvironmentInstaller(
        node=push.node,
        place=chosen.survey.place,
        code=code,
        python=python.path,
        locked=locked,
        index=request.index,
        wheelhouse=request.wheelhouse,
        say=push.say,
        progress=push.progress,
        libraries=chosen.libraries,
    )
