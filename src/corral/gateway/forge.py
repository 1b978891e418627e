"""Calls to forges' APIs for people on the host, not for sandboxes: made here, since here are the opened secrets."""

from corral.errors import NotFound
from corral.gateway.apptokens import AppTokens
from corral.gateway.dial import Dialer
from corral.gateway.forgehttp import exchange
from corral.gateway.vault import Vault
from corral.model.secrets import SecretForm
from corral.wire import link
from corral.wire.forges import ForgeAnswer
from corral.wire.githubapp import Need


async def call(request: link.CallForge, vault: Vault, tokens: AppTokens, dialer: Dialer) -> ForgeAnswer:
    """The answer to one call. Raises CorralError."""
    found = vault.find(request.tenant, request.secret)
    if found is None:
        raise NotFound(f"there is no secret {request.secret[:63]!r}", "list what exists: `corral secret ls`")
    spec = found.spec
    if spec.form is not SecretForm.GITHUB_APP:
        return await exchange(request.call, spec.value.reveal(), found.forms, spec.base_url, dialer)
    token = await tokens.token(found, request.call.repo, Need.PULL_REQUEST)
    return await exchange(request.call, token.value, token.forms, spec.base_url, dialer)
