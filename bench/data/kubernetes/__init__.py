"""Manifests for Kubernetes, and what a node check calls there when its verdict changes."""
