#!/usr/bin/env bash
# Estimates held against real training on one GPU: three recipe steps and three minutes at least.
#   benchmarks/gpu/proof.sh OUT NAME 'MODELS' [GPUS [METHODS]]
# MODELS is a JSON list of the manifest's form. Started again with the same OUT it goes on where it stopped.
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
