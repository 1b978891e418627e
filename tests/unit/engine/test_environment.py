"""Variables that secrets set, as a whole or not at all."""

from datetime import UTC, datetime

import pytest

from corral.engine.environment import bound_environment, check_whole_keys
from corral.errors import InvalidInput
from corral.model.binding import Binding, Mode
from corral.model.ids import TenantId
from corral.model.secrets import Provider, Secret, SecretInfo
from corral.policy.bindings import complete_binding, parts_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID, KEY, TOKEN = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "FwoGZXIvYXdzEXAMPLE"
NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def an_aws_secret(*parts: str) -> SecretInfo:
    binding = Binding(("*.amazonaws.com",), mode=Mode.AWS)
    complete = complete_binding("aws", Secret(":".join(parts)), binding, None)
    return SecretInfo(TenantId("t"), "aws", Provider.HOST, "", NOW, NOW, complete)


@pytest.mark.parametrize("parts", [(ID, KEY), (ID, KEY, TOKEN)])
def test_a_key_of_aws_is_masked_whole(parts: tuple[str, ...]) -> None:
    """G-149, G-158."""
    secret = an_aws_secret(*parts)
    env = bound_environment([secret], Secret("seed"), {})
    assert set(NAMES[: len(parts)]) <= set(env)
    assert not set(parts) & set(env.values())
    check_whole_keys([secret], {"AWS_REGION": "eu-central-1", "OTHER": "x"})
    check_whole_keys([secret], dict.fromkeys(NAMES, "own"))
    check_whole_keys([], {NAMES[0]: "x"})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parts", [(ID, KEY), (ID, KEY, TOKEN)])
def test_half_a_key_beside_it_is_refused(parts: tuple[str, ...], name: str) -> None:
    """G-158: a real id with a placeholder for the key, or the reverse."""
    with pytest.raises(InvalidInput, match=f"{name} is set beside the secret 'aws'"):
        check_whole_keys([an_aws_secret(*parts)], {name: "real"})


@pytest.mark.parametrize("value", [ID, f"{ID}:", f":{KEY}", KEY, f"{ID}:short"])
def test_half_a_key_is_no_secret(value: str) -> None:
    """G-158."""
    with pytest.raises(InvalidInput):
        parts_of(Secret(value), Mode.AWS)
