"""This machine: its GPUs through NVML, telemetry, disk, exclusive use, and the image around us.

Imports planning and below; no torch. The rest of `runner` imports its modules.
"""
