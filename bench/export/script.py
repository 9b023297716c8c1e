"""Files for bench's own training loop, which runs every setting that can be measured."""

from __future__ import annotations

from bench.records.trial import Trial

COMMAND = "torchrun --standalone --nproc-per-node {gpus} train.py --out checkpoints"
WEIGHTS = (
    "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch checkpoints/step-N all.pt`\n"
    'writes `all.pt`, whose "model" has them; every name begins with `model.`'
)
NEEDS: tuple[str, ...] = ()  # in addition to torch, transformers and what the setting needs


def refuse(_trial: Trial) -> str | None:
    """Return None: the script runs by bench, which can express every trial."""
    return None


def files(_trial: Trial, _save_every: int) -> dict[str, str]:
    """Return no files: the script reads the trial itself."""
    return {}
