"""Attacks from inside a sandbox on one's own installation: `corral self-test`, and what the attack tests run.

`guest` holds the hostile programs. They run inside a sandbox, with its Python, and print JSON; nothing of them runs in a
process of Corral's.
"""
