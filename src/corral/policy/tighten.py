"""What a repository's own file may do to a policy: make it tighter, never looser (G-13). Pure.

Denials are added to those of the caller, and beat whatever allows. A cap counts only where it is below the one that holds
anyway. What would open something (hosts, secrets) is not decided here: it needs a person's consent.
"""


def tightened_cap(given: int | None, default: int | None, most: int | None) -> int | None:
    """The cap of a new sandbox, None for the host's default: what the caller gave, or else `default`, and at most `most`.

    `given` None: the caller said nothing. `default` None: the host sets no cap. `most` None: the file says nothing.
    """
    if most is None:
        return given
    holding = default if given is None else given
    return most if holding is None else min(holding, most)
