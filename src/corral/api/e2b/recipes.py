"""From the steps of E2B's builder to a recipe of Corral's. Pure.

E2B runs steps by a login shell of `bash`, as `user` in `/home/user` until a step says otherwise, in images that have both:
an image from a registry gets them first. What its steps say is meant literally, but for references to variables: a client
that reads a Dockerfile has taken its quotes out already.
"""

from corral.api.e2b.failures import Refusal, not_supported
from corral.engine.templates import BASE
from corral.model.build import (
    Copy,
    Env,
    Line,
    Ready,
    Recipe,
    RegistryLogin,
    Run,
    Stage,
    Start,
    User,
    Workdir,
)
from corral.model.build import Step as Made
from corral.model.secrets import Secret
from corral.protocol.e2b.templates import (
    AmazonRegistry,
    GoogleRegistry,
    RegistryPassword,
    StartBuild,
    Step,
)

SHELL = ("/bin/bash", "-l", "-c")
READY_SECONDS = 600.0
USER, HOME = "user", "/home/user"
_BASE_IMAGES = ("e2bdev/base", "e2bdev/code-interpreter", "docker.io/e2bdev/base")
_PROVISION = """\
set -e
have() { command -v "$1" >/dev/null 2>&1; }
if ! have bash || ! have sudo || ! have curl; then
  { if have apt-get; then apt-get update && apt-get install -y --no-install-recommends bash sudo curl ca-certificates
    elif have apk; then apk add bash sudo curl ca-certificates shadow
    elif have dnf; then dnf install -y bash sudo curl ca-certificates shadow-utils
    elif have pacman; then pacman -Sy --noconfirm bash sudo curl ca-certificates; fi; } || true
fi
have bash || { echo "the image has no bash, and none could be installed" >&2; exit 1; }
if ! grep -q '^user:' /etc/passwd; then
  if have useradd; then useradd --create-home --shell /bin/bash user
  else adduser -D -s /bin/bash user; fi
fi
mkdir -p /home/user
for file in /etc/skel/.[!.]*; do
  [ ! -f "$file" ] || [ -e "/home/user/${file##*/}" ] || cp "$file" /home/user/
done
[ -e /home/user/.bashrc ] || touch /home/user/.bashrc
chown -R user:user /home/user
if [ -d /etc/sudoers.d ]; then echo 'user ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/user; chmod 0440 /etc/sudoers.d/user; fi
"""
_ADD_USER = """\
grep -q "^$1:" /etc/passwd || useradd --create-home --shell /bin/bash "$1"
[ "$2" != true ] || { echo "$1 ALL=(ALL) NOPASSWD:ALL" >"/etc/sudoers.d/$1"; chmod 0440 "/etc/sudoers.d/$1"; }
"""


def recipe_of(body: StartBuild, contexts: dict[str, str], base: "Base") -> Recipe:
    """The recipe of a request. `contexts`: uploaded archives by the hash that the steps name. Raises Refusal."""
    lines = [Line(step, "base") for step in base.before]
    user = base.user
    for number, step in enumerate(body.steps, 1):
        made, user = _steps(step, contexts, user)
        lines += [Line(item, _shown(step), number) for item in made]
    if body.start_cmd:
        lines += [Line(Start((), fixed=True)), Line(Start((*SHELL, body.start_cmd)), "start", 0)]
    if body.ready_cmd:
        lines.append(Line(Ready((*SHELL, body.ready_cmd), seconds=READY_SECONDS), "ready", 0))
    return Recipe((Stage(base.name, tuple(lines)),))


class Base:
    """What a build starts from, and what is done before its first step. `user`: who runs that."""

    def __init__(self, name: str, user: str, before: tuple[Made, ...] = ()) -> None:
        self.name = name
        self.user = user
        self.before = before


def base_of_image(image: str) -> Base:
    """Of an image: E2B's own base is Corral's."""
    name = image.partition(":")[0].partition("@")[0]
    if name in _BASE_IMAGES or image == BASE:
        return Base(BASE, USER, (User(USER), Workdir(HOME, USER)))
    provision = Run(("/bin/sh", "-c", _PROVISION), user="root")
    return Base(image, USER, (provision, User(USER, sudo=True), Workdir(HOME, USER)))


def base_of_template(name: str, user: str) -> Base:
    """Of a template, whose user and directory go on."""
    return Base(name, user, (User(user),))


def _steps(step: Step, contexts: dict[str, str], user: str) -> tuple[list[Made], str]:
    """What a step is made of, and the user after it. Raises Refusal."""
    match step.type, step.args:
        case "RUN", [command, *rest]:
            return [Run((*SHELL, command), user=rest[0] if rest else "")], user
        case "ENV", args if args and len(args) % 2 == 0:
            return [Env(tuple(zip(args[::2], args[1::2], strict=True)), literal=True)], user
        case "WORKDIR", [path]:
            return [Workdir(path, user, literal=True)], user
        case "USER", [name, *rest]:
            add = Run(("/bin/sh", "-c", _ADD_USER, "sh", name, rest[0] if rest else ""), user="root")
            return [add, User(name, sudo=rest[:1] == ["true"], literal=True)], name
        case "COPY", [source, target, *rest]:
            return [_copy(step, source, target, rest, contexts, user)], user
    raise Refusal(400, f"the step {step.type[:20]} cannot be carried out with {len(step.args)} arguments")


def _copy(step: Step, source: str, target: str, rest: list[str], contexts: dict[str, str], user: str) -> Copy:
    if step.files_hash is None or step.files_hash not in contexts:
        raise Refusal(400, f"the files of COPY {source[:80]} were not uploaded")
    owner = rest[0] if rest else ""
    several = any(sign in source for sign in "*?[")
    try:
        mode = int(rest[1], 8) if len(rest) > 1 and rest[1] else None
    except ValueError:
        raise Refusal(400, f"the mode {rest[1][:20]!r} of COPY is not octal") from None
    return Copy(
        (source,),
        f"{target}/" if several and not target.endswith("/") else target,
        context=contexts[step.files_hash],
        owner=owner or user,
        mode=mode,
        links=True,
        literal=True,
    )


def _shown(step: Step) -> str:
    return f"{step.type} {' '.join(step.args)}"[:200]


def login_of(body: StartBuild) -> RegistryLogin | None:
    """What opens the registry of the image. Raises Refusal, also for a request that starts from nothing or two things."""
    if bool(body.from_image) == bool(body.from_template):
        raise Refusal(400, "give one of fromImage and fromTemplate")
    match body.from_image_registry:
        case RegistryPassword(username=username, password=password):
            if not username or ":" in username:
                raise Refusal(400, "validation error: fromImageRegistry.username is not a name")
            return RegistryLogin(username, Secret(password.get_secret_value()))
        case GoogleRegistry(service_account_json=key):
            return RegistryLogin("_json_key", Secret(key.get_secret_value()))
        case AmazonRegistry():
            hint = "send type `registry` with the user AWS and what `aws ecr get-login-password` prints"
            raise not_supported("fromImageRegistry of type aws", hint)
        case None:
            return None
