"""SSH keys, signatures, envelopes, lists of trusted keys and revocations.

Imports only base. Every folder above may import its modules directly.
"""
