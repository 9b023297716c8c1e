"""Decide whether a run was reproduced: compare two runs, setting by setting."""
