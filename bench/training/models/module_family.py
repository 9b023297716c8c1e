"""The contract of families whose modules do not come from transformers: a package has them, or a file here.

A new one is a file of this folder with an object `FAMILY`, and a place in `module_families` (__init__.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bench.base.errors import Mistake
from bench.training.models.generic import TransformersFamily
from bench.training.models.model import Has, Model, installed

if TYPE_CHECKING:
    from torch import Tensor, nn


class Answer(NamedTuple):
    """A module's result, in the form that objectives read."""

    logits: Tensor


class ModuleFamily(TransformersFamily):
    """A family without formulas: what it builds is counted on tensors without contents.

    Without `defaults`, the family itself judges the fields of an architecture.
    """

    package: str | None = None  # that has the modules; None if no package is needed
    tries_a_pass = False  # whether one pass is run before anything is measured, to find mistakes in its code
    kernels: str | None = "attention by scaled_dot_product_attention"
    kernels_of_attention = False

    def describes(self, given: Mapping[str, Any]) -> bool:
        """Whether an architecture of a manifest belongs to this family."""
        return given.get("model_type") == self.name

    def mistakes_by_package(self, model: Model, path: str) -> Iterator[Mistake]:
        """Yield mistakes that only the imported package can find."""
        return iter(())

    def why_no_documents(self) -> str | None:
        """Refuse documents for every module that is not of transformers."""
        return "bench cannot tell a module's attention where documents end"

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Return None: torch's fused attention is always there."""
        return None

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """Build with fused attention if "kernels" is set."""
        return self.build_module(model, fused=kernels)

    def build_with(self, model: Model, attention: str) -> nn.Module:
        """Build for an implementation that transformers names: all but "eager" are fused."""
        return self.build_module(model, fused=attention != "eager")

    def build_module(self, model: Model, *, fused: bool) -> nn.Module:
        """Build the module, in training mode with fp32 weights, with fused attention or without."""
        raise NotImplementedError
