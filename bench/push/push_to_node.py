"""Push to one node: from the first connection to the fetched bundle and a clean node.

connect -> preflight -> ship -> start -> run -> fetch -> clean

In:  the request, and one host's part in it. Out: a `Result`, which also reports errors, so no node stops
another. Every step can be repeated: a second push of the same run continues where the first one ended.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from bench.base.errors import BadInput, BenchError, EnvironmentCannot, Incomplete, VerificationFailed
from bench.base.names import CONTAINER_ENGINES, WITHOUT_CONTAINER
from bench.bundle.handshake import write
from bench.images.container import NOBODY
from bench.images.engines.preflight import OUT_BYTES, check_identity
from bench.images.variants import Variant, find_variant, images, variant_for
from bench.node_check.check_manifest import data_folders, wanted_environment, wanted_image
from bench.node_check.recompute_any import AnyVerdict, recompute
from bench.operator import certify_and_receive
from bench.operator.ledger import Ledger
from bench.push import mirror, run_script, ship
from bench.push.assembly import SMALL_BYTES, Assembly, measured_rate
from bench.push.connection import Unreachable, plain
from bench.push.engine_choice import EngineCandidate, EngineChoice, choose_engine
from bench.push.forecast import Forecast
from bench.push.image_store import Shippable
from bench.push.install_environment import EnvironmentInstaller, PlannedInstall, folder_of_code, forecast
from bench.push.locked_environment import LockedEnvironment, read_locked
from bench.push.mirror import Status
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
    judge_machine,
    machine_text,
    python_for,
    resources_text,
    stops_first,
)
from bench.push.node_survey import NodePython, Survey, survey_node
from bench.push.push_record import Record, now
from bench.push.remote import Here, Node, Remote
from bench.push.request import HostPart, Outcome, Phase, PushRequest, Result, Shared
from bench.push.ship import Shipped
from bench.push.threads import in_threads, wait_for_all
from bench.push.training_group import GroupFailed, Standing, Step, agree
from bench.records.text import seconds_text, size_text

_LOOK_SECONDS = 1.0  # between two looks at a run, at first
_LONGEST_LOOK_SECONDS = 5.0  # between two looks at a run that has been watched for a while
_DEAD_LOOKS = 4  # dead states in a row after which a run is dead: run.sh may not have written its pid yet
STOP_SECONDS = 1.0  # after Ctrl-C, for threads to end by themselves
_MOST_CERTIFICATES = 8  # that one push signs for a run, which asks again when it starts again
_OVERDUE_SECONDS = 3600.0  # after the budget, for the last trial, proofs and floors to end
_END_LOOKS = 120  # looks, a second apart, at a run that was asked to end, before the push fails


class Interrupted(Incomplete):
    """The user pressed Ctrl-C; runs on nodes continue."""


class _OverdueError(Incomplete):
    """A run goes on long after its budget."""


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


class NodePush:
    """The push to one host, in a thread of its own. `result` is its current state."""

    node: Node

    def __init__(self, part: HostPart, request: PushRequest, shared: Shared) -> None:
        self.part, self.request, self.shared = part, request, shared
        self.result = Result(part.host.name)
        self._mirror_is_full = False
        self._line_rate: float | None = None  # bytes per second, once it is measured
        self.node = Here() if part.local else Remote(part.host, request.ssh_config)

    def run(self) -> Result:
        """Push the manifest, or take up an unfinished run of it, as far as the request asks."""
        return self._guarded(self._run)

    def attach(self, record: Record) -> Result:
        """Watch a run that was started before, and fetch its bundle."""
        return self._guarded(lambda: self._watch_to_the_end(record))

    def report_fetched(self, record: Record) -> Result:
        """Report a run whose bundle was fetched before."""
        return self._guarded(lambda: self._end_unchanged(record))

    # --- state ------------------------------------------------------------------------------------------

    @property
    def manifest_sha256(self) -> str:
        return self.request.manifest.digest.removeprefix("sha256:")

    @property
    def nodes(self) -> int:
        """Number of nodes that train as one."""
        if self.request.together:
            return self.part.nodes
        return self.request.slurm.nodes if self.request.slurm else 1

    @property
    def _slurm_where(self) -> str | None:
        return self.request.slurm.where if self.request.slurm else None

    @property
    def follows(self) -> bool:
        """Whether another host leads the training of this host, and will have the bundle."""
        return self.request.together is not None and self.part.node > 0

    @property
    def _engines(self) -> tuple[str, ...]:
        if self.request.engine != "auto":
            return (self.request.engine,)
        if wanted_environment(self.request.manifest):
            return ("venv",)
        return (*CONTAINER_ENGINES, "venv")

    def _update(self, **changes: Any) -> None:
        self.result = dataclasses.replace(self.result, **changes)

    def _enter(self, phase: Phase, text: str = "") -> None:
        """Begin a phase, or report on the current one; Interrupted if the user asked to stop."""
        self._heed_stop()
        self._update(phase=phase)
        self.shared.view.show(self.result, text)

    def _heed_stop(self) -> None:
        if self.shared.stop.is_set():
            raise Interrupted("interrupted")

    def _sleep(self, seconds: float) -> None:
        if self.shared.stop.wait(seconds):
            raise Interrupted("interrupted")

    def _progress(self, done: int, total: int) -> None:
        self._heed_stop()
        self.shared.view.sent(self.result, done, total)

    def _end(self, outcome: Outcome, error: BenchError | None = None) -> None:
        self._update(outcome=outcome, error=error)
        self.shared.view.show(self.result)

    def _say(self, text: str) -> None:
        self.shared.view.say(f"{self.part.host.name}: {text}")

    def _say_phase(self, text: str) -> None:
        self._enter(self.result.phase, text)

    def _guarded(self, push: Callable[[], None]) -> Result:
        """Run a push and turn every exception into an outcome: one node's failure must not end the others."""
        try:
            push()
        except Interrupted:
            self.interrupt()
        except Unreachable as error:
            # A started run may continue on the node; its leader finds out if it does not.
            self._fail(error, "lost" if self._started else "failed", for_group=not self._started)
        except _OverdueError as error:
            self._fail(error, "lost")
        except BenchError as error:
            self._fail(error)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._fail(EnvironmentCannot(what, advice="a defect of bench: please report it"))
        finally:
            self.node.close()
        return self.result

    def interrupt(self) -> Result:
        """End the push where it is, unless it has ended; a run on the node continues."""
        if self.result.outcome is not None:
            return self.result
        outcome: Outcome = "running" if self._started else "failed"
        result = dataclasses.replace(self.result, outcome=outcome, error=Incomplete("interrupted"))
        self.result = result
        self.shared.view.show(result)
        return result

    @property
    def _started(self) -> bool:
        return self.result.phase in ("run", "fetch")

    def _fail(self, error: BenchError, outcome: Outcome = "failed", *, for_group: bool = True) -> None:
        # A check of the fabric goes on without a node that is lost, and names it.
        goes_on = self.request.between_nodes and self.follows and self._started
        if for_group and self.part.group and not goes_on:
            self.part.group.lose(self.part.host.name, error.message)
        self._end(outcome, error)

    # --- connect: is there a run already? ---------------------------------------------------------------

    def _run(self) -> None:
        self._enter("connect")
        fetched, unfinished = self._fetched_run(), self._unfinished_run()
        standing: Standing = "fetched" if fetched else self._standing(unfinished) if unfinished else "new"
        standing = agree(self._gather("connect", standing))
        match standing:
            case "fetched" | "ended" if self.follows:
                self._leave(unfinished)
            case "fetched":
                assert fetched is not None  # this host leads: only a leader's "fetched" is agreed on
                self._end_unchanged(fetched)
            case "ended" | "running":
                assert unfinished is not None
                self._say(f"attached to run {unfinished.run_id}, which an earlier push started")
                self._watch_to_the_end(unfinished)
            case "new":
                self._start_run(unfinished)

    def _gather(self, step: Step, standing: Standing = "new") -> list[Standing]:
        """Wait for the group at a step; a host without a group does not wait."""
        if self.part.group is None:
            return [standing]
        return self.part.group.gather(step, self.part.node, standing, self._heed_stop)

    def _start_run(self, unfinished: Record | None) -> None:
        if unfinished is not None:
            self._stop_for_restart(unfinished)
        chosen = self._preflight()
        if self.request.until == "preflight":
            self._report_dry_run(chosen)
            return
        self._gather("preflight")
        shipped = self._ship(chosen)
        if self.request.until == "ship":
            self._end("ready" if shipped.changed else "unchanged")
            return
        self._gather("ship")
        self._watch_to_the_end(self._start(chosen, shipped, unfinished))

    def _fetched_run(self) -> Record | None:
        """Return a run of this manifest whose bundle was fetched, if --once accepts it; else None."""
        if not self.request.once or self.follows:
            return None
        records, host = self.shared.records, self.part.host
        return records.fetched(host, self.manifest_sha256, self.request.out, self.nodes, self._slurm_where)

    def _unfinished_run(self) -> Record | None:
        """Return an unfinished run of this manifest, if there is one and the request may continue it."""
        request = self.request
        if request.continued is not None:
            return self._moved_here(request.continued)
        if request.new_run or request.until in ("preflight", "ship"):
            return None
        records, host, manifest = self.shared.records, self.part.host, self.manifest_sha256
        for engine in self._engines:
            record = records.unfinished(
                host,
                manifest,
                engine,
                request.out,
                self.nodes,
                follows=self.follows,
                slurm_where=self._slurm_where,
            )
            if record is not None:
                return record
        return None

    def _moved_here(self, record: Record) -> Record:
        """Return the record of a run whose node is gone, changed to this node."""
        if record.manifest_sha256 != self.manifest_sha256:
            advice = f"push its own: {record.mirror}/manifest.json"
            raise BadInput(f"run {record.run_id} has another manifest", advice=advice)
        host = self.part.host
        return dataclasses.replace(
            record,
            host=host.name,
            address=host.address,
            user=host.user,
            port=host.port,
            python=host.python,
            identity=str(host.identity) if host.identity else None,
            slurm_job=None,
            state="begun",
        )

    def _standing(self, record: Record) -> Standing:
        """Return whether a run is running on the node, has ended, or has to be started again."""
        status = mirror.look(self.node, record)
        self._update(run_id=record.run_id)
        if status.state in ("alive", "waiting"):
            return "running"
        if status.state != "exit" or record.state == "incomplete":
            return "new"
        has_ended = status.bundle_bytes is not None or (record.follows and not status.code)
        return "ended" if has_ended else "new"

    def _stop_for_restart(self, record: Record) -> None:
        """End a run that has to start again, together with the other runs of its group."""
        self._say(f"run {record.run_id} resumes")
        for look in range(_END_LOOKS + 1):
            if mirror.look(self.node, record).state not in ("alive", "waiting"):
                return
            if look == 0:
                mirror.cancel(self.node, record)
            self._sleep(1.0)
        advice = f"bench cancel {record.run_id}"
        raise EnvironmentCannot(f"run {record.run_id} does not end", advice=advice)

    def _leave(self, unfinished: Record | None) -> None:
        """End a follower's push and delete its run from the node: the leader has the bundle."""
        if unfinished is not None:
            self._clean(unfinished)
            self.shared.records.forget(unfinished)
        self._end("unchanged")

    # --- preflight --------------------------------------------------------------------------------------

    def _preflight(self) -> ChosenEngine:
        """Survey the node; return its engine and image; EnvironmentCannot if a finding stops the run."""
        request = self.request
        place = f'"{request.place}"' if request.place else '"$HOME/.bench"'
        survey = survey_node(self.node, place, self._engines, self.part.host.python or request.python)
        self._enter("preflight", machine_text(survey))
        choice, image = self._choose(survey)
        self._update(engine=choice.engine, image=image.config if image else None)
        self._stop_at([*choice.findings, *judge_machine(survey, choice.need)])
        chosen = self._chosen(survey, choice, image)
        self._stop_at(self._missing_kernels(chosen))
        self._say_what_it_takes(chosen, choice.why)
        identity = chosen.image.facts.identity if chosen.image else None
        required = None if request.pull else wanted_image(request.manifest)
        check_identity(identity, required, request.image or "the image", chosen.engine)
        if chosen.engine != "venv" and (environment := wanted_environment(request.manifest)):
            asked = f"the manifest asks for the environment {environment}"
            raise EnvironmentCannot(f"{asked}; --engine {chosen.engine} has none", advice="--engine venv")
        return chosen

    def _missing_kernels(self, chosen: ChosenEngine) -> list[PreflightFinding]:
        """Return what it costs that the image or the environment lacks compiled kernels."""
        survey, manifest = chosen.survey, self.request.manifest
        if self.request.on_cpu:
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
        self._update(findings=(*self.result.findings, *findings))
        for finding in findings:
            advice = f"  ({finding.advice})" if finding.advice else ""
            self._enter("preflight", f"{finding.level}: {finding.what}{advice}")
        stops = [finding for finding in findings if finding.level == "stop"]
        if stops and not self.request.despite_findings:
            more = f" (and {len(stops) - 1} more)" if len(stops) > 1 else ""
            raise EnvironmentCannot(f"{stops[0].what}{more}", advice=stops[0].advice or None)

    def _choose(self, survey: Survey) -> tuple[EngineChoice, Shippable | None]:
        """Choose the engine; return it with the image that it would run."""
        image, trouble = self._image_for(survey)
        candidates = [self._candidate(survey, engine, image, trouble) for engine in self._engines]
        if len(candidates) > 1 and self._needs_image:
            candidates = [each for each in candidates if each.need.engine in CONTAINER_ENGINES]
        choice = choose_engine(survey, candidates)
        answers = choice.engine in survey.engines and survey.engines[choice.engine].facts is not None
        return choice, image if answers else None

    def _image_for(self, survey: Survey) -> tuple[Shippable | None, PreflightFinding | None]:
        """Return the image for the node's driver, if an engine there answers, or why it is not here."""
        if self.request.pull or not any(engine.facts for engine in survey.engines.values()):
            return None, None
        driver = None if self.request.on_cpu else survey.host.driver
        try:
            return self.shared.store.image(self.request.image, driver), None
        except EnvironmentCannot as error:
            return None, PreflightFinding("stop", error.message, error.advice or "")

    def _candidate(
        self, survey: Survey, engine: str, image: Shippable | None, trouble: PreflightFinding | None
    ) -> EngineCandidate:
        if engine == "venv":
            variant = self._variant_for(None if self.request.on_cpu else survey.host.driver)
            return EngineCandidate(self._need(survey, engine, None, variant), self._without_lock(variant))
        if engine == "none":
            return EngineCandidate(self._need(survey, engine, None, None))
        answers = engine in survey.engines and survey.engines[engine].facts is not None
        image = image if answers else None
        need = self._need(survey, engine, image, image.variant if image else None)
        return EngineCandidate(need, trouble if answers else None)

    def _without_lock(self, variant: Variant) -> PreflightFinding | None:
        """Return why this machine cannot say what an environment consists of."""
        try:
            read_locked(self.request.source, variant, variant.pythons[0], None)
        except BadInput as error:
            return PreflightFinding("stop", f"{error.where} {error.message}", error.advice or "")
        return None

    def _variant_for(self, driver: str | None) -> Variant:
        """Return the variant of the environment; the oldest one, which preflight judges, if none fits."""
        if self.request.variant:
            return find_variant(self.request.variant)
        return variant_for(driver) or [v for v in images().variants if v.driver][-1]

    @property
    def _needs_image(self) -> bool:
        """Whether only a container will do. A Slurm job runs on nodes that preflight does not see."""
        request = self.request
        return bool(request.image or request.pull or wanted_image(request.manifest) or request.slurm)

    def _need(self, survey: Survey, engine: str, image: Shippable | None, variant: Variant | None) -> Need:
        request, to_ship = self.request, image
        if image is not None and engine != "apptainer":  # Apptainer's images are not in the survey
            to_ship = None if ship.installed_as(survey, engine, image) else image
        return Need(
            engine=engine,
            variant=variant,
            on_cpu=request.on_cpu or (variant is not None and variant.driver is None),
            gpus=None if request.on_cpu else request.manifest.gpus,
            checks=request.checks,
            place_bytes=OUT_BYTES + (to_ship.packed_bytes if to_ship else 0),
            engine_bytes=to_ship.unpacked_bytes if to_ship else 0,
            slurm=request.slurm is not None,
        )

    # --- what it takes ----------------------------------------------------------------------------------

    def _chosen(self, survey: Survey, choice: EngineChoice, image: Shippable | None) -> ChosenEngine:
        """Complete a choice with what is known of the way to bring its software to the node."""
        variant = choice.need.variant
        if choice.engine != "venv" or variant is None:
            return ChosenEngine(survey, choice.engine, image)
        python = python_for(survey, variant)
        if python is None:  # only if the request goes on despite findings
            return ChosenEngine(survey, "venv", None, variant)
        locked = read_locked(self.request.source, variant, python.version, self.request.wheelhouse)
        chosen = ChosenEngine(survey, "venv", None, variant, python, locked)
        try:
            with folder_of_code(self.node, survey.place, self.shared.store.code()) as code:
                return dataclasses.replace(chosen, planned=self._installer(chosen, code).ask())
        except Unreachable:
            raise
        except EnvironmentCannot as error:
            where = f"{error.where}: " if error.where else ""
            self._stop_at([PreflightFinding("stop", f"{where}{error.message}", error.advice or "")])
            return chosen

    def _say_what_it_takes(self, chosen: ChosenEngine, why: str) -> None:
        """Say in one sentence what runs the run, why, and how long it takes to bring it there."""
        python = f"{chosen.python.version} ({chosen.python.path})" if chosen.python else None
        resources = resources_text(chosen.survey, chosen.engine, python)
        stopped = any(finding.level == "stop" for finding in self.result.findings)
        self._enter("preflight", f"{'continuing despite findings' if stopped else 'ok'}: {resources}")
        expected = self._forecast(chosen)
        if expected is None:
            self._update(engine_reason=why)
            return
        to_send = expected.send_bytes
        self._update(engine_reason=why, expected_seconds=expected.seconds, to_send_bytes=to_send)
        reason = f" ({why})" if why else ""
        self._enter("preflight", f"{chosen.engine}{reason}: {expected.sentence}")
        if waits := self._who_waits(chosen):
            self._enter("preflight", waits)

    def _who_waits(self, chosen: ChosenEngine) -> str | None:
        """Say which models wait for the kernel layer of an image that is sent to the node."""
        image = chosen.image
        kernels = [*code_of_kernels(image.facts.labels)] if image else []
        if image is None or not kernels or not self._bytes_to_send(chosen, image):
            return None
        layer_bytes = self.shared.store.packed_bytes(image, len(image.facts.layers) - 1)
        return who_waits(self.request.manifest, chosen.survey, kernels, layer_bytes, self._line_rate)

    def _forecast(self, chosen: ChosenEngine) -> Forecast | None:
        """Return what it takes; None if nothing is known of it: --pull, or a Python that is there."""
        if chosen.planned is not None and chosen.locked is not None:
            return forecast(chosen.planned, chosen.locked)
        image = chosen.image
        if image is None:
            return None
        to_send = self._bytes_to_send(chosen, image)
        if to_send >= SMALL_BYTES:
            self._line_rate = measured_rate(self.node)
        what = f"the image {image.variant.name}"
        return Forecast(what=what, send_bytes=to_send, up_bytes_per_second=self._line_rate, at_most=True)

    def _bytes_to_send(self, chosen: ChosenEngine, image: Shippable) -> int:
        """Return the bytes of an image's layers that the engine of a node lacks; an upper bound."""
        if ship.installed_as(chosen.survey, chosen.engine, image):
            return 0
        held = ship.layers_held(chosen.survey, chosen.engine, image)
        numbers = range(held, len(image.facts.layers))
        return sum(self.shared.store.packed_bytes(image, number) for number in numbers)

    def _report_dry_run(self, chosen: ChosenEngine) -> None:
        self._update(changed=True)
        self._end("would")

    # --- ship -------------------------------------------------------------------------------------------

    def _ship(self, chosen: ChosenEngine) -> Shipped:
        """Bring the image or bench's code to the node, in the way that the request and the engine need."""
        self._enter("ship")
        survey, engine, store = chosen.survey, chosen.engine, self.shared.store
        with self.shared.shipping:
            self._heed_stop()
            if engine in WITHOUT_CONTAINER:
                claim = self._claim(survey.place)
                shipped = ship.ship_code(self.node, survey.place, store, self._progress, claim)
                if engine == "venv":
                    shipped = self._install(chosen, shipped)
            elif self.request.pull:
                required = wanted_image(self.request.manifest)
                shipped = ship.pull(self.node, survey, engine, self.request.pull, required)
            elif chosen.image is None:
                raise EnvironmentCannot(f"{engine} does not answer: no image can be loaded")
            else:
                assembly = Assembly(
                    self.node, survey, engine, chosen.image, store, self._progress, self._say_phase,
                    index=self.request.index or "", mirror=self.request.mirror or "", rate=self._line_rate,
                )  # fmt: skip
                deliver = assembly.deliver if self.request.assemble else ship.send_whole
                shipped = ship.ship(
                    self.node, survey, engine, chosen.image, store, self._progress, assemble=deliver
                )
        self._update(sent_bytes=shipped.sent_bytes, changed=shipped.changed)
        if shipped.identity is not None:
            self._update(image=shipped.identity.config)
        sent = f"{size_text(shipped.sent_bytes)} sent, verified"
        self._enter("ship", sent if shipped.changed else "nothing to send")
        return shipped

    def _install(self, chosen: ChosenEngine, code: Shipped) -> Shipped:
        """Install the locked environment in which bench's code, which is on the node, will run."""
        installer = self._installer(chosen, code.runnable)
        without = installer.locked.without
        if without:
            self._say(f"without {', '.join(without)}: no index has these compiled wheels (--wheelhouse DIR)")
        installed = installer.install(chosen.planned or installer.ask())
        self._update(environment=installed.digest)
        required = wanted_environment(self.request.manifest)
        if required not in (None, installed.digest):
            raise EnvironmentCannot(
                f"the environment is {installed.digest}, the manifest asks for {required}",
                advice="use the Python that it was made with, or remove `environment` from the manifest",
            )
        return dataclasses.replace(
            code,
            sent_bytes=code.sent_bytes + installed.sent_bytes,
            changed=code.changed or installed.changed,
            environment=installed.digest,
        )

    def _installer(self, chosen: ChosenEngine, code: str) -> EnvironmentInstaller:
        request, python, locked = self.request, chosen.python, chosen.locked
        if python is None or locked is None:
            raise EnvironmentCannot("has no Python for the locked wheels", advice="--python FILE")
        return EnvironmentInstaller(
            node=self.node,
            place=chosen.survey.place,
            code=code,
            python=python.path,
            locked=locked,
            index=request.index,
            wheelhouse=request.wheelhouse,
            say=self._say,
            progress=self._progress,
        )

    # --- start ------------------------------------------------------------------------------------------

    def _start(self, chosen: ChosenEngine, shipped: Shipped, unfinished: Record | None) -> Record:
        """Record the run on this machine, then start it; a continued run keeps its id and journal."""
        self._enter("start")
        record = self._record_run(chosen, shipped, unfinished)
        self._update(run_id=record.run_id, changed=True)
        job = self._job(chosen, shipped, record)
        challenge = b"{}" if record.follows else self._challenge(record)
        run_script.prepare(self.node, job, self.request.manifest.data, challenge, self._meet_secret)
        in_container = job.engine not in WITHOUT_CONTAINER
        owner = f"{NOBODY}:{NOBODY}" if job.user[0] == NOBODY and in_container else ""
        if unfinished and not job.checks and mirror.restore_journal(self.node, record, owner):
            self._say(f"the mirrored journal of run {record.run_id} was restored on the node")
        slurm_job = run_script.start(self.node, job)
        (record.mirror / "run.sh").write_text(run_script.script(job), encoding="utf-8", newline="\n")
        return self.shared.records.move(record, "running", slurm_job=slurm_job)

    def _claim(self, place: str) -> str:
        """Return this push's claim of what it ships; nodes that share a home have a claim each."""
        return run_script.claim_of(place, f"{self.request.push}-{self.part.node}")

    def _record_run(self, chosen: ChosenEngine, shipped: Shipped, unfinished: Record | None) -> Record:
        """Save a run's record before the run starts: a run without a record could never be fetched."""
        request, host = self.request, self.part.host
        login: dict[str, Any] = {
            "user": host.user,
            "identity": str(host.identity) if host.identity else None,
            "ssh_config": str(request.ssh_config) if request.ssh_config else None,
            "ssh_arguments": host.ssh_arguments,
            "python": host.python,
        }
        choices = login | {
            "environment": shipped.environment,
            "place": chosen.survey.place,
            "engine": chosen.engine,
            "key": str(request.key.path),
            "valid_seconds": request.valid_seconds,
            "keep": request.keep,
        }
        if unfinished is not None:
            return self.shared.records.save(dataclasses.replace(unfinished, **choices))
        with Ledger(request.ledger) as ledger:
            run_id = certify_and_receive.challenge(ledger, self.manifest_sha256, now()).run_id
        record = Record(
            run_id=run_id,
            push=request.push,
            host=host.name,
            address=host.address,
            port=host.port,
            local=self.part.local,
            image=shipped.identity.config if shipped.identity else None,
            manifest_sha256=self.manifest_sha256,
            out=str(request.out.resolve()),
            ledger=str(request.ledger) if request.ledger else None,
            began_at=now(),
            follows=self.follows,
            nodes=self.nodes,
            slurm_where=self._slurm_where,
            **choices,
        )
        record.mirror.mkdir(parents=True, exist_ok=True)
        (record.mirror / "manifest.json").write_bytes(request.manifest.data)
        return self.shared.records.save(record)

    def _challenge(self, record: Record) -> bytes:
        """Return a new challenge for the run: the nonce of an earlier one may have been consumed."""
        with Ledger(self.request.ledger) as ledger:
            return write(certify_and_receive.challenge(ledger, record.manifest_sha256, now(), record.run_id))

    @property
    def _meet_secret(self) -> bytes:
        """The secret of nodes that train together; empty if the node trains alone."""
        request = self.request
        several = request.together or (request.slurm is not None and request.slurm.nodes > 1)
        return request.meet_secret if several else b""

    def _job(self, chosen: ChosenEngine, shipped: Shipped, record: Record) -> run_script.Job:
        request, survey, part, image = self.request, chosen.survey, self.part, chosen.image
        in_container = chosen.engine not in WITHOUT_CONTAINER
        facts = survey.engines[chosen.engine].facts if in_container else None
        variant = image.variant if image else chosen.variant
        gpu_image = variant is None or variant.driver is not None
        use_gpus = not request.on_cpu and gpu_image and (bool(survey.gpus) or request.slurm is not None)
        access = facts.gpus if facts else None
        member = None
        if request.together:
            public = request.meet_in_public
            member = run_script.GroupMember(part.nodes, part.node, request.together, public)
        return run_script.Job(
            run_id=record.run_id,
            place=survey.place,
            engine=chosen.engine,
            runnable=shipped.runnable,
            identity=shipped.identity,
            python=re.sub("^~/", lambda _: f"{survey.home}/", part.host.python or request.python),
            user=(NOBODY, NOBODY) if survey.uid == 0 else (survey.uid, survey.gid),
            memory_bytes=survey.memory_bytes,
            gpus=(access or ("cdi" if request.slurm else None)) if use_gpus else None,
            # A node that has lost its GPUs must fail its check, so the check must not move to the CPU.
            on_cpu=request.on_cpu or (not use_gpus and chosen.engine != "none" and not request.checks),
            environment=shipped.environment,
            claim=None if in_container else self._claim(survey.place),
            budget_seconds=request.budget_seconds,
            checks=request.checks,
            level=request.level,
            slurm=request.slurm,
            data=tuple(PurePosixPath(folder.as_posix()) for folder in data_folders(request.manifest)),
            moved=request.continued is not None,
            member=member,
        )

    # --- run --------------------------------------------------------------------------------------------

    def _watch_to_the_end(self, record: Record) -> None:
        """Watch a run until it ends, then fetch its bundle and clean the node."""
        record.mirror.mkdir(parents=True, exist_ok=True)
        self._update(run_id=record.run_id, engine=record.engine, image=record.image)
        self._update(environment=record.environment)
        self._enter("run", record.run_id)
        status = self._watch(record)
        if status is None:
            self._end("running")
            return
        if status.on is not None:
            record = self.shared.records.move(record, record.state, slurm_nodes=status.on)
        if record.follows:
            self._finish(record, status)
            return
        if status.request is not None and status.bundle_bytes is not None:
            self.shared.records.move(record, "incomplete")
            advice = "push again: the run is signed anew, and measures nothing twice"
            raise Incomplete("the run ended before its key was certified", advice=advice)
        if status.bundle_bytes is None:
            if self._fetched_by_other(record):
                return
            self.shared.records.move(record, "failed")
            raise self._missing_bundle(status, record)
        self._enter("fetch")
        try:
            verdict = self._fetch(record)
        except EnvironmentCannot:
            if self._fetched_by_other(record):
                return
            raise
        self._update(bundle=record.bundle, verdict=verdict, code=status.code)
        record = self.shared.records.move(record, "fetched" if verdict.complete else "incomplete")
        self._finish(record, status)

    def _watch(self, record: Record) -> Status | None:
        """Mirror and certify a run until it ends; return its status, or None if the request does not wait.

        A node out of reach is asked again for `patience_seconds` of the request.
        """
        certified: list[str] = []  # checksums of the certificate requests that were answered
        heard, dead_looks, pause = time.monotonic(), 0, _LOOK_SECONDS
        began = heard  # or when the job left Slurm's queue
        asked_to_end = False
        while True:
            try:
                status = mirror.look(self.node, record)
                request = status.request
                if request is not None and request not in certified[-1:] and status.state == "alive":
                    self._certify(record, len(certified))
                    certified.append(request)
                self._mirror(record, status)
                heard = time.monotonic()
                began = heard if status.state == "waiting" else began
                if status.state == "waiting" and status.reason not in (None, "None"):
                    self._enter("run", f"{record.run_id}  waits in Slurm's queue: {status.reason}")
                if status.state == "alive":
                    self._refuse_to_wait_longer(record, heard - began)
                if not asked_to_end and status.state in ("alive", "waiting"):
                    asked_to_end = self._end_if_group_ended(record)
            except Unreachable as error:
                self._wait_for_node(record, error, heard)
                continue
            dead_looks = dead_looks + 1 if status.state in ("dead", "gone") else 0
            if status.state == "exit" or dead_looks >= _DEAD_LOOKS:
                return status
            settled = certified or status.certified or record.follows or status.state == "waiting"
            if self.request.until == "start" and settled:
                return None
            self._sleep(pause)
            pause = min(_LONGEST_LOOK_SECONDS, pause * 1.1)

    def _refuse_to_wait_longer(self, record: Record, seconds: float) -> None:
        """Raise _OverdueError if a run goes on long after its budget: it hangs, and the command would too."""
        budget = self.request.budget_seconds
        if budget is not None and seconds > budget + _OVERDUE_SECONDS:
            run, after = record.run_id, seconds_text(seconds)
            message = f"run {run} still runs after {after}, with a budget of {seconds_text(budget)}"
            advice = f"bench cancel {run} ends it, with --kill if it hangs; its log is in {record.mirror}"
            raise _OverdueError(message, advice=advice)

    def _certify(self, record: Record, before: int) -> None:
        """Certify the run's key; EnvironmentCannot if `before` certificates in this push are the most."""
        if before >= _MOST_CERTIFICATES:
            advice = f"if the run did start again so often: bench attach {record.run_id}"
            raise EnvironmentCannot(f"the node asks for more than {before} certificates", advice=advice)
        seconds = mirror.certify(self.node, record, self.request.key) - now()
        text = f"{record.run_id}  certified for {seconds_text(seconds)}; Ctrl-C leaves it running"
        self._enter("run", text)

    def _end_if_group_ended(self, record: Record) -> bool:
        """Ask a run to end if its group lost a host or has its bundle; return whether the run was asked."""
        group = self.part.group
        why = None if group is None else group.lost or ("the leader is done" if group.over else None)
        if why is None:
            return False
        self._enter("run", f"{record.run_id}  is asked to end, because of {why}")
        mirror.cancel(self.node, record)
        return True

    def _mirror(self, record: Record, status: Status) -> None:
        if not self._mirror_is_full and mirror.room_bytes(record) == 0:
            self._mirror_is_full = True
            self._say(f"run {record.run_id} has written more than is mirrored: its new lines are not shown")
        if lines := mirror.mirror(self.node, record, status.files):
            self._update(last=lines[-1])
            self.shared.view.log(self.result, lines)

    def _wait_for_node(self, record: Record, error: Unreachable, heard: float) -> None:
        """Wait before the next try to reach a node; Unreachable if it has been silent for too long."""
        silent = time.monotonic() - heard
        if silent > self.request.patience_seconds:
            message = f"{error.message}; out of reach for {seconds_text(silent)}"
            advice = f"the run's files so far are in {record.mirror}; bench attach {record.run_id} asks again"
            raise Unreachable(message, advice=advice) from None
        self._enter("run", f"{record.run_id}  {error.message}; asking again")
        self._sleep(min(15.0, 1.0 + silent / 4))

    # --- fetch and clean --------------------------------------------------------------------------------

    def _fetch(self, record: Record) -> AnyVerdict:
        try:
            return mirror.fetch(self.node, record, self.request.key, self.shared.revoked, self._progress)
        except VerificationFailed as error:  # the run had no certificate, or an expired one
            self.shared.records.move(record, "incomplete")
            advice = "push again: the run is signed anew, and measures nothing twice"
            raise VerificationFailed(error.message, where=error.where, advice=advice) from None

    def _fetched_by_other(self, record: Record) -> bool:
        """End as unchanged if another command has fetched the bundle meanwhile; return whether it has."""
        same = (other for other in self.shared.records.all() if other.run_id == record.run_id)
        fetched = next((one for one in same if one.state == "fetched" and one.bundle.exists()), None)
        if fetched is not None:
            self._end_unchanged(fetched)
        return fetched is not None

    def _end_unchanged(self, record: Record) -> None:
        """End the push of a run whose bundle was fetched; a node check's verdict is read from the bundle."""
        self._update(run_id=record.run_id, bundle=record.bundle, engine=record.engine, image=record.image)
        self._update(environment=record.environment)
        if self.request.checks:
            key, revoked = self.request.key, self.shared.revoked
            verdict = certify_and_receive.read_received(key, record.bundle, now(), recompute, revoked)
            self._update(verdict=verdict)
        self._end("unchanged")

    def _finish(self, record: Record, status: Status) -> None:
        """Tell the group, clean the node, and end the push; raise an error if a follower's run failed."""
        group = self.part.group
        failed = status.code or status.state != "exit"
        if record.follows and failed and not (group and group.over):
            if group and group.lost and status.state == "exit":
                raise GroupFailed(f"ended, because of {group.lost}", advice="push again, to all hosts")
            raise self._missing_bundle(status, record)
        if group and not record.follows:
            if record.state == "incomplete":
                group.lose(record.host, "its run ended before its plan did")
            else:
                group.over = True
        if record.state == "incomplete":
            self._end("incomplete")
            return
        self._enter("clean")
        self._clean(record)
        if record.follows:
            self.shared.records.forget(record)
        self._end("done")

    def _clean(self, record: Record) -> None:
        """Leave nothing of a run on its node."""
        mirror.clean(self.node, record)

    def _missing_bundle(self, status: Status, record: Record) -> BenchError:
        """Return the error for a run that ended without a bundle."""
        return missing_bundle(status, record)


