"""Sealing: what a tenant has at rest is encrypted with a key of that tenant. docs/sealing.md draws keys and bytes.

- core: derived keys, heads, blocks, lifetimes of opened roots: pure
- files: seals and opens whole objects and ranges
- store: an object store that does so for what tenants have
- kms: the key management services that wrap roots
- wraps: wrapped roots in the bucket
- keyring: the opened roots of a process
"""
