"""runsc (gVisor): a kernel of its own, in user space, between the guest and the host."""

from corral.model.sandbox import Isolation
from corral.oci.runtime import RuntimeTraits

RUNSC = RuntimeTraits(
    "runsc",
    Isolation.GVISOR,
    flags=(
        # systrap needs no virtualisation and works everywhere.
        "--platform=systrap",
        # The root is our own overlayfs, whose upper directory is what becomes a layer: none of gVisor's on
        # top.
        "--overlay2=none",
        # The guest is the only writer of its root: three times faster, at the price described in
        # drivers/execfiles.py.
        "--file-access=exclusive",
        # Volumes are others' as well: nothing of them is cached.
        "--file-access-mounts=shared",
        # Its own network stack on the veth of the sandbox.
        "--network=sandbox",
    ),
    suid_flags=("--allow-suid",),
    own_kernel=True,
    saves_memory=True,
)
