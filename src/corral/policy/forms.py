"""The forms in which a secret may be written: as it is, and as the common encodings write it."""

import html
import json
import re
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

_SHORTEST = 8
_DISTINCT = re.compile(rb"(?=.{16})[^0-9]*[0-9]", re.DOTALL)


def forms(secret: str) -> frozenset[bytes]:
    """The byte strings that are looked for (G-138)."""
    raw = secret.encode()
    found = {
        raw,
        raw.hex().encode(),
        raw.hex().upper().encode(),
        *_url_forms(secret),
        "".join(f"%{byte:02X}" for byte in raw).encode(),
        "".join(f"%{byte:02x}" for byte in raw).encode(),
        html.escape(secret).encode(),
        "".join(f"&#{byte};" for byte in raw).encode(),
        "".join(f"&#x{byte:x};" for byte in raw).encode(),
        *_json_forms(secret),
    }
    # In base64 the secret looks different at each of three offsets; what surrounds it changes its first and
    # last sign.
    for encode in (b64encode, urlsafe_b64encode):
        for offset in range(3):
            coded = encode(bytes(offset) + raw)
            start = -(-offset * 8 // 6)
            found.add(coded[start : (offset + len(raw)) * 8 // 6])
    return frozenset(form for form in found if len(form) >= _SHORTEST) or frozenset({raw})


def distinct(form: bytes) -> bool:
    """Whether a form of a secret can be no word of a text: it is long, with a digit. Keys of models of one's own are often
    words, as `not-needed`, of which people and agents speak and write.
    """
    return _DISTINCT.match(form) is not None


def _url_forms(secret: str) -> set[bytes]:
    """As different writers of addresses escape it: all that they may, or not the slash, as in a path."""
    found = {quote(secret, safe=""), quote(secret)}
    return {form.encode() for text in found for form in (text, _lower_escapes(text))}


def _lower_escapes(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text)


def _json_forms(secret: str) -> set[bytes]:
    """As different writers of JSON escape it: only what they must, slashes too, what HTML reads too, everything."""
    plain = json.dumps(secret)[1:-1]
    found = {plain, plain.replace("/", "\\/")}
    for digits in ("04x", "04X"):
        careful = plain
        for sign in "<>&'+=":
            careful = careful.replace(sign, f"\\u{ord(sign):{digits}}")
        found |= {careful, "".join(f"\\u{ord(sign):{digits}}" for sign in secret)}
    return {form.encode() for form in found}
