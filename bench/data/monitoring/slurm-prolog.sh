#!/bin/sh
# Prolog and Epilog of Slurm, for jobs with GPUs: check the job's GPUs without load, within 30 seconds. A node
# that fails or cannot be checked is drained with the reason; as a prolog, this also puts the job back into
# the queue. A mistake in this script's options drains nothing.
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
export PATH
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS
export CUDA_VISIBLE_DEVICES
reason=$(bench check --level prolog --reason --keep-last 300 --out "${BENCH_OUT:-/var/lib/bench/prolog}")
case $? in
1 | 3) ;;
*) exit 0 ;;
esac
scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="${reason:-bench: cannot check}"
exit 1
