"""Lists of many sandboxes: what was said of one is said again, as long as it has not changed.

Making a shape and its JSON takes 30 µs, and a fleet of a thousand is listed again and again by whoever watches it. A
`Sandbox` is a value that is replaced when anything of it changes, so its identity is all that has to be compared.
"""

from collections.abc import Sequence

from corral.api import shapes
from corral.model.ids import SandboxId, TenantId
from corral.model.sandbox import Sandbox

_Kept = dict[SandboxId, tuple[Sandbox, bytes]]


class Shown:
    """JSON of sandboxes, kept for the next time; of those that are gone, until their tenant's next whole list."""

    def __init__(self) -> None:
        self._kept: dict[TenantId, _Kept] = {}

    def listing(self, tenant: TenantId, found: Sequence[Sandbox], *, whole: bool) -> bytes:
        """A `SandboxList` as JSON. `whole`: these are all that the tenant has."""
        former = self._kept.get(tenant, {})
        now = {sandbox.id: _shown(sandbox, former) for sandbox in found}
        if whole:
            self._kept[tenant] = now
        return b'{"sandboxes":[' + b",".join(text for _, text in now.values()) + b"]}"


def _shown(sandbox: Sandbox, former: _Kept) -> tuple[Sandbox, bytes]:
    kept = former.get(sandbox.id)
    if kept is not None and kept[0] is sandbox:
        return kept
    return sandbox, shapes.sandbox_info(sandbox).model_dump_json().encode()
