"""How fast can one GPU train GPT-NeoX (Pythia) models, and what decides it?

Each *variant* trains the same model from the same weights on the same random
tokens with real optimizer steps (several passes, clipping, Adam) and differs in
one thing: the transformers release, the attention call, the compiled region, the
loss, the optimizer kernel. One JSON file per variant holds the speed, the loss of
every pass, the peak memory and where one pass spends its time, kernel by kernel.

    python neox_speed.py --variants new-plain,new-causal --out results/
    python neox_speed.py --tiny --variants new-causal --out /tmp/t   # no GPU needed
    python neox_speed.py --old-site DIR ...   # a folder holding transformers 4.47.1

Every variant runs in a process of its own, so that one running out of memory or
time does not take the others with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

OLD_RELEASE = "4.47.1"


# ---------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Shape:
    """A Pythia model's constants, as its published configuration has them."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    micro_batch: int
    half: Literal["bf16", "fp16"]
    vocab: int = 50304
    context: int = 2048
    batch: int = 1024  # sequences an update, by the recipe

    def matmul_flop_per_token(self) -> float:
        """Forward and backward, causal attention counted at the half it needs."""
        weights = self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate)
        weights += self.hidden * self.vocab
        return 6 * weights + 6 * self.layers * self.hidden * self.context


SHAPES = {
    "pythia-160m": Shape(768, 12, 12, 3072, 32, "fp16"),
    "pythia-410m": Shape(1024, 24, 16, 4096, 16, "fp16"),
    "pythia-1b": Shape(2048, 16, 8, 8192, 16, "bf16"),
    "pythia-2.8b": Shape(2560, 32, 32, 10240, 8, "fp16"),
}
TINY = Shape(64, 2, 4, 128, 2, "bf16", vocab=512, context=128, batch=8)


@dataclass(frozen=True)
class Variant:
    model: str = "pythia-1b"
    release: Literal["installed", "old"] = "installed"
    # False leaves transformers' use_cache at its default (on).
    cache_off: bool = True
    # 'library': attn_implementation="sdpa", the mask is the library's decision.
    # The others get no mask and is_causal: 'auto' leaves the kernel to SDPA, 'flash',
    # 'cudnn' and 'efficient' allow it one family, 'flex' is flex_attention.
    attention: Literal["library", "auto", "flash", "cudnn", "efficient", "flex"] = "auto"
    contiguous: bool = False
    # The paper's code feeds all 2,049 tokens and drops the last prediction. Feeding
    # 2,048 gives the same loss: in a causal model the last position reaches no other.
    inputs: Literal["all", "shifted"] = "shifted"
    loss: Literal["model", "plain", "chunked", "liger"] = "plain"
    compile: Literal["whole", "layers", "none"] = "whole"
    mode: str = "default"
    fused_adam: bool = True
    # bf16 copies of the linear weights, refreshed once an update, instead of a cast
    # of every weight in every pass. Gradients still add up in float32.
    copies: bool = False


PLAIN = Variant(cache_off=False, attention="library", inputs="all", loss="model", fused_adam=False)
CAUSAL = Variant()
CUDNN = Variant(attention="cudnn")

