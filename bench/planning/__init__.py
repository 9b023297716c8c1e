"""From a manifest to the trials of a run: reading it, planning settings, predicting memory, searching.

Imports base, training and records. Pure but for reading the manifest file; no torch.
"""
