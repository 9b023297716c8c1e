"""Push to nodes of a Kubernetes cluster: one Job with a pod for each node, and a `PodPush` for each pod.

The cluster brings the image and chooses the nodes; so the steps are preflight, start, run, fetch and clean.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from bench.base.errors import BenchError, EnvironmentCannot
from bench.base.names import IN_POD
from bench.push import mirror, run_script
from bench.push.connection import Unreachable
from bench.push.host_push import HostPush
from bench.push.kubernetes.cluster_preflight import PodsWanted, preflight
from bench.push.kubernetes.created_job import LOOK_SECONDS, CreatedJob, delete_job
from bench.push.kubernetes.kubectl import Kubectl
from bench.push.kubernetes.pod_job import START
from bench.push.kubernetes.pod_node import PodGone, PodNode
from bench.push.kubernetes.pod_state import PodState
from bench.push.mirror import Status
from bench.push.push_record import Record, Records
from bench.push.remote import demand
from bench.push.request import HostPart, PushRequest, Result, Shared
from bench.push.training_group import Standing


class PodPush(HostPush):
    """The push to one pod of a job, in a separate thread; or the watch over a pod that is there."""

    def __init__(self, part: HostPart, request: PushRequest, shared: Shared) -> None:
        super().__init__(part, request, shared)
        self._created: CreatedJob | None = None
        self._index = 0

    def needs_pod(self) -> bool:
        """Whether this push will start a run, by the present records and the state of the cluster."""
        if self._fetched_run() is not None:
            return False
        unfinished = self._unfinished_run()
        try:
            return unfinished is None or self._standing(unfinished) == "new"
        except BenchError:  # the push itself meets the same trouble, and reports it
            return False

    def given(self, job: CreatedJob, index: int) -> None:
        """Take a pod of a job."""
        self._created, self._index = job, index

    def attach(self, record: Record) -> Result:
        """Continue a run that an earlier push started in a pod."""
        self.node = PodNode.of(record)
        return super().attach(record)

    def _standing(self, record: Record) -> Standing:
        if record.pod is None:  # recorded, and never started
            return "new"
        self.node = PodNode.of(record)
        try:
            return super()._standing(record)
        except PodGone:
            return "new"

    def _start_run(self, unfinished: Record | None) -> None:
        """Wait for the pod, and start the run there; a run that goes on keeps its id and its journal."""
        if self._created is None:
            advice = "push again, in a moment"
            raise EnvironmentCannot("its run has just ended without a bundle", advice=advice)
        if unfinished is not None and unfinished.pod is not None:
            release(self.node, unfinished)
        self.enter("start", f"job {self._created.job.name}")
        pod = self._await_pod(self._created)
        self.say_phase(f"pod {pod.name} on the node {pod.node}")
        record = self._record_of(self._created, pod, unfinished)
        self.node = PodNode.of(record)
        self._watch_to_the_end(self._start_in_pod(record, resumes=unfinished is not None))

    def _await_pod(self, created: CreatedJob) -> PodState:
        """Wait until the pod runs, and through outages of the API server; PodGone if it cannot run."""
        shown, heard = "", time.monotonic()
        while True:
            try:
                pod = created.pod(self._index, self.part.host.name)
                why, heard = f"waits: {pod.why}", time.monotonic()
            except Unreachable as error:
                if time.monotonic() - heard > self.request.patience_seconds:
                    raise
                pod, why = None, f"{error.message}; asking again"
            if pod is not None and pod.state == "gone":
                raise PodGone(pod.why, where=pod.node or None, advice=pod.advice)
            if pod is not None and pod.state == "running":
                return pod
            if why != shown:
                self.enter("start", why)
                shown = why
            self.sleep(LOOK_SECONDS)

    def _start_in_pod(self, record: Record, *, resumes: bool) -> Record:
        """Start a recorded run, with the mirrored journal if it resumes."""
        self.update(run_id=record.run_id, engine=IN_POD, changed=True)
        job = self._run_job(record)
        run_script.prepare(self.node, job, self.request.manifest.data, self.challenge(record))
        if resumes and not job.checks and mirror.restore_journal(self.node, record, ""):
            self.say(f"the mirrored journal of run {record.run_id} was restored in the pod")
        (record.mirror / "run.sh").write_text(run_script.script(job), encoding="utf-8", newline="\n")
        began = "[ -e pid ] || [ -e exit ]"
        wait = f"n=0; until {began} || [ $n -gt 100 ]; do sleep 0.1; n=$((n + 1)); done; {began}"
        folder, start = shlex.quote(record.folder), shlex.quote(f"{record.place}/{START}")
        begin = f"cd {folder} && rm -f exit pid && printf %s {folder} >{start}"
        demand(self.node, f"{begin} && {{ {wait}; }}", "starting the run")
        return self.shared.records.move(record, "running")

    def _record_of(self, created: CreatedJob, pod: PodState, unfinished: Record | None) -> Record:
        """Save the record of the run on this machine."""
        request = self.request
        choices = {
            "host": pod.node,
            "place": created.job.place,
            "key": str(request.key.path),
            "valid_seconds": request.valid_seconds,
            "pod": created.place(pod.name),
        }
        return self.save_run(
            unfinished,
            choices,
            user=None,
            port=None,
            identity=None,
            ssh_config=None,
            local=False,
            engine=IN_POD,
            image=None,
            keep=False,
        )

    def _run_job(self, record: Record) -> run_script.Job:
        request = self.request
        return run_script.Job(
            run_id=record.run_id,
            place=record.place,
            engine=IN_POD,
            on_cpu=request.on_cpu,
            budget_seconds=request.budget_seconds,
            checks=request.checks,
            level=request.level,
            moved=True,  # the pod of a run that goes on may be on another node
        )

    def _finish(self, record: Record, status: Status) -> None:
        if record.state == "incomplete":
            release(self.node, record)  # a new push continues in a separate pod, from the mirror
        super()._finish(record, status)

    def _clean(self, record: Record) -> None:
        leave(self.node, record, self.shared.records)

    def _missing_bundle(self, status: Status, record: Record) -> BenchError:
        killed = None
        with suppress(EnvironmentCannot):  # the pod may be gone by now, and the run is over in any case
            killed = self.node.why_killed() if isinstance(self.node, PodNode) else None
            release(self.node, record)
        return super()._missing_bundle(dataclasses.replace(status, reason=killed or None), record)


def release(node: object, record: Record) -> None:
    """Let a run's pod end, after its bundle was fetched or given up."""
    if isinstance(node, PodNode):
        node.release(record.place)


