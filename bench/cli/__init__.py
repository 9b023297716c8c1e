"""The command line: the modules `*_options` declare arguments, and most other modules are the commands.

Only this folder parses arguments and returns exit codes. It may import every other folder, and no other
folder imports it. A start of `bench` imports `main`, the options and `stdio`; a command's module is imported
when the command is called.
"""
