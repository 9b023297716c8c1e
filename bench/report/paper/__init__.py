"""The figures and claims of the paper, beside what follows from them.

Imports report.compare, report.plots and below. The command `bench paper` shows them.
"""
