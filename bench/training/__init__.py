"""Models with the recipes that train them, and methods that change their speed and memory.

Imports only base. Other folders use `training.models`, `training.methods`, `training.setting` and, for
internals of torch, transformers and DeepSpeed, `training.vendor`. torch is imported by functions that a
worker calls, and at module level only by `training.triton`.
"""
