"""The guided search: choose the trial to run next, given the outcomes so far.

Imports planning and below. Other folders use `next_trial`. Pure: benchmarks/replay.py replays the search.
"""
