#!/bin/sh
# For bench check --on-change: drain this node in Slurm while it fails or cannot be checked, and resume it
# once it passes. A node that somebody else drained stays as it is.
set -eu
node=${SLURMD_NODENAME:-$(hostname -s)}
reason=$(sinfo --noheader --nodes="$node" --format=%E | head -n 1)
case "$BENCH_TO:$reason" in
pass:bench:*) scontrol update NodeName="$node" State=RESUME ;;
pass:*) ;;
*:none | *:bench:*) scontrol update NodeName="$node" State=DRAIN Reason="$BENCH_REASON" ;;
esac
