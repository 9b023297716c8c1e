"""Runs in pods of a Kubernetes cluster, which the user's own kubectl reaches.

One Job has one pod for each node that is measured. A pod has two containers of one image: `bench` measures,
and `keeper` stays until the bundle was taken out. Every command goes into the keeper by `kubectl exec`, so
that a pod is mirrored, certified and fetched like a node that SSH reaches.
"""
