"""From a request to a specification."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from corral.engine.plan import (
    CreateRequest,
    build_spec,
    checked,
    choose_runtime,
    egress_policy,
    machine_for,
)
from corral.errors import InvalidInput, Unsupported
from corral.model.egress import HostRule
from corral.model.ids import LayerDigest, SandboxId, TemplateId, TenantId
from corral.model.sandbox import Isolation, Limits
from corral.model.template import Template, TemplateConfig

USABLE = {Isolation.CONTAINER: ("runc", "crun"), Isolation.GVISOR: ("runsc",)}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEMPLATE = Template(
    TemplateId("0" * 16),
    TenantId("t"),
    "base",
    (LayerDigest("sha256:" + "0" * 64),),
    TemplateConfig(env={"A": "template", "B": "template"}),
    1,
    NOW,
)


def build(request: CreateRequest) -> object:
    return build_spec(
        checked(request),
        id=SandboxId("1" * 16),
        tenant=TenantId("t"),
        name="n",
        template=TEMPLATE,
        usable=USABLE,
        secrets=(),
        volumes=(),
        now=NOW,
    )


@pytest.mark.parametrize(
    ("isolation", "runtime", "expected"),
    [
        (None, None, (Isolation.CONTAINER, "runc")),
        (Isolation.GVISOR, None, (Isolation.GVISOR, "runsc")),
        (None, "crun", (Isolation.CONTAINER, "crun")),
        (Isolation.GVISOR, "runsc", (Isolation.GVISOR, "runsc")),
    ],
)
def test_runtime(isolation: Isolation | None, runtime: str | None, expected: tuple[Isolation, str]) -> None:
    assert choose_runtime(USABLE, isolation, runtime) == expected


def test_a_runtime_that_contradicts_the_isolation_is_refused() -> None:
    with pytest.raises(InvalidInput):
        choose_runtime(USABLE, Isolation.GVISOR, "runc")


@pytest.mark.parametrize(("isolation", "runtime"), [(None, "kata"), (Isolation.GVISOR, None)])
def test_what_the_host_lacks_is_refused_never_weakened(
    isolation: Isolation | None, runtime: str | None
) -> None:
    with pytest.raises(Unsupported):
        choose_runtime({Isolation.CONTAINER: ("runc",)}, isolation, runtime)


def test_rules_of_one_host_are_joined() -> None:
    policy = egress_policy(("a.example:443", "a.example:8443", "*.b.example"))
    assert policy.rules[0] == HostRule("a.example", (443, 8443))
    assert policy.rules[1].host == "*.b.example"


def test_the_callers_environment_is_laid_over_the_templates() -> None:
    spec = build(CreateRequest(env={"B": "caller"}))
    assert getattr(spec, "env") == {"A": "template", "B": "caller"}  # noqa: B009


@pytest.mark.parametrize(
    "request_",
    [
        CreateRequest(name="Not Good"),
        CreateRequest(ttl=0),
        CreateRequest(ttl=10**9),
        CreateRequest(limits=replace(Limits(), pids=0)),
        CreateRequest(limits=replace(Limits(), memory=1)),
        CreateRequest(allow=("http://x",)),
        CreateRequest(allow=("*",) * 300),
        CreateRequest(workdir="relative"),
        CreateRequest(user="a b"),
        CreateRequest(branch="x"),
    ],
)
def test_bad_requests_are_refused(request_: CreateRequest) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked(request_)
    assert caught.value.hint


def test_a_template_says_what_its_sandboxes_may_use_unless_a_caller_does() -> None:
    small, smaller = Limits(memory=2**30), Limits(memory=2**29)
    template = replace(TEMPLATE, config=replace(TEMPLATE.config, limits=small))
    assert machine_for(USABLE, CreateRequest(), template)[2] == small
    assert machine_for(USABLE, CreateRequest(limits=smaller), template)[2] == smaller
    assert machine_for(USABLE, CreateRequest(), TEMPLATE)[2] == Limits()
