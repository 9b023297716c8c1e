#!/usr/bin/env bash
# Free-lunch at the micro-batches at which the paper's own code was timed, one bundle a micro-batch.
#   benchmarks/gpu/like_for_like.sh OUT
# Started again with the same OUT it goes on where it stopped.
set -uo pipefail
out=${1:?usage: like_for_like.sh OUT}
mkdir -p "$out"
while read -r micro_batch models; do
  manifest=$out/micro-batch-$micro_batch.json
  cat > "$manifest" <<JSON
{"schema": "bench/manifest/v1", "name": "like-for-like-$micro_batch", "models": [$models],
 "methods": ["free-lunch"], "micro_batch": $micro_batch,
 "timing": {"target_percent": 0.5, "measure_seconds": 12, "warmup_seconds": 12}}
JSON
  ls "$out/$micro_batch"/*.tar >/dev/null 2>&1 && continue
  python3 -m bench run "$manifest" --out "$out/$micro_batch" --resume || exit $?
done <<'TABLE'
16 "pythia-1b", "pythia-410m"
32 "pythia-160m"
128 "vit-l", "convnext-xl"
64 "roberta-large"
8 "pythia-2.8b"
TABLE
