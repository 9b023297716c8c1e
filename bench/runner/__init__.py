"""What runs on the machine that is measured: probe, supervise, fork, train, time, journal.

run         one run from manifest to signed bundle
supervise   starts trials, watches them, ends them; imports no torch
forkserver  imports torch once and forks a process group for each trial
worker      one trial, inside its process group
"""
