"""Routes of templates, secrets, prices, and of the daemon itself."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.requests import Request

from corral.api import shapes
from corral.api.bodies import BINARY_REQUEST, body_of, streamed
from corral.api.context import Caller, CallerDep, RefPath
from corral.api.failures import documented
from corral.api.sandboxes import EVENT_STREAM
from corral.api.streams import Tell, progress_stream
from corral.engine.ports import ModelPrice
from corral.errors import DiskFull, Unsupported, UpstreamFailed
from corral.model.ids import TenantId, check_name
from corral.model.secrets import Secret, SecretForm
from corral.model.template import Template
from corral.protocol import catalog as protocol
from corral.protocol.base import Done

router = APIRouter(prefix="/v1")


@router.get("/templates", tags=["templates"], responses=documented())
async def list_templates(caller: CallerDep) -> protocol.TemplateList:
    """The tenant's templates, oldest first."""
    found = await caller.engine.templates.list(caller.tenant)
    return protocol.TemplateList(templates=[shapes.template_info(item) for item in found])


@router.get("/templates/{ref}", tags=["templates"], responses=documented())
async def get_template(caller: CallerDep, ref: RefPath) -> protocol.TemplateInfo:
    """A template."""
    return shapes.template_info(await caller.engine.templates.get(caller.tenant, ref))


@router.delete("/templates/{ref}", tags=["templates"], responses=documented())
async def remove_template(caller: CallerDep, ref: RefPath) -> Done:
    """No longer offer a template. Sandboxes made from it go on; its layers go once nothing uses them."""
    await caller.engine.templates.remove(caller.tenant, ref)
    return Done()


@router.post(
    "/templates/build",
    tags=["templates"],
    response_class=Response,
    responses={**documented(DiskFull, UpstreamFailed), **EVENT_STREAM},
)
async def build_template(caller: CallerDep, body: protocol.BuildTemplate) -> Response:
    """Build a template. Events: `progress`, then one `result` (the template) or `error`."""

    async def work(tell: Tell) -> protocol.TemplateInfo:
        return shapes.template_info(await _build(caller, body, tell))

    return progress_stream(work)


async def _build(caller: Caller, body: protocol.BuildTemplate, tell: Tell) -> Template:
    templates = caller.engine.templates
    if body.kind == "base":
        return await templates.build_base(caller.tenant, tell)
    if body.kind == "agent":
        return await templates.build_agent(caller.tenant, body.agent or "", tell)
    return await templates.build_image(caller.tenant, body.name or "", body.image or "", tell)


@router.get(
    "/templates/{ref}/export", tags=["templates"], response_class=Response, responses=documented(DiskFull)
)
async def export_template(caller: CallerDep, ref: RefPath) -> Response:
    """A template as an OCI image archive (a tar, which `docker load`, podman and skopeo read too). A failure in the middle
    cuts the connection: a whole body is a whole image."""
    return await streamed(caller.engine.templates.export(caller.tenant, ref), "application/x-tar")


@router.post(
    "/templates/import",
    tags=["templates"],
    status_code=201,
    responses=documented(DiskFull, UpstreamFailed),
    openapi_extra=BINARY_REQUEST,
    max_body_size=protocol.MAX_ARCHIVE,
)
async def import_template(
    request: Request, caller: CallerDep, name: Annotated[str, Query(description="Of the template.")]
) -> protocol.TemplateInfo:
    """A template from an image's archive: the raw body is an OCI layout as a tar, or what `docker save` writes."""
    made = await caller.engine.templates.import_archive(caller.tenant, name, body_of(request))
    return shapes.template_info(made)


@router.post(
    "/templates/checkpoint", status_code=201, tags=["templates"], responses=documented(DiskFull, Unsupported)
)
async def make_checkpoint(caller: CallerDep, body: protocol.Checkpoint) -> protocol.TemplateInfo:
    """A template of a sandbox as it is now: its files, and with `memory` its running processes. It is refused where it
    would hold a secret of the tenant's, or made without that (`redact`)."""
    made = await caller.engine.checkpoint(
        caller.tenant, body.sandbox, body.name, memory=body.memory, redact=body.redact, by=caller.identity.who
    )
    return shapes.template_info(made)


