"""Turn a manifest into trials: read it, plan settings, predict memory, search for the fastest.

Imports base, training and records. Pure except for reading the manifest file; imports no torch.
"""
