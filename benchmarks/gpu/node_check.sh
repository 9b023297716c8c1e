#!/usr/bin/env bash
# Does a good node pass `bench check` three times with similar figures, and does it find processes that disturb it?
#   benchmarks/gpu/node_check.sh OUT GPUS LEVEL
# Runs three checks of GPUS GPUs at LEVEL (quick, standard, soak) and prints the spread of every figure between them.
# Then it causes real disturbances without changing settings of the card. Each must be found by the named check:
#   a process that keeps one GPU busy for a tenth of the time    strangers
#   a process that holds 8 GiB of its memory and does nothing    strangers
#   a process that copies over its bus all the time              strangers, or copies
# Takes less than six minutes for one GPU at level quick. Exit code 0: everything is as expected.
set -uo pipefail
out=${1:?usage: node_check.sh OUT GPUS LEVEL} gpus=${2:?} level=${3:?}
here=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} XDG_CONFIG_HOME=${XDG_CONFIG_HOME:-$out/config}
export CUDA_DEVICE_ORDER=PCI_BUS_ID
mkdir -p "$out"
cat > "$out/node-check.json" <<JSON
{"schema": "bench/node-check/v1", "name": "node-check", "level": "$level", "gpus": $gpus,
 "expect": {"gpus": $gpus}}
JSON
cat > "$out/short.json" <<JSON
{"schema": "bench/node-check/v1", "name": "node-check-short", "level": "quick", "gpus": $gpus,
 "levels": {"quick": {"minutes": 2, "warm_seconds": 0.3, "seconds": 0.5, "soak_seconds": 4}},
 "skip": ["disk", "host-memory", "agreement", "all-reduce", "peers", "memory", "clock"]}
JSON
bad=0

check() { # NAME MANIFEST
    local started=$SECONDS
    python3 -m bench check "$2" --out "$out/$1" --history "$out/none" --json > "$out/$1.json" 2> "$out/$1.err"
    echo "$?" > "$out/$1.rc"
    echo "== $1: exit $(cat "$out/$1.rc") after $((SECONDS - started)) s"
}

show() { # NAME: print every finding that is not a pass
    python3 - "$out/$1.json" <<'PY'
import json, sys
try:
    results = json.load(open(sys.argv[1]))["results"]
except ValueError:
    sys.exit("no results")
print("  ", results["verdict"], {v: sum(f["verdict"] == v for f in results["findings"]) for v in ("pass", "warn", "fail", "not-run")})
for f in results["findings"]:
    if f["verdict"] != "pass":
        print("  ", f["verdict"] if f["counts"] else "not possible", "|", f["check"], "|", f["subject"], "|", f["found"][:160], "|", f["expected"][:100])
sys.exit(results["verdict"] != "pass")
PY
}

mkdir -p "$out/none"
for run in 1 2 3; do
    check "run$run" "$out/node-check.json"
    show "run$run" || bad=1 # a good node must not get a warning
    tail -3 "$out/run$run.err"
done
python3 -m bench verify "$out"/run*/*.tar || bad=1

echo "== figures of the three runs, and their spread"
python3 - "$out"/run{1,2,3}.json <<'PY' || bad=1
import json, sys
runs = [json.load(open(path))["results"]["findings"] for path in sys.argv[1:]]
figures = [{(f["gpu"], f["figure"]): (f["value"], f["unit"]) for f in run if f["figure"] and f["value"]} for run in runs]
wide = 0
for key in figures[0]:
    values = [one[key][0] for one in figures if key in one]
    spread = 100 * (max(values) - min(values)) / (sum(values) / len(values))
    # The host's memory is printed but not counted: only figures of GPUs and their links must repeat.
    wide += key[1] != "host-memory" and (spread > 3 or len(values) < len(runs))
    where = "node " if key[0] is None else f"GPU {key[0]}"
    print(f"  {where} {key[1]:<24}", *(f"{v:.4g}" for v in values), figures[0][key][1], f"spread {spread:.2f}%")
print("  spread over 3%:", wide)
sys.exit(wide > 0)
PY

echo "== faults"
stranger() { # KIND: start a disturbing process on GPU 0, which runs until it is killed
    python3 - "$1" > "$out/stranger-$1.txt" 2>&1 <<'PY' &
import sys, time
import torch
kind = sys.argv[1]
device = torch.device("cuda", 0)
if kind == "busy":
    a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    while True:  # a tenth of the time
        started = time.perf_counter()
        while time.perf_counter() - started < 0.01:
            for _ in range(10):
                a @ a
            torch.cuda.synchronize()
        time.sleep(9 * (time.perf_counter() - started))
elif kind == "memory":
    held = torch.empty(8 << 30, dtype=torch.uint8, device=device).fill_(1)
    torch.cuda.synchronize()
    time.sleep(3600)
else:
    here = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    there = here.to(device)
    while True:
        there.copy_(here, non_blocking=True)
        here.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
PY
    stranger_pid=$!
    sleep 12 # time to import torch and reach full load
    kill -0 "$stranger_pid" || { echo "the process $1 did not stay alive:"; cat "$out/stranger-$1.txt"; }
}
for kind in busy memory traffic; do
    stranger "$kind"
    check "fault-$kind" "$out/short.json"
    kill "$stranger_pid"; wait "$stranger_pid" 2> /dev/null
    show "fault-$kind"
    python3 - "$out/fault-$kind.json" "$kind" <<'PY' || bad=1
import json, sys
findings = json.load(open(sys.argv[1]))["results"]["findings"]
words = {"busy": "busy", "memory": "memory are in use", "traffic": "cross its bus"}
found = [f for f in findings if f["check"] == "strangers" and f["gpu"] == 0 and f["verdict"] == "fail"]
exact = [f for f in found if words[sys.argv[2]] in f["found"]]
print("  FOUND" if found else "  MISSED", sys.argv[2], "by strangers" if found else "", "with the right cause" if exact else "(without the right cause)")
others = [f["subject"] + " " + f["verdict"] for f in findings if f["check"] in ("matmul", "copies", "soak") and f["verdict"] in ("fail", "warn")]
print("  also affected:", ", ".join(others) or "no figure")
sys.exit(not found)
PY
    sleep 2
done
[ "$bad" = 0 ] && echo "ALL AS EXPECTED" || echo "NOT AS EXPECTED"
exit "$bad"
