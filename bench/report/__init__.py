"""Read verified bundles, compare them, and show them as text, plots and pages.

Imports bundle, node_check and below; never torch, runner or push. The command line calls `read_bundles` to
read and verify, `compare.comparison` to compare, `reproduce.verdicts` to compare a run with its repetition;
`text`, `plots` and `pages` show the result. `markup` makes the elements of plots and pages.
"""
