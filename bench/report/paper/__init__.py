"""The figures and claims of the paper, and the utilisation that they imply, for `bench paper`."""
