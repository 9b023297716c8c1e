"""Measure what `bench plan` costs for architectures that users bring, and what it does not know of them.

    PYTHONPATH=. python benchmarks/plan_cost.py [--products] [NAME...]

Each architecture is planned by a process of its own, at the size of a published model: PUBLIC has the fields
of some, and of the others transformers' default configuration, which is a published model's, too. A name is
a type, or one of PUBLIC. The table has the processor seconds of the plan as a ratio to that of Llama-7B,
planned in the same run before and after the others; in how many settings the plan does not know the memory;
and with --products, whether a run would know what the model multiplies. Takes about ten minutes of one core
for the default types.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.architectures import pairs
from benchmarks.command_cost import cost

REFERENCE = "llama"
MOST_POSITIONS = 4096
LABELS = 1000
PADDED_TO = 256  # a sample's length is a multiple of it: positions may begin after the padding's
POSITIONS = ("max_position_embeddings", "max_sequence_length", "n_positions", "max_seq_len")
# Of sizes that the fields of an architecture do not limit.
SIZES: Mapping[str, float] = {"target_length": 512, "audio_seconds": 10, "masked_fraction": 0.5}
MANY_GPUS = ("--gpu", "h200", "--gpus", "64")  # on which the largest of these models fit
MEASURED = json.loads((Path(__file__).parent / "gpu/models.json").read_bytes())  # models that GPUs measure
# Fields of published models where transformers' default configuration is of another one, or lacks some.
PUBLIC: Mapping[str, Mapping[str, Any]] = {
    "dbrx": {
        "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768, "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500_000},
        "ffn_config": {"hidden_size": 6144, "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "longformer": {"max_position_embeddings": 4098, "attention_window": [512] * 12, "vocab_size": 50265},
    "longt5": {
        "d_model": 768, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12,
        "feed_forward_proj": "gated-gelu", "encoder_attention_type": "transient-global",
    },
    "resnet-152": {"model_type": "resnet", "depths": [3, 8, 36, 3]},
    "poolformer-m48": {
        "model_type": "poolformer", "hidden_sizes": [96, 192, 384, 768], "depths": [8, 8, 24, 8],
    },
    **{name: MEASURED[name]["architecture"] for name in ("swin-large", "segformer-b5")},
}  # fmt: skip
TYPES = (
    "jamba", "qwen3_next", "wavlm", "minimax", "switch_transformers", "longformer", "dbrx", "longt5",
    "perceiver", "xlstm", "falcon", "beit", "swin", "swin-large", "poolformer-m48", "rwkv",
)  # fmt: skip


class Row(NamedTuple):
    """The cost of a plan, and the number of settings whose memory it does not know."""

    type: str
    cpu_seconds: float
    ratio: float  # to the reference
    settings: int
    unknown: int  # settings whose memory the plan does not know
    remark: str


def described(name: str) -> dict[str, Any]:
    """Return a manifest's own model: a published architecture, with its type's first objective."""
    from transformers import CONFIG_MAPPING

    from bench.training.objectives import objective_of

    public = PUBLIC.get(name, {})
    model_type = public.get("model_type", name)
    aim = objective_of(next(objective for _, objective in pairs([model_type])))
    fields = CONFIG_MAPPING[model_type]().to_dict() | public
    positions = (fields[field] for field in POSITIONS if type(fields.get(field)) is int)
    known = {
        "sequence_length": PADDED_TO * (min(MOST_POSITIONS, next(positions, MOST_POSITIONS)) // PADDED_TO),
        "image_size": fields.get("image_size", 224),
        **SIZES,
    }
    counts = {field: fields.get(field, LABELS) for field in aim.counts}
    return {
        "name": name.replace("_", "-"),
        "architecture": {"model_type": model_type, **counts, **public},
        "recipe": {
            "objective": aim.name, "batch_size": 256, "steps": 1000, "precision": "bf16",
            **{field: known[field] for field in aim.sizes},
        },
    }  # fmt: skip


def planned(model_type: str) -> tuple[float, Mapping[str, Any]]:
    """Plan a type; return the processor seconds and the document, which may say what was refused."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "manifest.json"), Path(folder, "plan.json")
        file.write_text(
            json.dumps({"schema": "bench/manifest/v1", "name": "cost", "models": [described(model_type)]})
        )
        command = [sys.executable, "-m", "bench", "plan", str(file), *MANY_GPUS, "--json"]
        with out.open("w") as stream, suppress(subprocess.CalledProcessError):
            return cost(command, out=stream).cpu_seconds, json.loads(out.read_text())
        return float("nan"), json.loads(out.read_text())


def multiplied(model_type: str) -> str:
    """Say what a run would say that the model multiplies, which a process of its own counts."""
    script = f"from benchmarks.plan_cost import products_text; print(products_text({model_type!r}))"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or f"unknown: its process ended with {done.returncode}"


def products_text(model_type: str) -> str:
    """Count what a type multiplies without further methods, and describe it as a run does."""
    from bench.planning.manifest import resolve_models
    from bench.records.text import multiplied_text
    from bench.records.trial import Timing, Trial
    from bench.runner.trial.counted_products import products_or_reason
    from bench.training.models.counted_operations import counted_work

    (model,), _ = resolve_models([described(model_type)])
    found = products_or_reason(Trial(model, (), 1, 1, 0, Timing()), counted_work(model).flops)
    return (multiplied_text((), found) if isinstance(found, str) else multiplied_text(found, None)) or ""


def row(model_type: str, took: float, document: Mapping[str, Any], reference: float, more: str) -> Row:
    """Return the row of a planned type."""
    cells = document.get("cells", ())
    remarks = [f"{one['path']}: {one['found']}" for one in document.get("mistakes", ())]
    skips = Counter(skip["reason"] for skip in document.get("skipped", ())) if not cells else {}
    remarks += [*document.get("remarks", ()), *skips, *filter(None, [more])]
    unknown = sum(cell["predicted_bytes"] is None for cell in cells)
    return Row(model_type, took, took / reference, len(cells), unknown, "; ".join(remarks))


def main() -> None:
    """Plan each type and print the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("types", nargs="*", metavar="NAME", help="a type of transformers, or one of PUBLIC")
    parser.add_argument("--products", action="store_true", help="also count what each type multiplies")
    chosen = parser.parse_args()
    types = chosen.types or TYPES
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    found = []
    for name in (REFERENCE, *types, REFERENCE):
        found.append((name, *planned(name)))
        print(f"{name}: {found[-1][1]:.1f} s", file=sys.stderr)
    ends = found[0], found[-1]
    reference = sum(took for _, took, _ in ends) / len(ends)
    more = {name: multiplied(name) if chosen.products else "" for name in dict.fromkeys(types)}
    rows = [row(*one, reference, more.get(one[0], "")) for one in found]
    print(tabulate(rows, headers=Row._fields, floatfmt=".1f", maxcolwidths=[None] * 5 + [60]))


if __name__ == "__main__":
    main()