def leave(node: object, record: Record, records: Records) -> None:
    """Leave nothing of a run in its cluster: the pod, and after the last pod the job."""
    release(node, record)
    place = record.pod
    if place is None:
        return
    over = [r for r in records.all() if r.pod and r.pod.job == place.job and r.pod.server == place.server]
    if sum(r.state in ("fetched", "cancelled") or r.run_id == record.run_id for r in over) == place.pods:
        delete_job(Kubectl(place.context, place.namespace), place.job)


def give_pods(
    pushes: Sequence[PodPush], wanted: PodsWanted, request: PushRequest, say: Callable[[str], object]
) -> CreatedJob | None:
    """Create one job with a pod for each push that starts a run; return it, or None if none does."""
    starting = [push for push in pushes if push.needs_pod()]
    if not starting:
        return None
    names = tuple(push.part.host.name for push in starting) if wanted.nodes else ()
    job = preflight(dataclasses.replace(wanted, nodes=names, count=len(starting)), request, say)
    try:
        created = CreatedJob(wanted.cluster, job)
    except KeyboardInterrupt:  # the API server may have made the job before
        delete_job(Kubectl(wanted.cluster.context, wanted.cluster.namespace), job.name)
        raise
    for index, push in enumerate(starting):
        push.given(created, index)
    return created


def take_away(created: CreatedJob, results: Sequence[Result], say: Callable[[str], object]) -> None:
    """Delete a push's job, unless one of its runs goes on."""
    if any(result.outcome in ("running", "lost") for result in results):
        return
    try:
        created.delete()
    except EnvironmentCannot as error:
        say(f"the job {created.job.name} stays in the cluster: {error.message}")