VARIANTS: dict[str, Variant] = {
    # The same loop over both releases, nothing else changed.
    "old-plain": replace(PLAIN, release="old"),
    "new-plain": PLAIN,
    "new-nocache": replace(PLAIN, cache_off=True),
    "old-nocache": replace(PLAIN, release="old", cache_off=True),
    # The library's mask over the 2,048 positions that are trained.
    "new-masked": replace(PLAIN, cache_off=True, inputs="shifted", loss="plain", fused_adam=True),
    # No mask, then one change after the other.
    "new-causal-all": replace(PLAIN, cache_off=True, attention="auto"),
    "new-causal": CAUSAL,
    "new-causal-layers": replace(CAUSAL, compile="layers"),
    "new-causal-graphs": replace(CAUSAL, mode="reduce-overhead"),
    "new-flash": replace(CAUSAL, attention="flash"),
    "new-cudnn": CUDNN,
    "new-cudnn-contiguous": replace(CUDNN, contiguous=True),
    "new-efficient": replace(CAUSAL, attention="efficient"),
    "new-flex": replace(CAUSAL, attention="flex"),
    "new-cudnn-layers": replace(CUDNN, compile="layers"),
    "new-cudnn-chunked": replace(CUDNN, loss="chunked"),
    "new-cudnn-liger": replace(CUDNN, loss="liger"),
    "new-cudnn-copies": replace(CUDNN, copies=True),
    "new-cudnn-foreach": replace(CUDNN, fused_adam=False),
    "new-cudnn-autotune": replace(CUDNN, compile="layers", mode="max-autotune-no-cudagraphs"),
    "new-cudnn-eager": replace(CUDNN, compile="none"),
    # Other sizes: the plain loop over both releases, then no mask.
    **{
        f"{size}-{name}": replace(variant, model=f"pythia-{size}")
        for size in ("160m", "410m", "2.8b")
        for name, variant in {
            "old-plain": replace(PLAIN, release="old"),
            "plain": PLAIN,
            "causal": CAUSAL,
            "causal-layers": replace(CAUSAL, compile="layers"),
        }.items()
    },
}
PROBES = ("ceiling", "attention", "families", "gemm")


@dataclass(frozen=True)
class Plan:
    passes: int
    warm_steps: int
    timed_steps: int


# ---------------------------------------------------------------- the model


def contiguous_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **keywords: Any
) -> tuple[Any, None]:
    """The library's SDPA call with packed inputs, as release 4.47.1 made them."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query, key = query.to(value.dtype), key.to(value.dtype)
    packed = (query.contiguous(), key.contiguous(), value.contiguous())
    return sdpa_attention_forward(module, *packed, attention_mask, **keywords)


def flex_causal_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Any, None]:
    from torch.nn.attention.flex_attention import flex_attention

    assert attention_mask is None
    query, key = query.to(value.dtype), key.to(value.dtype)
    out = flex_attention(query, key, value, block_mask=module.neox_speed_blocks, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def no_mask_attention(variant: Variant) -> str:
    """Register an attention function and return its name.

    transformers builds a mask for the attention functions it knows a mask function for.
    Under torch.compile it always does, also where nothing is masked out: it cannot look
    at data then. With a mask SDPA works out both halves of the causal square, by slower
    kernels. Under a name of our own no mask is built and the very same function passes
    is_causal instead.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    name, function = "sdpa_no_mask", sdpa_attention_forward
    if variant.attention == "flex":
        name, function = "flex_no_mask", flex_causal_attention
    elif variant.contiguous:
        name, function = "sdpa_no_mask_contiguous", contiguous_attention
    AttentionInterface.register(name, function)
    return name


def build_model(shape: Shape, variant: Variant, device: str) -> Any:
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    implementation = "sdpa" if variant.attention == "library" else no_mask_attention(variant)
    config = GPTNeoXConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        hidden_act="gelu",
        rotary_pct=0.25,
        max_position_embeddings=shape.context,
        use_parallel_residual=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tie_word_embeddings=False,
        attn_implementation=implementation,
    )
    with torch.device(device):
        model = GPTNeoXForCausalLM(config)
    model.train()
    if variant.attention == "flex":
        give_blocks(model, shape, device)
    same_weights(model)
    return model


def give_blocks(model: Any, shape: Shape, device: str) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    blocks = create_block_mask(
        lambda _b, _h, query, key: query >= key,
        None,
        None,
        shape.context,
        shape.context,
        device=device,
    )
    for layer in model.gpt_neox.layers:
        layer.attention.neox_speed_blocks = blocks


def same_weights(model: Any) -> None:
    """One draw for every release: both list the parameters in the same order."""
    import torch

    generator = torch.Generator(next(model.parameters()).device).manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)


def head_of(model: Any) -> Any:
    return model.get_output_embeddings()


# ---------------------------------------------------------------- the loss


def plain_loss(hidden: Any, head: Any, targets: Any) -> Any:
    import torch.nn.functional as F

    logits = head(hidden)
    return F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.reshape(-1))


