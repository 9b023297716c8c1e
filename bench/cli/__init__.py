"""The command line: `*_options` declare arguments, and the other modules are the commands.

The only folder that parses arguments, prints, and returns exit codes. It may import every other folder, and
no other folder imports it. A start of `bench` imports `main`, the options and `stdio`; a command's module is
imported when it is called.
"""
