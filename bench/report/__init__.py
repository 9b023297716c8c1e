"""Read verified bundles, compare them, and show them as text, plots and pages.

Imports bundle, node_check and below; never torch, runner or push. Doors for the command line: `read_bundles`
reads and verifies, `compare.comparison` compares, `reproduce.verdicts` holds two runs against each other;
`text`, `plots` and `pages` show the result. `markup` makes the elements of plots and pages.
"""
