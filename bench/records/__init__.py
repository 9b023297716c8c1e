"""Plain values and arithmetic: trials, measurements, estimates, rankings, and their text.

Imports base and training. Pure: no input or output, no torch. Every folder above may import its modules.
"""