def cross_entropy_gradient(logits: Any, targets: Any, scale: float) -> tuple[Any, Any]:
    """The summed loss and its gradient by the logits, in float32 inside."""
    import torch

    wide = logits.float()
    lse = torch.logsumexp(wide, dim=-1, keepdim=True)
    hit = torch.arange(logits.size(-1), device=logits.device) == targets[:, None]
    gradient = (torch.exp(wide - lse) - hit.float()) * scale
    chosen = wide.gather(1, targets[:, None])
    return (lse - chosen).sum() * scale, gradient.to(logits.dtype)


def make_chunked_loss(rows: int, half: Any, compiled: bool) -> Callable[..., Any]:
    """The head and the loss a block of tokens at a time, gradient included.

    The gradient is made in the forward pass, while a block's logits are at hand, so
    no more than one block of logits exists and none is computed twice.
    """
    import torch

    step = cross_entropy_gradient
    if compiled:
        step = torch.compile(cross_entropy_gradient, dynamic=False)

    class ChunkedLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Any, weight: Any, targets: Any) -> Any:
            narrow, matrix = hidden.to(half), weight.to(half)
            scale = 1.0 / targets.numel()
            to_hidden = torch.empty_like(narrow)
            to_weight = torch.zeros_like(weight)
            total = torch.zeros((), device=hidden.device)
            with torch.autocast(hidden.device.type, enabled=False):
                for start in range(0, targets.numel(), rows):
                    part = slice(start, start + rows)
                    loss, gradient = step(narrow[part] @ matrix.t(), targets[part], scale)
                    to_hidden[part] = gradient @ matrix
                    to_weight += gradient.t() @ narrow[part]
                    total += loss
            ctx.save_for_backward(to_hidden.to(hidden.dtype), to_weight)
            return total

        @staticmethod
        def backward(ctx: Any, *outer: Any) -> tuple[Any, Any, None]:
            to_hidden, to_weight = ctx.saved_tensors
            return to_hidden * outer[0], to_weight * outer[0], None

    def loss(hidden: Any, head: Any, targets: Any) -> Any:
        flat = hidden.reshape(-1, hidden.size(-1))
        return ChunkedLoss.apply(flat, head.weight, targets.reshape(-1))

    return loss


def make_liger_loss(half: Any) -> Callable[..., Any]:
    import torch
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    fused = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)

    def loss(hidden: Any, head: Any, targets: Any) -> Any:
        flat = hidden.reshape(-1, hidden.size(-1)).to(half)
        return fused(head.weight.to(half), flat, targets.reshape(-1))

    return loss


# ---------------------------------------------------------------- one pass


def make_pass(model: Any, variant: Variant, half: Any, rows: int) -> Callable[[Any], Any]:
    """A function from a batch of tokens to the mean loss of its predictions."""
    import torch

    options: dict[str, Any] = {"dynamic": False}
    if variant.mode != "default":
        options["mode"] = variant.mode
    keywords = {"use_cache": False} if variant.cache_off else {}

    def compiled(function: Any) -> Any:
        return function if variant.compile == "none" else torch.compile(function, **options)

    if variant.loss == "model":
        whole = compiled(model)
        return lambda tokens: whole(input_ids=tokens, labels=tokens, **keywords).loss

    def split(tokens: Any) -> tuple[Any, Any]:
        if variant.inputs == "all":
            return tokens, tokens[:, 1:]
        return tokens[:, :-1], tokens[:, 1:]

    def hidden_of(inputs: Any, count: int) -> Any:
        return model.gpt_neox(inputs, **keywords).last_hidden_state[:, :count]

    head = head_of(model)
    if variant.loss == "chunked":
        loss_of = make_chunked_loss(rows, half, variant.compile != "none")
    elif variant.loss == "liger":
        loss_of = make_liger_loss(half)
    else:
        loss_of = plain_loss

    if variant.compile == "layers":
        for layer in model.gpt_neox.layers:
            layer.compile(**options)
        if variant.loss == "plain":
            # Autotuning the head's huge product costs minutes and gains nothing.
            loss_of = torch.compile(plain_loss, dynamic=False)
    elif variant.loss == "plain":

        @compiled
        def everything(tokens: Any) -> Any:
            inputs, targets = split(tokens)
            return plain_loss(hidden_of(inputs, targets.size(1)), head, targets)

        return everything
    else:
        hidden_of = compiled(hidden_of)

    def pieces(tokens: Any) -> Any:
        inputs, targets = split(tokens)
        return loss_of(hidden_of(inputs, targets.size(1)), head, targets)

    return pieces


