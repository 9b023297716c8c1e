"""Container images: the variants, how they are built, read and written, and how a run is held in a container.

Imports only base. Entry points: `engines.find_engine` starts a container, `build_image.build`
builds an image, `archive` reads and writes image files.
"""
