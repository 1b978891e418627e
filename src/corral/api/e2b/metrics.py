"""What sandboxes use and used, on the control plane and to themselves."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from starlette.responses import JSONResponse, Response

from corral.api.e2b import shapes
from corral.api.e2b.calls import Call, digits
from corral.api.e2b.failures import Refusal, not_running
from corral.engine.engine import Engine
from corral.engine.samples import Sample
from corral.errors import Conflict, NotFound
from corral.model.lifecycle import State
from corral.model.sandbox import MIB, Sandbox
from corral.protocol.e2b.sandboxes import Metric


async def metrics(call: Call) -> Response:
    """The samples of a range of seconds, both ends included, oldest first; the last one is of now where it runs."""
    sandbox = call.sandbox()
    start, end = (_second(call, name) for name in ("start", "end"))
    told = [
        metric.to_dict()
        for metric in await history(call.engine, sandbox)
        if (start is None or metric.timestamp_unix >= start) and (end is None or metric.timestamp_unix <= end)
    ]
    return JSONResponse(told)


async def many_metrics(call: Call) -> Response:
    """What up to 100 sandboxes use now."""
    names = [
        name for item in call.request.query_params.getlist("sandbox_ids") for name in item.split(",") if name
    ]
    if not 1 <= len(names) <= 100:
        raise Refusal(400, "validation error: sandbox_ids must name 1 to 100 sandboxes")
    found: dict[str, Any] = {}
    for name in names:
        try:
            newest = await latest(call.engine, call.find(name))
        except (Refusal, NotFound, Conflict):
            continue
        if newest is not None:
            found[name] = newest.to_dict()
    return JSONResponse({"sandboxes": found})


async def own_metrics(engine: Engine, sandbox: Sandbox) -> Response:
    """What a running sandbox uses now, as it is told itself."""
    now = await latest(engine, sandbox)
    if now is None:
        raise not_running(sandbox.id)
    return JSONResponse(
        {
            "ts": now.timestamp_unix,
            "cpu_count": now.cpu_count,
            "cpu_used_pct": now.cpu_used_pct,
            "mem_total": now.mem_total,
            "mem_used": now.mem_used,
            "mem_cache": now.mem_cache,
            "mem_total_mib": now.mem_total // MIB,
            "mem_used_mib": now.mem_used // MIB,
            "disk_used": now.disk_used,
            "disk_total": now.disk_total,
        }
    )


async def history(engine: Engine, sandbox: Sandbox) -> list[Metric]:
    """All that is known of what a sandbox used, oldest first."""
    return told(sandbox, await _samples(engine, sandbox))


async def latest(engine: Engine, sandbox: Sandbox) -> Metric | None:
    """The last of it."""
    before_and_last = _from_start(sandbox, await _samples(engine, sandbox))[-2:]
    return _metric(sandbox, *before_and_last) if len(before_and_last) == 2 else None


async def _samples(engine: Engine, sandbox: Sandbox) -> list[Sample]:
    found = engine.samples.of(sandbox.id)
    if sandbox.state is State.RUNNING:
        found.append(await engine.samples.now(sandbox.id))
    return found


def told(sandbox: Sandbox, found: Sequence[Sample]) -> list[Metric]:
    """Samples as clients know them: the use of processors is that since the sample before, at first since the start."""
    return [_metric(sandbox, before, sample) for before, sample in pairwise(_from_start(sandbox, found))]


def _from_start(sandbox: Sandbox, found: Sequence[Sample]) -> list[Sample]:
    """Samples, and before them one of nothing."""
    begun = Sample(min([shapes.started_at(sandbox), *(item.at for item in found[:1])]), 0, 0, 0)
    return [begun, *found]


def _metric(sandbox: Sandbox, before: Sample, sample: Sample) -> Metric:
    limits = sandbox.spec.limits
    seconds = max((sample.at - before.at).total_seconds(), 0.001)
    # It counts from nothing again after a stop.
    used = max(sample.cpu_usec - before.cpu_usec, 0) / 1e6
    return Metric(
        timestamp=sample.at,
        timestamp_unix=int(sample.at.timestamp()),
        cpu_count=max(1, round(limits.cpus)),
        cpu_used_pct=round(min(used / seconds / limits.cpus, 1.0) * 100, 2),
        mem_used=sample.memory,
        mem_total=limits.memory,
        mem_cache=sample.file_cache,
        disk_used=sample.disk,
        disk_total=limits.disk,
    )


def _second(call: Call, name: str) -> int | None:
    text = call.request.query_params.get(name)
    if text is None:
        return None
    if (found := digits(text, 12)) is None:
        raise Refusal(400, f"validation error: {name} is not a time in seconds")
    return found
