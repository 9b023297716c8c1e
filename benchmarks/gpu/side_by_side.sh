#!/usr/bin/env bash
# What does a method gain? Measures settings side by side on the same models.
#   benchmarks/gpu/side_by_side.sh OUT NAME 'MODELS' 'METHODS' [GPUS]
# MODELS and METHODS are JSON lists as in a manifest. Started again with the same OUT, it continues where it stopped.
set -uo pipefail
out=${1:?usage: side_by_side.sh OUT NAME MODELS METHODS [GPUS]} name=${2:?} models=${3:?} methods=${4:?} gpus=${5:-1}
mkdir -p "$out"
cat > "$out/$name.json" <<JSON
{"schema": "bench/manifest/v1", "name": "$name", "models": $models, "methods": $methods, "gpus": $gpus,
 "trial_minutes": 6, "timing": {"target_percent": 0.7, "measure_seconds": 8, "warmup_seconds": 8}}
JSON
exec python3 -m bench run "$out/$name.json" --out "$out/$name" --resume
