"""The foundation of all other folders: errors, strict JSON, files, paths, signals, the GPU catalogue.

Imports nothing else of bench. Every folder may import its modules directly.
"""
