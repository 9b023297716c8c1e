#!/usr/bin/env bash
# Everything that guided search chooses from, each to an outcome: what `make replay` holds the search against.
#   benchmarks/gpu/every_candidate.sh OUT GPUS MODEL MICRO_BATCH...
# Short timings, one bundle a micro-batch. Started again with the same OUT it goes on where it stopped.
set -uo pipefail
out=${1:?usage: every_candidate.sh OUT GPUS MODEL MICRO_BATCH...} gpus=${2:?} model=${3:?}
shift 3
[ $# -gt 0 ] || { echo "name a micro-batch"; exit 2; }
mkdir -p "$out"
for micro_batch; do
  name=$model-$gpus-$micro_batch
  if [ ! -e "$out/$name.json" ]; then
    echo "{\"schema\": \"bench/manifest/v1\", \"name\": \"x\", \"models\": [\"$model\"], \"gpus\": $gpus}" > "$out/guided.json"
    python3 -m bench plan "$out/guided.json" --json > "$out/plan.json" || exit $?
    python3 - "$out" "$name" "$model" "$gpus" "$micro_batch" <<'PY' || exit $?
import json, sys
out, name, model, gpus, micro_batch = sys.argv[1:]
cells = json.load(open(f"{out}/plan.json"))["cells"]
fit = [c["setting"] for c in cells if any(t["micro_batch"] == int(micro_batch) for t in c["trials"])]
if not fit:
    sys.exit(f"nothing fits at micro-batch {micro_batch}")
json.dump({
    "schema": "bench/manifest/v1", "name": "every-candidate", "models": [model], "methods": fit,
    "gpus": int(gpus), "micro_batch": int(micro_batch), "trial_minutes": 3,
    "timing": {"target_percent": 2, "measure_seconds": 3, "warmup_seconds": 3, "loss_steps": 1},
}, open(f"{out}/{name}.json", "w"))
PY
  fi
  [ -e "$out/$name.done" ] && continue
  python3 -m bench run "$out/$name.json" --out "$out/$name" --resume || exit $?
  touch "$out/$name.done"
done
