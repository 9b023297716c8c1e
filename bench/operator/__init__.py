"""The operator's side of certified runs: keys, challenges, certificates, receipts and the ledger.

Imports bundle and below, not torch. Others call `certify_and_receive` for the steps of a certified run,
and `keyring` for `bench keys`.
"""
