"""This machine: its GPUs through NVML, telemetry, disk, exclusive use, and the image that bench runs in.

Imports bench.planning and the packages below it, and no torch. The rest of `runner` imports this package.
"""
