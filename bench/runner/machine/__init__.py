"""This machine: its GPUs through NVML, telemetry, disk, exclusive use, and the image that bench runs in.

Imports planning and below; no torch. The rest of `runner` imports its modules.
"""
