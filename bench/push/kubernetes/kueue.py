"""Kueue, which holds a Job back until its queue admits it: can a queue admit one, and why has it not yet.

Kueue suspends a Job with the label of a queue when it is created, also in a dry run, keeps an object of its
own for it, a workload, and lets the Job go when the workload was admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bench.base.errors import BenchError, EnvironmentCannot
from bench.push.kubernetes.fields import list_of, part_of, text_of
from bench.push.kubernetes.kubectl import Kubectl, NotThere

QUEUE = "kueue.x-k8s.io/queue-name"  # label of a Job
_JOB = "kueue.x-k8s.io/job-uid"  # label of a workload
_QUEUES, _WORKLOADS = "localqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Whether a Job waits to be let go, and so has no pods yet."""
    return part_of(job, "spec").get("suspend") is True


def check_queue(kubectl: Kubectl, queue: str, tried: Mapping[str, Any], say: Callable[[str], object]) -> None:
    """Refuse a queue that nobody serves or that is not there; `tried` is the Job after its dry run."""
    if not is_suspended(tried):
        what = f"Kueue does not hold Jobs here: this one would start without waiting for the queue {queue}"
        advice = "install Kueue with its integration batch/job, or leave --queue out"
        raise EnvironmentCannot(what, advice=advice)
    if not kubectl.may("get", _QUEUES):
        return
    try:
        found = kubectl.get(_QUEUES, queue)
    except NotThere:
        what = f"the namespace {kubectl.namespace} has no local queue {queue}"
        raise EnvironmentCannot(what, advice="kubectl get localqueues lists them") from None
    if why := next(_unmet(found, ("Active",)), ""):
        say(f"preflight  warn: the queue {queue} admits nothing now: {why}")


def why_not_admitted(kubectl: Kubectl, job_uid: str) -> str:
    """Return Kueue's reason why a Job is held back; empty if it says none, or this user may not ask."""
    with suppress(BenchError):
        if kubectl.may("list", _WORKLOADS):
            return read_workloads(kubectl.items(_WORKLOADS, f"--selector={_JOB}={job_uid}"))
    return ""


def read_workloads(workloads: Sequence[Mapping[str, Any]]) -> str:
    """Return why the workload of a Job is not admitted; empty if it does not say. Pure."""
    for workload in workloads:
        reasons = (*_unmet(workload, ("QuotaReserved", "Admitted")), *_pending_checks(workload))
        if reasons:
            return reasons[0]
    return ""


def _unmet(found: Mapping[str, Any], types: Sequence[str]) -> Iterator[str]:
    """Yield the messages of an object's conditions of these types that are false, in the types' order."""
    conditions = {each.get("type"): each for each in list_of(part_of(found, "status"), "conditions")}
    for each in (conditions.get(name, {}) for name in types):
        if each.get("status") == "False":
            yield text_of(each.get("message")) or text_of(each.get("reason"))


def _pending_checks(workload: Mapping[str, Any]) -> Iterator[str]:
    """Yield the admission checks that are not ready, with their messages."""
    for check in list_of(part_of(workload, "status"), "admissionChecks"):
        if (state := text_of(check.get("state"))) != "Ready":
            yield f"admission check {text_of(check.get('name'))}: {text_of(check.get('message')) or state}"
