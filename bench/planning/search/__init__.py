"""The guided search: choose the trial to run next, given the outcomes so far.

Imports planning and below. Others call `next_trial`. Pure: benchmarks/replay.py replays it on recorded runs.
"""
