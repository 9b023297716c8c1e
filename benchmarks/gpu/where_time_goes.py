"""Profile a pass and an update, kernel by kernel.

    python benchmarks/gpu/where_time_goes.py MODEL MICRO_BATCH [METHOD...] [--changes NAME...]

Prints one line per group, and the largest kernels. Times under a profiler are slightly too long; shares are
correct. `--changes` makes changes of changes.py.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from pathlib import Path

import torch
from changes import changed
from models import find_model, setting_here, turn_on_gpu
from torch.profiler import ProfilerActivity, profile

from bench.records.trial import Timing, Trial
from bench.runner.trial.device import Device
from bench.runner.trial.run_trial import TrialRun
from bench.runner.trial.team import Team

GROUPS = (
    ("attention", r"flash|fmha|attention|sdpa|cudnn_generated|cudnn::fusion|softmax_warp"),
    ("matrix products", r"gemm|nvjet|cutlass|sm90_xmma|cublas|splitK"),
    ("convolution", r"conv|cudnn"),
    ("scan", r"selective_scan|_chunk_|_state_passing|_bmm_chunk"),
    ("update", r"adam|multi_tensor|foreach|lpnorm|norm_kernel"),
    ("copies", r"memcpy|memset|copy_kernel|CatArray|fill"),
    ("collectives", r"nccl"),
    ("fused elementwise", r"triton"),
    ("other elementwise", r"elementwise|reduce|vectorized|layer_norm|index"),
)
PASSES = 3


def main(name: str, micro_batch: int, methods: tuple[str, ...], changes: tuple[str, ...]) -> None:
    model = find_model(name)
    setting = setting_here(model, methods, device="cuda")
    trial = Trial(model, setting, micro_batch, 1, 0, Timing())
    with tempfile.TemporaryDirectory() as scratch, changed(changes):
        run = TrialRun(trial, Device("cuda"), Team(), Path(scratch), lambda _: None)
        run.prepare()
        for _ in range(3):
            run.step(2)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            run.step(PASSES)
            torch.cuda.synchronize()
    kernels = [e for e in profiled.key_averages() if e.self_device_time_total > 0]
    total = sum(e.self_device_time_total for e in kernels)
    print(f"\n{name} micro-batch {micro_batch}: {' + '.join((*setting, *changes))}")
    print(f"{total / 1000:.1f} ms of kernels in a step of {PASSES} passes")
    shares: Counter[str] = Counter()
    for event in kernels:
        shares[group_of(event.key)] += event.self_device_time_total
    for group, share in shares.most_common():
        print(f"{share / 1000:9.2f} ms {100 * share / total:5.1f}%  {group}")
    for event in sorted(kernels, key=lambda e: -e.self_device_time_total)[:40]:
        mean = event.self_device_time_total / event.count
        spent = event.self_device_time_total / 1000
        print(f"{spent:9.2f} ms {event.count:6} x {mean:8.1f} us  {event.key[:110]}")


def group_of(kernel: str) -> str:
    return next((name for name, words in GROUPS if re.search(words, kernel, re.IGNORECASE)), "other")


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("micro_batch", type=int, metavar="MICRO_BATCH")
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--changes", nargs="*", default=(), metavar="NAME")
    given = parser.parse_args()
    with turn_on_gpu():
        main(given.model, given.micro_batch, tuple(given.methods), tuple(given.changes))
