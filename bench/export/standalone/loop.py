"""The parts of a script that start it: its arguments, its processes, the training loop.

Pure: takes a trial and returns source.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.export.standalone.checkpoints import kept
from bench.export.standalone.model import blocks_of, changed_by_methods, needs_blocks
from bench.export.standalone.python_source import SourcePart
from bench.export.standalone.updates import may_share_gradients, optimizer_lines
from bench.records.trial import Trial
from bench.training.models import uses_all_weights
from bench.training.models.footprint import autocasts
from bench.training.setting import in_group, sharded_by

HALF = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def several_processes(trial: Trial) -> bool:
    """Whether the script needs a process group: sharding needs one on one device too."""
    return trial.gpus > 1 or sharded_by(trial.setting) is not None


def loop_parts(trial: Trial) -> Iterator[SourcePart]:
    """Yield the parts in the order in which the script has them."""
    if sharded_by(trial.setting) == "fsdp":
        yield _fsdp(trial)
    if sharded_by(trial.setting) == "zero":
        yield _zero(trial)
    yield _start(trial)
    yield _main(trial)


def _start(trial: Trial) -> SourcePart:
    """Return the function that reads the arguments and finds the device, of one process or of several."""
    lines, imports = ['device = torch.device("cuda" if torch.cuda.is_available() else "cpu")'], []
    if several_processes(trial):
        lines = [
            'if (processes := int(os.environ.get("WORLD_SIZE", "0"))) != GPUS:',
            '    raise SystemExit(f"start {GPUS} processes with torchrun: here are {processes}")',
            "cuda = torch.cuda.is_available()",
            'device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")',
            "if cuda:",
            "    torch.cuda.set_device(device)",
        ]
        imports = ["import os", "import torch.distributed as dist"]
        lines.append('dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")')
    body = "\n".join(f"    {line}" for line in lines)
    return SourcePart(
        f'''
def start():
    """Return the arguments and the device of this process."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=STEPS, help="the last step")
    add("--log-every", type=int, default=LOG_EVERY, help="steps between two lines of the log")
    add("--out", type=Path, help="folder of the checkpoints; without it none is saved")
    add("--resume", action="store_true", help="go on from the last checkpoint in --out")
    options = parser.parse_args()
    if options.resume and not options.out:
        parser.error("--resume needs --out")
    if options.out and options.out.exists() and any(options.out.iterdir()) and not options.resume:
        parser.error(f"{{options.out}} is not empty: --resume continues, another --out starts over")
{body}
    return options, device
''',
        ("import argparse", "from pathlib import Path", "import torch", *imports),
    )


def _fsdp(trial: Trial) -> SourcePart:
    half = trial.model.recipe.half
    parameters_too = "fsdp-3" in trial.setting
    policy = (
        "    # Gradients are summed in fp32; inputs are not cast, as under autocast alone.\n"
        "    policy = MixedPrecisionPolicy(HALF, torch.float32, None, cast_forward_inputs=False)\n"
        if half
        else "    policy = MixedPrecisionPolicy(cast_forward_inputs=False)\n"
    )
    what = "parameters, gradients and moments" if parameters_too else "gradients and moments"
    return SourcePart(
        f'''
def shard(whole, blocks, device):
    """Divide {what} of blocks and of the rest among processes."""
    mesh = init_device_mesh(device.type, (GPUS,))
{policy}    for module in [*blocks, whole]:
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward={parameters_too})
''',
        (
            "from torch.distributed.device_mesh import init_device_mesh",
            "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
        ),
    )


def _zero(trial: Trial) -> SourcePart:
    recipe = trial.model.recipe
    stage = int(str(in_group(trial.setting, "sharding")).removeprefix("zero-"))
    clip = "CLIP_NORM" if recipe.clip_norm is not None else "0.0"
    return SourcePart(
        f'''
def make_engine(whole, optimizer):
    """Return DeepSpeed's engine, whose weights have the precision of matrix products."""
    configuration = {{
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": 1,  # the loop below says which pass is the last
        "gradient_clipping": {clip},
        "zero_optimization": {{"stage": {stage}, "contiguous_gradients": True}},
        "bf16": {{"enabled": {recipe.half == "bf16"}}},
        "fp16": {{"enabled": {recipe.half == "fp16"}}},
        "data_types": {{"grad_accum_dtype": "fp32"}},  # half precision would lose digits
        "steps_per_print": 1 << 40,
    }}
    return deepspeed.initialize(model=whole, optimizer=optimizer, config=configuration)[0]
