"""What goes with an LFS transfer, and where the repository's credential does not go."""

import pytest

from corral.gateway.gitlfs import transfer_headers
from corral.gateway.gitupstream import Target
from corral.model.git import RepoGrant

OWN = Target(
    RepoGrant("forge.example", "acme/app", secret="forge"), "https://forge.example", "Basic c2VjcmV0", None
)
EVERYBODYS = Target(RepoGrant("forge.example", "acme/app"), "https://forge.example", "", None)
STORE = (("authorization", "Store its-own"),)


@pytest.mark.parametrize(
    ("given", "target", "public", "sent"),
    [
        ((), OWN, False, (("Authorization", "Basic c2VjcmV0"),)),
        (STORE, OWN, False, STORE),
        ((), EVERYBODYS, False, ()),
        ((), OWN, True, ()),
        (STORE, OWN, True, STORE),
        ((("X-Signed", "1"),), OWN, True, (("X-Signed", "1"),)),
    ],
)
def test_the_credential_goes_to_the_repositorys_own_address_alone(
    given: tuple[tuple[str, str], ...], target: Target, public: bool, sent: tuple[tuple[str, str], ...]
) -> None:
    """G-244."""
    assert transfer_headers(given, target, public=public) == sent
