"""Container images: which variants there are, how they are built, carried and run.

Imports base and signing alone. Others go through `engines`, which start a container, and `build_image`.
"""
