"""The command line: options, and one module for each group of commands.

The only folder that parses arguments, prints, and returns exit codes. Imports everything; nothing imports it.
"""
