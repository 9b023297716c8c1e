"""Was a result reproduced? Two runs held against each other, setting by setting.

Imports report.compare and below.
"""
