"""Sealing: what a tenant has at rest is encrypted with a key of that tenant. docs/sealing.md draws keys and bytes.

core        derived keys, heads, blocks, lifetimes of opened roots: pure
files       seals and opens whole objects
"""
