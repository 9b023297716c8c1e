"""The operator's side: challenges, certificates, receipts, keys. It never runs on a node."""