''',
        ("import deepspeed",),
    )


def _main(trial: Trial) -> SourcePart:
    """Return `main`, which builds everything, and then repeats passes and updates."""
    several, ddp = several_processes(trial), _uses_ddp(trial)
    body = "\n".join(f"    {line}" for line in [*_preparation(trial), *_loop(trial)])
    imports = ["import gc", "import json", "import math", "import time", "import torch"]
    imports += ["from torch.optim.lr_scheduler import LambdaLR"]
    imports += ["import torch.distributed as dist"] if several else []
    imports += ["from torch.nn.parallel import DistributedDataParallel"] if ddp else []
    imports += ["from contextlib import nullcontext"] if ddp else []
    imports += ["from torch import nn"]
    return SourcePart(
        f"""
def main():
{body}


if __name__ == "__main__":
    main()
""",
        tuple(imports),
    )


def _uses_ddp(trial: Trial) -> bool:
    return trial.gpus > 1 and sharded_by(trial.setting) is None and "half-weights" not in trial.setting


def _scales_loss(trial: Trial) -> bool:
    return trial.model.recipe.precision == "fp16" and sharded_by(trial.setting) != "zero"


def _preparation(trial: Trial) -> list[str]:
    """Return the lines of `main` that build the model, the optimizer and what a checkpoint holds."""
    setting, sharded = trial.setting, sharded_by(trial.setting)
    half_weights = "half-weights" in setting
    lines = [
        "options, device = start()",
        "torch.manual_seed(SEED)",
        f"torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = {'tf32' in setting}",
        "model = build_model(device)",
        "whole = WithLoss(model)",
        *([f"blocks = {blocks_of(trial)}"] if needs_blocks(trial) else []),
    ]
    if in_group(setting, "compilation") or "checkpointing" in setting:
        lines.append(f"apply_methods({', '.join(changed_by_methods(trial))})")
    if sharded == "fsdp":
        lines.append("shard(whole, blocks, device)")
    if half_weights:
        lines.append("halved, weights, gradients = halve_weights(whole)")
    else:
        lines.append("weights = [weight for weight in whole.parameters() if weight.requires_grad]")
    if sharded == "zero":
        lines += [
            "# Weights of odd size would misalign all that follow them: DeepSpeed issue 2700.",
            "weights.sort(key=lambda weight: weight.numel() % 8 != 0)",
        ]
    lines += optimizer_lines(trial)
    if sharded == "zero":
        lines.append("engine = make_engine(whole, optimizer)")
    lines.append("schedule = LambdaLR(optimizer, rate_factor)")
    if _scales_loss(trial):
        lines.append("scaler = torch.amp.GradScaler(device.type)")
    if _uses_ddp(trial):
        unused = "" if uses_all_weights(trial.model) else ", find_unused_parameters=True"
        lines.append(f"replica = DistributedDataParallel(whole, gradient_as_bucket_view=True{unused})")
    if sharded != "zero":
        pairs = ", ".join(f'"{name}": {value}' for name, value in kept(trial).items())
        lines.append(f"parts = {{{pairs}}}")
        if half_weights:
            lines.append('parts["copies"] = nn.ParameterList(weights)')
    return lines


def _loop(trial: Trial) -> list[str]:
    """Return the lines of `main` that load a checkpoint, and repeat steps, log lines and checkpoints."""
    recipe, sharded, several = trial.model.recipe, sharded_by(trial.setting), several_processes(trial)
    scaled, ddp = _scales_loss(trial), _uses_ddp(trial)
    autocast = autocasts(trial.model, trial.setting)
    passes = _passes(trial, ddp=ddp, autocast=autocast, scaled=scaled)
    save, load = _checkpoint_calls(trial)
    return [
        f"done = {load} if options.resume else 0",
        f"batches = batches_of(device, {'dist.get_rank()' if several else '0'}, done * PASSES)",
        "total, logged, since = torch.zeros((), device=device), done, time.perf_counter()",
        "for step in range(done + 1, options.steps + 1):",
        *(f"    {line}" for line in [*passes, *_update(trial, scaled=scaled)]),
        "    saves = options.out and (step % SAVE_EVERY == 0 or step == options.steps)",
        "    if step == done + 3:  # all is compiled: Python's collector need not search it any more",
        "        gc.freeze()",
        "    if saves or step % options.log_every == 0 or step == options.steps:",
        *(["        dist.all_reduce(total)"] if several else []),
        f"        loss = float(total) / (step - logged){' / GPUS' if several else ''}  # waits for a GPU",
        "        if not math.isfinite(loss):",
        '            raise SystemExit(f"the loss is {loss} by step {step}: lower the rate")',
        "        seconds = (time.perf_counter() - since) / (step - logged)",
        '        log = {"step": step, "loss": loss, "step_seconds": seconds}',
        f'        log["{recipe.unit}_per_second"] = round({_units(trial)} / seconds)',
        *(["        if dist.get_rank() == 0:"] if several else []),
        f"        {'    ' if several else ''}print(json.dumps(log), flush=True)",
        "        total.zero_()",
        "        logged, since = step, time.perf_counter()",
        f"    if saves{' and dist.get_rank() == 0' if several and sharded is None else ''}:",
        f"        {save}",
    ]


def unit_constant(trial: Trial) -> str | None:
    """Return the constant that holds how many tokens or seconds a sample has; None if it counts as one."""
    recipe = trial.model.recipe
    if recipe.units_per_sample == 1:
        return None
    return "LENGTH" if recipe.units_per_sample == recipe.sequence_length else "UNITS"


def _units(trial: Trial) -> str:
    samples = "MICRO_BATCH * PASSES * GPUS"
    unit = unit_constant(trial)
    return f"{samples} * {unit}" if unit else samples


def _checkpoint_calls(trial: Trial) -> tuple[str, str]:
    match sharded_by(trial.setting):
        case "zero":
            return ("save(options.out, step, engine, schedule)", "load(options.out, engine, schedule)")
        case "fsdp":
            return (
                "save(options.out, step, whole, optimizer, parts)",
                "load(options.out, whole, optimizer, parts)",
            )
        case _:
            return "save(options.out, step, parts)", "load(options.out, device, parts)"


def _passes(trial: Trial, *, ddp: bool, autocast: bool, scaled: bool) -> list[str]:
    """Return the lines that run the passes of a step."""
    sharded = sharded_by(trial.setting)
    says_last = ddp or sharded == "zero" or "fsdp-2" in trial.setting  # which pass is the last
    lines = [f"for {'number' if says_last and trial.accumulation > 1 else '_'} in range(PASSES):"]
    last = "number == PASSES - 1" if trial.accumulation > 1 else "True"
    if sharded == "zero":
        return [
            *lines,
            f"    engine.set_gradient_accumulation_boundary({last})",
            "    loss = engine(next(batches)) / PASSES",
            "    engine.backward(loss, scale_wrt_gas=False)",
            "    total += loss.detach()",
        ]
    body = ["batch = next(batches)"]
    if sharded == "fsdp":
        always = "fsdp-3" in trial.setting or trial.accumulation == 1
        body.append(f"whole.set_reshard_after_backward({'True' if always else last})")
    called = "replica" if ddp else "whole"
    computed = [f"loss = {called}(batch) * (1 / PASSES)"]
    if autocast:
        computed = ["with torch.autocast(device.type, HALF):", f"    {computed[0]}"]
    computed.append("scaler.scale(loss).backward()" if scaled else "loss.backward()")
    if may_share_gradients(trial):
        computed.append("separate_gradients(weights)")
    if ddp and trial.accumulation > 1:
        body.append(f"with nullcontext() if {last} else replica.no_sync():")
        computed = [f"    {line}" for line in computed]
    return [*lines, *(f"    {line}" for line in [*body, *computed, "total += loss.detach()"])]


def _update(trial: Trial, *, scaled: bool) -> list[str]:
    """Return the lines that update the weights at the end of a step."""
    if sharded_by(trial.setting) == "zero":
        return ["engine.step()", "schedule.step()"]
    half_weights = "half-weights" in trial.setting
    lines: list[str] = []
    if half_weights and trial.gpus > 1:
        lines += ["dist.all_reduce(gradients)", "gradients /= GPUS"]
    lines += ["scaler.unscale_(optimizer)"] if scaled else []
    if trial.model.recipe.clip_norm is not None:
        lines.append("nn.utils.clip_grad_norm_(weights, CLIP_NORM)")
    lines += ["scaler.step(optimizer)", "scaler.update()"] if scaled else ["optimizer.step()"]
    lines.append("schedule.step()")
    if not half_weights:
        return [*lines, "optimizer.zero_grad()"]
    return [*lines, "gradients.zero_()", "with torch.no_grad():", "    torch._foreach_copy_(halved, weights)"]