# ---------------------------------------------------------------- the optimizer


class Masters:
    """float32 weights and gradients behind half-precision copies of the linear layers.

    The forward pass rounds a weight as autocast does, once an update instead of once
    a pass; every pass's gradient is added in float32, as autocast does.
    """

    def __init__(self, model: Any, half: Any) -> None:
        import torch

        self.pairs: list[tuple[Any, Any]] = []
        self.others: list[Any] = []
        linear = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, torch.nn.Linear)
            for parameter in module.parameters()
        }
        for parameter in model.parameters():
            if id(parameter) not in linear:
                self.others.append(parameter)
                continue
            master = parameter.detach().clone()
            parameter.data = parameter.data.to(half)
            self.pairs.append((parameter, master))
            parameter.register_post_accumulate_grad_hook(self._adder(master))

    @staticmethod
    def _adder(master: Any) -> Callable[[Any], None]:
        def add(parameter: Any) -> None:
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad.add_(parameter.grad)
            parameter.grad = None

        return add

    def parameters(self) -> list[Any]:
        return [master for _, master in self.pairs] + self.others

    def refresh(self) -> None:
        import torch

        with torch.no_grad():
            torch._foreach_copy_([c for c, _ in self.pairs], [m for _, m in self.pairs])


def make_update(model: Any, variant: Variant, half: Any, device: str) -> tuple[Any, Any, Any]:
    """(update, scale, clear): the clipped step, the loss scaling, dropping gradients."""
    import torch

    masters = Masters(model, half) if variant.copies else None
    parameters = masters.parameters() if masters else list(model.parameters())
    fused = {"fused": True} if variant.fused_adam else {}
    optimizer = torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, **fused)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12, enabled=half == torch.float16)

    def update() -> Any:
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if masters:
            masters.refresh()
        return norm.detach()

    return update, scaler.scale, optimizer.zero_grad


# ---------------------------------------------------------------- measuring


def set_attention(name: str) -> None:
    """Leave SDPA one kernel family to choose from; 'auto' and 'library' keep all."""
    import torch

    if name in ("auto", "library", "flex") or not torch.cuda.is_available():
        return
    torch.backends.cuda.enable_flash_sdp(name == "flash")
    torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(name == "efficient")
    torch.backends.cuda.enable_math_sdp(False)


GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("flash", "fmha", "cudnn_generated", "sdpa", "flex", "attention")),
    ("matmul", ("nvjet", "gemm", "cutlass", "cublas", "_mm", "xmma")),
    ("optimizer", ("multi_tensor", "adam", "lpnorm")),
    ("memory", ("memcpy", "memset")),
)


def group_of(kernel: str) -> str:
    low = kernel.lower()
    # Inductor names a fused kernel after the operations in it, attention's too.
    if low.startswith("triton_tem"):
        return "attention" if "flex" in low else "matmul"
    if low.startswith("triton_"):
        return "loss (fused)" if "log_softmax" in low or "nll" in low else "fused pointwise"
    for group, marks in GROUPS:
        if any(mark in low for mark in marks):
            return group
    return "other"


