#!/usr/bin/env bash
# A rank is killed, or a single rank runs out of memory: does each trial end at once, and is the next one measured?
#   benchmarks/gpu/recovery.sh OUT GPUS
# The bundle shows a crash, an out-of-memory and a measurement; its telemetry shows the memory between them.
set -uo pipefail
out=${1:?usage: recovery.sh OUT GPUS} gpus=${2:?}
mkdir -p "$out"
cat > "$out/recovery.json" <<JSON
{"schema": "bench/manifest/v1", "name": "recovery", "models": ["pythia-160m"], "gpus": $gpus, "micro_batch": 16,
 "methods": ["free-lunch", "naive", ["kernels", "checkpointing"]], "trial_minutes": 4,
 "timing": {"target_percent": 2, "measure_seconds": 3, "warmup_seconds": 3}}
JSON
python3 -m bench run "$out/recovery.json" --out "$out/recovery" &
run=$!
hog=
trap 'kill -9 $run $hog 2>/dev/null' EXIT
rm -f "$out/take"
journal() { cat "$out"/recovery/*/journal.jsonl 2>/dev/null | grep -c "\"event\":\"$1\""; }
ranks() { nvidia-smi --query-compute-apps=pid --format=csv,noheader | sort -nu; }
has() { [ "$(journal "$1")" -ge "$2" ]; }
computing() { [ "$(ranks | wc -l)" -gt "$gpus" ]; }  # one of the processes is the one that occupies memory
wait_until() {
  for _ in $(seq 1200); do "$@" && return; sleep 0.2; done
  echo "gave up waiting: $*"; exit 1
}

# Started before it is needed, because the second trial allocates its memory within two seconds of its start.
python3 -c "
import os, time, torch
torch.zeros(1, device='cuda:$((gpus - 1))')
while not os.path.exists('$out/take'):
    time.sleep(0.01)
held, deadline = [], time.time() + 60
while len(held) < 120 and time.time() < deadline:
    try:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device='cuda:$((gpus - 1))'))
    except torch.OutOfMemoryError:
        time.sleep(0.01)
print(f'holding {len(held)} GiB', flush=True)
time.sleep(600)" &
hog=$!
wait_until has ceilings 1
wait_until computing
sleep 8
victim=$(ranks | grep -v "^$hog$" | tail -1)
echo "$(date +%T) kill -9 $victim, a rank of the first trial"
kill -9 "$victim"
wait_until has trial 1
echo "$(date +%T) occupying 120 GiB of the last GPU during the second trial"
touch "$out/take"
wait_until has trial 2
echo "$(date +%T) releasing the memory"
kill -9 $hog
trap - EXIT
wait $run
echo "exit code $?"
nvidia-smi --query-gpu=index,memory.used --format=csv
