"""Tell which text belongs to which image, with a tower for each: CLIP and SigLIP.

Every pair of a batch is compared with every other one, so the loss is one of the whole batch and not a mean
over samples. The gradient of the loss by the embeddings is computed first, from the embeddings of all passes.
A pass then needs only its own pairs and the gradients of their embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from bench.base.errors import BadInput
from bench.training.objectives.objective import (
    Architecture,
    Draw,
    Gather,
    Objective,
    Part,
    Sample,
    SampleSize,
    of_one_device,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK = 1 << 26  # logits that exist at once, in fp32
IMAGES, TEXTS = 0, 1
WORDS, SIDE = "text_config/vocab_size", "vision_config/image_size"
# Words and pixels of the types of transformers that have both by default; siglip2 has no size of images.
SIZES: Mapping[str, tuple[int, int]] = {
    "align": (30522, 600),
    "altclip": (250002, 224),
    "blip": (30524, 384),
    "blip-2": (50272, 224),
    "chinese_clip": (30522, 224),
    "clip": (49408, 224),
    "clipseg": (49408, 224),
    "metaclip_2": (49408, 224),
    "siglip": (32000, 224),
    "tipsv2": (32000, 448),
    "videoprism": (32000, 288),
}
FP32 = 4  # bytes


class Contrastive(Objective):
    """Each text of a step is compared with every image of it (CLIP, SigLIP), on all devices."""

    name = "contrastive"
    title = "Two towers that tell which text belongs to which image"
    unit = "pairs"
    auto_class = "AutoModelForZeroShotImageClassification"
    mapping = "ZERO_SHOT_IMAGE_CLASSIFICATION"
    sizes = ("image_size", "sequence_length")
    data = ("tokens", "images")
    counts: Mapping[str, str] = {WORDS: "tokens", SIDE: "pixels"}
    defaults_of_types: Mapping[str, Mapping[str, int]] = {
        name: {WORDS: words, SIDE: side} for name, (words, side) in SIZES.items()
    }
    towers = ("text_config", "vision_config")
    compares_samples = True

    def parts(self, architecture: Architecture, size: SampleSize) -> tuple[Part, ...]:
        """Return a text and an image; there are no labels, since the pairs are the answer."""
        assert size.image_size is not None
        return (
            Part("input_ids", (size.sequence_length or 1,), "indices"),
            Part("pixel_values", (3, size.image_size, size.image_size), "pixels"),
        )

    def sample(self, architecture: Architecture, size: SampleSize, draw: Draw) -> Sample:
        """Draw a text that ends in the highest token, and an image."""
        tokens = draw.tokens(size.sequence_length or 1)
        tokens[-1] = self.vocabulary(architecture) - 1  # CLIP reads the text's features at its last token
        return {"input_ids": tokens, "pixel_values": draw.image()}

    def answer(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return both factors of the dot products that give the logits: [samples, image and text, width + 1].

        The scale is multiplied into the image's factor. The last column is the bias (or 0) for the image and
        1 for the text, so that the gradients of scale and bias are sums over samples, too.
        """
        import torch

        if not hasattr(module, "logit_scale"):
            raise BadInput(f"{type(module).__name__} has no logit_scale: it does not train as CLIP does")
        towers = {name: batch[name] for name in ("input_ids", "pixel_values")}
        found = module(**towers)
        images, texts = found.image_embeds.float(), found.text_embeds.float()
        bias = module.logit_bias.float() if _is_sigmoid(module) else images.new_zeros(())
        side = images * module.logit_scale.float().exp(), bias.expand(len(images), 1)
        other = texts, texts.new_ones(len(texts), 1)
        return torch.stack((torch.cat(side, 1), torch.cat(other, 1)), 1)

    def labels(self, batch: Mapping[str, Tensor], answer: Tensor, module: nn.Module) -> Tensor:
        """Return the gradients of the answer; without them in the batch, those of a step of this one pass.

        Such a step is one of a single device: on several, `WithLoss` calls `targets`.
        """
        return batch["labels"] if "labels" in batch else self.targets(module, answer, of_one_device)

    def loss(self, answer: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the whole step; its gradient by the answer is `labels`.

        The text's last column is the constant 1 and needs no gradient. `targets` sets its place in `labels`
        so that this sum is the loss.
        """
        return (answer * labels).sum()

    def targets(self, module: nn.Module, answers: Tensor, gather: Gather, passes: int = 1) -> Tensor:
        """Return the labels of each pass of a step, from this device's answers of all passes.

        The mean of the passes' losses over passes and devices is the loss of the whole batch, and so for
        gradients.
        """
        import torch

        with torch.no_grad(), _in_fp32(answers.device.type):
            own = answers.detach().float()
            everyone = gather(own)
            compare = _sigmoid if _is_sigmoid(module) else _softmax
            loss, labels = compare(own, everyone, gather)
            labels *= passes * len(everyone) // len(own)
            labels[:, TEXTS, -1] = 0
            rest = loss - (own * labels).view(passes, -1).sum(1)
            labels[:, TEXTS, -1] = (rest * passes / len(own)).repeat_interleave(len(own) // passes)
            return labels

    def bytes_of_a_step(self, size: SampleSize, batch_size: int, gpus: int, answer: int) -> int:
        """Return the bytes of all answers, of one device's labels, and of the logits that exist at once."""
        own = batch_size // gpus
        logits = min(CHUNK, own * batch_size)
        return FP32 * (2 * answer * (batch_size + own) + 3 * logits)

    def form(self, size: SampleSize, samples: int) -> str:
        """Describe both, and that a step of several passes copies each micro-batch twice."""
        side = size.image_size
        return (
            f"`input_ids`, int64 of {samples} x {size.sequence_length}, and `pixel_values`, fp32 of\n"
            f"{samples} x 3 x {side} x {side}, with a mean of about 0 and a standard deviation of about 1.\n"
            "Every pair of a step is compared with every other one: of all passes and devices. A step of\n"
            "several passes holds its micro-batches, and copies each to the device twice: yield them in the\n"
            "host's memory."
        )


def _in_fp32(device: str) -> AbstractContextManager[object]:
    """Return a context without autocast, which tensors without contents ("meta") never have."""
    import torch

    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def _is_sigmoid(module: nn.Module) -> bool:
    """Whether a built model has the bias of SigLIP's loss; CLIP's has none."""
    return hasattr(module, "logit_bias")


def _softmax(own: Tensor, everyone: Tensor, gather: Gather) -> tuple[Tensor, Tensor]:
    """Return CLIP's loss of everyone's answers, and its gradient with respect to this device's answers.

    The loss is the mean of two cross-entropies: each image chooses among all texts, and each text among all
    images. A row of logits is one image against all texts, or one text against all images. Devices exchange
    the sums of their rows, because the gradient of an embedding depends on all rows that it is part of.
    """
    import torch

    log_sums = torch.empty_like(own[:, :, 0])
    for side in (IMAGES, TEXTS):
        for rows, logits in _logits(own[:, side], everyone[:, 1 - side]):
            log_sums[rows, side] = logits.logsumexp(1)
    of_pairs = (own[:, IMAGES] * own[:, TEXTS]).sum(1, keepdim=True)  # the logit of an image and its own text
    gathered = gather(torch.cat((log_sums, of_pairs), 1))
    all_log_sums, all_of_pairs = gathered[:, :2], gathered[:, 2]
    loss = (all_log_sums.mean(1) - all_of_pairs).mean()
    gradient = torch.empty_like(own)
    for side in (IMAGES, TEXTS):
        others = everyone[:, 1 - side]
        for rows, logits in _logits(own[:, side], others):
            shares = (logits - log_sums[rows, side, None]).exp_()
            shares += logits.sub_(all_log_sums[:, 1 - side]).exp_()
            gradient[rows, side] = shares @ others / 2
    return loss, (gradient - own.flip(1)) / len(everyone)


def _sigmoid(own: Tensor, everyone: Tensor, gather: Gather) -> tuple[Tensor, Tensor]:
    """Return SigLIP's loss of everyone's answers, and its gradient with respect to this device's answers.

    Every image and every text are judged on their own: whether they belong together.
    """
    import torch
    from torch.nn.functional import softplus

    gradient, total = torch.empty_like(own), -(own[:, IMAGES] * own[:, TEXTS]).sum()
    for side in (IMAGES, TEXTS):
        others = everyone[:, 1 - side]
        for rows, logits in _logits(own[:, side], others):
            if side == IMAGES:
                total += softplus(logits).sum()
            gradient[rows, side] = logits.sigmoid_() @ others
    return gather(total[None]).sum() / len(everyone), (gradient - own.flip(1)) / len(everyone)


def _logits(rows: Tensor, columns: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the matrix of logits, as many at once as CHUNK allows."""
    size = max(1, CHUNK // len(columns))
    for start in range(0, len(rows), size):
        chosen = slice(start, start + size)
        yield chosen, rows[chosen] @ columns.T


OBJECTIVE = Contrastive()
