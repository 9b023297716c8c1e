"""Decide whether a run was reproduced: two runs are held against each other, setting by setting."""
