"""The parts of a script that update weights: optimizer, schedule, and weights in half precision.

Pure: takes a trial and returns source.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.export.standalone.python_source import Constant, SourcePart
from bench.records.trial import Trial
from bench.training.models import families
from bench.training.optimizers import Muon
from bench.training.schedules import WarmupStableDecay
from bench.training.setting import in_group, sharded_by

TORCH, NN = "import torch", "from torch import nn"


def update_constants(trial: Trial) -> Iterator[Constant]:
    """Yield the constants of optimizer and schedule."""
    recipe = trial.model.recipe
    optimizer, schedule = recipe.optimizer, recipe.schedule
    options = {
        "lr": optimizer.learning_rate, "betas": [optimizer.beta1, optimizer.beta2],
        "eps": optimizer.epsilon, "weight_decay": optimizer.weight_decay,
    }  # fmt: skip
    if isinstance(optimizer, Muon):
        yield Constant("MUON_RATE", optimizer.learning_rate, "of the matrices, after the warm-up")
        yield Constant("MOMENTUM", optimizer.momentum, "of Muon")
        yield Constant("ITERATIONS", optimizer.ns_steps, "of Newton and Schulz")
        options |= {"lr": optimizer.adamw_options["lr"]}
    yield Constant("ADAMW", options)
    if recipe.clip_norm is not None:
        yield Constant("CLIP_NORM", recipe.clip_norm, "the largest norm of all gradients")
    yield Constant("WARMUP_STEPS", schedule.warmup_steps, "in which the rate rises to that of the optimizer")
    if isinstance(schedule, WarmupStableDecay):
        yield Constant(
            "DECAY_STEPS", schedule.decaying_steps(recipe.steps), "the last ones, in which it falls"
        )
    if schedule.final_ratio and schedule.name != "constant":
        yield Constant("FINAL_RATIO", schedule.final_ratio, "of the last rate to the peak")


def update_parts(trial: Trial) -> Iterator[SourcePart]:
    """Yield the parts in the order in which the script has them."""
    optimizer = trial.model.recipe.optimizer
    if isinstance(optimizer, Muon):
        yield _muon(trial, optimizer)
        yield MUON_GROUPS
    yield _schedule(trial)
    if may_share_gradients(trial):
        yield SourcePart(SEPARATE_GRADIENTS)
    if "half-weights" in trial.setting:
        norms = "" if trial.model.family in families() else NORMS_OVER_BATCHES
        chosen = "set(whole.parameters()) - exact" if norms else "whole.parameters()"
        code = HALF_WEIGHTS.replace("{norms}", norms).replace("{chosen}", chosen)
        yield SourcePart(code, (TORCH, NN, "from functools import partial"))


def may_share_gradients(trial: Trial) -> bool:
    """Whether compiled code may return the same memory as gradients of two weights that both stay whole."""
    kept_elsewhere = sharded_by(trial.setting) is not None or "half-weights" in trial.setting
    return in_group(trial.setting, "compilation") is not None and not kept_elsewhere


def optimizer_lines(trial: Trial) -> list[str]:
    """Return the lines that make the optimizer of `weights`."""
    if isinstance(trial.model.recipe.optimizer, Muon):
        return ["optimizer = make_optimizer(whole, blocks, weights)"]
    return [f"optimizer = torch.optim.AdamW(weights, **ADAMW{_fused(trial)})"]


def _fused(trial: Trial) -> str:
    return ", fused=True" if "fused-optimizer" in trial.setting else ""


MUON_GROUPS = SourcePart(
    '''
def make_optimizer(whole, blocks, weights):
    """Return Muon for the matrices of the blocks, with AdamW for all other weights.

    `weights` are those of `whole` in their order, or fp32 copies of them.
    """
    tables = {part.weight for part in whole.modules() if isinstance(part, nn.Embedding)}
    layers = (part for block in blocks for part in block.modules() if is_matrix(part))
    found = {part.weight for part in layers} - tables
    trained = [weight for weight in whole.parameters() if weight.requires_grad]
    pairs = list(zip(trained, weights, strict=True))
    matrices = [own for weight, own in pairs if weight in found]
    return Muon(matrices, [own for weight, own in pairs if weight not in found])
''',
    (TORCH, NN),
)


def _muon(trial: Trial, muon: Muon) -> SourcePart:
    if muon.adjust_lr == "original":
        factor = "max(1.0, rows / columns) ** 0.5"
    else:
        factor = "0.2 * max(rows, columns) ** 0.5  # an update is then as large as AdamW's"
    direction = "grad.lerp(kept, MOMENTUM)" if muon.nesterov else "kept"
    return SourcePart(
        f'''
def is_matrix(layer):
    """Whether a layer multiplies by one matrix: linear, or a convolution of all channels."""
    conv = isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and layer.groups == 1
    return isinstance(layer, (nn.Linear, Conv1D)) or conv


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix gets singular values near one (kellerjordan.github.io/posts/muon)."""

    def __init__(self, matrices, rest):
        self.adamw = torch.optim.AdamW([{{"params": rest}}], **ADAMW{_fused(trial)})
        super().__init__([{{"params": matrices, "lr": MUON_RATE}}, *self.adamw.param_groups], {{}})

    @torch.no_grad()
    def step(self):
        own, *others = self.param_groups
        for weight in (one for one in own["params"] if one.grad is not None):
            grad, state = weight.grad, self.state[weight]
            kept = state.setdefault("momentum", torch.zeros_like(weight))
            kept.lerp_(grad, 1 - MOMENTUM)
            change = orthogonalised({direction}.flatten(1).bfloat16())
            rows, columns = change.shape
            factor = {factor}
            weight.mul_(1 - own["lr"] * ADAMW["weight_decay"])
            weight.add_(change.reshape(weight.shape), alpha=-own["lr"] * factor)
        self.adamw.param_groups, self.adamw.state = others, self.state
        self.adamw.step()