@dataclass(frozen=True, slots=True)
class PushTask:
    """The work of one host's thread. `push` tells how far it is."""

    push: NodePush
    work: Callable[[], Result]


def run_all(tasks: Sequence[PushTask], at_once: int, stop: threading.Event) -> list[Result]:
    """Do all tasks in threads; return results in their order. After Ctrl-C, runs on nodes continue.

    Threads that do not heed the stop at once are waiting for a node. They are left behind, and their hosts
    count as interrupted where they are.
    """
    futures = in_threads([task.work for task in tasks], at_once)
    try:
        wait_for_all(futures)
    except KeyboardInterrupt:
        stop.set()
        wait(futures, timeout=STOP_SECONDS)
    return [
        future.result() if future.done() else task.push.interrupt()
        for task, future in zip(tasks, futures, strict=True)
    ]


def missing_bundle(status: Status, record: Record) -> BenchError:
    """Return the error for a run that ended without a bundle, with the last lines of its log."""
    log = record.mirror / mirror.LOG
    text = mirror.end_of(log).decode(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-2:]
    last = f": {plain(' '.join(lines))[:400]}" if lines else ""
    if status.state != "exit":
        why = "the run's folder is gone from the node"
        how = f" ({status.reason})" if status.reason else ""
        if status.state == "dead" and record.slurm_job:
            why = f"Slurm's job {record.slurm_job} ended without a bundle{how}"
        elif status.state == "dead":
            why = f"the run was killed on the node{how}"
        return EnvironmentCannot(f"{why}{last}", advice="push again: the run resumes from its journal")
    kinds: dict[int | None, type[BenchError]] = {2: BadInput, 5: Incomplete}
    kind = kinds.get(status.code, EnvironmentCannot)
    return kind(
        f"the run ended with exit code {status.code}{last}", advice=f"its log: {shlex.quote(str(log))}"
    )
