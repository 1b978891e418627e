"""runc and crun: containers on the host's kernel."""

from corral.model.sandbox import Isolation
from corral.oci.runtime import RuntimeTraits

RUNC = RuntimeTraits("runc", Isolation.CONTAINER)
CRUN = RuntimeTraits("crun", Isolation.CONTAINER)
