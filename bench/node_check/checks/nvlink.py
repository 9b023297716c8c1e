"""Check that all NVLinks are up, at one speed, and without new errors under load. From NVML.

Of NVML's per-link error counters only replay, recovery and CRC count errors. The two others (CRC data,
ECC data) grow with ordinary traffic: by 25 to 333 on every link of two healthy H200 that trained, with
nvidia-smi nvlink -e at zero throughout (tests/node_check/checks/recorded).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from statistics import mode

from bench.node_check.checks import Check
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence, grown
from bench.node_check.judging.finding import Finding, Question, verdict_of
from bench.node_check.judging.standards import Standards

MOST_LINKS = 18
SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
CRC = 2
COUNTERS = {0: "replays", 1: "recoveries", CRC: "CRC errors"}
CRC_WARN = 100  # new errors during the check; the link repairs them, at a cost
BRIDGE = "if it has a bridge as the others have, reseat it; if it has none, nothing is wrong"
FABRIC = "the fabric of NVSwitches is not up (check fabric): bring it up first, then check again"
ADVICE = "reset the GPU, look at the baseboard or the bridge; if it stays, return it"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail missing, slow or faulty links; cards with bridges or alone in a virtual machine may have none."""
    after = evidence.alive(AFTER)
    alive = list(evidence.alive(BEFORE).values())
    links = {gpu.index: up for gpu in alive if (up := _links(gpu)) is not None}
    profile, question = standards.profile, Question("nvlink")
    required = standards.expect.nvlinks or (profile.nvlinks if profile else None)
    if not any(links.values()) and not required:
        if alive:
            yield question.unread("these GPUs have no NVLink", counts=False)
        return
    if not any(links.values()) and len(alive) == 1 and standards.expect.nvlinks is None:
        # A virtual machine with one GPU of a baseboard gets the GPU with its links down.
        yield question.unread("a single GPU without links: there is no peer to reach", counts=False)
        return
    for gpu in alive:
        if gpu.index not in links:
            yield Question.of_gpu("nvlink", gpu.index).unread(f"{gpu.where}: {gpu.why('NvLinkState.0')}")
            continue
        yield _state(gpu, links, required, standards, all_linked=linked_to_all(alive, standards))
        if links[gpu.index] and gpu.index in after:
            yield _errors(gpu, after[gpu.index])
    yield from _speeds(alive)


def _state(
    gpu: Answers, links: dict[int, int], required: int | None, standards: Standards, *, all_linked: bool
) -> Finding:
    """Compare the links of one GPU that are up with the required number, or else with the best GPU's."""
    up, profile = links[gpu.index], standards.profile
    expected = required if required is not None else max(links.values())
    # A card without a bridge has no link up, and an owner may have bought one bridge for three cards.
    faulty = up or required or all_linked
    if not required:
        source = "the other GPUs of this node"
    else:
        source = profile.sources[0] if profile and profile.nvlinks else "the manifest"
    return Question.of_gpu("nvlink", gpu.index).judged(
        verdict_of(fail=up < expected and faulty, warn=up < expected),
        f"{up} links up",
        expected=f"{expected} links up",
        basis="reference" if required else "peers",
        source=source,
        advice=_advice(gpu) if faulty else BRIDGE,
    )


def _advice(gpu: Answers) -> str:
    """Advise on missing links: without fabric manager no link comes up, and the card is not at fault."""
    return FABRIC if (gpu.get("FabricInfo") or {}).get("state") in (1, 2) else ADVICE


def linked_to_all(gpus: list[Answers], standards: Standards) -> bool:
    """Whether NVLink joins all GPUs: by switches or on one SXM board. Bridges join pairs only."""
    profile = standards.profile
    return any(gpu.number("NvLinkRemoteDeviceType.0") == SWITCH for gpu in gpus) or (
        profile is not None and profile.form_factor.startswith("SXM")
    )


def _links(gpu: Answers) -> int | None:
    """Count the links that are up; None if the driver does not report them."""
    states = [gpu.number(f"NvLinkState.{link}") for link in range(MOST_LINKS)]
    if all(state is None for state in states):
        return 0 if gpu.why("NvLinkState.0") in ("NotSupported", "InvalidArgument") else None
    return sum(state == 1 for state in states)


def _errors(before: Answers, after: Answers) -> Finding:
    counters = {}
    for link, kind in product(range(MOST_LINKS), COUNTERS):
        name = f"NvLinkErrorCounter.{link}.{kind}"
        counters[link, kind] = before.number(name), after.number(name)
    new = grown(counters)
    if new is None:
        first = "NvLinkErrorCounter.0.0"
        why = (before if before.get(first) is None else after).why(first)
        return Question.of_gpu("nvlink", before.index).unread(
            f"{before.where} does not report its links' errors: {why}", counts=why != "NotSupported"
        )
    grave = any(kind != CRC for _, kind in new)
    many = sum(new.values()) >= CRC_WARN
    shown = islice(new.items(), 4)
    errors = ", ".join(f"link {link}: {count} {COUNTERS[kind]}" for (link, kind), count in shown)
    return Question.of_gpu("nvlink", before.index, "link errors").judged(
        verdict_of(fail=grave, warn=many),
        errors or "none while it was checked",
        expected=f"no replay, no recovery, under {CRC_WARN} CRC errors while it was checked",
        source="NVML: nvmlDeviceGetNvLinkErrorCounter",
        advice=ADVICE,
    )


def _speeds(gpus: list[Answers]) -> Iterator[Finding]:
    speeds = {gpu.index: speed for gpu in gpus if (speed := gpu.field("NVLINK_GET_SPEED"))}
    if not speeds:
        return
    usual = mode(speeds.values())
    for index, speed in speeds.items():
        if speed < usual:
            yield Question.of_gpu("nvlink", index, "link speed").judged(
                "fail",
                f"{speed / 1000:.2f} GB/s a link",
                expected=f"{usual / 1000:.2f} GB/s a link",
                basis="peers",
                source="the other GPUs of this node",
                advice=ADVICE,
            )


CHECK = Check("nvlink", "are all NVLinks up, fast and clean?", judge, passive=True)
