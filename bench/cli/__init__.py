"""The command line: the modules `*_options` declare arguments, and most other modules are the commands.

What commands share: `arguments` has the parsers, `measuring` and `meeting` the options of commands that
measure alone and on several nodes, `in_container` runs these in a container, `combinations` refuses options
that exclude each other, and `stdio` wraps stdout and stderr.

Only this folder parses arguments and returns exit codes. It may import every other folder, and no other
folder imports it. A start of `bench` imports `main`, the options and `stdio`; a command's module is imported
when the command is called.
"""
