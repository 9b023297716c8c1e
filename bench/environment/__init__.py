"""Install and run the locked Python environment of a node without a container engine; runs on that node.

identity        the digest of an environment, and of a tree of files
interpreter     the Python of an environment: version, build, C library
wheel_tags      decides which wheels fit an interpreter, and says why others do not
contents        the files of a package that an environment has, from any installer
unpack          writes the files of wheels
adopt           copies packages that a Python of the node has already
landlock        restricts what a process may do in the file system
store           environments on a node: found by their digest, made whole or not at all, checked before use
on_node         the program that `bench push` starts on the node: prints a plan, or installs
confined        the program that runs bench in an environment, with few rights

Imports bench.base, bench.packages and the standard library alone, because the node has nothing more before
the installation. `bench push` starts on_node and confined as programs.
"""
