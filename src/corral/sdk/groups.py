"""All modules of requests, each loaded when one of its requests is first used."""

from typing import TYPE_CHECKING

from corral.sdk.binding import Later

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
    approval_calls = Later("corral.sdk.approval_calls")
    audit_calls = Later("corral.sdk.audit_calls")
    build_calls = Later("corral.sdk.build_calls")
    daemon_calls = Later("corral.sdk.daemon_calls")
    egress_calls = Later("corral.sdk.egress_calls")
    file_calls = Later("corral.sdk.file_calls")
    grant_calls = Later("corral.sdk.grant_calls")
    process_calls = Later("corral.sdk.process_calls")
    rate_calls = Later("corral.sdk.rate_calls")
    sandbox_calls = Later("corral.sdk.sandbox_calls")
    secret_calls = Later("corral.sdk.secret_calls")
    template_calls = Later("corral.sdk.template_calls")
    work_calls = Later("corral.sdk.work_calls")
