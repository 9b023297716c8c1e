#!/usr/bin/env bash
# Do what compilers and allocators offer by the environment pay? The same settings with nothing set, and with each in
# turn: a bundle each, which keeps what was set.
#   benchmarks/gpu/switches.sh OUT 'MODELS' 'METHODS'
# MODELS and METHODS as side_by_side.sh has them. Started again it goes on where it stopped.
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
