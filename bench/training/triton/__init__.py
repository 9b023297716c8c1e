"""Kernels in Triton, one module for each method that uses them.

Imports torch and triton at module level, so only functions that run in a worker may import these modules.
"""
