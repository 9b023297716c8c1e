"""Measure on this machine: probe it, fork a process group for each trial, keep a journal, pack a bundle.

machine    the GPUs, telemetry, disk and image of this machine
trial      one trial: model, training loop, timing; imports torch
processes  worker processes: started, supervised, ended, on one node or several
run        one run from manifest to signed bundle
check      one node check from manifest to signed bundle

Imports every folder below it. Others use `run.execute` for a run and `check.check_node` for a node check.
"""

# Environment variable: the open socket at which the members of a team meet; torchrun does not set it.
# Named in this file because `processes.ranks`, which imports no torch, sets it and `trial.team` reads it.
LISTENER = "BENCH_LISTENER"
