"""Push to one node over SSH, or to this machine: preflight, ship, start; then follow the run to its end."""

from __future__ import annotations

import dataclasses
import re
from contextlib import ExitStack
from pathlib import PurePosixPath

from bench.base.errors import EnvironmentCannot
from bench.base.names import WITHOUT_CONTAINER
from bench.base.sizes import size_text
from bench.images.container import NOBODY
from bench.node_check.check_manifest import data_folders, wanted_environment, wanted_image
from bench.push import mirror, pull_image, run_script, ship
from bench.push.assembly import Assembly
from bench.push.host_push import HostPush
from bench.push.image_store import Shippable
from bench.push.node_preflight import ChosenEngine, NodePreflight, installer_for
from bench.push.push_record import Record, login_of
from bench.push.shared_place import ClaimedNode, claimed
from bench.push.ship import Shipped


class NodePush(HostPush):
    """The push to one node that has a shell."""

    def _start_run(self, unfinished: Record | None) -> None:
        if unfinished is not None:
            self._stop_for_restart(unfinished)
        chosen = NodePreflight(self).choose()
        if self.request.until == "preflight":
            self.update(changed=True)
            self.end("would")
            return
        self._gather("preflight")
        if (record := self._begun(chosen, unfinished)) is not None:
            self._watch_to_the_end(record)

    def _begun(self, chosen: ChosenEngine, unfinished: Record | None) -> Record | None:
        """Ship and start a run, while no other push removes what is shipped; None if it is not to start."""
        with ExitStack() as stack:
            shipped = self._ship(chosen, stack)
            if self.request.until == "ship":
                self.end("ready" if shipped.changed else "unchanged")
                return None
            self._gather("ship")
            return self._start(chosen, shipped, unfinished)

    def _ship(self, chosen: ChosenEngine, stack: ExitStack) -> Shipped:
        """Bring the image or bench's code to the node, in the way that the request and the engine need."""
        self.enter("ship")
        engine, store = chosen.engine, self.shared.store
        with self.shared.shipping:
            self.heed_stop()
            node = stack.enter_context(claimed(self.node, self.claim(chosen.survey.place)))
            if engine in WITHOUT_CONTAINER:
                shipped = ship.ship_code(node, store, self.progress)
                if engine == "venv":
                    shipped = self._install(chosen, self._with_python(chosen, shipped, node), node)
            elif self.request.pull:
                survey = ship.with_stored_images(node, chosen.survey, engine)
                required = wanted_image(self.request.manifest)
                shipped = pull_image.pull(node, survey, engine, self.request.pull, required)
            elif chosen.image is None:
                message = f"{engine} does not answer: no image can be loaded"
                raise EnvironmentCannot(message, advice="start it, or choose another with --engine")
            else:
                shipped = self._ship_image(chosen, chosen.image, node)
        self.update(sent_bytes=shipped.sent_bytes, changed=shipped.changed)
        if shipped.identity is not None:
            self.update(image=shipped.identity.config)
        sent = f"{size_text(shipped.sent_bytes)} sent, verified"
        self.enter("ship", sent if shipped.changed else "nothing to send")
        return shipped

    def _ship_image(self, chosen: ChosenEngine, image: Shippable, node: ClaimedNode) -> Shipped:
        engine, store = chosen.engine, self.shared.store
        survey = ship.with_stored_images(node, chosen.survey, engine)
        assembly = Assembly(
            node, survey, engine, image, store, self.progress, self.say_phase,
            index=self.request.index or "", mirror=self.request.mirror or "", rate=chosen.line_rate,
        )  # fmt: skip
        deliver = assembly.deliver if self.request.assemble else None
        return ship.ship(node, survey, engine, image, store, self.progress, assemble=deliver)

    def _with_python(self, chosen: ChosenEngine, shipped: Shipped, node: ClaimedNode) -> Shipped:
        """Bring bench's own Python to the node, if the environment needs it and it is not there any more."""
        if chosen.brought is None:
            return shipped
        count = chosen.brought_bytes + ship.ship_python(node, chosen.brought, self.progress)
        return dataclasses.replace(
            shipped, sent_bytes=shipped.sent_bytes + count, changed=shipped.changed or count > 0
        )

    def _install(self, chosen: ChosenEngine, code: Shipped, node: ClaimedNode) -> Shipped:
        """Install the locked environment in which bench's code, which is on the node, will run."""
        installer = installer_for(self, chosen, code.runnable)
        without = installer.locked.without
        if without:
            self.say(f"without {', '.join(without)}: no index has these compiled wheels (--wheelhouse DIR)")
        installed = installer.install(chosen.planned or installer.ask(), node)
        self.update(environment=installed.digest)
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

    def _start(self, chosen: ChosenEngine, shipped: Shipped, unfinished: Record | None) -> Record:
        """Record the run on this machine, then start it; a continued run keeps its id and journal."""
        self.enter("start")
        record = self._record_run(chosen, shipped, unfinished)
        self.update(run_id=record.run_id, changed=True)
        job = self._job(chosen, shipped, record)
        challenge = b"{}" if record.follows else self.challenge(record)
        run_script.prepare(self.node, job, self.request.manifest.data, challenge, self._meet_secret)
        in_container = job.engine not in WITHOUT_CONTAINER
        owner = f"{NOBODY}:{NOBODY}" if job.user[0] == NOBODY and in_container else ""
        if unfinished and not job.checks and mirror.restore_journal(self.node, record, owner):
            self.say(f"the mirrored journal of run {record.run_id} was restored on the node")
        slurm_job = run_script.start(self.node, job)
        (record.mirror / "run.sh").write_text(run_script.script(job), encoding="utf-8", newline="\n")
        return self.shared.records.move(record, "running", slurm_job=slurm_job)

    def _record_run(self, chosen: ChosenEngine, shipped: Shipped, unfinished: Record | None) -> Record:
        request, host = self.request, self.part.host
        choices = login_of(host) | {
            "ssh_config": str(request.ssh_config) if request.ssh_config else None,
            "environment": shipped.environment,
            "place": chosen.survey.place,
            "engine": chosen.engine,
            "key": str(request.key.path),
            "valid_seconds": request.valid_seconds,
            "keep": request.keep,
        }
        return self.save_run(
            unfinished,
            choices,
            host=host.name,
            port=host.port,
            local=self.part.local,
            image=shipped.identity.config if shipped.identity else None,
            follows=self.follows,
            nodes=self.nodes,
            slurm_where=self.slurm_where,
        )

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
            libraries=chosen.libraries,
            claim=self.claim(survey.place).path,
            budget_seconds=request.budget_seconds,
            checks=request.checks,
            level=request.level,
            slurm=request.slurm,
            data=tuple(PurePosixPath(folder.as_posix()) for folder in data_folders(request.manifest)),
            moved=request.continued is not None,
            member=member,
        )
