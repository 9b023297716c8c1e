#!/usr/bin/env bash
# The open questions in the order of what hangs on them: what README.md says of each, as commands.
#   benchmarks/gpu/queue.sh OUT GPUS
# Started again with the same OUT it goes on where it stopped. A question that fails leaves the others alone; what
# failed is said last.
set -uo pipefail
out=${1:?usage: queue.sh OUT GPUS} gpus=${2:?}
here=$(dirname "$0") failed=()
mkdir -p "$out"

ask() { # NAME COMMAND...
  local name=$1; shift
  [ -e "$out/$name.done" ] && return
  echo "== $(date -u +%T) $name"
  if "$@"; then touch "$out/$name.done"; else failed+=("$name"); fi
}
printed() { # NAME COMMAND...: what it prints is the answer
  local name=$1; shift
  "$@" > "$out/$name.json.part" && mv "$out/$name.json.part" "$out/$name.json" && cat "$out/$name.json"
}
settings() { # NAME MODEL MICRO_BATCH METHODS: in the timing of every_setting.sh
  cat > "$out/$1.json" <<JSON
{"schema": "bench/manifest/v1", "name": "every-setting", "models": ["$2"], "methods": $4, "gpus": $gpus,
 "micro_batch": $3, "trial_minutes": 4,
 "timing": {"target_percent": 1.5, "measure_seconds": 5, "warmup_seconds": 3}}
JSON
  python3 -m bench run "$out/$1.json" --out "$out/$1" --resume
}
would_it_pay() { # NAME CHANGES MODEL MICRO_BATCH [METHOD...]
  local name=$1; shift
  ask "$name" printed "$name" python3 "$here/would_it_pay.py" --turns 1 "$@"
}

halved="tf32 kernels rotary half-weights fused-optimizer compile-blocks"
roberta='"tf32", "kernels", "masked-head", "compile-blocks"'
case $gpus in
1)
  ask gradients printed gradients python3 "$here/gradients.py"
  would_it_pay pythia-1b-passes \
    gelu-in-triton/gelu-written-out/norms-in-triton/loss-in-triton/softmax-in-two-passes pythia-1b 32 $halved
  would_it_pay pythia-6.9b-passes sums-in-products/gelu-in-triton,sums-in-products pythia-6.9b 1 $halved
  would_it_pay pythia-2.8b-passes \
    gelu-in-triton/norms-in-triton/gelu-in-triton,norms-in-triton,sums-in-products,loss-in-triton pythia-2.8b 8 $halved
  would_it_pay vit-l-passes flex-blocks/flex-blocks,gelu-in-triton vit-l 256
  would_it_pay roberta-passes gelu-in-triton/gelu-written-out roberta-large 128 \
    tf32 kernels masked-head half-weights fused-optimizer compile-blocks
  would_it_pay pythia-160m-passes gelu-in-triton/gelu-in-triton,loss-in-triton pythia-160m 64 $halved
  would_it_pay convnext-passes gelu-in-triton/gelu-written-out convnext-xl 128
  if python3 -c "import flash_attn.cute" 2>/dev/null; then
    ask attention printed attention python3 "$here/attention.py"
    would_it_pay flash-6.9b flash-attention-4 pythia-6.9b 1 $halved
    would_it_pay flash-2.8b flash-attention-4 pythia-2.8b 8 $halved
  fi
  ask pythia-1b "$here/every_setting.sh" "$out/pythia-1b" 1 pythia-1b 16
  ask roberta settings roberta-large-1gpu-again-128 roberta-large 128 \
    "[[$roberta, \"zero-1\", \"offload\"], [$roberta, \"checkpointing\", \"zero-1\", \"offload\"],
      [$roberta, \"zero-2\", \"offload\"], [$roberta, \"checkpointing\", \"zero-2\", \"offload\"]]"
  ask vit-naive settings vit-l-1gpu-naive-128 vit-l 128 '["naive"]'
  ask mamba "$here/every_setting.sh" "$out/mamba-2.8b" 1 mamba-2.8b 2
  ask convnext-naive settings convnext-xl-1gpu-naive-32 convnext-xl 32 '["naive"]'
  ask pythia-160m "$here/every_setting.sh" "$out/pythia-160m" 1 pythia-160m 64 32 16
  ;;
2)
  ask pythia-1b "$here/every_setting.sh" "$out/pythia-1b" 2 pythia-1b 16
  ask mamba "$here/every_setting.sh" "$out/mamba-2.8b" 2 mamba-2.8b 2
  ask pythia-160m "$here/every_setting.sh" "$out/pythia-160m" 2 pythia-160m 64 32
  ask convnext "$here/every_setting.sh" "$out/convnext-xl" 2 convnext-xl 32
  ;;
*) echo "no question is open for $gpus GPUs"; exit 2 ;;
esac
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
