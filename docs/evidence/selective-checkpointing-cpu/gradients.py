"""Half of what compiled blocks keep computed again (torch's activation_memory_budget): is the gradient right?

A step along the gradient must change the loss by the gradient's norm: 1.000 of it, with the same units dropped.
    python docs/evidence/selective-checkpointing-cpu/gradients.py
"""

import tempfile
from pathlib import Path

import torch
from torch._functorch import config

from bench.models import known_models
from bench.result import Timing, Trial
from bench.runner.device import Device
from bench.runner.team import Team
from bench.runner.trial import TrialRun

STEP = 0.003  # of the loss

print(f"torch {torch.__version__}")
for name in ("tiny-gpt-neox", "tiny-roberta", "tiny-vit", "tiny-convnext"):
    for setting, budget in (((), 1.0), (("compile-blocks",), 1.0), (("compile-blocks",), 0.5)):
        torch._dynamo.reset()
        config.activation_memory_budget = budget
        trial = Trial(known_models()[name], setting, 8, 1, 3, Timing())
        with tempfile.TemporaryDirectory() as scratch:
            run = TrialRun(trial, Device("cpu"), Team(), Path(scratch), lambda event: None)
            run.strategy, run.batches = run.build(), run.load()
            whole, batch = run.strategy.whole, next(run.batches)

            def loss():
                torch.manual_seed(5)
                return whole(batch)

            weights = list(whole.parameters())
            gradients = torch.autograd.grad(loss(), weights)
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            found = []
            for way in (STEP, -STEP):
                for sign in (1, -1):  # there and back
                    with torch.no_grad():
                        for weight, gradient in zip(weights, gradients, strict=True):
                            weight.add_(gradient, alpha=float(sign * way / norm**2))
                    if sign == 1:
                        found.append(loss().item())
        label = "+".join(setting) or "naive"
        print(f"{name:14} {label:15} budget {budget}  {(found[0] - found[1]) / (2 * STEP):.3f}", flush=True)
