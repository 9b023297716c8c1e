"""The line to a node is measured once for each push: the preflight hands the rate on to the assembly."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.planning.manifest import load_manifest
from bench.push import node_preflight, ship
from bench.push.assembly import SMALL_BYTES, Assembly
from bench.push.hosts import Host
from bench.push.image_store import ImageStore
from bench.push.line_rate import measured_rate, transfer_seconds
from bench.push.node_preflight import ChosenEngine, NodePreflight
from bench.push.push_record import Records
from bench.push.push_to_node import NodePush
from bench.push.remote import Here
from bench.push.request import HostPart, PushRequest, Shared
from bench.push.ship import Shipped
from tests.push.strange_nodes import Answers
from tests.push.test_mirror import KEY
from tests.push.test_push_to_node import QUICKSTART, Silent


def test_the_line_is_measured_by_a_transfer() -> None:
    assert measured_rate(Here()) > 1000


@pytest.mark.parametrize(
    ("elapsed", "trip", "bytes_took"), [(0.9, 0.3, 0.6), (0.9, 0.82, 0.09), (0.9, 1.4, 0.09), (0.9, 0.0, 0.9)]
)
def test_a_slow_empty_trip_does_not_make_a_line_fast(elapsed: float, trip: float, bytes_took: float) -> None:
    """On a busy machine an empty question took longer than a transfer: 8,390 Mbit/s on a line of 20."""
    assert transfer_seconds(elapsed, trip) == pytest.approx(bytes_took)


@pytest.fixture
def node_push(tmp_path: Path) -> NodePush:
    request = PushRequest(manifest=load_manifest(QUICKSTART), engine="docker", out=tmp_path, key=KEY)
    shared = Shared(Records(tmp_path / "runs"), ImageStore(print), Silent())
    return NodePush(HostPart(Host("here", ""), local=True), request, shared)


CHOSEN = ChosenEngine(SimpleNamespace(place="/p"), "docker", SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize(("to_send", "rate"), [(SMALL_BYTES, 5e6), (SMALL_BYTES - 1, None)])
def test_the_preflight_measures_the_line_if_much_is_to_be_sent(
    node_push: NodePush, monkeypatch: pytest.MonkeyPatch, to_send: int, rate: float | None
) -> None:
    monkeypatch.setattr(node_preflight, "measured_rate", lambda node: 5e6)
    chosen = dataclasses.replace(CHOSEN, send_bytes=to_send)
    assert NodePreflight(node_push)._with_line_rate(chosen).line_rate == rate


def test_the_assembly_gets_the_rate_that_the_preflight_measured(
    node_push: NodePush, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float | None] = []

    def shipped(*_: Any, assemble: Any) -> Shipped:
        assert isinstance(assemble.__self__, Assembly)
        rates.append(assemble.__self__.rate)
        return Shipped("image", 0, changed=False)

    monkeypatch.setattr(ship, "ship", shipped)
    monkeypatch.setattr(ship, "with_stored_images", lambda node, survey, engine: survey)
    node_push.node = Answers(lambda _: "")
    for rate in (5e6, None):
        with ExitStack() as stack:
            node_push._ship(dataclasses.replace(CHOSEN, line_rate=rate), stack)
    assert rates == [5e6, None]
