"""Makes a release from one commit: packages, images, lists of contents, checksums and signatures."""
