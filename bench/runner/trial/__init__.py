"""A trial inside a worker process: model, strategy, training loop, timing.

Imports torch at module level, so only worker processes may import these modules. `processes.worker` calls
`run_trial` for a trial, and `ceilings`, `floor` and `gradients` for the other jobs.
"""
