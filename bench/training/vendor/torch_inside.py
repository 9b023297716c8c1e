"""Reliance on internals of torch (see the package's docstring). Imports torch only inside of functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.training.lifetimes import BlockTensors

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch import Tensor, nn


# Environment of torchrun. Relies on: an undocumented variable; "1" keeps torchrun from opening a second store
# on every interface of some node, for process groups that are given none. bench gives its process groups a
# store. https://github.com/pytorch/pytorch/issues/135712
# Remove when torchrun documents which stores it opens.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

# Options of FlexAttention's backward kernel in fp32: the fastest of 13 choices (docs/methods.md), measured on
# an H200 with heads of 64, where torch takes blocks of 16 tokens. Relies on: option names that torch passes
# on to its Triton template. https://github.com/pytorch/pytorch/pull/158383
# Remove when torch's own choice for fp32 is as fast.
FLEX_BACKWARD_OPTIONS = {
    "bwd_BLOCK_M1": 32,
    "bwd_BLOCK_N1": 64,
    "bwd_BLOCK_M2": 64,
    "bwd_BLOCK_N2": 32,
    "bwd_num_stages": 3,
    "bwd_num_warps": 4,
}
FLEX_MAX_HEAD_WIDTH = 64  # elements; wider heads keep torch's options
Window = tuple[int, int]  # how many positions before and after its own a position attends to
FLEX_MIN_SHARED_BYTES = 227 * 1024  # of shared memory a block; GPUs with less keep torch's options


def fake_tensors() -> Any:
    """Return a context in which tensors have shapes but no contents.

    Relies on: the private module `torch._subclasses.fake_tensor`. Why: transformers detects it as tracing and
    then reads no mask's contents, which tensors on the "meta" device do not have. No issue known.
    Remove when torch exports FakeTensorMode publicly.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def makes_no_contents() -> bool:
    """Whether a new tensor would have no contents: inside of `fake_tensors()`, or on the device "meta".

    Relies on: `detect_fake_mode` of the private module `torch._guards`. No issue known. Remove when torch
    exports FakeTensorMode publicly.
    """
    import torch
    from torch._guards import detect_fake_mode

    return detect_fake_mode() is not None or torch.get_default_device().type == "meta"


def needs_contents(error: Exception) -> bool:
    """Whether code failed because it read the contents of tensors that have none, or put some on the CPU.

    Relies on: three exception classes in the private module `torch._subclasses.fake_tensor`. No issue known.
    Remove when torch exports FakeTensorMode publicly.
    """
    from torch._subclasses import fake_tensor as fake

    found = fake.DataDependentOutputException, fake.DynamicOutputShapeException
    return isinstance(error, (*found, fake.FakeTensorDeviceMismatchError))


def real_tensors() -> AbstractContextManager[object]:
    """Return a context in which new tensors have contents, inside of `fake_tensors()` too.

    Relies on: the private module `torch._subclasses.fake_tensor`. No issue known. Remove when torch exports
    FakeTensorMode publicly.
    """
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    context: AbstractContextManager[object] = unset_fake_temporarily()
    return context


def make_fake(module: nn.Module, precision: torch.dtype | None = None) -> None:
    """Replace a module's weights by tensors without contents, of another precision if one is given.

    Call it inside `fake_tensors()`.

    Relies on: `register_parameter` of modules, which lets tied parameters stay tied, and the private `_apply`
    by which a module casts its parameters: for those without contents it fails as soon as torch holds a weak
    reference to one, and some code casts a layer in each pass. No issue known.
    Remove when a module on the "meta" device can be moved to a device without contents.
    """
    import torch
    from torch import nn

    known: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, old in part.named_parameters(recurse=False):
            empty = torch.empty(old.shape, dtype=precision or old.dtype, device="cpu")
            fake = known.setdefault(id(old), nn.Parameter(empty, old.requires_grad))
            part.register_parameter(name, fake)
        for name, old in part.named_buffers(recurse=False):
            setattr(part, name, torch.empty(old.shape, dtype=old.dtype, device="cpu"))
        part._apply = partial(_cast, part)


