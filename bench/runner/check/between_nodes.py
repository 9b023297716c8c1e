"""Exchange data between nodes: every pair of them in a tournament, then all-reduce and all-to-all.

Each node runs this in one process, its agent. Agents talk through the store of the meeting
(meeting_proxy.py): the leader announces one step after the other; each agent does its part (node_step.py)
and answers. A node whose agent does not answer is lost, and the others go on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench import __version__
from bench.base.errors import EnvironmentCannot
from bench.base.strict_json import from_json, to_json
from bench.node_check.checks.exchange import ALL_REDUCE, ALL_TO_ALL, NodeExchange
from bench.node_check.checks.gpudirect import GpuDirect, read_gpudirect
from bench.node_check.checks.pairs import FailedPair, LostNode, Tournament, Transfer
from bench.node_check.checks.ports import NodePorts, Port, node_ports, read_ports
from bench.node_check.judging.round_robin import Pair, matches, pair_of, rounds
from bench.runner.check.node_step import (
    ANSWER_SECONDS,
    MESSAGE_BYTES,
    LaneResult,
    Step,
    StepKind,
    do_step,
    meet,
    step_seconds,
)
from bench.runner.check.request import NodesJob
from bench.runner.processes import nodes as several
from bench.runner.processes.jobs import devices_text

if TYPE_CHECKING:
    import torch.distributed as dist


JOIN_SECONDS = 300.0  # for all nodes to come; then the others begin
ASK_SECONDS = 0.05  # between two looks into the store
MOST_TRANSFERS = 30_000  # of which all times are kept
MOST_REPEATS = 8  # rounds in which slow pairs meet again


@dataclass(frozen=True, slots=True)
class Arrival:
    """The message with which a node joins the meeting."""

    bench: str
    lanes: int
    device: str
    address: str
    ports: NodePorts
    gpudirect: GpuDirect


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """A node's answer to a step."""

    lanes: tuple[LaneResult, ...] = ()
    ports: tuple[Port, ...] = ()  # after the last step


