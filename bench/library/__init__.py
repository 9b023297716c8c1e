"""The functions of `import bench`, which the commands call too: plan, run, verify, compare and predict.

They take paths and numbers, return values, raise the errors of bench.base.errors, and print nothing. A call
leaves signal handlers, settings of the garbage collector and the working folder as they were.
"""
