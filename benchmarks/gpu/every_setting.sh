#!/usr/bin/env bash
# Brings every setting of the paper, and all other settings of the guided search, to an outcome on GPUS GPUs.
#   benchmarks/gpu/every_setting.sh OUT GPUS MODEL MICRO_BATCH...
# Timings are short. There is one bundle per micro-batch; name the largest first. Each micro-batch measures the settings
# that fit. The last and smallest one measures all settings, and naive. Started again with the same OUT, it continues where it stopped.
set -uo pipefail
out=${1:?usage: every_setting.sh OUT GPUS MODEL MICRO_BATCH...} gpus=${2:?} model=${3:?}
shift 3
[ $# -gt 0 ] || { echo "name a micro-batch"; exit 2; }
mkdir -p "$out"
guided=$out/$model-$gpus-guided.json plan=$out/$model-$gpus-plan.json
echo "{\"schema\": \"bench/manifest/v1\", \"models\": [\"$model\"], \"gpus\": $gpus}" > "$guided"
[ -s "$plan" ] || python3 -m bench plan "$guided" --json > "$plan" || exit $?
for micro_batch; do
  name=$model-$gpus-$micro_batch
  if [ ! -e "$out/$name.json" ]; then
    python3 - "$out" "$plan" "$name" "$model" "$gpus" "$micro_batch" "${!#}" <<'PY' || exit $?
import json, sys
out, plan, name, model, gpus, micro_batch, last = sys.argv[1:]
plan = json.load(open(plan))
if micro_batch == last:
    settings = ["naive", *(entry["setting"] for entry in plan["cells"] + plan["skipped"])]
else:
    settings = [
        cell["setting"] for cell in plan["cells"]
        if any(trial["micro_batch"] == int(micro_batch) for trial in cell["trials"])
    ]
settings = [entry or "naive" for entry in settings]
if not settings:
    sys.exit(f"nothing fits at micro-batch {micro_batch}")
json.dump({
    "schema": "bench/manifest/v1", "name": "every-setting", "models": [model], "methods": settings,
    "gpus": int(gpus), "micro_batch": int(micro_batch), "trial_minutes": 4,
    "timing": {"target_percent": 1.5, "measure_seconds": 5, "warmup_seconds": 3},
}, open(f"{out}/{name}.json", "w"))
PY
  fi
  [ -e "$out/$name.done" ] && continue
  python3 -m bench run "$out/$name.json" --out "$out/$name" --resume || exit $?
  touch "$out/$name.done"
done
