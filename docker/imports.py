"""Imports the whole stack, as an image holds it, and says what each is and what needs a GPU.

    docker run --rm --network none --read-only --tmpfs /cache:exec,uid=65534 --tmpfs /tmp \\
        --entrypoint python3 -v ./docker/imports.py:/imports.py:ro bench:cuda13 /imports.py

Then each compiled kernel is called: with a GPU it must give numbers, without one it must say what it lacks.
Modules that an image does not have are named in WITHOUT. For cuda12.8:

    -e "WITHOUT=flash_attn flash_attn_2_cuda mamba_ssm selective_scan_cuda causal_conv1d causal_conv1d_cuda"
"""

import ctypes
import importlib
import os
import sys

MODULES = (
    "torch", "torchvision", "triton", "transformers", "accelerate", "timm", "deepspeed", "numpy", "pynvml",
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
        print(f"{'':32} built for CUDA {module.version.cuda}; no GPU here: kernels import, and cannot be run")

try:  # NCCL asks for it at run time; without it nodes are connected by TCP, whatever they have
    ctypes.CDLL("libibverbs.so.1")
except OSError as error:
    failed.append("libibverbs")
    print(f"{'libibverbs':32} FAILED {error}")

gpu = "torch" not in failed and sys.modules["torch"].cuda.is_available()
for name in (kernel for kernel in KERNELS if kernel not in (*failed, *left_out)):
    try:
        found = call(name, "cuda" if gpu else "cpu")
        good, said = gpu and bool(found.isfinite().all()), f"gives {tuple(found.shape)} on {found.device}"
    except Exception as error:
        reason = str(error).partition(". ")[0][:100]
        good, said = not gpu and "CUDA" in str(error).upper(), f"{type(error).__name__}: {reason}"
    if not good:
        failed.append(f"calling {name}")
    print(f"calling {name:24} {'' if good else 'FAILED '}{said}")
sys.exit(1 if failed else 0)
