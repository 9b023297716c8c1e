#!/usr/bin/env bash
# Runs the open questions of README.md, the most important first.
#   benchmarks/gpu/queue.sh OUT GPUS|h100       h100: one H100 of 80 GB, on which hour.json has not been measured yet
# Started again with the same OUT, it continues where it stopped. A question that fails does not stop the others; the last line
# names the failed ones.
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
printed() { # NAME COMMAND...: the answer is the output of the command
  local name=$1; shift
  "$@" > "$out/$name.json.part" && mv "$out/$name.json.part" "$out/$name.json" && cat "$out/$name.json"
}
settings() { # NAME MODEL MICRO_BATCH METHODS: with the timing of every_setting.sh
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
frontier() { # NAME MODEL MICRO_BATCH METHOD...
  local name=$1; shift
  ask "$name" printed "$name" python3 "$here/frontier.py" "$@" --without plain
}

halved="tf32 kernels rotary gelu norms half-weights fused-optimizer compile-blocks"
case $gpus in
1)
  # Do gradients of the free lunch with fp32 weights agree since each has memory of its own?
  ask gradients settings gradients pythia-160m 64 '["free-lunch"]'
  ask hour python3 -m bench run manifests/hour.json --out "$out/hour" --budget 60m --resume
  ask optimizers printed optimizers python3 "$here/optimizers.py" llama-1.2b 8
  ask pythia-160m-gelu "$here/side_by_side.sh" "$out" pythia-160m-gelu \
    '[{"name": "pythia-160m", "micro_batch": 64}]' \
    '[["tf32", "kernels", "rotary", "half-weights", "fused-optimizer", "compile-blocks"],
      ["tf32", "kernels", "rotary", "gelu", "half-weights", "fused-optimizer", "compile-blocks"],
      ["tf32", "kernels", "rotary", "gelu", "norms", "half-weights", "fused-optimizer", "compile-blocks"]]'
  would_it_pay pythia-160m-loss loss-in-triton pythia-160m 64 $halved
  # Architectures that have rotary and flex-attention by what their modules compute
  in_fp32="tf32 kernels gelu fused-optimizer compile-blocks"
  frontier dinov2-fp32 dinov2-large-fp32 64 $in_fp32
  frontier dinov2-fp32-flex dinov2-large-fp32 64 $in_fp32 flex-attention
  frontier persimmon persimmon-1b 8 tf32 kernels half-weights fused-optimizer compile-blocks
  frontier persimmon-rotary persimmon-1b 8 tf32 kernels rotary half-weights fused-optimizer compile-blocks
  # Encoders with decoders, whose heads are compiled with the loss
  decoding="tf32 kernels fused-optimizer compile-blocks cuda-graphs"
  ask t5-peaks printed t5-peaks python3 "$here/peaks.py" t5-v1.1-base 32 $decoding
  ask whisper-peaks printed whisper-peaks python3 "$here/peaks.py" whisper-small 32 $decoding gelu padded-head
  ask convnext-naive settings convnext-xl-1gpu-naive-32 convnext-xl 32 '["naive"]'
  ask pythia-160m "$here/every_setting.sh" "$out/pythia-160m" 1 pythia-160m 64 32 16
  ;;
2)
  ask mamba settings mamba-2.8b-offload-rest-2 mamba-2.8b 2 \
    '[["tf32", "kernels", "zero-3", "offload"], ["tf32", "kernels", "checkpointing", "zero-3", "offload"],
      ["tf32", "kernels", "compile-blocks", "fsdp-2", "offload"],
      ["tf32", "kernels", "compile-blocks", "checkpointing", "fsdp-2", "offload"],
      ["tf32", "kernels", "compile-blocks", "fsdp-3", "offload"],
      ["tf32", "kernels", "compile-blocks", "checkpointing", "fsdp-3", "offload"]]'
  ask pythia-160m "$here/every_setting.sh" "$out/pythia-160m" 2 pythia-160m 64 32
  ask convnext "$here/every_setting.sh" "$out/convnext-xl" 2 convnext-xl 32
  ;;
h100)
  ask check "$here/node_check.sh" "$out/check" 1 quick
  ask hour python3 -m bench run manifests/hour.json --out "$out/hour" --budget 60m --resume
  ;;
*) echo "no question is open for $gpus GPUs"; exit 2 ;;
esac
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
