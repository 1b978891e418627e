"""Defences of the host's kernel, files and limits."""

from tests.removals.removal import Edit, Removal

_BUNDLE, _STORE = "oci/bundle.py", "rootfs/store.py"
_NO_FILTER = Edit(
    _BUNDLE, '        **({"seccomp": seccomp_profile(facts.machine)} if seccomp else {}),\n', ""
)
_HOSTS_ROOT = (
    Edit(
        _BUNDLE,
        '"uidMappings": [_mapping(uid_base)],\n        "gidMappings": [_mapping(uid_base)],\n        ',
        "",
    ),
    Edit(
        _BUNDLE,
        '("user", "mount", "pid", "ipc", "uts", "cgroup")',
        '("mount", "pid", "ipc", "uts", "cgroup")',
    ),
)


def _rights(*more: str) -> Edit:
    """More rights, which init does not take from what it starts either."""
    names = ", ".join(f'"{name}"' for name in more)
    return Edit(
        _BUNDLE,
        '"capabilities": {"bounding": rights, "effective": rights, "permitted": rights},',
        f'"capabilities": dict.fromkeys(("bounding", "effective", "permitted", "inheritable"), [*rights, {names}]),',
    )


KERNEL = (
    Removal(
        "system calls are filtered",
        dict.fromkeys(
            (
                "keyrings",
                "io-uring",
                "kernel-watching",
                "userfaultfd",
                "clock",
                "mount-calls",
                "new-mount-calls",
                "enter-namespace",
                "move-pages",
                "host-calls",
                "machine-ports",
                "namespaces",
                "other-abi",
                "typing",
            ),
            "not refused",
        )
        | {
            "subvolumes": "a subvolume that joins no quota group",
            "socket-pairs": "pairs of families",
            "raw-sockets": "families",
            "core-dumps": "a limit at which the kernel runs the host's handler can be had",
            "rights": "there is no seccomp filter",
        },
        (_NO_FILTER,),
    ),
    Removal(
        "system calls are filtered, and root is none of the host's",
        {"bpf": "not refused", "file-handles": "not refused"},
        (
            _NO_FILTER,
            *_HOSTS_ROOT,
            _rights("CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH"),
        ),
    ),
    Removal(
        "root is none of the host's, and has few rights",
        {
            "users": "user map",
            "routes": "the network was changed",
            "device-nodes": "not refused",
            "overlay": "could be set",
        },
        (*_HOSTS_ROOT, _rights("CAP_NET_ADMIN", "CAP_MKNOD", "CAP_SYS_ADMIN")),
    ),
    Removal(
        "rights are few",
        {"rights": "holds a dangerous right"},
        (_rights("CAP_NET_RAW"),),
    ),
    Removal(
        "what the host starts inside is bound read-only, and is not the sandbox's",
        {"mounts": "can be written", "host-programs": "can be written"},
        (
            *_HOSTS_ROOT,
            Edit(
                _BUNDLE,
                '_bind(ASK, paths.ask, "nosuid", "nodev", "ro")',
                '_bind(ASK, paths.ask, "nosuid", "nodev", "rw")',
            ),
            Edit(
                _BUNDLE,
                '_bind(TRUST, paths.ca_bundle.parent, *fixed, "ro")',
                '_bind(TRUST, paths.ca_bundle.parent, *fixed, "rw")',
            ),
        ),
    ),
    Removal(
        "what tells about the host is masked",
        {"kernel-settings": "the host can be read"},
        (Edit(_BUNDLE, '"maskedPaths": list(_MASKED)', '"maskedPaths": []'),),
    ),
    Removal(
        "a sandbox has a cgroup namespace",
        {"cgroups": "the host's cgroups are named"},
        (
            Edit(
                _BUNDLE,
                '("user", "mount", "pid", "ipc", "uts", "cgroup")',
                '("user", "mount", "pid", "ipc", "uts")',
            ),
        ),
    ),
    Removal(
        "processes are counted",
        {"forks": "processes"},
        (Edit(_BUNDLE, '"pids": {"limit": limits.pids}', '"pids": {"limit": 2 * limits.pids}'),),
    ),
    Removal(
        "memory has a limit, and files in it a size",
        {"memory": "768 MiB of memory", "memory-files": "more than its memory"},
        (
            Edit(
                _BUNDLE,
                'memory = {"limit": limits.memory, **({"swap": limits.memory} if',
                'memory = {"limit": 2 * limits.memory, **({"swap": 2 * limits.memory} if',
            ),
            Edit(_BUNDLE, 'f"size={limits.memory // 2}"', 'f"size={limits.memory * 2}"'),
        ),
    ),
    Removal(
        "disks have a quota",
        {"disk": "written to a disk of 256", "inodes": "files on a disk of 16 MiB"},
        (
            Edit(
                _STORE,
                "self._opened.subvolumes.limit(fresh, quota_bytes)",
                "self._opened.subvolumes.limit(fresh, 100 * quota_bytes)",
            ),
        ),
    ),
    Removal(
        "the place of output has a limit",
        {"output": "beside the disk's limit"},
        (Edit(_STORE, "SPOOL_BYTES = 512 * 1024 * 1024", "SPOOL_BYTES = 2048 * 1024 * 1024"),),
    ),
    Removal(
        "terminals are counted",
        {"terminals": "terminals"},
        (Edit(_BUNDLE, "_TERMINALS = 256", "_TERMINALS = 300"),),
    ),
    Removal(
        "what connections hold has a limit",
        {"unread": "of the host's memory"},
        (Edit("drivers/oci.py", "_OF_MEMORY_FOR_SOCKETS = 8", "_OF_MEMORY_FOR_SOCKETS = 1"),),
    ),
    Removal(
        "paths are resolved inside of the sandbox's root",
        {
            "links-read": "was read through",
            "links-write": "was changed",
            "links-race": "a swapped link was followed",
        },
        (
            Edit(
                "host/files.py",
                "        return syscalls.openat2(self._root, inner_path(path), flags, resolve=_RESOLVE)",
                '        return syscalls.openat2(self._root, "." + inner_path(path), flags, resolve=0)',
            ),
        ),
    ),
    Removal(
        "writes open nothing that is there, and leave /proc alone",
        {"kernel-files": "of the host was written"},
        (
            Edit(
                "host/filechecks.py",
                "    if not holds_data(fd):\n        raise Forbidden(",
                "    if False:\n        raise Forbidden(",
            ),
            Edit(
                _BUNDLE,
                '"/proc/irq", "/proc/sys", "/proc/sysrq-trigger")',
                '"/proc/irq", "/proc/sysrq-trigger")',
            ),
            Edit(
                "host/filewrite.py",
                "                self._fd = self._create()\n            os.fchmod(self._fd, NEW_MODE if mode is None else mode)\n",
                "                place = f'/proc/self/fd/{near}/{split_path(path)[1]}'\n"
                "                self._fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)\n",
            ),
        ),
    ),
    Removal(
        "a tree of any depth is removed",
        {"deep-trees": "cannot be removed"},
        (
            Edit(
                "rootfs/subvolumes.py",
                "            btrfs.delete_subvolume(path)",
                "            shutil.rmtree(path)",
            ),
        ),
    ),
    Removal(
        "files are regular",
        {"special-files": "was read"},
        (Edit("host/filechecks.py", "    if not stat.S_ISREG(status.st_mode):\n", "    if False:\n"),),
    ),
    Removal(
        "links in copies stay in them",
        {"copies": "a copy holds a link that leaves it"},
        (
            Edit(
                "sdk/trees.py",
                '        if not link_stays(below or [""], member.linkname):',
                "        if False:",
            ),
        ),
    ),
    Removal(
        "nothing that the host has open is left to a sandbox",
        {"descriptors": "descriptors of the host", "directories": "a command was started outside"},
        (
            Edit(
                "oci/runtime.py", 'verb = ("run",) if image', 'verb = ("run", "--preserve-fds=100") if image'
            ),
            Edit("oci/runtime.py", "pass_fds=(hold,)", 'pass_fds=(hold, os.open("/etc", os.O_RDONLY))'),
        ),
    ),
)
