"""The measuring half of `bench check`: take each check's reading in a worker, judge it, pack the bundle.

Imports node_check and the other folders of `runner`. The command line calls `check_node.check_node`.
"""
