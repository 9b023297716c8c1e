"""Import the whole software stack of an image; print each version, and what needs a GPU.

    docker run --rm --network none --read-only --tmpfs /cache:exec,uid=65534 --tmpfs /tmp \\
        --entrypoint python3 -v ./docker/imports.py:/imports.py:ro bench:cuda13 /imports.py

Then each compiled kernel is called: with a GPU it must return finite numbers, without one its error must name
CUDA. The variable WITHOUT names modules that an image does not contain. For an image without a kernel layer:

    -e "WITHOUT=flash_attn flash_attn_2_cuda mamba_ssm selective_scan_cuda causal_conv1d causal_conv1d_cuda
        deepspeed deepspeed.ops.adam.cpu_adam_op"
"""

import ctypes
import importlib
import os
import sys

MODULES = (
    "torch", "torchvision", "triton", "transformers", "accelerate", "timm", "deepspeed", "peft", "numpy",
    "pynvml",
    "flash_attn", "flash_attn_2_cuda", "mamba_ssm", "selective_scan_cuda", "causal_conv1d",
    "causal_conv1d_cuda", "deepspeed.ops.adam.cpu_adam_op",
)  # fmt: skip
KERNELS = ("flash_attn", "mamba_ssm", "causal_conv1d")


def call(kernel: str, device: str):
    """Call a compiled kernel once, on a small input."""
    import torch

    def half(*shape: int):
        return torch.randn(*shape, dtype=torch.bfloat16, device=device)

    def full(*shape: int):
        return torch.rand(*shape, device=device)

    if kernel == "flash_attn":
        from flash_attn import flash_attn_func

        return flash_attn_func(half(1, 64, 2, 64), half(1, 64, 2, 64), half(1, 64, 2, 64), causal=True)
    if kernel == "mamba_ssm":
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

        return selective_scan_fn(full(1, 8, 64), full(1, 8, 64), -full(8, 4), full(1, 4, 64), full(1, 4, 64))
    from causal_conv1d import causal_conv1d_fn

    return causal_conv1d_fn(half(1, 8, 64), half(8, 4))


failed = []
left_out = os.environ.get("WITHOUT", "").split()
for name in MODULES:
    if name in left_out:
        print(f"{name:32} left out")
        continue
    try:
        module = importlib.import_module(name)
    except Exception as error:
        failed.append(name)
        print(f"{name:32} FAILED {type(error).__name__}: {error}")
        continue
    print(f"{name:32} {getattr(module, '__version__', 'imported')}")
    if name == "torch" and not module.cuda.is_available():
        print(
            f"{'':32} built for CUDA {module.version.cuda}; no GPU here: kernels can be imported but not run"
        )

try:  # NCCL loads it at run time; without it, nodes are connected by TCP even if they have InfiniBand
    ctypes.CDLL("libibverbs.so.1")
except OSError as error:
    failed.append("libibverbs")
    print(f"{'libibverbs':32} FAILED {error}")

gpu = "torch" not in failed and sys.modules["torch"].cuda.is_available()
for name in (kernel for kernel in KERNELS if kernel not in (*failed, *left_out)):
    try:
        result = call(name, "cuda" if gpu else "cpu")
        good, message = (
            gpu and bool(result.isfinite().all()),
            f"returns {tuple(result.shape)} on {result.device}",
        )
    except Exception as error:
        reason = str(error).partition(". ")[0][:100]
        good, message = not gpu and "CUDA" in str(error).upper(), f"{type(error).__name__}: {reason}"
    if not good:
        failed.append(f"calling {name}")
    print(f"calling {name:24} {'' if good else 'FAILED '}{message}")
sys.exit(1 if failed else 0)
