#!/bin/sh
# pip's own word on every lock: each requirement is found, and each file has a digest of the lock. Installs nothing.
# Source archives name themselves by running their setup, which must find torch and must not ask for a GPU.
set -eu
cd "$(dirname "$0")/.."
export FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE
export DS_ACCELERATOR=cpu
for lock in requirements.lock docker/*.lock; do
    case "$lock" in *debian.lock | *.built.lock) continue ;; esac
    "${PYTHON:-python3}" -m pip install --quiet --dry-run --ignore-installed --require-hashes --no-build-isolation -r "$lock"
    echo "ok  $lock"
done
