"""Rows of many bundles compared: ranking, offers, prices, the decision, and extrapolation.

Imports bundle and below. Pure but for reading price files. Text, plots and pages show its `Comparison`.
"""
