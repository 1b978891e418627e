"""What clients can follow."""

from dataclasses import dataclass
from datetime import datetime

from corral.model.approval import Approval
from corral.model.budget import Warned
from corral.model.ids import SandboxId, TenantId


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """A sandbox entered `state`. `sequence` grows by one per event of the daemon and never repeats in its run."""

    sequence: int
    tenant: TenantId
    sandbox: SandboxId
    name: str
    state: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ApprovalEvent:
    """An approval was asked for, answered, or is over. Counted in the same sequence."""

    sequence: int
    tenant: TenantId
    approval: Approval


@dataclass(frozen=True, slots=True)
class BudgetEvent:
    """Much of a budget is spent. `name` is that of the sandbox whose call it was. Counted in the same sequence."""

    sequence: int
    name: str
    warned: Warned
    at: datetime

    @property
    def tenant(self) -> TenantId:
        """Whose it is."""
        return self.warned.tenant


Event = LifecycleEvent | ApprovalEvent | BudgetEvent
