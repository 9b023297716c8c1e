"""The operator's side of attested runs: keys, challenges, certificates, receipts and the ledger."""
