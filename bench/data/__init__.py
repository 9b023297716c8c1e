"""Data that ships with the program; bench.base.gpu_catalogue reads it."""
