"""Who a user name of a guest is, by the guest's own /etc/passwd: hostile text of any content."""

from dataclasses import dataclass

from corral.errors import InvalidInput
from corral.model.ids import check_user

ID_RANGE = 65536
MAX_PASSWD = 1 << 20


@dataclass(frozen=True, slots=True)
class GuestUser:
    """Ids inside the guest, each 0 to 65,535."""

    uid: int
    gid: int


def find_user(user: str, passwd: bytes) -> GuestUser:
    """The ids of a login name, `uid` or `uid:gid`.

    A number needs no entry; without one its group has the same number. Lines that make no sense are passed
    over; of several for a name the first counts, as in the C library. Raises InvalidInput for a name that
    is not there, or ids out of range.
    """
    uid_text, _, gid_text = check_user(user).partition(":")
    if gid_text:
        return _checked(user, int(uid_text), int(gid_text))
    numeric = uid_text.isdigit()
    for line in passwd[:MAX_PASSWD].split(b"\n"):
        fields = line.split(b":")
        if len(fields) < 4 or not (fields[2].isdigit() and fields[3].isdigit()):
            continue
        if len(fields[2]) > 5 or len(fields[3]) > 5:  # beyond the range, and not worth parsing
            continue
        uid, gid = int(fields[2]), int(fields[3])
        if uid == int(uid_text) if numeric else fields[0] == uid_text.encode():
            return _checked(user, uid, gid)
    if numeric:
        return _checked(user, int(uid_text), int(uid_text))
    if user == "root":
        return GuestUser(0, 0)
    raise InvalidInput(f"the sandbox has no user {user!r}", "give a name of its /etc/passwd, or uid:gid")


def _checked(user: str, uid: int, gid: int) -> GuestUser:
    if max(uid, gid) >= ID_RANGE:
        raise InvalidInput(f"the ids of user {user!r} are out of range", f"use ids below {ID_RANGE}")
    return GuestUser(uid, gid)


def find_group(group: str, table: bytes) -> int:
    """The id of a group by name or number, by the guest's own /etc/group. Raises InvalidInput."""
    if group.isdecimal():
        return _checked(group, 0, int(group[:6])).gid
    for line in table[:MAX_PASSWD].split(b"\n"):
        fields = line.split(b":")
        if len(fields) > 2 and fields[0] == group.encode() and fields[2].isdigit() and len(fields[2]) <= 5:
            return _checked(group, 0, int(fields[2])).gid
    if group == "root":
        return 0
    raise InvalidInput(f"the image has no group {group[:80]!r}", "give a name of its /etc/group, or a number")