def take_part(job: NodesJob, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Do this node's part. Returns the readings of all checks between nodes by name; none unless it leads."""
    with TemporaryDirectory(prefix="bench-nodes-") as folder:
        agent = _Agent(job, meet(job, JOIN_SECONDS), Path(folder))
        own = several.own_address(job.nodes.meet) or ""
        node = job.nodes.node
        arrival = Arrival(__version__, job.lanes, job.device, own, node_ports(node), read_gpudirect(node))
        agent.put(f"here/{node}", arrival)
        return _Leader(agent, say).lead() if node == 0 else agent.follow(say)


@dataclass(slots=True)
class _Agent:
    """One node's part of every step."""

    job: NodesJob
    store: dist.Store
    folder: Path

    @property
    def node(self) -> int:
        return self.job.nodes.node

    def put(self, key: str, value: object) -> None:
        self.store.set(key, json.dumps(to_json(value)))

    def get(self, key: str) -> Any:
        return json.loads(self.store.get(key))

    def follow(self, say: Callable[[str], None]) -> Mapping[str, Any]:
        """Do the leader's steps until the last one."""
        try:
            self.be_ready(self.get("roster"))
            for number in count():
                step = from_json(Step, self.get(f"step/{number}"))
                say(_words(step))
                self.put(f"done/{number}/{self.node}", self.do(step))
                if step.kind == "end":
                    return {}
        except EnvironmentCannot:
            raise
        except Exception as error:
            first = str(error).partition("\n")[0]
            raise EnvironmentCannot(f"the leader at {self.job.nodes.meet} is gone: {first}") from None
        raise AssertionError("unreachable")

    def be_ready(self, roster: Mapping[str, Any]) -> None:
        """Choose the interface to the nodes of the leader; EnvironmentCannot if it refused this node."""
        if (why := roster["refused"].get(str(self.node))) is not None:
            raise EnvironmentCannot(f"the leader goes on without this node: {why}")
        addresses = roster["addresses"]
        others = [address for node, address in addresses.items() if node != str(self.node)]
        interface = several.interface_among(addresses[str(self.node)], others)
        if interface is not None:
            os.environ.setdefault(several.GLOO, interface)

    def do(self, step: Step) -> StepAnswer:
        """Do this node's part of a step; nothing if it has none."""
        if step.kind == "end":
            return StepAnswer(ports=read_ports())
        if step.kind == "exchange":
            groups: list[tuple[int, ...]] = [step.group]
        else:
            groups = [*step.pairs]
        group = next((group for group in groups if self.node in group), None)
        return StepAnswer(do_step(self.job, step, group, self.folder)) if group else StepAnswer()


def _words(step: Step) -> str:
    match step.kind:
        case "pairs":
            return f"round {step.number + 1}"
        case "exchange":
            return f"{step.algorithm} over {len(step.group)} nodes"
        case "end":
            return "reading the ports again"


@dataclass(slots=True)
class _Leader:
    """Announces the steps, and collects the nodes' answers."""

    agent: _Agent
    say: Callable[[str], None]
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    lost: dict[int, LostNode] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)
    failed: list[FailedPair] = field(default_factory=list)
    exchanges: list[NodeExchange] = field(default_factory=list)
    after: dict[int, tuple[Port, ...]] = field(default_factory=dict)
    steps: Iterator[int] = field(default_factory=count)

    @property
    def job(self) -> NodesJob:
        return self.agent.job

    @property
    def alive(self) -> list[int]:
        return [node for node in sorted(self.arrivals) if node not in self.lost]

    def lead(self) -> Mapping[str, Any]:
        """Return the readings of the checks between nodes, by their names."""
        deadline = time.monotonic() + self.job.limit_seconds
        self._welcome()
        plan, made = rounds(self.alive), 0
        for pairs in plan:
            if time.monotonic() > deadline:
                break
            self._round(pairs, f"round {made + 1} of {len(plan)}")
            made += 1
        for again in matches(self._slow_pairs(len(plan), made))[:MOST_REPEATS]:
            if time.monotonic() < deadline:
                self._round(again, "slow pairs again")
        for group in _groups(self.alive):
            for algorithm in (ALL_REDUCE, ALL_TO_ALL):
                if {*group} <= {*self.alive} and time.monotonic() < deadline:
                    self._exchange(group, algorithm)
        for node, answer in self._step("end").items():
            self.after[node] = answer.ports
        return self._readings(len(plan), made)

    def _welcome(self) -> None:
        """Wait for all nodes for a while; then say who takes part."""
        self.say(f"waiting for {self.job.nodes.count} nodes")
        refused: dict[int, str] = {}
        missing, deadline = {*range(self.job.nodes.count)}, time.monotonic() + JOIN_SECONDS
        while missing and time.monotonic() < deadline:
            for node in [node for node in missing if self.agent.store.check([f"here/{node}"])]:
                missing.discard(node)
                if (why := self._unlike(found := self.agent.get(f"here/{node}"))) is not None:
                    refused[node] = why
                else:
                    self.arrivals[node] = from_json(Arrival, found)
            time.sleep(ASK_SECONDS)
        for node in sorted(missing):
            self._lose(node, f"it did not come within {JOIN_SECONDS:.0f} s")
        for node, why in sorted(refused.items()):
            self._lose(node, why)
        addresses = {node: self.arrivals[node].address for node in self.alive}
        roster = json.dumps({"refused": refused, "addresses": addresses})
        self.agent.store.set("roster", roster)
        self.agent.be_ready(json.loads(roster))

    def _unlike(self, found: Mapping[str, Any]) -> str | None:
        """Say why a node that came cannot take part; None if it can."""
        own = (self.job.lanes, self.job.device)
        if found["bench"] != __version__:
            return f"it has bench {found['bench']}, and node 0 has {__version__}"
        if (found["lanes"], found["device"]) != own:
            theirs = devices_text(found["lanes"], found["device"])
            return f"it takes part with {theirs}, and node 0 with {devices_text(*own)}"
        return None

    def _lose(self, node: int, why: str) -> None:
        self.lost.setdefault(node, LostNode(node, why))

    def _slow_pairs(self, planned: int, made: int) -> list[Pair]:
        """Return the pairs that one measurement found slow: they are measured once more."""
        diagnoses = self._tournament(planned, made).diagnoses({})
        found = {
            part.nodes for diagnosis in diagnoses.values() for part in diagnosis.parts if part.kind == "pair"
        }
        found |= {pair for diagnosis in diagnoses.values() for pair in diagnosis.scattered}
        nowhere = {lane for lane, diagnosis in diagnoses.items() if diagnosis.usual == 0}
        found |= {(exchange.a, exchange.b) for exchange in self.failed if exchange.lane in nowhere}
        return sorted(pair_of(*nodes) for nodes in found)

    def _round(self, pairs: Sequence[Pair], words: str) -> None:
        alive = {*self.alive}
        playing = tuple(pair for pair in pairs if alive.issuperset(pair))
        self.say(words)
        answers = self._step("pairs", pairs=playing, words=words)
        for a, b in playing:
            for lane in range(self.job.lanes):
                results = [answers[node].lanes[lane] for node in (a, b) if node in answers]
                measured = next((result for result in results if result.seconds), None)
                if measured is None or len(results) < 2:
                    why = next((result.why for result in results if result.why), "a node was lost")
                    self.failed.append(FailedPair(lane, a, b, why))
                    continue
                for (sender, receiver), seconds in zip(((a, b), (b, a)), measured.seconds, strict=True):
                    self.transfers.append(Transfer(lane, sender, receiver, self._kept(seconds)))

    def _exchange(self, group: tuple[int, ...], algorithm: str) -> None:
        self.say(f"{algorithm} over {len(group)} nodes")
        answers = self._step("exchange", group=group, algorithm=algorithm)
        results = [result for node in group if node in answers for result in answers[node].lanes]
        whole = len(results) == len(group) * self.job.lanes and all(result.seconds for result in results)
        first = next((result for result in results if result.seconds), LaneResult())
        why = next((result.why for result in results if result.why), "a node was lost")
        self.exchanges.append(
            NodeExchange(algorithm, group, self.job.lanes, first.piece_bytes, first.seconds[0])
            if whole
            else NodeExchange(algorithm, group, self.job.lanes, 0.0, why=why)
        )

    def _step(
        self,
        kind: StepKind,
        *,
        pairs: tuple[Pair, ...] = (),
        group: tuple[int, ...] = (),
        algorithm: str = "",
        words: str = "",
    ) -> dict[int, StepAnswer]:
        """Announce a step, do this node's part, and collect the answers; a silent node is lost."""
        step, alive = Step(next(self.steps), kind, pairs, group, algorithm), self.alive
        self.agent.put(f"step/{step.number}", step)
        began = time.monotonic()
        answers = {self.agent.node: self.agent.do(step)}
        limit = began + step_seconds(self.job) + ANSWER_SECONDS
        waited = [node for node in alive if node not in answers]
        while waited and time.monotonic() < limit:
            for node in [node for node in waited if self.agent.store.check([f"done/{step.number}/{node}"])]:
                answers[node] = from_json(StepAnswer, self.agent.get(f"done/{step.number}/{node}"))
                waited.remove(node)
            time.sleep(ASK_SECONDS)
        for node in waited:
            self._lose(node, f"it was lost in {words or _words(step)}")
        return answers

    def _tournament(self, planned: int, made: int) -> Tournament:
        job, lost = self.job, tuple(self.lost[node] for node in sorted(self.lost))
        transfers, failed = tuple(self.transfers), tuple(self.failed)
        piece = float(MESSAGE_BYTES[job.device])
        return Tournament(job.nodes.count, job.lanes, planned, made, piece, transfers, failed, lost)

    def _kept(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """Return the times of a transfer that fit into the bundle: all; of very many transfers the median."""
        transfers = self.job.lanes * self.job.nodes.count**2
        kept = seconds if transfers <= MOST_TRANSFERS else (median(seconds),)
        return tuple(float(f"{each:.6g}") for each in kept)

    def _readings(self, planned: int, made: int) -> Mapping[str, Any]:
        arrivals = self.arrivals
        ports = [
            NodePorts(node, one.ports.ports, self.after.get(node), one.ports.missing)
            for node, one in sorted(arrivals.items())
        ]
        readings = {
            "ports": {"nodes": ports},
            "gpudirect": {"nodes": [one.gpudirect for _, one in sorted(arrivals.items())]},
            "pairs": self._tournament(planned, made),
            "exchange": {"exchanges": self.exchanges},
        }
        return {name: to_json(reading) for name, reading in readings.items()}


def _groups(nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the first 2, 4, 8, ... nodes, and all of them."""
    sizes = sorted(
        {size for size in (2**power for power in range(1, 11)) if size < len(nodes)} | {len(nodes)}
    )
    return [tuple(nodes[:size]) for size in sizes if size > 1]
