"""The functions of `import bench`, which the commands call too: plan, run, verify, compare and predict.

They take paths and numbers, return values, raise the errors of bench.base.errors, and print nothing. They
also leave the process as it is: no signal handler, collector setting or working folder outlives a call.
"""
