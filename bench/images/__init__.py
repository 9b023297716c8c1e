"""Container images: their variants; build, read and write them; run bench in a locked-down container.

Imports base, packages, environment and signing. Entry points: `engines.find_engine` returns an engine that
runs containers, `build_image.build` builds an image, `archive` reads and writes image files.
"""
