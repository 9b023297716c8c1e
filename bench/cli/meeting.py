"""The options by which several nodes find each other and work together: --nodes, --node, --meet, ..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.errors import BadInput
from bench.base.files import read_bounded
from bench.cli.measuring import MeasureArguments

if TYPE_CHECKING:
    from bench.node_check.check_manifest import AnyManifest
    from bench.runner.processes.jobs import Nodes

SECRET = "BENCH_MEET_SECRET"  # environment variable with the secret of nodes that train together
SECRET_BYTES_LEAST, SECRET_BYTES_MOST = 32, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingArguments(MeasureArguments):
    """Arguments of a command that several nodes run together."""

    nodes: int
    node: int
    meet: str | None
    meet_secret: Path | None
    meet_in_public: bool
    challenge: Path | None


def refuse_half_a_meeting(request: MeetingArguments) -> None:
    """Refuse --nodes without --meet, and options of a meeting without --nodes."""
    if request.nodes > 1 and request.meet is None:
        advice = "--meet HOST:PORT, a port of node 0 that all nodes reach"
        raise BadInput(f"--nodes {request.nodes} without --meet", advice=advice)
    for option, given in (
        ("--meet", request.meet),
        ("--meet-secret", request.meet_secret),
        ("--meet-in-public", request.meet_in_public),
    ):
        if given and (request.nodes, request.node) == (1, 0):
            raise BadInput(f"{option} without --nodes", advice="--nodes says how many nodes connect")


def is_host_and_port(text: str) -> bool:
    """Whether `text` is HOST:PORT; an IPv6 address is in brackets."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


def refuse_public_meeting(option: str, meet: str, *, allowed: bool) -> None:
    """Refuse nodes that meet at an address of the public internet, unless the user allows it.

    Names are not resolved. The meeting itself is guarded by its secret, but torch, gloo and NCCL open further
    ports that are not.
    """
    from ipaddress import ip_address  # slow to import, and few commands need it

    try:
        address = ip_address(meet.rpartition(":")[0].strip("[]"))
    except ValueError:
        return
    if address.is_global and not allowed:
        found = f"{option} {meet} is a public address: anyone reaches the nodes there"
        raise BadInput(found, advice="use a private network or a tunnel (docs/nodes.md); or --meet-in-public")


def nodes_of(
    manifest: AnyManifest, count: int, node: int, meet: str | None, *, in_public: bool = False
) -> Nodes | None:
    """Return the nodes that work together, from --nodes, --node and --meet; None for a single node."""
    if count == 1 and node == 0:
        return None
    if count < 1 or not 0 <= node < count:
        raise BadInput(f"--node {node} of --nodes {count}", advice="nodes are counted from 0")
    if meet is None or not is_host_and_port(meet):
        raise BadInput(f"--meet {meet} is not HOST:PORT", advice="a port of node 0 that all nodes reach")
    refuse_public_meeting("--meet", meet, allowed=in_public)
    from bench.runner.processes.jobs import Nodes

    return Nodes(count, node, meet, manifest.digest.removeprefix("sha256:")[:12])


def meeting_secret(file: Path | None, environment: Mapping[str, str]) -> bytes:
    """Return the secret that all nodes of a meeting have; BadInput if there is none, or a short one."""
    advice = f"openssl rand -hex 32 > secret on one node; the same file on all: --meet-secret, or {SECRET}"
    if file is not None:
        where = str(file)
        secret = read_bounded(
            file, SECRET_BYTES_MOST, what="the secret", too_large="larger than 4 KiB"
        ).strip()
    elif SECRET in environment:
        where, secret = SECRET, environment[SECRET].strip().encode()
    else:
        raise BadInput("--meet without a secret: anyone who reaches the port could join", advice=advice)
    if len(secret) < SECRET_BYTES_LEAST:
        short = f"a secret of {len(secret)} bytes can be guessed: {SECRET_BYTES_LEAST} are needed"
        raise BadInput(short, where=where, advice=advice)
    return secret
