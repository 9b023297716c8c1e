"""One execution of a manifest: folder, journal, trials in turn, bundle at the end.

Imports the other folders of `runner` but `check`. The command line calls `execute`.
"""
