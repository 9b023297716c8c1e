"""Documents of different lengths, packed into samples of one length. Tokens attend within their document.

A batch has the positions at which the documents of each sample end, padded with the end of the sample. Pure:
torch is imported only by the functions that a worker calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.base.frozen import dataclass
from bench.base.strict_json import later

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

ENDS = "document_ends"  # the part of a batch with the ends of documents
TOLD = frozenset({"position_ids", "attention_mask"})  # the inputs that a model gets instead of the ends
TAKES_ENDS = "bench_"  # attention with this prefix in its name takes the ends in place of a mask
LEAST_ROOM = 16  # ends of a sample beyond twice the mean number of its documents


@dataclass(frozen=True, slots=True)
class Documents:
    """How long documents are, and how they are found in data of one's own."""

    mean_tokens: int
    # The token that ends each document of one's own data. None, and in made-up data: ends are made up.
    separator: int | None = later(None)

    def most(self, length: int) -> int:
        """Return the number of ends that every sample of this length has room for."""
        return min(length, 2 * length // self.mean_tokens + LEAST_ROOM)

    def ends(
        self, tokens: NDArray[np.int64], random: np.random.Generator, *, own: bool = False
    ) -> NDArray[np.int64]:
        """Return where the documents of a sample end, padded with the sample's own end.

        Made-up documents end at each position with the same probability, so that their lengths differ widely.
        Raises ValueError if a sample of one's own data has more documents than there is room for.
        """
        import numpy as np

        length, most = len(tokens), self.most(len(tokens))
        if self.separator is None or not own:
            found = np.flatnonzero(random.random(length - 1) < 1 / self.mean_tokens)[: most - 1] + 1
        else:
            found = np.flatnonzero(tokens[:-1] == self.separator) + 1
            if len(found) >= most:
                raise ValueError(
                    f"a sample of {length} tokens has {len(found) + 1} documents, far more than documents of "
                    f"{self.mean_tokens} tokens on average: lower the recipe's documents/mean_tokens"
                )
        ends = np.full(most, length, dtype=np.int64)
        ends[: len(found)] = found
        return ends

    def pairs(self, length: int, window: int | None = None) -> int:
        """Return the pairs of positions that attend in a sample, on average over made-up documents.

        A position attends to itself and to those before it in its document, within the window.
        """
        goes_on = 1 - 1 / self.mean_tokens  # the probability that a document does not end at a position
        reach = min(window or length, length)
        ramp = self.mean_tokens * (reach - goes_on * (1 - goes_on**reach) * self.mean_tokens)
        return round(ramp + (length - reach) * (1 - goes_on**reach) * self.mean_tokens)


def documents_of(ends: Tensor, length: int) -> Tensor:
    """Return the number of the document of each position [samples, length], counted from 0 in each sample."""
    import torch

    positions = torch.arange(length, device=ends.device).expand(len(ends), length)
    return torch.searchsorted(ends.contiguous(), positions.contiguous(), right=True)


def positions_in(ends: Tensor, length: int) -> Tensor:
    """Return the position of each token within its document [samples, length]."""
    import torch
    from torch.nn.functional import pad

    starts = pad(ends, (1, 0)).gather(1, documents_of(ends, length))
    return torch.arange(length, device=ends.device) - starts


def document_inputs(module: nn.Module, ends: Tensor, length: int) -> dict[str, Tensor]:
    """Return the inputs that keep the documents of a sample apart in a model of transformers.

    bench's attention gets the documents' ends as its mask, because transformers passes on every mask of four
    dimensions. For other attention, transformers finds the documents by their positions and makes masks.
    """
    from bench.training.vendor import transformers_inside

    given = {"position_ids": positions_in(ends, length)}
    configuration: Any = module.config
    if configuration._attn_implementation.startswith(TAKES_ENDS):
        return given | {"attention_mask": ends[:, None, None, :]}
    transformers_inside.expect_packed_samples()
    return given
