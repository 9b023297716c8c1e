#!/usr/bin/env bash
# Every setting of the paper on this many GPUs, each to an outcome; short timings, one bundle a model.
#   benchmarks/gpu/every_setting.sh OUT GPUS MODEL MICRO_BATCH
# Started again with the same OUT it goes on where it stopped.
set -uo pipefail
out=${1:?usage: every_setting.sh OUT GPUS MODEL MICRO_BATCH} gpus=${2:?} model=${3:?} micro_batch=${4:?}
mkdir -p "$out"
cat > "$out/$model-$gpus.json" <<JSON
{"schema": "bench/manifest/v1", "name": "every-setting", "models": ["$model"], "methods": "exhaustive",
 "gpus": $gpus, "micro_batch": $micro_batch, "trial_minutes": 4,
 "timing": {"target_percent": 2, "measure_seconds": 3, "warmup_seconds": 3}}
JSON
exec python3 -m bench run "$out/$model-$gpus.json" --out "$out/$model-$gpus" --resume
