"""Imports the whole stack, as an image holds it, and says what each is and what needs a GPU.

    docker run --rm --network none --read-only --tmpfs /cache:exec,uid=65534 --tmpfs /tmp \\
        --entrypoint python3 -v ./docker/imports.py:/imports.py:ro bench:cuda13 /imports.py
"""

import importlib
import os
import sys

MODULES = (
    "torch", "torchvision", "triton", "transformers", "accelerate", "timm", "deepspeed", "numpy", "pynvml",
    "flash_attn", "flash_attn_2_cuda", "mamba_ssm", "selective_scan_cuda", "causal_conv1d",
    "causal_conv1d_cuda", "deepspeed.ops.adam.cpu_adam_op",
)  # fmt: skip

failed = []
for name in MODULES:
    if name in os.environ.get("WITHOUT", "").split():
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
sys.exit(1 if failed else 0)
