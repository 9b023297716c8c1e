#!/usr/bin/env bash
# Do compiler and allocator options pay that are set by environment variables? Measures the same settings without any
# option, and then with each option alone. Each gets a bundle, which records the variables.
#   benchmarks/gpu/switches.sh OUT 'MODELS' 'METHODS'
# MODELS and METHODS are those of side_by_side.sh. Started again with the same OUT, it continues where it stopped.
set -uo pipefail
out=${1:?usage: switches.sh OUT MODELS METHODS} models=${2:?} methods=${3:?}
while read -r name switch; do
  [ -e "$out/$name.done" ] && continue
  env $switch "$(dirname "$0")/side_by_side.sh" "$out" "$name" "$models" "$methods" < /dev/null && touch "$out/$name.done"
done <<SWITCHES
nothing-set
expandable-segments PYTORCH_ALLOC_CONF=expandable_segments:True
cuda-graphs TORCHINDUCTOR_CUDAGRAPHS=1
max-autotune TORCHINDUCTOR_MAX_AUTOTUNE=1
SWITCHES