def kernels_of(work: Callable[[], Any]) -> dict[str, Any]:
    """Device time of one run of `work`, by kernel and by group, in milliseconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        work()
        torch.cuda.synchronize()
    groups: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for event in trace.key_averages():
        spent = event.self_device_time_total / 1e3
        if spent <= 0:
            continue
        group = group_of(event.key)
        groups[group] = groups.get(group, 0.0) + spent
        rows.append({"ms": round(spent, 3), "calls": event.count, "group": group, "kernel": event.key[:140]})
    rows.sort(key=lambda row: -row["ms"])
    ranges = [e.time_range for e in trace.events() if "CUDA" in str(e.device_type)]
    span = max(r.end for r in ranges) - min(r.start for r in ranges)
    return {
        # First kernel's start to last kernel's end: above the total, the device idled.
        "span_ms": round(span / 1e3, 2),
        "groups_ms": {k: round(v, 2) for k, v in sorted(groups.items(), key=lambda i: -i[1])},
        "total_ms": round(sum(groups.values()), 2),
        "top": rows[:45],
    }


def environment(device: str) -> dict[str, Any]:
    import torch
    import transformers

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": "cpu",
    }
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["cudnn"] = torch.backends.cudnn.version()
        query = "driver_version,clocks.sm,power.draw,temperature.gpu"
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
        found[query] = answer.stdout.strip().splitlines()[:1]
    return found


def run_variant(name: str, variant: Variant, plan: Plan, tiny: bool, profile_it: bool) -> dict:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = TINY if tiny else SHAPES[variant.model]
    half = torch.bfloat16 if shape.half == "bf16" or device == "cpu" else torch.float16
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    set_attention(variant.attention)
    torch.manual_seed(0)

    began = time.perf_counter()
    model = build_model(shape, variant, device)
    count = sum(p.numel() for p in model.parameters())
    update, scale, clear = make_update(model, variant, half, device)
    one_pass = make_pass(model, variant, half, rows=8192)
    generator = torch.Generator(device).manual_seed(1)
    batches = [
        torch.randint(
            0,
            shape.vocab,
            (shape.micro_batch, shape.context + 1),
            device=device,
            generator=generator,
        )
        for _ in range(plan.passes)
    ]
    losses: list[Any] = []
    norms: list[Any] = []

    def do_pass(tokens: Any) -> None:
        with torch.autocast(device, dtype=half):
            loss = one_pass(tokens)
        # The mean over the passes, so that clipping sees the update's own gradient.
        scale(loss / plan.passes).backward()
        losses.append(loss.detach())

    def synchronize() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def mark() -> Any:
        if device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(first: Any, second: Any) -> float:
        return (second - first) * 1e3 if device == "cpu" else first.elapsed_time(second)

    def do_step(marks: list[tuple[Any, Any, Any]]) -> None:
        start = mark()
        for tokens in batches:
            do_pass(tokens)
        middle = mark()
        norms.append(update())
        marks.append((start, middle, mark()))

    do_pass(batches[0])
    synchronize()
    first_pass = time.perf_counter() - began
    clear()
    for _ in range(plan.warm_steps):
        do_step([])
    synchronize()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    marks: list[tuple[Any, Any, Any]] = []
    began = time.perf_counter()
    for _ in range(plan.timed_steps):
        do_step(marks)
    synchronize()
    wall = time.perf_counter() - began

    passes = sorted(between(a, b) / plan.passes for a, b, _ in marks)
    updates = sorted(between(b, c) for _, b, c in marks)
    pass_ms, update_ms = passes[len(passes) // 2], updates[len(updates) // 2]
    predictions = shape.micro_batch * shape.context
    recipe_passes = shape.batch // shape.micro_batch
    recipe_ms = pass_ms * recipe_passes + update_ms
    flop = shape.matmul_flop_per_token() * predictions
    result = {
        "variant": name,
        "choices": asdict(variant),
        "shape": asdict(shape),
        "parameters": count,
        "plan": asdict(plan),
        "environment": environment(device),
        "seconds_to_first_pass": round(first_pass, 1),
        "wall_tokens_per_s": round(predictions * plan.passes * plan.timed_steps / wall, 1),
        "wall_step_ms": round(wall / plan.timed_steps * 1e3, 2),
        "pass_ms": round(pass_ms, 3),
        "pass_ms_all": [round(v, 3) for v in passes],
        "update_ms": round(update_ms, 3),
        "recipe_tokens_per_s": round(predictions * recipe_passes / recipe_ms * 1e3, 1),
        "pass_matmul_tflop": round(flop / 1e12, 3),
        "pass_tflop_per_s": round(flop / pass_ms / 1e9, 1),
        "losses": [round(float(v), 5) for v in losses],
        "norms": [round(float(v), 4) for v in norms],
    }
    if device == "cuda":
        result["peak_allocated_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if profile_it:
            # Gradients exist already in a pass that is not an update's first.
            do_pass(batches[0])
            result["profile_pass"] = kernels_of(lambda: do_pass(batches[1 % plan.passes]))
            result["profile_update"] = kernels_of(update)
    return result


# ---------------------------------------------------------------- probes


def milliseconds(work: Callable[[], Any], repeats: int) -> float:
    import torch

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    spans = []
    for _ in range(repeats):
        first = torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        spans.append((first, last))
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in spans)
    return times[len(times) // 2]


def probe_ceiling() -> dict[str, Any]:
    import torch

    size = 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    best = milliseconds(lambda: a @ b, 60)
    source = torch.empty(2**31, device="cuda", dtype=torch.bfloat16).normal_()
    target = torch.empty_like(source)
    copy = milliseconds(lambda: target.copy_(source), 20)
    return {
        "bf16_8192_tflop_per_s": round(2 * size**3 / best / 1e9, 1),
        "copy_tb_per_s": round(2 * source.numel() * 2 / copy / 1e9, 2),
        "environment": environment("cuda"),
    }


def probe_attention() -> dict[str, Any]:
    """Forward, and forward with backward, of one layer's attention, by kernel family."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    families = {
        "auto": None,
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    rows = []
    for model, shape in SHAPES.items():
        half = torch.bfloat16 if shape.half == "bf16" else torch.float16
        size = shape.hidden // shape.heads
        for length in (2048, 2049):
            flop = 2 * shape.micro_batch * length**2 * shape.hidden  # causal half
            for layout in ("strided", "contiguous"):
                if length == 2049 and layout == "strided" and model != "pythia-1b":
                    continue
                packed = torch.randn(
                    shape.micro_batch, length, shape.heads, 3 * size, device="cuda", dtype=half
                )
                parts = packed.transpose(1, 2).chunk(3, dim=-1)
                if layout == "contiguous":
                    parts = tuple(part.contiguous() for part in parts)
                q, k, v = (part.detach().requires_grad_() for part in parts)
                outer = torch.randn_like(q).contiguous()
                mask = torch.ones(length, length, device="cuda", dtype=torch.bool).tril()
                for family, backend in families.items():
                    for masked in (False, True):
                        if masked and (layout == "strided" or family == "flash"):
                            continue
                        choice = sdpa_kernel(backend) if backend else nullcontext()
                        extra: dict[str, Any] = (
                            {"attn_mask": mask[None, None].expand(shape.micro_batch, 1, -1, -1)}
                            if masked
                            else {"is_causal": True}
                        )

                        def forward() -> Any:
                            return F.scaled_dot_product_attention(q, k, v, **extra)  # noqa: B023

                        def both() -> None:
                            torch.autograd.grad(forward(), (q, k, v), outer)  # noqa: B023

                        row: dict[str, Any] = {
                            "model": model,
                            "head": size,
                            "length": length,
                            "layout": layout,
                            "family": family,
                            "mask": masked,
                        }
                        try:
                            with choice:
                                with torch.no_grad():
                                    row["forward_ms"] = round(milliseconds(forward, 10), 3)
                                row["both_ms"] = round(milliseconds(both, 10), 3)
                            row["causal_tflop_per_s"] = round(3.5 * flop / row["both_ms"] / 1e9, 1)
                            if family == "auto":
                                top = kernels_of(both)["top"][:4]
                                row["kernels"] = [entry["kernel"][:80] for entry in top]
                        except RuntimeError as error:
                            row["error"] = str(error).splitlines()[0][:160]
                        rows.append(row)
    return {"rows": rows}