def orthogonalised(matrix):
    """Return a matrix with the same singular vectors, by iterations of Newton and Schulz."""
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.mT if tall else matrix
    x = x / torch.linalg.vector_norm(x, dtype=torch.float32).clamp(min=1e-7).to(x.dtype)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        square = torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.addmm(x, square, x, beta=3.4445)
    return x.mT if tall else x
''',
        (TORCH, NN, "from transformers.pytorch_utils import Conv1D"),
    )


def falling(left: str, final_ratio: float) -> str:
    """Return the line that returns a falling factor: `left` of the way down to the final ratio."""
    return f"return FINAL_RATIO + (1.0 - FINAL_RATIO) * {left}" if final_ratio else f"return {left}"


def _schedule(trial: Trial) -> SourcePart:
    schedule = trial.model.recipe.schedule
    imports: tuple[str, ...] = ()
    lines = ["if step < WARMUP_STEPS:", "    return (step + 1) / WARMUP_STEPS"]
    if isinstance(schedule, WarmupStableDecay):
        lines += ["progress = (step - (STEPS - DECAY_STEPS)) / max(1, DECAY_STEPS)"]
        lines += ["progress = min(1.0, max(0.0, progress))"]
        left = "math.sqrt(progress)" if schedule.decay == "1-sqrt" else "progress"
        imports = ("import math",) if schedule.decay == "1-sqrt" else ()
        lines += [falling(f"(1.0 - {left})", schedule.final_ratio)]
    elif schedule.name == "constant":
        lines += ["return 1.0"]
    else:
        lines += ["progress = min(1.0, (step - WARMUP_STEPS) / max(1, STEPS - WARMUP_STEPS))"]
        left = "(1.0 - progress)" if schedule.final_ratio else "1.0 - progress"
        if schedule.name == "cosine":
            imports, left = ("import math",), "0.5 * (1.0 + math.cos(math.pi * progress))"
        lines += [falling(left, schedule.final_ratio)]
    body = "\n".join(f"    {line}" for line in lines)
    return SourcePart(
        f'''
def rate_factor(step):
    """Return the share of the peak rate with which the step after `step` updates trains."""
{body}
''',
        imports,
    )


SEPARATE_GRADIENTS = '''
def separate_gradients(weights):
    """Give each gradient memory of its own: compiled code may return one for two weights."""
    seen = set()
    for weight in weights:
        if weight.grad is not None and weight.grad.data_ptr() in seen:
            weight.grad = weight.grad.clone()
        seen.add(None if weight.grad is None else weight.grad.data_ptr())
'''
# Weights of norms over batches stay in fp32; no family of bench has such norms.
NORMS_OVER_BATCHES = """\
    norms = (part for part in whole.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
    exact = {weight for norm in norms for weight in norm.parameters(recurse=False)}
"""
HALF_WEIGHTS = '''
def halve_weights(whole):
    """Return the weights, now in half precision, their fp32 copies, and the copies' gradients."""
    weights = [weight for weight in whole.parameters() if weight.requires_grad]
    copies = [nn.Parameter(weight.detach().clone()) for weight in weights]
    sizes = [-(-copy.numel() // 128) * 128 for copy in copies]  # kernels like aligned tensors
    gradients = torch.zeros(sum(sizes), device=copies[0].device)
    for weight, copy, part in zip(weights, copies, gradients.split(sizes), strict=True):
        copy.grad = part[: copy.numel()].view_as(copy)
        weight.register_post_accumulate_grad_hook(partial(add_gradient, copy))
{norms}    for weight in {chosen}:
        weight.data = weight.data.to(HALF)
    return weights, copies, gradients


def add_gradient(copy, weight):  # on a GPU bench adds within products, which round later
    copy.grad += weight.grad
    weight.grad = None
'''
