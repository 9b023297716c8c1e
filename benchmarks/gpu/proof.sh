#!/usr/bin/env bash
# Compares estimates with real training on one GPU: at least three recipe steps and three minutes.
#   benchmarks/gpu/proof.sh OUT NAME 'MODELS' [GPUS [METHODS]]
# MODELS is a JSON list as in a manifest. Started again with the same OUT, it continues where it stopped.
set -uo pipefail
out=${1:?usage: proof.sh OUT NAME MODELS [GPUS [METHODS]]} name=${2:?} models=${3:?}
gpus=${4:-1} methods=${5:-'"free-lunch"'}
mkdir -p "$out"
cat > "$out/$name.json" <<JSON
{"schema": "bench/manifest/v1", "name": "$name", "models": $models, "methods": $methods, "gpus": $gpus,
 "trial_minutes": 20, "prove": {"steps": 3, "minutes": 3},
 "timing": {"target_percent": 0.5, "measure_seconds": 12, "warmup_seconds": 12}}
JSON
exec python3 -m bench run "$out/$name.json" --out "$out/$name" --resume