def probe_families() -> dict[str, Any]:
    """The same question for attention without causality: does an all-true mask cost?"""
    import torch
    import torch.nn.functional as F

    cases: dict[str, tuple[Any, ...]] = {
        # batch, heads, length, head size, dtype, dropout
        "roberta-large": (64, 16, 512, 64, torch.float16, 0.1),
        "vit-large": (128, 16, 197, 64, torch.float32, 0.0),
    }
    torch.backends.cuda.matmul.allow_tf32 = True
    rows = []
    for model, (batch, heads, length, size, dtype, dropout) in cases.items():
        q, k, v = (
            torch.randn(batch, length, heads, size, device="cuda", dtype=dtype)
            .transpose(1, 2)
            .requires_grad_()
            for _ in range(3)
        )
        outer = torch.randn_like(q)
        full = torch.ones(batch, 1, length, length, device="cuda", dtype=torch.bool)
        for mask in (None, full):

            def both() -> None:
                out = F.scaled_dot_product_attention(q, k, v, mask, dropout)  # noqa: B023
                torch.autograd.grad(out, (q, k, v), outer)  # noqa: B023

            spent = milliseconds(both, 20)
            kernels = [row["kernel"][:80] for row in kernels_of(both)["top"][:3]]
            rows.append(
                {
                    "model": model,
                    "mask": mask is not None,
                    "both_ms": round(spent, 3),
                    "kernels": kernels,
                }
            )
    return {"rows": rows}


