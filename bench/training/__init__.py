"""What is trained and how: models with their recipes, and methods that change speed and memory.

Imports only base. Others go through `training.models`, `training.methods` and `training.setting`;
torch is imported only by functions that a worker calls, and by `training.triton`.
"""
