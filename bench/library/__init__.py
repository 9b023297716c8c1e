"""The functions of `import bench`, which the commands call too: plan, run, verify, compare and predict.

They take paths and numbers, return values, raise the errors of bench.base.errors, and print nothing. No
signal handler, setting of the garbage collector or working folder of theirs outlives a call.
"""
