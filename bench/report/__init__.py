"""Verified bundles read, compared and shown: text, plots, pages, and the paper's figures.

Imports bundle, node_check and below; never torch, runner or push. The command line reads bundles through
`read_bundles` and compares them through `compare.comparison`.
"""
