"""A type of transformers whose mixers mamba-ssm computes, alone or beside attention.

Memory is counted on the module without contents, with stand-ins for the kernels.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.training.models.generic import COMPILED_OR_NOT, TransformersFamily, Ways
from bench.training.models.mamba import BREAKS_GRAPH, importing_kernels, missing_packages
from bench.training.models.model import SDPA, Has, Model, installed
from bench.training.vendor import transformers_source

if TYPE_CHECKING:
    from torch import nn


class MixersFamily(TransformersFamily):
    """A type with mixers of Mamba 1 or 2; bench chooses their kernels, and not transformers."""

    packages: ClassVar[tuple[str, ...]]  # which the kernels need
    fused: ClassVar[str]  # what the kernels compute of a mixer, in words
    kernels_of_attention = False
    slow_without_kernels = True  # the plain scan goes position by position, or writes the state of each
    breaks_graph = BREAKS_GRAPH

    @property
    def kernels(self) -> str:  # type: ignore[override]
        """The parts that the method "kernels" replaces, in words."""
        return f"{self.fused}; {SDPA}" if self.attends else self.fused

    @property
    def attends(self) -> bool:
        """Whether there is attention beside the mixers, which the method "kernels" computes fused."""
        return transformers_source.why_not_fused(self.name) is None

    @property
    def read_past(self) -> tuple[str, ...]:  # type: ignore[override]
        """The layers of a mixer whose weights its code reads without a call."""
        return transformers_source.layers_read_past(self.name)

    def missing_kernels(self, device: Literal["cpu", "cuda"], has: Has = installed) -> str | None:
        """Return which of the packages of mamba-ssm is missing, or that they need a GPU."""
        return missing_packages(self.packages, device, has)

    def why_no_kernels(self, model: Model) -> str | None:
        """Return which part of an architecture mamba-ssm's kernels cannot follow."""
        return transformers_source.why_no_mamba_kernel(self.name, model.architecture)

    def counted_ways(self) -> Ways:
        """Count its memory with and without kernels; eager attention is counted as it runs uncompiled."""
        return (False, (False,) if self.attends else COMPILED_OR_NOT), (True, COMPILED_OR_NOT)

    @abstractmethod
    def mamba_ssm(self) -> Any:
        """Return mamba-ssm's functions for a mixer; ImportError if they cannot be imported."""

    @abstractmethod
    def stand_ins(self) -> Any:
        """Return functions in place of mamba-ssm's, which compute nothing and keep the same tensors."""

    @abstractmethod
    def mix_by(self, functions: Any | None) -> None:
        """Let mixers of this type train by these functions in this process, or by plain code."""

    def build(self, model: Model, *, kernels: bool) -> nn.Module:
        """Choose the functions of this type in this process; EnvironmentCannot if mamba-ssm is broken."""
        with importing_kernels():
            functions = self.mamba_ssm() if kernels else None
        module = super().build(model, kernels=kernels and self.attends)
        self.mix_by(functions)
        return module

    def build_with(self, model: Model, attention: str) -> nn.Module:
        """Build the module, whose mixers compute as this process has chosen."""
        return super().build_with(model, attention if self.attends else "eager")

    def build_for_memory(self, model: Model, attention: str) -> nn.Module:
        """Build with the stand-ins in place of mamba-ssm's kernels, unless attention is eager."""
        module = self.build_with(model, attention)
        self.mix_by(None if attention == "eager" else self.stand_ins())
        return module
