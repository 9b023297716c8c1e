"""From a manifest to the trials of a run: read it, plan settings, predict memory, search the fastest.

Imports base, training and records. Pure but for reading the manifest file; no torch.
"""
