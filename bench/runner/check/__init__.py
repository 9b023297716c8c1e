"""The measuring half of `bench check`: runs each check in a worker and packs what was read.

Imports node_check and the other folders of `runner`. The command line calls `check_node.check_node`.
"""
