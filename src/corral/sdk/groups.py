"""All modules of requests, each loaded when one of its requests is first used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.sdk import approval_calls as approval_calls
    from corral.sdk import audit_calls as audit_calls
    from corral.sdk import build_calls as build_calls
    from corral.sdk import daemon_calls as daemon_calls
    from corral.sdk import egress_calls as egress_calls
    from corral.sdk import file_calls as file_calls
    from corral.sdk import grant_calls as grant_calls
    from corral.sdk import process_calls as process_calls
    from corral.sdk import rate_calls as rate_calls
    from corral.sdk import sandbox_calls as sandbox_calls
    from corral.sdk import secret_calls as secret_calls
    from corral.sdk import template_calls as template_calls
    from corral.sdk import work_calls as work_calls
else:
    from corral.sdk.binding import Later

    def __getattr__(name: str) -> Later:
        if not name.endswith("_calls"):
            raise AttributeError(name)
        return Later(f"corral.sdk.{name}")
