"""A pod as a node: scripts run in its keeper, by `kubectl exec`, and answer like those of an SSH node."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace

from bench.base.errors import BadInput, EnvironmentCannot
from bench.push.connection import Channel, Connection, ConnectionBroke, Unreachable
from bench.push.hosts import Host
from bench.push.kubernetes.kubectl import Cluster, Kubectl, NotThere, find_cluster, refusal
from bench.push.kubernetes.pod_job import KEEPER, TAKEN
from bench.push.kubernetes.pod_state import AGAIN, read_pod, why_killed
from bench.push.process_channel import ProcessChannel
from bench.push.push_record import PodPlace, Record
from bench.push.remote import CommandResult, Remote, demand

_LONGEST_REASON = 4096  # bytes of an error output that are kept to find the reason of a failure


class PodGone(EnvironmentCannot):
    """The pod of a run, or the container that keeps its files, does not run any more."""


class PodConnection:
    """Ways into one container. Each command is a process of kubectl of its own."""

    is_open = True

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self.last: PodChannel | None = None  # the channel of the last command

    def start(self, command: str, seconds: float) -> Channel:
        """Start a process of kubectl for one command; that waits for nothing, so `seconds` is not used."""
        self.last = PodChannel(self._words, command)
        return self.last

    def close(self) -> None:
        """End the process of the last command; earlier ones have ended."""
        if self.last:
            self.last.close()


class PodChannel(ProcessChannel):
    """A command in a container. kubectl's own exit code does not tell a broken connection from an end.

    So a random mark comes last in the command's output, and in its error output before the exit code.
    """

    def __init__(self, words: list[str], command: str) -> None:
        mark = f"bench-{secrets.token_hex(8)}"
        tell = f'sh -c "$1"; code=$?; printf {mark}; printf "\\n{mark} %s" $code >&2'
        super().__init__([*words, "--", "sh", "-c", tell, "sh", command])
        self.end = re.compile(rf"\n{mark} ([0-9]{{1,3}})\s*\Z".encode())
        self.said = b""  # the last of the error output: the mark, or kubectl's reason
        self._mark = mark.encode()
        self._held = b""  # the end of the output, as far as it may be the mark

    def receive(self, seconds: float) -> bytes:
        """Return output without the mark, of which the last bytes are held back until it is certain."""
        while data := super().receive(seconds):
            data = self._held + data
            output = data[: len(data) - _overlap(data, self._mark)]
            self._held = data[len(output) :]
            if output:
                return output
        return b""

    def receive_errors(self, seconds: float) -> bytes:
        """Return error output, the mark included, and keep its end to find the exit code in it."""
        data = super().receive_errors(seconds)
        self.said = (self.said + data)[-_LONGEST_REASON:]
        return data

    def exit_code(self, seconds: float) -> int:
        """Return the command's exit code; ConnectionBroke unless both marks have arrived."""
        super().exit_code(seconds)
        match = self.end.search(self.said)
        if match is None or self._held != self._mark:
            raise ConnectionBroke
        return int(match[1])


def _overlap(data: bytes, mark: bytes) -> int:
    """Return how many bytes at the end of `data` are the beginning of `mark`."""
    return next(size for size in range(len(mark), -1, -1) if data.endswith(mark[:size]))


class PodNode(Remote):
    """The keeper of one run's pod."""

    def __init__(self, name: str, place: PodPlace) -> None:
        super().__init__(Host(name, place.pod))
        self._place = place
        self._kubectl = Kubectl(place.context, place.namespace)
        self._pod_connection: PodConnection | None = None

    @classmethod
    def of(cls, record: Record) -> PodNode:
        """Return the pod of a recorded run."""
        if record.pod is None:
            raise EnvironmentCannot(f"run {record.run_id} is in no pod", where=record.host)
        return cls(record.host, record.pod)

    def _open(self) -> Connection:
        """Prepare to enter the pod; BadInput if the run's context leads to another cluster now."""
        place = self._place
        check_same(place, find_cluster(place.context, place.namespace))
        words = self._kubectl.words("exec", "--stdin", place.pod, f"--container={KEEPER}")
        self._connection = self._pod_connection = PodConnection(words)
        return self._pod_connection

    def _exchange(
        self, script: str, pieces: Iterable[bytes], take: Callable[[bytes], object], seconds: float
    ) -> CommandResult:
        """Run a script as over SSH; if that fails, ask the cluster whether the pod is still there."""
        try:
            answer = super()._exchange(script, pieces, take, seconds)
        except Unreachable:
            self.check()
            last = self._last
            if last is None or not last.said.strip() or last.end.search(last.said):
                raise  # kubectl gave no reason: these are errors of the script
            error = refusal(last.said.decode(errors="replace"), self._place.namespace)
            raise Unreachable(error.message) if isinstance(error, NotThere) else error from None
        return replace(answer, err=self._last.end.sub(b"", answer.err)) if self._last else answer

    def _without_mark(self, result: CommandResult) -> EnvironmentCannot:
        """Return the error for lost output: a container has no login shell that could run no command."""
        return Unreachable("the connection lost the output of a command", where=self._host.name)

    @property
    def _last(self) -> PodChannel | None:
        return self._pod_connection.last if self._pod_connection else None

    def check(self) -> None:
        """PodGone, with the cluster's reason, unless the pod runs; Unreachable if the API does not answer."""
        place, where = self._place, self._host.name
        try:
            pod = self._kubectl.get("pod", place.pod)
        except NotThere:
            what = f"the pod {place.pod} is gone: it was evicted or deleted, or its node was"
            raise PodGone(what, where=where, advice=AGAIN) from None
        state = read_pod(pod)
        if state.state == "gone":
            raise PodGone(f"the pod {place.pod} ended: {state.why}", where=where, advice=state.advice)

    def why_killed(self) -> str:
        """Return how the cluster ended the run's container, such as OOMKilled; empty if it did not."""
        return why_killed(self._kubectl.get("pod", self._place.pod))

    def release(self, folder: str) -> None:
        """Let the pod end, after its bundle was fetched or given up."""
        try:
            demand(self, f": >{shlex.quote(folder)}/{TAKEN}", "ending the pod")
        except PodGone:
            return


def check_same(place: PodPlace, cluster: Cluster) -> None:
    """BadInput if the context of a run leads to another API server than when it was pushed."""
    if cluster.server == place.server:
        return
    what = f'the context "{place.context}" leads to {cluster.server}, and the run is in {place.server}'
    raise BadInput(what, advice="use the kubeconfig of that cluster: KUBECONFIG=FILE bench ...")
