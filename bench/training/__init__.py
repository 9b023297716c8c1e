"""What is trained and how: models with their recipes, and methods that change speed and memory.

Imports only base. Other folders use `training.models`, `training.methods`, `training.setting` and, for
internals of torch, transformers and DeepSpeed, `training.vendor`. torch is imported by functions that a
worker calls, and at module level only by `training.triton`.
"""
