"""The bundle file: written, signed, verified, and recomputed from its raw samples.

Imports planning and below; never torch. Others call `pack.pack` to write and `verify.verify_bundle` to read.
"""
