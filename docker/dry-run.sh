#!/bin/sh
# Ask pip to resolve every lock: it must find each requirement, and each file must have a digest of the lock.
# Nothing is installed. pip runs the setup of source archives to learn their names; the setup must find torch and
# must not look for a GPU.
set -eu
cd "$(dirname "$0")/.."
export FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE
export DS_ACCELERATOR=cpu
for lock in requirements.lock docker/*.lock; do
    case "$lock" in *debian.lock | *.built.lock) continue ;; esac
    "${PYTHON:-python3}" -m pip install --quiet --dry-run --ignore-installed --require-hashes --no-build-isolation -r "$lock"
    echo "ok  $lock"
done