@router.get("/secrets", tags=["secrets"], responses=documented())
async def list_secrets(caller: CallerDep) -> protocol.SecretList:
    """What may be shown of the tenant's secrets."""
    found = await caller.engine.secrets.list(caller.tenant)
    return protocol.SecretList(secrets=[shapes.secret_info(item) for item in found])


@router.put("/secrets", tags=["secrets"], responses=documented())
async def put_secret(caller: CallerDep, body: protocol.AddSecret) -> protocol.SecretInfo:
    """Add or replace a secret. It is encrypted at rest, never shown again, and never enters a sandbox.

    The gateway dials `base_url` from this host's own network: only its operator may choose it.
    """
    if body.base_url is not None:
        caller.check_operator("choosing the base URL of a secret")
    if body.form in (SecretForm.COMMAND, SecretForm.CHATGPT):
        # The one runs on this host, the other is renewed by it.
        caller.check_operator(f"a secret of form {body.form}")
    value = Secret.checked(body.value.get_secret_value())
    binding = None if body.binding is None else shapes.binding(body.binding)
    added = await caller.engine.secrets.add(
        caller.tenant, body.name, value, body.provider, body.base_url, binding, body.form
    )
    return shapes.secret_info(added)


@router.post("/secrets/{name}/rotate", tags=["secrets"], responses=documented())
async def rotate_secret(caller: CallerDep, name: str, body: protocol.RotateSecret) -> protocol.SecretInfo:
    """Give a secret another value; sandboxes use it from their next request on, and what is under way goes on."""
    value = None if body.value is None else Secret.checked(body.value.get_secret_value())
    if value is not None:
        found = {info.name: info.form for info in await caller.engine.secrets.list(caller.tenant)}
        if found.get(name) in (SecretForm.COMMAND, SecretForm.CHATGPT):
            caller.check_operator("changing a command or a login")
    return shapes.secret_info(
        await caller.engine.secrets.rotate(caller.tenant, check_name(name, "secret name"), value)
    )


@router.delete("/secrets/{name}", tags=["secrets"], responses=documented())
async def remove_secret(caller: CallerDep, name: str) -> Done:
    """Remove a secret; calls that use it are refused from now on."""
    await caller.engine.secrets.remove(caller.tenant, check_name(name, "secret name"))
    return Done()


@router.get("/prices", tags=["prices"], responses=documented())
async def list_prices(caller: CallerDep) -> protocol.PriceList:
    """Prices that the operator gave; all others are those of the price library."""
    return protocol.PriceList(prices=[shapes.price_info(item) for item in await caller.engine.prices.list()])


@router.put("/prices", tags=["prices"], responses=documented())
async def set_price(caller: CallerDep, body: protocol.SetPrice) -> Done:
    """Set the price of a model, or of all models of a secret's endpoint. The operator's only: it holds for all."""
    caller.check_operator("setting prices")
    await caller.engine.prices.set(caller.tenant, ModelPrice(**body.model_dump()))
    return Done()


@router.get("/sandboxes/{ref}/budget", tags=["budgets"], responses=documented())
async def get_budget(caller: CallerDep, ref: RefPath) -> protocol.Budget:
    """What a sandbox may spend, has spent, and has set aside; its tenant's accounts count its calls too."""
    return shapes.budget(await caller.engine.budgets.of_sandbox(caller.tenant, ref))