def _cast(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Cast the parameters of a module that was made fake; those that a cast leaves as they are stay."""
    from torch import nn

    for part in module.modules() if recurse else (module,):
        for name, old in part.named_parameters(recurse=False):
            if (new := function(old.detach())).dtype != old.dtype:
                part.register_parameter(name, nn.Parameter(new, old.requires_grad))
    return module


def tensors_when_compiled(
    module: nn.Module,
    call: Callable[[Any, Any], Tensor],
    given: tuple[Sequence[Any], dict[str, Any]],
    samples: int,
    ends_graph: Callable[[Any], bool],
) -> tuple[list[int], BlockTensors]:
    """Return the bytes of each storage that a call keeps for its backward pass under torch.compile.

    With them, the lifetimes of all tensors of both passes. `call` takes the arguments and keywords in
    `given`, which are tensors of `samples` samples without contents. `ends_graph` says of an operator whether
    it stands in for code at which a compiled graph ends: the next graph cannot compute again what the former
    one computed.

    Relies on: `aot_function` and `min_cut_rematerialization_partition` of torch._functorch, with which the
    compiler decides what is kept and what is computed again, and the private `_use_lazy_graph_module`, with
    which the compiler, too, writes no code for graphs that it does not run. No issue known.
    Remove when torch tells the peak memory of a compiled module.
    """
    import torch
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
    from torch.utils._pytree import tree_flatten, tree_unflatten

    from bench.training.vendor.graph_lifetimes import Graphs, block_tensors

    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values, structure = tree_flatten(given)
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    # A view keeps all of its storage: attention's result is kept for its own backward pass and, seen as rows,
    # for the product that follows; a part of a joined product keeps the other parts.
    sizes: dict[int, int] = {}
    found: list[BlockTensors] = []

    def computed(*tensors: Tensor) -> Tensor:
        inputs = dict(zip(places, tensors[len(weights) :], strict=True))
        arguments = tree_unflatten([inputs.get(i, value) for i, value in enumerate(values)], structure)
        with torch.nn.utils.stateless._reparametrize_module(
            module, dict(zip(weights, tensors, strict=False))
        ):
            return call(*arguments)

    def partition(joint: Any, inputs: Any, **more: Any) -> Any:
        _end_graphs(joint.graph, more["num_fwd_outputs"], ends_graph)
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **more)
        outputs = forward.graph.find_nodes(op="output")[0].args[0][more["num_fwd_outputs"] :]
        for node in outputs:
            if isinstance(value := node.meta.get("val"), torch.Tensor):
                sizes[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        graphs = Graphs(forward.graph, backward.graph, more["num_fwd_outputs"], len(weights))
        found.append(block_tensors(graphs, samples))
        raise _Partitioned

    compiled = aot_function(computed, _unchanged, _unchanged, partition, select_decomp_table())
    with suppress(_Partitioned), _use_lazy_graph_module(True):
        compiled(*weights.values(), *(values[i] for i in places))
    # The compiler partitions nothing where no weight up to here is trained.
    return [*sizes.values()], found[-1] if found else BlockTensors(0, ())


def _end_graphs(joint: Any, output_count: int, ends_graph: Callable[[Any], bool]) -> None:
    """Give tensors that are computed before a compiled graph ends, and read behind its end, another name.

    The partitioner may compute nothing of what is before that name again for what is behind the end.
    """
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    (outputs,) = joint.find_nodes(op="output")
    forward, waiting = set(), [node for node in outputs.args[0][:output_count] if node is not None]
    while waiting:
        if (node := waiting.pop()) not in forward:
            forward.add(node)
            waiting += node.all_input_nodes
    calls = [node for node in joint.nodes if node in forward and node.op == "call_function"]
    for place, end in enumerate(calls):
        if not ends_graph(end.target):
            continue
        behind = {*calls[place + 1 :]}
        for node in calls[:place]:
            if users := behind & node.users.keys():
                with joint.inserting_after(end):
                    handed_on = joint.call_function(torch.ops.aten.alias.default, (node,))
                handed_on.meta |= {"val": node.meta["val"], "recompute": CheckpointPolicy.MUST_SAVE}
                for user in users:
                    user.replace_input_with(node, handed_on)


def import_partitioner() -> None:
    """Import what `tensors_when_compiled` needs.

    Relies on: the same modules. No issue known. Remove when torch tells the peak memory of a compiled module.
    """
    import torch._functorch.aot_autograd
    import torch._inductor.decomposition  # noqa: F401


class _Partitioned(Exception):
    """Ends a compilation once the graphs of both passes are known: neither is needed as code."""


def _unchanged(graph: Any, _inputs: Any) -> Any:
    return graph


@dataclass
class LiveBytes:
    """Bytes of storages that were created and are still alive."""

    now: int = 0
    peak: int = 0


@contextmanager
def live_bytes(multiple: int) -> Iterator[LiveBytes]:
    """Follow the bytes of new storages whose size is a multiple of `multiple`, within the context.

    Relies on: TorchDispatchMode of torch.utils._python_dispatch, and on storages that live as long as their
    Python objects. No issue known. Remove when torch.utils has a public memory tracker for fake tensors.
    """
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    live = LiveBytes()
    known: weakref.WeakSet[Any] = weakref.WeakSet()

    def free(size: int) -> None:
        live.now -= size

    class FollowStorages(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors = (value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor))
            given = {id(tensor.untyped_storage()) for tensor in tensors}
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if not isinstance(tensor, torch.Tensor):
                    continue
                storage = tensor.untyped_storage()
                if id(storage) in given or storage in known or storage.nbytes() % multiple:
                    continue
                known.add(storage)
                weakref.finalize(storage, free, storage.nbytes())
                live.now += storage.nbytes()
                live.peak = max(live.peak, live.now)
            return result

    with FollowStorages():
        yield live


@contextmanager
def each_operator(tell: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> Iterator[None]:
    """Within the context, call `tell` with every operator that runs, its arguments and its keywords.

    Relies on: TorchDispatchMode of torch.utils._python_dispatch. No issue known.
    Remove when torch has a public hook for operators.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class TellOperators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tell(func, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    with TellOperators():
        yield


def flop_counter(
    *,
    product: Callable[..., int],
    product_with_sum: Callable[..., int],
    grouped_matmul: Callable[..., int],
    batched_matmul: Callable[..., int],
    convolution: Callable[..., int],
) -> Any:
    """Return torch's FLOP counter, with these formulas for products of all kinds and convolutions.

    It counts the operations of all modules together. A counter that tells modules apart hooks into each of
    them, which takes a fifth of the time and fails on results of MRA's own autograd functions.

    Relies on: the private operator `aten._grouped_mm`, which torch 2.13's counter ignores; mixtures of
    experts are made of it. `mod_tracker` and its `parents`. No issue known.
    Remove when `torch.utils.flop_counter.flop_registry` holds `aten._grouped_mm`, and a counter needs no
    modules.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    aten: Any = torch.ops.aten
    formulas = {
        aten.mm: product,
        aten.addmm: product_with_sum,
        aten._grouped_mm: grouped_matmul,
        aten.bmm: batched_matmul,
        aten.convolution: convolution,
    }
    counter: Any = FlopCounterMode(display=False, custom_mapping=formulas)
    counter.mod_tracker = _AllModules()
    return counter


class _AllModules:
    """A tracker that tells no modules apart."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def grouped_products() -> tuple[Any, Any]:
    """Return torch's operator for grouped products, and the function by which `F.grouped_mm` calls it.

    Relies on: the private names `aten._grouped_mm` and `torch._grouped_mm`. Why: without contents the
    operator takes only bf16, so that products of other precisions must be seen before it. No issue known.
    Remove when torch's operator takes all precisions without contents.
    """
    import torch

    return torch.ops.aten._grouped_mm.default, torch._grouped_mm


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, also across precisions, in few kernels.

    Relies on: the private operator `torch._foreach_copy_`, unchanged for years. Why: one kernel a tensor
    costs a launch each. No issue known. Remove when torch has a public equivalent.
    """
    import torch

    torch._foreach_copy_(targets, sources)


def batch_norm_weights(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of norms over batches, which stay in fp32 beside their running means.

    Relies on: the private class `_BatchNorm`, the base of all of them. No issue known.
    Remove when torch has a public name for it.
    """
    from torch import nn

    norms = (part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
    return {weight for norm in norms for weight in norm.parameters(recurse=False)}


def extension_locks() -> list[Path]:
    """Return lock files of C++ extensions that are being compiled, or whose compilation was killed.

    Relies on: `get_default_build_root`, and on the file name "lock" of torch/utils/file_baton.py.
    Why: a lock that a killed process left blocks every later process forever.
    https://github.com/pytorch/pytorch/issues/189245, fixed by https://github.com/pytorch/pytorch/pull/190543
    Remove when the oldest supported torch locks with FileLock.
    """
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    return list(root.glob("**/lock"))


def store_on_socket(
    host: str, port: int, size: int | None, *, listen_fd: int | None, timeout: timedelta
) -> dist.Store:
    """Return the process group's store; the member with `listen_fd`, an open socket, serves it.

    Relies on: the undocumented argument `master_listen_fd` of TCPStore. Why: a port that was merely free when
    it was looked for may be taken by another process before torch listens on it.
    https://github.com/pytorch/pytorch/pull/150215
    Remove when `init_process_group` accepts an open socket.
    """
    import torch.distributed as dist

    return dist.TCPStore(
        host, port, size, is_master=listen_fd is not None, timeout=timeout, master_listen_fd=listen_fd
    )


def rendezvous_options(*, is_host: bool, join_seconds: int, missed_signs: int) -> str:
    """Return the value of torchrun's --rdzv-conf: who hosts the meeting, and how long it waits.

    Relies on: keys of the c10d backend that its documentation does not list. Why: two nodes on one machine
    would both take the meeting's address for their own, and torchrun compares one node's signs of life with
    another's clock. No issue known. Remove when torchrun documents these keys.
    """
    return f"is_host={is_host},join_timeout={join_seconds},keep_alive_max_attempt={missed_signs}"


def rendezvous_id() -> str:
    """Return the --rdzv-id of the torchrun that started this process.

    Relies on: the variable TORCHELASTIC_RUN_ID that torchrun sets for its members.
    https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    Remove when torch has a function for this id.
    """
    return os.environ["TORCHELASTIC_RUN_ID"]


def keep_cuda_asleep() -> None:
    """Make `torch.cuda.is_available` ask NVML, so that this process can fork after calling it.

    Relies on: PYTORCH_NVML_BASED_CUDA_CHECK, documented in one note only.
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_available.html
    Remove when that is the default.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"


def keep_loss_scale_on_host(scaler: torch.amp.GradScaler) -> None:
    """Create the scaler's loss scale in the host's memory. Call this before the first loss is scaled.

    Relies on: GradScaler creates its scale lazily, on the device of the first tensor it scales. Why: from a
    GPU, the flag that an update must be skipped is copied to the host without waiting, while the update on
    the host already reads it. https://github.com/pytorch/pytorch/pull/176429 (the same race in FSDP1)
    Remove when GradScaler waits for that copy.
    """
    import torch

    scaler.scale(torch.zeros((), device="cpu"))


def separate_gradients(weights: Iterable[nn.Parameter]) -> None:
    """Give each gradient memory of its own. Call this after the first backward pass of a step.

    Relies on: `backward` keeps the tensor that it is given as the gradient of a weight that has none yet, and
    adds later ones to it. Why: compiled code may return the same memory for two weights, which then counts
    each later pass twice. With torch 2.11 on a GPU, both output biases of a GPT-NeoX block were 75% too large
    after four passes, and the gradient scaler divided them twice (docs/measurements.md).
    No issue known. Remove when `backward` copies a gradient that shares its memory.
    """
    from torch.distributed.tensor import DTensor

    seen = set()
    for weight in weights:
        gradient = weight.grad
        if gradient is None or isinstance(gradient, DTensor):  # parts of a sharded gradient are new tensors
            continue
        if gradient.numel() and gradient.data_ptr() in seen:
            weight.grad = gradient.clone()
        seen.add(gradient.data_ptr())


def add_half_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute `total += left @ right`, with half-precision factors and an fp32 sum, on a GPU in one kernel.

    Relies on: `torch.addmm` with `out_dtype` and `out` together, which exists for CUDA only and is
    recent. No issue known. Remove when the documentation of torch.addmm lists `out_dtype`.
    """
    import torch

    if total.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left @ right


def fp8_product(left: Tensor, left_scales: Tensor, right: Tensor, right_scales: Tensor) -> Tensor:
    """Compute `left @ right.t()` in bf16 from numbers of e4m3; each row of both has a scale, in one column.

    Sums are kept in the precision of the units for fp8 (`use_fast_accum`), without which the kernel for
    scales of rows loses most of its speed. A CPU computes the same numbers, with sums in fp32.

    Relies on: the private operator `torch._scaled_mm`, the one that torch.compile and torchao use. No issue
    known. Remove when torch.compile takes the public `torch.nn.functional.scaled_mm` in all supported
    versions of torch.
    """
    import torch

    if not len(left):  # an expert without tokens, for instance; the operator refuses it
        return left.new_empty(0, len(right), dtype=torch.bfloat16)
    out: Tensor = torch._scaled_mm(
        left, right.t(), scale_a=left_scales, scale_b=right_scales.t(),
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip
    return out


def forget_updates(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> None:
    """Set the number of updates that AdamW has made to a weight back to zero.

    Relies on: the layout of AdamW's state, where "step" is a tensor. No issue known.
    Remove when an optimizer can create its moments without an update.
    """
    if "step" in optimizer.state[weight]:  # Muon counts no updates
        optimizer.state[weight]["step"].zero_()


def attention_in_window(
    query: Tensor, key: Tensor, value: Tensor, window: Window, scale: float | None, ends: Tensor | None = None
) -> Tensor:
    """Attend within a window by the FlashAttention of torch, which skips what lies outside of it.

    Tensors, the result too, are [samples, heads, positions, width], in half precision on a GPU. `ends`
    [samples, documents] has the ends of documents, each of which attends within itself.
    Relies on: the private operator behind `torch.nn.attention.varlen.varlen_attn`, which takes a window too,
    but only for samples that are packed into one. No issue known. Remove when scaled_dot_product_attention
    takes a window.
    """
    import torch

    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    (samples, length), (left, right), starts = query.shape[:2], window, None
    if ends is not None:  # documents of all samples in one row
        before = length * torch.arange(samples, device=ends.device)[:, None]
        starts = torch.nn.functional.pad((ends + before).flatten(), (1, 0)).int()
        query, key, value = (t.flatten(0, 1) for t in (query, key, value))
    out: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, starts, starts, length, length, 0.0, False, False,
        scale=scale, window_size_left=left, window_size_right=right,
    )[0]  # fmt: skip
    if ends is not None:
        out = out.unflatten(0, (samples, length))
    return out.transpose(1, 2)


@contextmanager
def windows_attended_by(instead: Callable[..., Tensor]) -> Iterator[None]:
    """Within the context, let `instead(original, ...)` answer the calls of `attention_in_window`."""
    this: Any = sys.modules[__name__]
    original = this.attention_in_window
    this.attention_in_window = partial(instead, original)
    try:
        yield
    finally:
        this.attention_in_window = original
