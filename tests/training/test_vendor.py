"""Each internal of torch, transformers and DeepSpeed that bench relies on exists in the installed version."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from bench.training.models import Family, families, family_of, known_models
from bench.training.vendor import (
    compiler_inside,
    deepspeed_inside,
    torch_inside,
    transformers_inside,
    transformers_source,
)
from bench.training.vendor import known_integers as known_integers_inside
from bench.training.vendor.kernel_rules import kernel_rules
from bench.training.vendor.known_integers import known_integers
from tests.training.models.small_mixers import small


def gone(module: Any, what: str) -> str:
    """The message of a failed test: the action to take when an internal is missing."""
    file = str(module.__file__).partition("bench/")[2]
    return f"{what}: read the vendor's changes, then mend or remove the function in bench/{file}"


# torch


@pytest.mark.parametrize(
    "setting", ["suppress_errors", "fail_on_recompile_limit_hit", "recompile_limit", "optimize_ddp"]
)
def test_dynamo_has_the_settings(setting: str) -> None:
    import torch._dynamo

    assert hasattr(torch._dynamo.config, setting), gone(compiler_inside, f"dynamo lacks {setting}")


def test_dynamo_s_settings_are_set() -> None:
    import torch._dynamo

    with torch._dynamo.config.patch(suppress_errors=True, optimize_ddp=True, recompile_limit=8):
        compiler_inside.fail_instead_of_eager()
        compiler_inside.keep_graphs_whole_under_ddp()
        config = torch._dynamo.config
        assert (config.suppress_errors, config.optimize_ddp, config.recompile_limit) == (False, False, 64)


@pytest.mark.parametrize("passes", [1, 3])
def test_gradients_that_share_memory_are_separated(passes: int) -> None:
    """Torch keeps what a backward pass returns, and adds to it, also if two weights share this memory."""

    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, *_biases: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            one = gradient.sum(0)
            return gradient, one.view(-1), one.view(-1)

    def after(separate: bool) -> list[float]:
        x, weights = torch.ones(2, 3, requires_grad=True), [nn.Parameter(torch.zeros(3)) for _ in range(2)]
        for number in range(passes):
            Shared.apply(x, *weights).sum().backward()
            if separate and number == 0:
                torch_inside.separate_gradients([*weights, nn.Parameter(torch.zeros(1))])
        return [float(weight.grad[0]) for weight in weights if weight.grad is not None]

    assert after(separate=True) == [2 * passes] * 2
    if passes > 1:
        kept = after(separate=False)
        assert kept == [2 + 4 * (passes - 1)] * 2, gone(torch_inside, "backward copies shared gradients now")


def test_the_compiler_s_modules_can_be_imported_ahead() -> None:
    for name in compiler_inside.COMPILER_MODULES:
        assert importlib.util.find_spec(name), gone(compiler_inside, f"torch has no module {name}")


def test_the_keys_of_compiled_code_contain_the_code_of_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import FxGraphHashDetails

    assert "cache_key_tag" in inspect.getsource(FxGraphHashDetails), gone(
        compiler_inside, "the keys of compiled graphs lack `cache_key_tag`"
    )
    with torch.compiler.config.patch(cache_key_tag="test"):
        for _ in range(2):
            compiler_inside.keep_compiled_code_apart()
        tag = torch.compiler.config.cache_key_tag
        assert re.fullmatch("test[+]bench-[0-9a-f]{16}", tag)
        compiler_inside._own_code.cache_clear()
        changed = Path(compiler_inside.__file__)
        plain = Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda file: plain(file) + b"#" * (file == changed))
        compiler_inside.keep_compiled_code_apart()
        assert torch.compiler.config.cache_key_tag.startswith(f"{tag}+bench-")
    compiler_inside._own_code.cache_clear()


def test_the_compiler_s_triton_kernels_know_which_tensors_an_earlier_loop_wrote() -> None:
    from torch._inductor.codegen.common import CSE
    from torch._inductor.codegen.triton import TritonKernel

    assert hasattr(CSE(), "invalidated_stores"), gone(compiler_inside, "CSE lacks `invalidated_stores`")
    assert callable(TritonKernel.load), gone(compiler_inside, "TritonKernel lacks `load`")


def test_a_kernel_waits_once_before_it_reads_what_an_earlier_loop_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor.codegen import triton

    class Kernel:
        def __init__(self) -> None:
            self.cse = SimpleNamespace(invalidated_stores=set())
            self.body: Any = SimpleNamespace(writeline=lines.append)

        def load(self, name: str, index: int) -> str:
            lines.append(f"load {name}")
            return f"{name}[{index}]"

    lines: list[str] = []
    monkeypatch.setattr(triton, "TritonKernel", Kernel)
    with torch.compiler.config.patch(cache_key_tag=""):
        for _ in range(2):  # the second call changes nothing
            compiler_inside.wait_between_reduction_loops()
        assert torch.compiler.config.cache_key_tag == "+waits"
    kernel = Kernel()
    assert kernel.load("a", 1) == "a[1]"
    kernel.cse.invalidated_stores |= {"a", "b"}
    for name in ("c", "a", "b"):
        kernel.load(name, 2)
    assert lines == ["load a", "load c", "tl.debug_barrier()", "load a", "load b"]


def test_a_row_has_no_part_in_the_shape_of_what_a_kernel_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    import sympy
    from torch._inductor.codegen import triton
    from torch.utils._sympy.symbol import SymT

    class OfTorch211:
        @classmethod
        def get_block_shape(cls, expression: Any) -> tuple[str, ...]:
            shape = ["1"]
            for symbol in expression.free_symbols:
                tree = next(tree for tree in trees if symbol.name.startswith(tree.prefix))
                shape[tree.tensor_dim] = f"{tree.prefix.upper()}BLOCK"  # type: ignore[call-overload]
            return tuple(shape)

    trees = [
        SimpleNamespace(prefix="x", symt=SymT.XBLOCK, tensor_dim=None),
        SimpleNamespace(prefix="r0_", symt=SymT.R0_INDEX, tensor_dim=0),
    ]
    row, column = sympy.Symbol("x0"), sympy.Symbol("r0_1")
    monkeypatch.setattr(triton, "TritonSymbols", OfTorch211)
    with pytest.raises(TypeError, match="not NoneType"):
        OfTorch211.get_block_shape(row + column)
    for _ in range(2):  # the second call changes nothing
        compiler_inside.read_rows_without_dimension()
    with triton.V.set_kernel_handler(SimpleNamespace(active_range_trees=lambda: trees)):
        shapes = [OfTorch211.get_block_shape(read) for read in (row, column, row + column)]
    assert shapes == [("1",), ("R0_BLOCK",), ("R0_BLOCK",)]


def test_this_torch_leaves_rows_out_or_fails_in_the_way_that_is_mended() -> None:
    from torch._inductor.codegen import triton

    source = inspect.getsource(triton.TritonSymbols.get_block_shape)
    assert "tensor_dim is None" in source or ("free_symbols" in source and "active_range_trees" in source), (
        gone(compiler_inside, "the compiler computes the shape of what a kernel reads in another way")
    )


def test_parts_that_a_product_reads_are_computed_apart_and_others_are_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import lowering

    operator, together = torch.ops.aten.cat.default, list[int]()
    plain = lowering.lowerings[operator]

    def counted(parts: Any, dim: int = 0) -> Any:
        together.append(len(parts))
        return plain(parts, dim)

    def half_turn(x: torch.Tensor) -> torch.Tensor:  # as rotary positions have it
        left, right = x.chunk(2, -1)
        return torch.cat((-right.exp(), left.sin()), -1) * x

    def gated(x: torch.Tensor) -> torch.Tensor:  # a product's gradient reads the two parts of its gradient
        left, right = (x @ weight).chunk(2, -1)
        return (F.gelu(left) * right).sum()

    def joined(x: torch.Tensor) -> torch.Tensor:  # copies of what exists
        return torch.cat((x[:, 8:], x[:, :8]), -1) @ weight

    monkeypatch.setitem(lowering.lowerings, operator, counted)
    weight, x = torch.randn(16, 16), torch.randn(8, 16, requires_grad=True)
    known = {"force_disable_caches": True, "cpp.vec_isa_ok": True}  # instructions are not tried out
    no_caches = torch._inductor.config.patch(known)
    with torch.compiler.config.patch(cache_key_tag="test"), no_caches:
        for _ in range(2):  # the second call changes nothing
            compiler_inside.compute_parts_apart()
        assert torch.compiler.config.cache_key_tag == "test+parts-apart"
        torch.testing.assert_close(torch.compile(half_turn)(x.detach()), half_turn(x.detach()))
        assert together == [2], gone(
            compiler_inside, "cat is not lowered by `lowerings`, or its users are unknown"
        )
        (found,) = torch.autograd.grad(torch.compile(gated)(x), x)
        assert together == [2], gone(compiler_inside, "parts that a product reads are computed together")
        torch.testing.assert_close(found, torch.autograd.grad(gated(x), x)[0])
        torch.testing.assert_close(torch.compile(joined)(x.detach()), joined(x.detach()))
    assert together == [2, 2], gone(compiler_inside, "copies are computed apart")


def test_compiled_code_calls_an_operator_once_for_one_first_argument() -> None:
    from torch._inductor import lowering

    calls = list[float]()

    @torch.library.custom_op("bench_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        calls.append(float(x[0]))
        return 2 * x

    doubled.register_fake(lambda x, _when: torch.empty_like(x))
    operator = torch.ops.bench_test.doubled.default

    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return doubled(x, x.sin()) + doubled(x, y) + doubled(y, x)

    x, y = torch.ones(3), torch.zeros(3)
    known = {"force_disable_caches": True, "cpp.vec_isa_ok": True}  # instructions are not tried out
    with torch.compiler.config.patch(cache_key_tag="test"), torch._inductor.config.patch(known):
        torch.testing.assert_close(torch.compile(twice)(x, y), twice(x, y))
        assert sorted(calls) == [0, 0, 1, 1, 1, 1]  # compiled and not
        for _ in range(2):  # the second call changes nothing
            compiler_inside.compute_once(operator)
        assert torch.compiler.config.cache_key_tag == f"test+once-{operator}"
        torch._dynamo.reset()
        calls.clear()
        torch.testing.assert_close(torch.compile(twice)(x, y), twice(x, y))
    lowering.lowerings.pop(operator)
    assert sorted(calls) == [0, 0, 1, 1, 1], gone(compiler_inside, "operators are not lowered by `lowerings`")


def test_fake_tensors_have_a_shape_and_no_contents() -> None:
    with torch_inside.fake_tensors():
        product = torch.empty(3, 4) @ torch.empty(4, 5)
    assert product.shape == (3, 5), gone(torch_inside, "FakeTensorMode computes no shapes")
    assert type(product).__name__ == "FakeTensor", gone(torch_inside, "FakeTensorMode makes other tensors")


def test_whole_numbers_are_known_beside_floats_without_contents() -> None:
    with torch_inside.fake_tensors(), known_integers():
        scores = torch.empty(3, 4) @ torch.empty(4, 5)
        chosen = scores.topk(2).indices
        rows = scores[(torch.arange(3) > 0).nonzero()[:, 0]]
        by_truth = scores[torch.arange(3) > 0]
        read = scores.sum().item(), chosen.numel(), int(torch.arange(3).max())
    assert type(scores).__name__ == "FakeTensor", gone(known_integers_inside, "floats are computed")
    assert chosen.shape == (3, 2), gone(known_integers_inside, "whole numbers are not computed")
    assert sorted({*chosen.flatten().tolist()}) != [], gone(known_integers_inside, "they have no contents")
    assert rows.shape == by_truth.shape == (2, 5), gone(known_integers_inside, "sizes follow from nothing")
    assert read == (0.0, 6, 2), gone(known_integers_inside, "contents cannot be read")


def test_large_whole_numbers_take_no_memory_and_are_read_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_integers_inside, "MOST_COMPUTED", 8)
    with torch_inside.fake_tensors(), known_integers():
        places = torch.arange(4) + 1
        pairs = places[:, None] == places[None, :]
        read = bool(pairs.any()), int(places.max())
    assert type(pairs).__name__ == "FakeTensor", gone(known_integers_inside, "large ones are computed")
    assert pairs.untyped_storage().nbytes() == 16, gone(known_integers_inside, "their bytes are unknown")
    assert read == (False, 4), gone(known_integers_inside, "contents cannot be read")


FLOATS, HALVES = torch.ones(4, 8), torch.ones(8, 8, dtype=torch.bfloat16)
PLACES = torch.zeros(4, dtype=torch.long)
REFUSED: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], torch.Tensor]] = {
    "linear": lambda made: F.linear(made(FLOATS), made(HALVES)),
    "linear with a bias": lambda made: F.linear(made(FLOATS), made(HALVES), made(HALVES[0])),
    "convolution": lambda made: F.conv1d(made(FLOATS), made(HALVES)[:, :4, None]),
    "index_add": lambda made: made(FLOATS).index_add(0, made(PLACES), made(HALVES[:4])),
    "index_copy_": lambda made: made(FLOATS).index_copy_(0, made(PLACES), made(HALVES[:4])),
    "masked_fill": lambda made: made(HALVES).masked_fill(made(HALVES) > 0, torch.finfo(torch.float32).min),
    "layer_norm": lambda made: F.layer_norm(made(FLOATS), (8,), made(HALVES[0]), made(HALVES[0])),
    "group_norm": lambda made: F.group_norm(made(FLOATS), 2, made(HALVES[0]), made(HALVES[0])),
}


@pytest.mark.parametrize("call", REFUSED)
def test_operators_without_contents_refuse_what_kernels_refuse(call: str) -> None:
    def empty(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    with pytest.raises(RuntimeError):
        REFUSED[call](torch.clone)
    with torch_inside.fake_tensors():
        REFUSED[call](empty)  # if this fails, kernel_rules() need not refuse the call
        with kernel_rules(), pytest.raises(RuntimeError, match=r"takes no tensors of|is too large"):
            REFUSED[call](empty)


def test_operators_without_contents_take_what_kernels_take() -> None:
    with torch_inside.fake_tensors(), kernel_rules():
        halves, floats = torch.empty(4, 8, dtype=torch.bfloat16), torch.empty(4, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert F.linear(floats, floats).dtype == torch.bfloat16
        assert halves.masked_fill(halves > 0, float("-inf")).dtype == torch.bfloat16
        assert (halves + floats).dtype == torch.float32


def test_the_flop_counter_takes_formulas_of_products_and_convolutions() -> None:
    assert hasattr(torch.ops.aten, "_grouped_mm"), gone(torch_inside, "torch has no aten._grouped_mm")
    assert "_grouped_mm" in inspect.getsource(torch.nn.functional.grouped_mm), gone(
        torch_inside, "F.grouped_mm calls another function"
    )
    counter = torch_inside.flop_counter(
        product=lambda *_, **__: 1000,
        product_with_sum=lambda *_, **__: 20_000,
        grouped_matmul=lambda *_, **__: 0,
        batched_matmul=lambda *_, **__: 7,
        convolution=lambda *_, **__: 100,
    )
    with counter:
        torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5))
        torch.conv1d(torch.ones(1, 1, 5), torch.ones(1, 1, 3))
        torch.nn.Linear(2, 3)(torch.ones(1, 2))
        torch.mm(torch.ones(1, 2), torch.ones(2, 3))
    assert counter.get_total_flops() == 21_107, gone(torch_inside, "the flop counter ignores custom formulas")
    assert {*counter.get_flop_counts()} == {"Global"}, gone(
        torch_inside, "the flop counter tells modules apart"
    )


def test_each_operator_is_told_with_its_arguments() -> None:
    told: list[tuple[str, int]] = []
    with torch_inside.each_operator(lambda op, args, _: told.append((op.overloadpacket.__name__, len(args)))):
        torch.nn.Linear(2, 3, bias=False)(torch.ones(1, 2)).sum().backward()
    names = [name for name, _ in told]
    assert names.count("mm") == 2, gone(torch_inside, f"TorchDispatchMode tells of {names}")
    assert ("mm", 2) in told


def test_tensors_are_copied_across_precisions() -> None:
    half, full = [torch.zeros(3, dtype=torch.float16)], [torch.ones(3)]
    torch_inside.copy_each(half, full)
    assert half[0].tolist() == [1, 1, 1], gone(torch_inside, "torch._foreach_copy_ copies otherwise")


def test_extensions_lock_with_a_file_of_this_name() -> None:
    from torch.utils import cpp_extension

    assert callable(cpp_extension.get_default_build_root)
    source = inspect.getsource(cpp_extension._jit_compile)
    assert "'lock'" in source, gone(torch_inside, "cpp_extension has another lock")


def test_flex_attention_passes_options_of_its_backward_kernel_on() -> None:
    from torch._inductor.kernel.flex import flex_attention

    source = inspect.getsource(flex_attention)
    assert "bwd_" in source, gone(torch_inside, "FlexAttention's options have no prefix bwd_")
    for option in torch_inside.FLEX_BACKWARD_OPTIONS:
        name = option.removeprefix("bwd_")
        assert name in source, gone(torch_inside, f"FlexAttention has no option {option}")


def test_a_store_listens_on_an_open_socket() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = torch_inside.store_on_socket(
        "127.0.0.1", port, 1, listen_fd=listener.detach(), timeout=timedelta(seconds=20)
    )
    store.set("key", "value")
    assert store.get("key") == b"value", gone(torch_inside, "TCPStore takes no open socket")
    assert isinstance(store, dist.Store)


def test_torchrun_reads_the_rendezvous_options() -> None:
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous

    options = torch_inside.rendezvous_options(is_host=True, join_seconds=1, missed_signs=2)
    assert options == "is_host=True,join_timeout=1,keep_alive_max_attempt=2"
    source = inspect.getsource(c10d_rendezvous_backend) + inspect.getsource(dynamic_rendezvous)
    for text in ('"is_host"', '_timeout"', '"keep_alive_max_attempt"'):
        assert text in source, gone(torch_inside, f"torchrun's c10d backend does not read {text}")


@pytest.mark.parametrize(
    ("variable", "module"),
    [
        ("TORCHELASTIC_RUN_ID", "torch.distributed.elastic.agent.server.local_elastic_agent"),
        *(
            (name, "torch.distributed.elastic.rendezvous.dynamic_rendezvous")
            for name in torch_inside.OWN_STORE
        ),
        ("PYTORCH_NVML_BASED_CUDA_CHECK", "torch.cuda"),
    ],
)
def test_torch_knows_the_environment_variable(variable: str, module: str) -> None:
    source = inspect.getsource(importlib.import_module(module))
    assert variable in source, gone(torch_inside, f"{module} does not use {variable}")


def test_the_loss_scale_is_made_where_the_first_tensor_lies() -> None:
    scaler = torch.amp.GradScaler("cpu")
    assert scaler._scale is None, gone(torch_inside, "GradScaler makes its scale at once")
    torch_inside.keep_loss_scale_on_host(scaler)
    assert scaler._scale is not None and scaler._scale.device.type == "cpu"


def test_a_product_of_halves_is_added_in_fp32() -> None:
    if torch.cuda.is_available():
        total, half = (
            torch.ones(16, 16, device="cuda"),
            torch.ones(16, 16, device="cuda", dtype=torch.float16),
        )
        torch_inside.add_half_product(total, half, half)
        assert bool((total == 17).all()), gone(torch_inside, "torch.addmm with out_dtype computes otherwise")
    else:
        overloads = torch.ops.aten.addmm.overloads()
        assert "dtype_out" in overloads, gone(
            torch_inside, "torch.addmm takes no out_dtype together with out"
        )


def test_fp8_numbers_are_multiplied_with_a_scale_for_each_row() -> None:
    assert hasattr(torch, "_scaled_mm"), gone(torch_inside, "torch has no _scaled_mm")
    left, right = (torch.ones(rows, 32).to(torch.float8_e4m3fn) for rows in (16, 48))
    scales = torch.tensor([1.0, 2.0]).repeat(8).unsqueeze(1), torch.full((48, 1), 0.5)
    expected = torch.full((16, 48), 16.0) * scales[0]
    # A GPU before compute capability 8.9 refuses such numbers, so the CPU multiplies.
    found = torch_inside.fp8_product(left, scales[0], right, scales[1])
    assert torch.equal(found, expected.bfloat16()), gone(torch_inside, "_scaled_mm computes otherwise")


def test_adamw_counts_updates_in_a_tensor() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    torch_inside.forget_updates(optimizer, weight)
    assert float(optimizer.state[weight]["step"]) == 0, gone(torch_inside, 'AdamW\'s state has no "step"')


# transformers


@pytest.mark.parametrize("family", families())
def test_transformers_has_the_module_that_is_imported_ahead(family: str) -> None:
    name = transformers_inside.modeling_module(family)
    assert importlib.util.find_spec(name), gone(transformers_inside, f"transformers has no {name}")


def test_auto_classes_tell_what_they_can_build() -> None:
    import transformers

    vit, causal = transformers.ViTConfig(), transformers.AutoModelForCausalLM
    told = transformers_inside.can_build(transformers.AutoModelForImageClassification, vit)
    assert told and not transformers_inside.can_build(causal, vit), gone(
        transformers_inside, "_model_mapping of Auto classes says something else"
    )


def test_configurations_tell_their_fields_and_aliases() -> None:
    from transformers import GPT2Config

    names = transformers_inside.field_names(GPT2Config())
    assert {"n_layer", "num_hidden_layers"} <= {*names}, gone(
        transformers_inside, "attribute_map has changed"
    )
    assert transformers_inside.field_named(GPT2Config(), "num_hidden_layers") == "n_layer"


def test_a_model_with_several_classes_is_built_and_has_no_mask_tokens() -> None:
    from transformers import AutoModelForImageClassification, DeiTConfig

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    configuration = DeiTConfig(**sizes, image_size=8, patch_size=4)
    transformers_inside.build_first_class(configuration)
    with torch.device("meta"):
        model = AutoModelForImageClassification.from_config(configuration)
    transformers_inside.drop_mask_tokens(model)
    left = [name for name, _ in model.named_parameters() if name.endswith("mask_token")]
    assert not left, gone(transformers_inside, f"mask tokens have another name: {left}")


def test_t5_shares_its_head_whatever_its_configuration_says_and_a_separate_one_can_be_given() -> None:
    from transformers import AutoModelForSeq2SeqLM, T5Config

    configuration = T5Config(d_model=8, d_kv=8, d_ff=8, num_layers=1, num_heads=1, tie_word_embeddings=False)
    model = AutoModelForSeq2SeqLM.from_config(configuration)
    embedding = model.get_input_embeddings().weight
    assert model.lm_head.weight is embedding, gone(transformers_inside, "T5 does as tie_word_embeddings says")
    transformers_inside.separate_head(model)
    assert model.lm_head.weight is not embedding
    assert model.decoder.embed_tokens.weight is model.encoder.embed_tokens.weight is embedding


@pytest.mark.parametrize(("model_type", "unasked"), [("xlm", True), ("flaubert", True), ("gpt2", False)])
def test_these_types_make_a_cache_for_every_pass(model_type: str, unasked: bool) -> None:
    from transformers import CONFIG_MAPPING, AutoModel, Cache

    sizes = {"vocab_size": 8, "emb_dim": 8, "n_embd": 8, "n_layers": 1, "n_layer": 1, "n_head": 1}
    configuration = CONFIG_MAPPING[model_type](**sizes, n_heads=1, use_cache=False)
    model = AutoModel.from_config(configuration)
    block = (model.attentions if unasked else model.h)[0]
    transformers_inside.hand_no_caches(model, [block])
    hooked = bool(block._forward_pre_hooks)
    given: list[Any] = []
    block.register_forward_pre_hook(lambda _, args, named: given.extend(named.values()), with_kwargs=True)
    model(torch.zeros(1, 2, dtype=torch.long))
    caches = [one for one in given if isinstance(one, Cache)]
    assert (hooked, caches) == (unasked, []), gone(transformers_inside, "another forward makes the cache")


@pytest.mark.parametrize(("model_type", "sees"), [("rembert", True), ("roformer", True), ("bert", False)])
def test_a_token_sees_those_that_follow_where_no_position_is_hidden(model_type: str, sees: bool) -> None:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    sizes = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    configuration = CONFIG_MAPPING[model_type](**sizes, is_decoder=True, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(configuration).eval()
    with torch.no_grad():
        before, after = (model(torch.tensor([[1, 2, last]])).logits[:, :2] for last in (3, 4))
    found = transformers_source.sees_following_tokens(model_type)
    assert found == sees == (not torch.equal(before, after)), gone(
        transformers_source, "another type hides no position"
    )


def test_masks_are_made_with_a_look_for_packed_samples() -> None:
    from transformers import masking_utils

    for maker in (masking_utils.create_causal_mask, masking_utils.create_sliding_window_causal_mask):
        names = maker.__code__.co_names
        assert "_preprocess_mask_arguments" in names, gone(transformers_inside, f"{maker.__name__} differs")
    look = masking_utils._preprocess_mask_arguments.__code__.co_names
    assert "find_packed_sequence_indices" in look, gone(
        transformers_inside, "nothing looks for packed samples"
    )


def test_exact_gelu_is_told_from_its_approximations() -> None:
    from transformers.activations import ACT2FN

    exact = {name for name in ACT2FN if transformers_inside.is_exact_gelu(ACT2FN[name])}
    assert exact == {"gelu"}, gone(transformers_inside, f"exact GELU is {exact}")
    assert transformers_inside.is_exact_gelu(nn.GELU())
    assert not transformers_inside.is_exact_gelu(nn.GELU(approximate="tanh"))


def test_transformers_keeps_no_results_that_have_no_contents() -> None:
    from transformers import pytorch_utils

    class Counting:
        calls = 0

        @pytorch_utils.compile_compatible_method_lru_cache(maxsize=4)
        def positions(self, size: int) -> torch.Tensor:
            self.calls += 1
            return torch.arange(size)

    transformers_inside.keep_no_results_without_contents()
    counting = Counting()
    with torch_inside.fake_tensors():
        counting.positions(3)
    found = [counting.positions(3), counting.positions(3)]
    assert type(found[0]) is torch.Tensor and counting.calls == 2, gone(
        transformers_inside, "transformers decides in another way which results it keeps"
    )


def test_transformers_refuses_wrong_types_with_a_known_exception() -> None:
    from transformers import ViTConfig

    with pytest.raises(transformers_inside.refusals()):
        ViTConfig(hidden_size=[])


def test_mamba_s_module_has_the_function_that_is_replaced() -> None:
    module = transformers_inside.load_mamba(fused=False)
    source = Path(module.__file__).read_text()
    assert "mamba_inner_fn" in source, gone(transformers_inside, "modeling_mamba has no mamba_inner_fn")
    assert "use_kernel_func_from_hub_with_fallback" in source or "mamba_ssm" in source


def test_a_mamba_mixer_calls_its_convolution_and_its_scan_by_these_names() -> None:
    from transformers import MambaConfig

    module = transformers_inside.load_mamba(fused=False)
    mixer = module.MambaMixer(MambaConfig(hidden_size=4, state_size=2, num_hidden_layers=1), layer_idx=0)
    kinds: list[str] = []

    def instead(kind: str, function: Any, *arguments: Any, **keywords: Any) -> Any:
        kinds.append(kind)
        return function(*arguments, **keywords)

    with transformers_inside.mamba_in_parts(instead):
        mixer(torch.ones(1, 3, 4))
    assert kinds == ["convolutions", "scans"], gone(transformers_inside, "MambaMixer calls other functions")
    mixer(torch.ones(1, 3, 4))
    assert len(kinds) == 2


def types_with(function: str) -> set[str]:
    import transformers

    folder = Path(str(transformers.__file__)).parent / "models"
    return {
        file.parent.name
        for file in folder.glob("*/modeling_*.py")
        if re.search(rf"^def {function}\(", file.read_text(), re.MULTILINE)
    }


def test_types_with_mixers_of_mamba_1_are_those_whose_code_scans_selectively() -> None:
    found = types_with(transformers_inside.MAMBA_FUNCTIONS[2])
    assert {"mamba", *transformers_inside.MAMBA1_MIXERS} == found, gone(
        transformers_inside, "MAMBA1_MIXERS lists other types than those with the function"
    )


@pytest.mark.parametrize("model_type", transformers_inside.MAMBA1_MIXERS)
def test_a_mixer_of_mamba_1_convolves_and_scans_by_these_names(model_type: str) -> None:
    model = small(model_type)
    module = family_of(model).build(model, kernels=False)
    kinds: list[str] = []

    def instead(kind: str, function: Any, *arguments: Any, **keywords: Any) -> Any:
        kinds.append(kind)
        return function(*arguments, **keywords)

    def logits() -> torch.Tensor:
        result: torch.Tensor = module(input_ids=torch.ones(1, 3, dtype=torch.long)).logits
        return result

    convolve, scan = (
        transformers_inside._plain(model_type, name) for name in transformers_inside.MAMBA_FUNCTIONS[1:]
    )
    chosen = partial(instead, "convolutions", convolve), partial(instead, "scans", scan)
    found = [logits()]
    with transformers_inside.mamba_in_parts(instead):
        found.append(logits())
    once, both = [*kinds], ["convolutions", *["scans"] * model.architecture.get("n_mamba_heads", 1)]
    assert once and once == both * (len(once) // len(both)), gone(
        transformers_inside, f"mixers of {model_type} call other functions"
    )
    transformers_inside.scan_mamba1_by(model_type, chosen)
    found.append(logits())
    assert kinds == once * 2
    with transformers_inside.mamba1_scans_by(model_type, partial(instead, "counted", scan)):
        found.append(logits())
    assert kinds[len(once) * 2 :] == ["counted"] * once.count("scans")
    del kinds[len(once) * 2 :]
    found.append(logits())
    assert kinds == once * 3
    transformers_inside.scan_mamba1_by(model_type, None)
    found.append(logits())
    assert kinds == once * 3
    assert all(torch.equal(one, found[0]) for one in found)


def test_layers_that_mixers_read_past_are_read_in_their_code() -> None:
    found = {
        name: transformers_source.layers_read_past(name)
        for name in ("falcon_mamba", "jamba", "zamba", *transformers_inside.MAMBA2_MIXERS, "llama")
    }
    assert found == {
        "falcon_mamba": ("x_proj", "dt_proj", "out_proj"),
        "jamba": ("dt_proj",),
        "zamba": (),
        **dict.fromkeys(transformers_inside.MAMBA2_MIXERS, ("out_proj",)),
        "llama": (),
    }, gone(transformers_source, "mixers read other weights without a call")


def test_types_with_mixers_of_mamba_2_are_those_whose_code_has_its_function() -> None:
    found = types_with(transformers_inside.MAMBA2_FUNCTIONS[0])
    assert {*transformers_inside.MAMBA2_MIXERS} == found, gone(
        transformers_inside, "MAMBA2_MIXERS lists other types than those with the function"
    )


@pytest.mark.parametrize("model_type", transformers_inside.MAMBA2_MIXERS)
def test_a_mixer_of_mamba_2_calls_its_kernel_its_convolution_and_its_scan_by_these_names(
    model_type: str,
) -> None:
    transformers_inside.scan_mamba2_by(model_type, None)
    model = small(model_type)
    module = family_of(model).build(model, kernels=False)
    kinds: list[str] = []

    def instead(kind: str, function: Any, *arguments: Any, **keywords: Any) -> Any:
        kinds.append(kind)
        return function(*arguments, **keywords)

    tokens = torch.ones(1, 3, dtype=torch.long)
    with transformers_inside.mamba_in_parts(instead):
        module(input_ids=tokens)
    assert kinds and kinds == ["convolutions", "scans"] * (len(kinds) // 2), gone(
        transformers_inside, f"mixers of {model_type} call other functions"
    )
    module(input_ids=tokens)
    called = len(kinds)
    fused: list[torch.Tensor] = []

    def scan(projected: torch.Tensor, *_: Any, outproj_weight: torch.Tensor, **__: Any) -> torch.Tensor:
        fused.append(projected)
        return projected[..., : outproj_weight.shape[0]]

    transformers_inside.scan_mamba2_by(model_type, scan)
    module(input_ids=tokens)
    transformers_inside.scan_mamba2_by(model_type, None)
    assert (len(kinds), len(fused)) == (called, called // 2)


def test_transformers_source_is_readable() -> None:
    types = transformers_source.types()
    assert types == {*CONFIG_MAPPING_NAMES}, gone(transformers_source, "the mapping of types looks different")
    assert {*families()} <= types
    refused = {
        name: transformers_source.why_not_fused(name) is not None for name in ("llama", "bloom", "gemma2")
    }
    assert refused == {"llama": False, "bloom": True, "gemma2": True}, gone(
        transformers_source, "_supports_sdpa or softcap= is gone"
    )
    names = ("llama", "bert", "falcon", "deepseek_v32", "minimax_m3_vl_text")
    registered = [*map(transformers_source.takes_registered_attention, names)]
    assert registered == [True, True, False, False, False], gone(
        transformers_source, "ALL_ATTENTION_FUNCTIONS is gone, or types of sparse attention ask otherwise"
    )
    read = [transformers_source.reads_field("qwen3_moe", field) for field in ("head_dim", "tail_dim")]
    assert read == [True, False], gone(transformers_source, "fields are no longer read by getattr")
    assert transformers_source.counts_positions_after_padding("roberta"), gone(
        transformers_source, "RoBERTa's position table looks different"
    )
    assert not transformers_source.counts_positions_after_padding("bert")
    names = ("convnext", "convnextv2", "vit")
    found = [transformers_source.why_not_depthwise(name) is None for name in names]
    assert found == [True, True, False], gone(
        transformers_source, "depthwise convolutions are written differently"
    )
    gelu = {
        (name, table): transformers_source.why_no_biased_gelu(name, table, {}) is None
        for name, table in (
            ("bert", "MASKED_LM"), ("vit", "IMAGE_CLASSIFICATION"), ("whisper", "CAUSAL_LM"),
            ("llama4_text", "CAUSAL_LM"), ("modernbert", "MASKED_LM"), ("segformer", "IMAGE_CLASSIFICATION"),
        )
    }  # fmt: skip
    assert [*gelu.values()] == [True, True, True, False, False, False], gone(
        transformers_source, f"classes with GELU look different: {gelu}"
    )


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)
def test_a_built_model_has_the_parts_that_its_family_names(family: Family) -> None:
    """`blocks` is an attribute name that transformers may rename."""
    model = next(m for m in known_models().values() if m.family == family.name and m.name.startswith("tiny-"))
    with torch.device("meta"):
        module = family.build(model, kernels=False)
    file = f"correct bench/training/models/{family.name}.py"
    blocks = family.blocks(module)
    assert blocks, f"{family.name} has no blocks: {file}, blocks()"


# DeepSpeed


def test_deepspeed_has_what_the_engine_is_asked_for() -> None:
    pytest.importorskip("deepspeed", reason="the extra zero is not installed")
    from deepspeed.runtime import engine

    for name in ("set_gradient_accumulation_boundary", "get_global_grad_norm"):
        assert callable(getattr(engine.DeepSpeedEngine, name, None)), gone(
            deepspeed_inside, f"the engine has no {name}"
        )
    source = inspect.getsource(engine)  # a decorator hides the signature of backward
    assert "scale_wrt_gas=True" in source, gone(deepspeed_inside, "backward takes no scale_wrt_gas")


def test_deepspeed_reads_its_accelerator_from_the_environment() -> None:
    pytest.importorskip("deepspeed", reason="the extra zero is not installed")
    from deepspeed.accelerator import real_accelerator

    source = inspect.getsource(real_accelerator)
    assert "DS_ACCELERATOR" in source, gone(deepspeed_inside, "DS_ACCELERATOR is not read")
