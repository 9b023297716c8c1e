"""Every reliance on private, undocumented or version-bound internals of torch, transformers and DeepSpeed.

One named function or constant for each. Its docstring says what it relies on, why, where the vendor discusses
it, and when it can be removed. tests/training/test_vendor.py checks each of them against the installed
versions: after an upgrade, run that file first. Importing these modules needs none of the three packages.
"""
