"""Train every architecture of transformers that has a class for one of bench's objectives, made small.

    PYTHONPATH=. python benchmarks/architectures.py [TYPE...] > docs/models.md

Each architecture is planned as a manifest's own model and trained two steps on the CPU, in a process of its
own, within limits of time and memory. What does not train is listed with the reason. Takes a quarter of an
hour on two cores.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

SECONDS, BYTES = 60, 12 * 2**30  # of one architecture
# Small values of fields that many configurations have, by their names.
SIZES: Mapping[int, str] = {
    2: """num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_encoder_layers
          num_decoder_layers num_key_value_heads num_experts_per_tok moe_k moe_topk top_k eos_token_id""",
    4: """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads
          num_experts num_local_experts n_routed_experts moe_num_experts""",
    1: "n_group topk_group bos_token_id",
    0: "pad_token_id",
    16: "head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim",
    32: "q_lora_rank kv_lora_rank",
    64: "hidden_size n_embd d_model dim embed_dim embedding_size emb_dim moe_intermediate_size",
    128: "intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim n_inner hidden_dim",
    1000: "vocab_size",
}
SMALL = {field: value for value, fields in SIZES.items() for field in fields.split()}
RECIPE = {"batch_size": 2, "steps": 10, "precision": "fp32"}


def made_small(model_type: str, objective: str) -> dict[str, Any]:
    """Return an architecture of this type with small sizes, in so far as its fields have usual names."""
    from transformers import CONFIG_MAPPING

    from bench.training.models import families

    default = CONFIG_MAPPING[model_type]().to_dict()
    if "text_config" in default:
        return {"model_type": model_type, "text_config": {"model_type": f"{model_type}_text"}}
    if objective == "image-classification":  # widths of stages must fit each other, and are small by default
        layers = {"num_hidden_layers": 2} if type(default.get("num_hidden_layers")) is int else {}
        return {"model_type": model_type, "num_labels": 10, **layers}
    given: dict[str, Any] = {
        field: value
        for field, value in SMALL.items()
        if type(default.get(field)) is int or (field.endswith("_id") and field in default)
    }
    if objective == "causal-lm" and default.get("is_decoder") is False and model_type not in families():
        given["is_decoder"] = True
    if "kv_lora_rank" in default:  # latent attention: as many heads of keys as of queries
        given["num_key_value_heads"] = given.get("num_attention_heads", 4)
    if "rotary_dim" in default:
        given["rotary_dim"] = 8
    return {"model_type": model_type, **given}


def image_size(model_type: str) -> int:
    from transformers import CONFIG_MAPPING

    size = getattr(CONFIG_MAPPING[model_type](), "image_size", 64)
    return size if type(size) is int else 224


def train(model_type: str, objective: str) -> str:
    """Plan and train an architecture; return the reason why that failed, or an empty text."""
    from bench.planning.manifest import resolve_models
    from bench.records.trial import Timing, Trial
    from bench.runner.trial.device import Device
    from bench.runner.trial.run_trial import TrialRun
    from bench.runner.trial.team import Team
    from bench.training.models import families
    from bench.training.models.dry_build import dry_build

    architecture = made_small(model_type, objective)
    size = {"image_size": image_size(model_type)} if "image" in objective else {"sequence_length": 32}
    recipe = {**RECIPE, "objective": objective, **size}
    models, mistakes = resolve_models([{"name": "small", "architecture": architecture, "recipe": recipe}])
    if models and models[0].family not in families():
        mistakes += dry_build(models[0], "/models/0").mistakes
    if mistakes:
        return f"{mistakes[0].path.removeprefix('/models/0/')}: {mistakes[0].found}"
    with tempfile.TemporaryDirectory() as scratch:
        trial = Trial(models[0], (), 2, 1, 0, Timing())
        run = TrialRun(trial, Device("cpu"), Team(), Path(scratch), lambda _event: None)
        run.prepare()
        losses = [float(run.step(1)) for _ in range(2)]
    return "" if all(abs(loss) < 1e6 for loss in losses) else f"its losses are {losses}"


def main_of_one(model_type: str, objective: str) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        reason = train(model_type, objective)
    except Exception as error:  # an architecture's code may raise anything
        reason = f"{type(error).__name__}: {error}"
    print(json.dumps(" ".join(reason.split())[:160]), file=sys.stdout, flush=True)


def outcome(pair: tuple[str, str]) -> str:
    """Return the reason why a pair of type and objective does not train, from a process of its own."""
    import subprocess

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
        signal.alarm(SECONDS)

    command = [sys.executable, __file__, "--one", *pair]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return str(json.loads(lines[-1]))
    if done.returncode == -signal.SIGALRM:
        return f"takes more than {SECONDS} s: not all of its sizes became small"
    return f"ended with {done.returncode}"


def pairs(chosen: Sequence[str]) -> list[tuple[str, str]]:
    from transformers import CONFIG_MAPPING

    from bench.training.models.generic import kinds

    found = []
    for model_type in chosen or sorted(CONFIG_MAPPING):
        for objective, kind in kinds().items():
            if CONFIG_MAPPING[model_type] in kind._model_mapping:
                found.append((model_type, str(objective)))
    return found


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        main_of_one(*sys.argv[2:4])
        return
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    every = pairs(sys.argv[1:])
    with ThreadPoolExecutor(2) as two:
        reasons = dict(zip(every, two.map(partial(outcome), every), strict=True))
    print(page(reasons))


def page(reasons: Mapping[tuple[str, str], str]) -> str:
    import transformers

    trained = [pair for pair, reason in reasons.items() if not reason]
    made = f"Made by `benchmarks/architectures.py` with transformers {transformers.__version__}."
    lines = [
        "# Architectures",
        "",
        f"{made} Every type that has a class for causal or masked language modelling or for image "
        "classification was made small by the usual names of its fields, planned as a manifest's own model, "
        "and trained two steps on a CPU.",
        "",
        f"{len(trained)} of {len(reasons)} pairs of type and objective train. The reasons of the others are "
        "those of the small model; some only need sizes that fit each other.",
        "",
    ]
    for objective in dict.fromkeys(objective for _, objective in reasons):
        names = ", ".join(f"`{name}`" for name, of in trained if of == objective)
        lines += [f"## {objective}", "", f"Train: {names or 'none'}.", ""]
        lines += ["| does not train | why |", "|---|---|"]
        lines += [
            f"| `{name}` | {reason.replace('|', '/')} |"
            for (name, of), reason in reasons.items()
            if of == objective and reason
        ]
        lines.append("")
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    main()
