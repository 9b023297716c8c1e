"""The bundle file: written, signed, verified, and recomputed from its raw samples.

Imports planning and below, not torch. `pack.pack` writes a bundle, `verify.verify_bundle` reads one.
"""
