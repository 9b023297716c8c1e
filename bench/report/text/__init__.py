"""Results as text: tables, CSV, JUnit, terminal styles.

Imports report.compare and below. The command line prints what these modules return.
"""
