"""Execute a manifest: choose the folder, keep the journal, measure trials in turn, pack the bundle.

Imports the other folders of `runner` except `check`. Others call `execute.execute` on the leading node, and
`execute.follow` on the other nodes of a run.
"""
