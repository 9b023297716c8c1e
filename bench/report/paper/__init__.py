"""The figures and claims of the paper, and the utilisation that they imply.

Imports report.compare, report.plots and below. The command `bench paper` shows them.
"""