def probe_gemm() -> dict[str, Any]:
    """Every matrix product of a Pythia-1B pass on its own: the floor under a pass."""
    import torch

    shape = SHAPES["pythia-1b"]
    hidden, inner = shape.hidden, shape.intermediate
    layers = {
        "query_key_value": (hidden, 3 * hidden, shape.layers),
        "dense": (hidden, hidden, shape.layers),
        "h_to_4h": (hidden, inner, shape.layers),
        "4h_to_h": (inner, hidden, shape.layers),
        "head": (hidden, shape.vocab, 1),
    }
    rows, totals = [], {}
    for tokens in (shape.micro_batch * 2048, shape.micro_batch * 2049):
        total = 0.0
        for name, (width, out, times) in layers.items():
            x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
            w = torch.randn(out, width, device="cuda", dtype=torch.bfloat16)
            g = torch.randn(tokens, out, device="cuda", dtype=torch.bfloat16)
            row: dict[str, Any] = {"tokens": tokens, "layer": name, "times": times}
            for which, work in {
                "forward": lambda: x @ w.t(),  # noqa: B023
                "to_input": lambda: g @ w,  # noqa: B023
                "to_weight": lambda: g.t() @ x,  # noqa: B023
            }.items():
                spent = milliseconds(work, 8)
                row[which + "_ms"] = round(spent, 3)
                row[which + "_tflop_per_s"] = round(2 * tokens * width * out / spent / 1e9, 1)
                total += spent * times
            rows.append(row)
        totals[str(tokens)] = round(total, 2)
    return {"total_ms_a_pass": totals, "rows": rows}


# ---------------------------------------------------------------- the mask question


def run_graph(name: str) -> dict[str, Any]:
    """What the compiled graph hands to SDPA: a mask, or is_causal? Needs no GPU."""
    import torch

    calls: list[dict[str, Any]] = []

    def look(graph: Any, _inputs: Any) -> Any:
        for node in graph.graph.nodes:
            if "scaled_dot_product_attention" in str(node.target):
                mask = node.kwargs.get("attn_mask")
                calls.append({"mask": mask is not None, "is_causal": bool(node.kwargs.get("is_causal"))})
        return graph.forward

    if name in FAMILIES:
        model, inputs = family(name)
    else:
        variant = VARIANTS[name]
        model = build_model(TINY, variant, "cpu")
        tokens = torch.randint(0, TINY.vocab, (2, TINY.context))
        inputs = {"input_ids": tokens, "labels": tokens}
        if variant.cache_off:
            inputs["use_cache"] = False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.compile(model, backend=look)(**inputs)
    return {"variant": name, "calls": calls, "environment": environment("cpu")}


FAMILIES = ("roberta", "roberta-ones", "vit", "llama", "gpt2")


def family(name: str) -> tuple[Any, dict[str, Any]]:
    """A toy model of another family and a batch for it, to see what mask it is given."""
    import torch
    import transformers as t

    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "attn_implementation": "sdpa",
    }
    if name == "vit":
        model = t.ViTForImageClassification(t.ViTConfig(image_size=32, patch_size=8, **sizes))
        pixels = torch.randn(2, 3, 32, 32)
        return model.train(), {"pixel_values": pixels, "labels": torch.zeros(2, dtype=torch.long)}
    tokens = torch.randint(5, 512, (2, 128))
    inputs = {"input_ids": tokens, "labels": tokens}
    if name == "llama":
        model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=512, **sizes))
        inputs["use_cache"] = False
    elif name == "gpt2":
        small = {"n_embd": 64, "n_layer": 2, "n_head": 4, "attn_implementation": "sdpa"}
        model = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=512, **small))
        inputs["use_cache"] = False
    else:
        config = t.RobertaConfig(vocab_size=512, max_position_embeddings=256, **sizes)
        model = t.RobertaForMaskedLM(config)
        if name == "roberta-ones":
            inputs["attention_mask"] = torch.ones_like(tokens)
    return model.train(), inputs


