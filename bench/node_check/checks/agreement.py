"""Check for silent errors: repeat the same arithmetic on the same numbers on every GPU and compare the bits.

A GPU that computes wrongly now and then, without an error message, spoils a training run for days. Results
must be equal bit for bit from pass to pass and between GPUs of one kind, and a pattern written over most of
the memory must be read back unchanged.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.node_check.checks import Check, CheckBudget, Rig
from bench.node_check.checks.matmul import precisions
from bench.node_check.judging.evidence import Evidence
from bench.node_check.judging.finding import Finding, Question, memory, verdict_of
from bench.node_check.judging.standards import Standards

if TYPE_CHECKING:
    import torch

SIZE, TINY_SIZE = 4096, 128
CHUNK_BYTES, TINY_BYTES = 1 << 30, 1 << 20
MEMORY_SHARE = 0.8  # of the free memory
SEED = 20261121
RETURN = "take it out of service and run it again alone: a GPU that computes wrongly is to be returned"


def measure(rig: Rig, budget: CheckBudget) -> Mapping[str, Any]:
    """Compute and fill memory on every GPU; return digests, and how many passes and words differ."""
    import torch

    mine: dict[str, Any] = {"gpu": rig.gpu, "digests": {}, "passes": 0, "wrong_passes": 0}
    for name in precisions(rig):
        rig.say(f"arithmetic in {name}")
        _repeat(rig, budget, name, mine)
    mine["digests"]["functions"] = _functions(rig, budget)
    rig.say("memory")
    mine |= _pattern(rig, budget, torch)
    return {"gpus": rig.gather(mine)}


def _numbers(rig: Rig, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Make two random matrices on the host, so that every GPU gets the same numbers."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    return [torch.randn(size, size, generator=generator).to(rig.device, dtype) for _ in range(2)]


def _repeat(rig: Rig, budget: CheckBudget, name: str, mine: dict[str, Any]) -> None:
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
    if rig.kind == "cuda":
        torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
    a, b = _numbers(rig, TINY_SIZE if budget.tiny else SIZE, dtype)
    first = torch.mm(a, b)
    mine["digests"][name] = _digest(first)
    deadline = time.monotonic() + budget.seconds
    while time.monotonic() < deadline:
        wrong = sum(not torch.equal(torch.mm(a, b), first) for _ in range(8))
        mine["passes"] += 8
        mine["wrong_passes"] += wrong


def _functions(rig: Rig, budget: CheckBudget) -> str:
    """Hash results of the function units, which matrix products do not use."""
    import torch

    a, b = _numbers(rig, TINY_SIZE if budget.tiny else 2048, torch.float32)
    return _digest(torch.softmax(a, -1) + torch.tanh(b) * torch.rsqrt(a.abs() + 1) + torch.erf(a - b))


def _digest(tensor: torch.Tensor) -> str:
    import torch

    return hashlib.sha256(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:32]


def _pattern(rig: Rig, budget: CheckBudget, torch: Any) -> dict[str, int]:
    """Fill most of the free memory with reproducible random numbers, then read back and count wrong words."""
    size = TINY_BYTES if budget.tiny else CHUNK_BYTES
    free = 4 * size if rig.kind == "cpu" else torch.cuda.mem_get_info(rig.device)[0]
    count = max(1, int(MEMORY_SHARE * free) // size - 2)  # two more chunks are needed to compare

    def chunk_of(number: int) -> Any:
        generator = torch.Generator(device=rig.device).manual_seed(SEED + number)
        return torch.randint(
            -(2**61), 2**61, (size // 8,), generator=generator, device=rig.device, dtype=torch.int64
        )

    chunks = [chunk_of(number) for number in range(count)]
    wrong = sum(int((chunk != chunk_of(number)).sum()) for number, chunk in enumerate(chunks))
    return {"memory_bytes": count * size, "wrong_words": wrong}


def judge(evidence: Evidence, standards: Standards) -> Iterator[Finding]:
    """Fail a GPU whose bits change from pass to pass, differ from its peers', or are read back wrong."""
    data = evidence.data("agreement")
    if data is None:
        return
    gpus = data["gpus"]
    for mine in gpus:
        faults = []
        if mine["wrong_passes"]:
            faults.append(f"{mine['wrong_passes']} of {mine['passes']} passes gave other bits")
        if mine["wrong_words"]:
            faults.append(f"{mine['wrong_words']} words of memory were read back wrong")
        if others := _other_bits(mine, gpus, evidence):
            faults.append(f"other results than the other GPUs in {', '.join(others)}")
        extent = f"{mine['passes']} passes and {memory(mine['memory_bytes'])} of memory"
        yield Question.of_gpu("agreement", mine["gpu"]).judged(
            verdict_of(fail=faults),
            "; ".join(faults) or f"{extent}, bit for bit",
            expected="the same bits every time, on every GPU of a kind",
            basis="peers" if len(gpus) > 1 else "rule",
            source="IEEE 754, and the same kernels on the same kind of GPU",
            advice=RETURN,
        )


def _other_bits(mine: Mapping[str, Any], gpus: list[Mapping[str, Any]], evidence: Evidence) -> list[str]:
    """List the computations in which a majority of the GPUs of this kind has other bits than this GPU.

    Without a majority, as with two GPUs that differ, each of them is listed.
    """
    kind = _kind(mine["gpu"], evidence)
    alike = [other for other in gpus if _kind(other["gpu"], evidence) == kind]
    differing = []
    for name, digest in mine["digests"].items():
        votes = Counter(other["digests"].get(name) for other in alike)
        if votes[digest] < len(alike) and digest != _majority(votes):
            differing.append(name)
    return differing


def _majority(votes: Counter[str]) -> str | None:
    (most, count), *_ = votes.most_common(1)
    return most if count > votes.total() / 2 else None


def _kind(index: int, evidence: Evidence) -> str:
    gpu = evidence.gpu(index)
    return gpu.name if gpu else "cpu"


CHECK = Check(
    "agreement",
    "do all GPUs compute the same, every time?",
    judge,
    measure,
    workers="team",
    limit_seconds=180,
    environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
)
