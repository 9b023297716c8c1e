"""A trial inside a worker process: model, strategy, training loop, timing.

Imports torch at module level, so only worker processes may import these modules.
"""
