"""Execute a manifest: choose the folder, keep the journal, measure trials in turn, pack the bundle.

Imports the other folders of `runner` except `check`. The command line calls `execute`.
"""