# ---------------------------------------------------------------- running them


def summary(name: str, result: dict[str, Any]) -> str:
    if "wall_tokens_per_s" not in result:
        return f"{name}: {json.dumps(result)[:3000]}"
    parts = [
        f"{name}: {result['recipe_tokens_per_s']:.0f} tok/s",
        f"pass {result['pass_ms']:.1f} ms",
        f"update {result['update_ms']:.1f} ms",
        f"wall {result['wall_tokens_per_s']:.0f}",
        f"peak {result.get('peak_allocated_gib', math.nan)} GiB",
        f"first pass {result['seconds_to_first_pass']} s",
        f"loss {result['losses'][1]} .. {result['losses'][-1]} norm {result['norms'][0]}",
    ]
    if "profile_pass" in result:
        parts.append(json.dumps(result["profile_pass"]["groups_ms"]))
    return " | ".join(parts)


def inner(name: str, options: argparse.Namespace) -> None:
    out = Path(options.out)
    if name in PROBES:
        probes: dict[str, Callable[[], dict[str, Any]]] = {
            "ceiling": probe_ceiling,
            "attention": probe_attention,
            "families": probe_families,
            "gemm": probe_gemm,
        }
        result = probes[name]()
        (out / f"{name}.json").write_text(json.dumps(result, indent=1))
        brief = result
        if name == "attention":
            keys = ("model", "length", "layout", "family", "mask", "forward_ms", "both_ms")
            brief = {"rows": [[r.get(k) for k in keys] for r in result["rows"]]}
        print(name, json.dumps(brief)[:6000], flush=True)
        return
    variant = VARIANTS.get(name, PLAIN)
    if variant.release == "old":
        import transformers

        assert transformers.__version__ == OLD_RELEASE, transformers.__version__
    if options.graph:
        result = run_graph(name)
        (out / f"graph-{name}.json").write_text(json.dumps(result, indent=1))
        print(name, json.dumps(result["calls"]), flush=True)
        return
    plan = Plan(options.passes, options.warm, options.steps)
    result = run_variant(name, variant, plan, options.tiny, not options.no_profile)
    (out / f"{name}.json").write_text(json.dumps(result, indent=1))
    print(summary(name, result), flush=True)


def outer(names: Iterable[str], options: argparse.Namespace) -> None:
    began = time.monotonic()
    for name in names:
        left = options.budget - (time.monotonic() - began)
        if left < 20:
            print(f"{name}: skipped, out of time", flush=True)
            continue
        environ = dict(os.environ)
        if name in VARIANTS and VARIANTS[name].release == "old":
            if not options.old_site:
                print(f"{name}: skipped, it needs --old-site", flush=True)
                continue
            environ["PYTHONPATH"] = options.old_site
        command = [sys.executable, __file__, "--inner", name, *sys.argv[1:]]
        if name in VARIANTS and VARIANTS[name].attention not in ("library", "auto", "flex"):
            # The compiler's cache does not look at SDPA's switches: with a warm cache a
            # run that allows only one kernel family gets the graph of another.
            environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
        # A fragmented pool is no property of the variant.
        environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        try:
            done = subprocess.run(
                command,
                env=environ,
                timeout=min(left, options.timeout),
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            if done.returncode:
                print(f"{name}: failed\n{done.stderr[-1500:]}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"{name}: over its time", flush=True)
        print(f"  [{time.monotonic() - began:.0f} s]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", default="new-plain,new-causal,new-cudnn")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--old-site", default="", help=f"folder with transformers {OLD_RELEASE}")
    parser.add_argument("--tiny", action="store_true", help="a toy size, for a CPU")
    parser.add_argument("--graph", action="store_true", help="only what SDPA is called with")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=150, help="seconds for one variant")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for all of them")
    parser.add_argument("--inner", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        inner(options.inner, options)
        return
    names = [name for name in options.variants.split(",") if name]
    known = [*VARIANTS, *(FAMILIES if options.graph else PROBES)]
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    Path(options.out).mkdir(parents=True, exist_ok=True)
    outer(names, options)


if __name__ == "__main__":
    main()
