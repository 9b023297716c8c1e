#!/bin/sh
# HealthCheckProgram of Slurm: check the node without load; drain or resume it when the verdict changes.
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
export PATH
exec bench check --level passive --nagios --keep-last 300 --out "${BENCH_OUT:-/var/lib/bench/passive}" \
    --on-change "'$(dirname "$0")/slurm-change.sh'"
