"""The locked Python environment of a node without a container engine; runs on the node itself.

identity        the digest of an environment, and of a tree of files
interpreter     the Python of an environment: version, build, C library
wheel_tags      which wheels fit an interpreter, and why others do not
contents        the files of a package that an environment has, from any installer
unpack          writes the files of wheels
adopt           copies packages that a Python of the node has already
store           environments on a node: found by their digest, made whole or not at all, checked before use
on_node         the program that `bench push` starts on the node: prints a plan, or installs
confined        the program that runs bench in an environment, with few rights

This folder imports bench.base, bench.packages and the standard library alone: on the node there is nothing
more before the installation.
"""
