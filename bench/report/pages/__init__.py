"""Results as self-contained HTML pages.

Imports report.compare, report.text, report.plots and below.
"""
