"""What a sandbox holds in place of a secret: a value that says nothing, of the form that client libraries expect (G-29,
G-30). Pure: the same seed gives the same value.
"""

import base64
import hmac
import json
import string

from corral.model.binding import Binding, Mode
from corral.model.secrets import Secret

PREFIXES = (
    *("sk-ant-api03-", "sk-ant-", "sk-proj-", "sk-or-v1-", "sk-"),
    *("github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "glpat-", "gldt-"),
    *(
        "xoxb-",
        "xoxp-",
        "xapp-",
        "npm_",
        "pypi-",
        "hf_",
        "AIza",
        "SG.",
        "dop_v1_",
        "lin_api_",
        "ntn_",
        "tskey-",
    ),
    *("sk_live_", "sk_test_", "rk_live_", "rk_test_", "pk_live_", "pk_test_", "whsec_", "AKIA", "ASIA"),
)
JWT = "eyJ"
MIN_RANDOM = 24
MAX_LENGTH = 256
_ALPHABET = string.ascii_letters + string.digits
_KEY_ID = string.ascii_uppercase + "234567"
_KEY_IDS = ("AKIA", "ASIA")
_FAR_FUTURE = 4_102_444_800


def shape_of(value: str) -> tuple[str, int]:
    """The prefix and length of placeholders for a secret: no more of it than its kind."""
    if value.startswith(JWT) and value.count(".") == 2:
        return JWT, 0
    prefix = next((known for known in PREFIXES if value.startswith(known)), "")
    if prefix in _KEY_IDS:
        return prefix, 20
    return prefix, min(max(len(value), len(prefix) + MIN_RANDOM), MAX_LENGTH)


def placeholder(seed: str, name: str, prefix: str, length: int) -> str:
    """The placeholder of a secret, or of a part of it, for whoever has `seed`."""
    if prefix == JWT:
        head = _segment({"alg": "RS256", "typ": "JWT"})
        return (
            f"{head}.{_segment({'sub': 'corral', 'exp': _FAR_FUTURE})}.{_random(seed, name, 43, _ALPHABET)}"
        )
    alphabet = _KEY_ID if prefix in _KEY_IDS else _ALPHABET
    return prefix + _random(seed, name, length - len(prefix), alphabet)


def placeholders(name: str, binding: Binding, seed: Secret, parts: int) -> tuple[str, ...]:
    """What a sandbox holds in place of a secret's parts."""
    if binding.mode is not Mode.AWS:
        return (placeholder(seed.reveal(), name, binding.prefix, binding.length),)
    shapes = (("AKIA", 20), ("", 40), ("", 200))[:parts]
    return tuple(
        placeholder(seed.reveal(), f"{name} {number}", prefix, length)
        for number, (prefix, length) in enumerate(shapes)
    )


def _segment(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=").decode()


def _random(seed: str, name: str, length: int, alphabet: str) -> str:
    found = ""
    block = 0
    while len(found) < length:
        for byte in hmac.digest(seed.encode(), f"{block} {name}".encode(), "sha512"):
            # Bytes beyond the last whole multiple would make some characters likelier.
            if byte < 256 - 256 % len(alphabet):
                found += alphabet[byte % len(alphabet)]
        block += 1
    return found[:length]


def variable_of(name: str) -> str:
    """The environment variable that holds a secret's placeholder, unless another was named."""
    text = "".join(c if c in _ALPHABET else "_" for c in name).upper()
    return text if not text[:1].isdigit() else f"_{text}"
