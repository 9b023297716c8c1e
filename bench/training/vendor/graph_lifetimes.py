"""The lifetimes of the tensors of a compiled graph in memory.

Relies on: fx graphs whose nodes have tensors without contents in `meta["val"]`, of which views share the
storage; names of the operations that the compiler leaves to libraries. No issue known.
Remove when torch tells the peak memory of a compiled module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.training.lifetimes import BlockTensors, Lifetime, notable

# Operations of torch with kernels of their own, which read and write tensors in memory; so do operations that
# are registered by others. The compiler fuses all others, and writes only what one of these reads or what the
# graph returns.
LIBRARY = {
    "mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "_grouped_mm", "sort", "topk",
}  # fmt: skip
OF_TORCH = {"aten", "prims"}  # namespaces


@dataclass(frozen=True, slots=True)
class Graphs:
    """A block's forward and backward pass, and how many of their inputs are weights."""

    forward: Any
    backward: Any
    outputs: int  # of the forward pass; it returns what the backward pass needs after them
    weights: int


def block_tensors(graphs: Graphs, samples: int) -> BlockTensors:
    """Return when each tensor of a block is made and freed; its graphs were recorded with `samples` samples.

    The block's input and the gradient of its output belong to it; its output and the gradient of its input
    belong to the blocks beside it.
    """
    forward, backward = _Uses.of(graphs.forward), _Uses.of(graphs.backward)
    start = forward.operations
    result, saved = forward.returned[: graphs.outputs], {*forward.returned[graphs.outputs :]}
    entry = forward.first_of_samples(graphs.weights, samples)

    def lifetimes() -> Iterator[Lifetime]:
        def lifetime(size: int, born: int, freed: int | None) -> Lifetime:
            of_samples = size % samples == 0
            return Lifetime(size // samples * of_samples, size * (not of_samples), born, freed)

        for storage, size in forward.sizes.items():
            given = storage in forward.given
            if (given and storage != entry) or storage in result:
                continue
            if storage in saved:
                freed = start + backward.last.get(storage, backward.operations)
            else:
                freed = start if given else forward.last.get(storage, forward.born[storage])
            yield lifetime(size, forward.born[storage], freed)
        of_weights = {*backward.returned[: graphs.weights]}
        of_entry = next((one for one in backward.returned[graphs.weights :] if one is not None), None)
        for storage, size in backward.sizes.items():
            if storage in saved or storage in forward.given or storage == of_entry:
                continue
            if storage in backward.given:  # autograd keeps it until the block's backward pass is over
                yield lifetime(size, start, start + backward.operations)
            elif storage in of_weights:
                yield lifetime(size, start + backward.born[storage], None)
            else:
                last = backward.last.get(storage, backward.born[storage])
                yield lifetime(size, start + backward.born[storage], start + last)

    return BlockTensors(start, notable(sorted(lifetimes(), key=lambda tensor: tensor.born)))


@dataclass(frozen=True, slots=True)
class _Uses:
    """Storages that a graph has in memory, by when they are allocated and last read."""

    operations: int
    sizes: dict[int, int]
    born: dict[int, int]
    last: dict[int, int]
    given: set[int]  # allocated before the graph runs
    inputs: list[int | None]
    returned: list[int | None]

    @classmethod
    def of(cls, graph: Any) -> _Uses:
        nodes = list(graph.nodes)
        inputs = [_storage(node) for node in nodes if node.op == "placeholder"]
        (output,) = graph.find_nodes(op="output")
        returned = [_storage(value) for value in output.args[0]]
        written = {*inputs, *returned, *_read_or_written_by_libraries(nodes)} - {None}
        uses = cls(len(nodes), {}, {}, {}, {one for one in inputs if one is not None}, inputs, returned)
        reads = dict[Any, set[int]]()  # of each node: the written storages that it is computed from
        for place, node in enumerate(nodes):
            reads[node] = set()
            for source in node.all_input_nodes:
                storage = _storage(source)
                reads[node] |= {storage} if storage in uses.sizes else reads[source]
            storages = _results(node)
            for storage, size in storages.items():
                if storage in written and storage not in uses.sizes:
                    uses.sizes[storage], uses.born[storage] = size, place
            if storages.keys() & written or _is_of_a_library(node):
                for one in reads[node]:
                    uses.last[one] = place
        return uses

    def first_of_samples(self, weights: int, samples: int) -> int | None:
        """Return the first input after the weights whose size grows with the number of samples."""
        places = (place for place in self.inputs[weights:] if place is not None)
        return next((place for place in places if self.sizes[place] % samples == 0), None)


def _read_or_written_by_libraries(nodes: Sequence[Any]) -> Iterator[int | None]:
    for node in nodes:
        if _is_of_a_library(node):
            yield from _results(node)
            yield from map(_storage, node.all_input_nodes)
        elif any(map(_is_of_a_library, node.all_input_nodes)) and _name(node) == "getitem":
            yield _storage(node)


def _is_of_a_library(node: Any) -> bool:
    registered = getattr(node.target, "namespace", "aten") not in OF_TORCH
    return node.op == "call_function" and (registered or _name(node) in LIBRARY)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def _storage(node: Any) -> int | None:
    """Return a key of the storage of a node's tensor; None for anything else."""
    value: Any = getattr(node, "meta", {}).get("val")
    return value.untyped_storage()._cdata if hasattr(value, "untyped_storage") else None


def _results(node: Any) -> dict[int, int]:
    """Return keys and sizes of the storages that a node allocates: its tensor, or those that nothing reads.

    Other tensors of a node that has several are read by nodes of their own.
    """
    value: Any = getattr(node, "meta", {}).get("val")
    results = value if isinstance(value, tuple | list) else (value,)
    storages = (storage.untyped_storage() for storage in results if hasattr(storage, "untyped_storage"))
    read = {*map(_storage, node.users)} if value is results else set()
    return {storage._cdata: storage.nbytes() for storage in storages if storage._cdata not in read}
