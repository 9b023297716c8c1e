"""NVLink: are all links up, at one speed, and without new errors under load?

Of NVML's per-link error counters only replay, recovery and CRC count errors. The two others (CRC data,
ECC data) grow with ordinary traffic: by 25 to 333 on every link of two healthy H200 that trained, with
nvidia-smi nvlink -e at zero throughout (tests/checks/recorded).
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mode

from bench.node_check.checks import Check, not_read
from bench.node_check.judging.evidence import AFTER, BEFORE, Answers, Evidence
from bench.node_check.judging.finding import Finding, Verdict
from bench.node_check.judging.standards import Standards

MOST_LINKS = 18
SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
COUNTERS = {0: "replays", 1: "recoveries", 2: "CRC errors"}
CRC_WARN = 100  # new ones while it was checked; the link repairs them, at a cost
BRIDGE = "has it a bridge as the others have? then reseat it; if it has none, all is well"
FABRIC = "the fabric of NVSwitches is not up (check fabric): bring it up first, then check again"
ADVICE = "reset the GPU, look at the baseboard or the bridge; if it stays, return it"


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    after = evidence.alive(AFTER)
    alive = list(evidence.alive(BEFORE).values())
    counts = {g.index: _links(g) for g in alive}
    known = {index: up for index, up in counts.items() if up is not None}
    profile = standards.profile
    wanted = standards.expect.nvlinks or (profile.nvlinks if profile else None)
    if not any(known.values()) and not wanted:
        if alive:
            yield not_read("nvlink", "these GPUs have no NVLink", counts=False)
        return
    if not any(known.values()) and len(alive) == 1 and standards.expect.nvlinks is None:
        # A virtual machine that is lent one GPU of a baseboard gets it with its links down.
        yield not_read("nvlink", "one GPU alone, without links: there is nobody to reach", counts=False)
        return
    expected = wanted if wanted is not None else max(known.values())
    for gpu in alive:
        up = known.get(gpu.index)
        if up is None:
            yield not_read("nvlink", f"{gpu.where}: {gpu.why('NvLinkState.0')}", gpu=gpu.index)
            continue
        # A card without a bridge has no link up, and an owner may have bought one bridge for three cards.
        less: Verdict = "fail" if up or wanted or linked_to_all(alive, standards) else "warn"
        yield Finding(
            "nvlink", gpu.where, "pass" if up >= expected else less,
            f"{up} links up", f"{expected} links up", "reference" if wanted else "peers",
            (profile.sources[0] if profile and profile.nvlinks else "the manifest") if wanted
            else "the other GPUs of this node",
            "" if up >= expected else _advice(gpu) if less == "fail" else BRIDGE, gpu.index,
        )  # fmt: skip
        if up and gpu.index in after:
            yield _errors(gpu, after[gpu.index])
    yield from _speeds(alive)


def _advice(gpu: Answers) -> str:
    """Without fabric manager no link to a switch comes up, and no card is to be returned for that."""
    return FABRIC if (gpu.get("FabricInfo") or {}).get("state") in (1, 2) else ADVICE


def linked_to_all(gpus: list[Answers], standards: Standards) -> bool:
    """By switches, or on one board. Bridges link twos, and the rest of such a node is not linked."""
    profile = standards.profile
    return any(gpu.number("NvLinkRemoteDeviceType.0") == SWITCH for gpu in gpus) or (
        profile is not None and profile.form_factor.startswith("SXM")
    )


def _links(gpu: Answers) -> int | None:
    states = [gpu.number(f"NvLinkState.{link}") for link in range(MOST_LINKS)]
    if all(state is None for state in states):
        return 0 if gpu.why("NvLinkState.0") in ("NotSupported", "InvalidArgument") else None
    return sum(state == 1 for state in states)


def _errors(before: Answers, after: Answers) -> Finding:
    grown, known = [], 0
    for link in range(MOST_LINKS):
        for number, words in COUNTERS.items():
            then, now = (g.number(f"NvLinkErrorCounter.{link}.{number}") for g in (before, after))
            if then is None or now is None:
                continue
            known += 1
            if now > then:
                grown.append((link, number, words, int(now - then)))
    if not known:
        first = "NvLinkErrorCounter.0.0"
        why = (before if before.get(first) is None else after).why(first)
        return not_read(
            "nvlink", f"{before.where} says nothing of its links' errors: {why}",
            counts=why != "NotSupported", gpu=before.index,
        )  # fmt: skip
    grave = [entry for entry in grown if entry[1] < 2]
    many = sum(entry[3] for entry in grown) >= CRC_WARN
    return Finding(
        "nvlink", f"{before.where} link errors", "fail" if grave else "warn" if many else "pass",
        ", ".join(f"link {link}: {count} {words}" for link, _, words, count in grown[:4])
        or "none while it was checked",
        f"no replay, no recovery, under {CRC_WARN} CRC errors while it was checked", "rule",
        "NVML: nvmlDeviceGetNvLinkErrorCounter", ADVICE if grave or many else "", before.index,
    )  # fmt: skip


def _speeds(gpus: list[Answers]) -> Iterator[Finding]:
    speeds = {g.index: s for g in gpus if (s := g.field("NVLINK_GET_SPEED"))}
    if not speeds:
        return
    usual = mode(speeds.values())
    for index, speed in speeds.items():
        if speed < usual:
            yield Finding(
                "nvlink", f"GPU {index} link speed", "fail", f"{speed / 1000:.2f} GB/s a link",
                f"{usual / 1000:.2f} GB/s a link", "peers", "the other GPUs of this node", ADVICE, index,
            )  # fmt: skip


CHECK = Check("nvlink", "are all NVLinks up, fast and clean?", judge)
