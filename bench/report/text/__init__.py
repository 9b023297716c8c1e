"""Format results as text: tables, Markdown, CSV, JSON, JUnit and Nagios lines.

Imports report.compare and below. The command line prints what these modules return.
"""
