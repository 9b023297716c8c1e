#!/usr/bin/env bash
# Is it faster to compile the whole model at once, or block by block? Measures free-lunch both ways, at the
# micro-batches at which the paper's own code was timed. Writes one bundle per micro-batch.
#   benchmarks/gpu/compiled_how.sh OUT [MICRO_BATCH...]
# Started again with the same OUT, it continues where it stopped.
set -uo pipefail
out=${1:?usage: compiled_how.sh OUT [MICRO_BATCH...]}
shift
mkdir -p "$out"
while read -r micro_batch models; do
  [[ $# -eq 0 || " $* " == *" $micro_batch "* ]] || continue
  name=$micro_batch-$(grep -o '[a-z0-9.-]*' <<<"$models" | head -1)
  manifest=$out/$name.json
  lunch='"tf32", "kernels", "fused-optimizer"'
  [[ $models == *convnext* ]] && lunch='"tf32", "fused-optimizer"'
  cat > "$manifest" <<JSON
{"schema": "bench/manifest/v1", "name": "compiled-how-$name", "models": [$models],
 "methods": [[$lunch, "compile"], [$lunch, "compile-blocks"]], "micro_batch": $micro_batch,
 "timing": {"target_percent": 0.7, "measure_seconds": 8, "warmup_seconds": 8}}
JSON
  ls "$out/$name"/*.tar >/dev/null 2>&1 && continue
  python3 -m bench run "$manifest" --out "$out/$name" --resume || exit $?
done <<'TABLE'
32 "pythia-160m"
16 "pythia-410m", "pythia-1b"
64 "roberta-large"
128 "convnext-xl"
128 "vit-l"
8 "pythia-2.8b"
TABLE
