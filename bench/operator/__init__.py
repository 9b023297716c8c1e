"""The operator's side: keys and receipts, images and engines, what is checked before anything starts."""
