"""Tokens are kept as hashes and compared in constant time."""

import hashlib
import hmac


def token_hash(token: str) -> str:
    """SHA-256 of a token, hexadecimal: enough for random values of 128 bits and more."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def token_matches(token: str, expected_hash: str) -> bool:
    """Whether `token` has that hash, in constant time."""
    return hmac.compare_digest(token_hash(token), expected_hash)