@router.put("/sandboxes/{ref}/budget", tags=["budgets"], responses=documented())
async def set_budget(caller: CallerDep, ref: RefPath, body: protocol.SetBudget) -> protocol.Budget:
    """Change what a sandbox may spend, from its next call on."""
    budgets = caller.engine.budgets
    if body.cap == "default":
        return shapes.budget(await budgets.clear_for_sandbox(caller.tenant, ref, body.window))
    return shapes.budget(await budgets.set_for_sandbox(caller.tenant, ref, body.window, body.cap))


@router.get("/budget", tags=["budgets"], responses=documented())
async def get_tenant_budget(caller: CallerDep) -> protocol.Budget:
    """What all of the tenant's sandboxes together may spend, have spent, and have set aside."""
    return shapes.budget(await caller.engine.budgets.of_tenant(caller.tenant))


@router.put("/budget", tags=["budgets"], responses=documented())
async def set_tenant_budget(caller: CallerDep, body: protocol.SetTenantBudget) -> protocol.Budget:
    """Change what a tenant may spend in all, from the next call on. The operator's only: tenants do not cap themselves."""
    caller.check_operator("setting the budget of a tenant")
    tenant = caller.tenant if body.tenant is None else TenantId(body.tenant)
    return shapes.budget(await caller.engine.budgets.set_for_tenant(tenant, body.window, body.cap))


@router.post("/keys", status_code=201, tags=["daemon"], responses=documented())
async def create_key(caller: CallerDep, body: protocol.CreateKey) -> protocol.ApiKey:
    """A new key for the TCP interface. It is shown here once; only its hash is kept."""
    key = await caller.engine.keys.create(caller.tenant, body.label)
    return protocol.ApiKey(label=body.label, key=key.reveal())


@router.get("/keys", tags=["daemon"], responses=documented())
async def list_keys(caller: CallerDep) -> protocol.ApiKeyList:
    """What may be shown of the tenant's keys for the TCP interface."""
    found = await caller.engine.keys.list(caller.tenant)
    return protocol.ApiKeyList(keys=[shapes.api_key_info(item) for item in found])


@router.delete("/keys/{name}", tags=["daemon"], responses=documented())
async def revoke_key(caller: CallerDep, name: str) -> protocol.ApiKeyInfo:
    """Refuse a key, by id or by a label that only one has, from the next request on."""
    return shapes.api_key_info(await caller.engine.keys.revoke(caller.tenant, name))


@router.get("/config", tags=["daemon"], responses=documented())
async def get_config(caller: CallerDep) -> protocol.Config:
    """All settings of the daemon."""
    return protocol.Config(values=caller.engine.config_get())


@router.put("/config/{key}", tags=["daemon"], responses=documented())
async def set_config(caller: CallerDep, key: str, body: protocol.SetConfig) -> protocol.Config:
    """Change a setting of the daemon, as its operator; it holds at once unless the documentation says otherwise."""
    caller.check_operator("changing settings")
    await caller.engine.config_set(key, body.value)
    return protocol.Config(values=caller.engine.config_get())


@router.get("/doctor", tags=["daemon"], responses=documented())
async def doctor(
    caller: CallerDep,
    deep: Annotated[
        bool, Query(description="Read all layers, too, and use none that is damaged; as the operator.")
    ] = False,
) -> protocol.Doctor:
    """What this host can do, what will not work, and what to do about it."""
    if deep:
        caller.check_operator("reading all layers")
    found = await caller.engine.doctor(deep)
    return protocol.Doctor(checks=[protocol.Check.model_validate(check) for check in found])


@router.get("/host", tags=["daemon"], responses=documented())
async def host(caller: CallerDep) -> protocol.HostInfo:
    """What this host can carry and carries: its resources, who waits for room, and what the tenant's sandboxes use."""
    return shapes.host_info(await caller.engine.sandboxes.admission.overview(), caller.tenant)


@router.get("/health", tags=["daemon"], responses=documented())
async def health(request: Request, caller: CallerDep) -> protocol.Health:
    """Answers once the daemon can do its work."""
    caller.engine.sandboxes.list(caller.tenant)
    return protocol.Health(version=request.app.version)
