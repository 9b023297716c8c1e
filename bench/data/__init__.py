"""Data that ships with the program; bench.catalogue reads it."""
