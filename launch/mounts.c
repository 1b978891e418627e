/* The sandbox's view of files.
 *
 * Sources on the host are opened by the parent, which has the host's rights, inside the child's mount namespace. File systems of
 * the sandbox's own are opened by the child, so that they belong to its user namespace. Both are detached mounts, held by
 * descriptors only. The child then makes the sandbox's root its own and lets go of the old one; only after that is a path
 * of the image looked at. So whatever links an image holds, there is nothing of the host that they could lead to; and links into
 * /proc/…/fd, which lead to open files rather than to paths, are never followed.
 */
#include "corral-launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SYS_OPEN_TREE 428
#define SYS_MOVE_MOUNT 429
#define SYS_FSOPEN 430
#define SYS_FSCONFIG 431
#define SYS_FSMOUNT 432
#define SYS_OPENAT2 437
#define SYS_MOUNT_SETATTR 442

#define TREE_CLONE 1
#define RECURSIVE 0x8000
#define EMPTY_PATH 0x1000
#define FROM_EMPTY 0x04
#define TO_EMPTY 0x40
#define SET_FLAG 0
#define SET_STRING 1
#define CREATE 6
#define ATTR_RDONLY 0x01
#define ATTR_NOSUID 0x02
#define ATTR_NODEV 0x04
#define ATTR_NOEXEC 0x08
#define NO_MAGICLINKS 0x02

struct attributes { uint64_t set, clear, propagation, userns; };
struct how { uint64_t flags, mode, resolve; };

static int tree(const char *path, unsigned flags)
{
	return (int)syscall(SYS_OPEN_TREE, AT_FDCWD, path, TREE_CLONE | O_CLOEXEC | flags);
}

static int set_attributes(int mount, uint64_t set, unsigned flags)
{
	struct attributes wanted = {.set = set, .propagation = MS_PRIVATE};
	return (int)syscall(SYS_MOUNT_SETATTR, mount, "", EMPTY_PATH | flags, &wanted, sizeof wanted);
}

static int attach(int mount, int target)
{
	return (int)syscall(SYS_MOVE_MOUNT, mount, "", target, "", FROM_EMPTY | TO_EMPTY);
}

/* A path of the sandbox; its links are followed, those that lead to open files are not. */
static int at(const char *path, int flags, mode_t mode)
{
	struct how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .mode = flags & O_CREAT ? mode : 0, .resolve = NO_MAGICLINKS};
	return (int)syscall(SYS_OPENAT2, AT_FDCWD, path, &how, sizeof how);
}

void open_sources(struct plan *plan)
{
	for (size_t i = 0; i < plan->count; i++) {
		struct step *step = &plan->step[i];
		if (step->kind != BIND && step->kind != ROOT)
			continue;
		step->fd = tree(step->arg[0], 0);
		if (step->fd < 0)
			fail("open", step->arg[0]);
		if (set_attributes(step->fd, step->kind == BIND ? number(step->arg[2]) : ATTR_NODEV, 0))
			fail("set the attributes of", step->arg[0]);
		if (step->kind == ROOT) {
			int place = open(step->arg[0], O_PATH | O_CLOEXEC);
			if (place < 0 || attach(step->fd, place))
				fail("mount the root", step->arg[0]);
			close(place);
		}
	}
}

static int filesystem(const char *type, const char *options, uint64_t attributes)
{
	char copy[256], *rest = copy, *item;
	int context = (int)syscall(SYS_FSOPEN, type, 1);
	if (context < 0)
		return -1;
	if (snprintf(copy, sizeof copy, "%s", options) >= (int)sizeof copy) {
		errno = E2BIG;
		return -1;
	}
	if (syscall(SYS_FSCONFIG, context, SET_STRING, "source", type, 0))
		return -1;
	while ((item = strsep(&rest, ","))) {
		char *value = strchr(item, '=');
		if (*item == '\0')
			continue;
		if (value)
			*value++ = '\0';
		if (syscall(SYS_FSCONFIG, context, value ? SET_STRING : SET_FLAG, item, value, 0))
			return -1;
	}
	if (syscall(SYS_FSCONFIG, context, CREATE, NULL, NULL, 0))
		return -1;
	int mount = (int)syscall(SYS_FSMOUNT, context, 1, attributes);
	close(context);
	return mount;
}

void open_filesystems(struct plan *plan)
{
	for (size_t i = 0; i < plan->count; i++) {
		struct step *step = &plan->step[i];
		if (step->kind != FS)
			continue;
		step->fd = filesystem(step->arg[0], step->arg[3], number(step->arg[2]));
		if (step->fd < 0)
			fail("make the file system for", step->arg[1]);
	}
}

void enter_root(int root)
{
	if (fchdir(root) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		fail("enter", "the root");
}

static void make_parents(const char *path)
{
	char part[PATH_MAX];
	for (size_t i = 1; path[i]; i++) {
		if (path[i] != '/' || i >= sizeof part)
			continue;
		memcpy(part, path, i);
		part[i] = '\0';
		if (mkdir(part, 0755) && errno != EEXIST)
			fail("make the directory", part);
	}
}

static int target(const char *path, int directory)
{
	int fd = at(path, O_PATH, 0);
	if (fd >= 0 || errno != ENOENT)
		return fd;
	make_parents(path);
	unlink(path); /* a link to nothing */
	if (directory)
		return mkdir(path, 0755) ? -1 : at(path, O_PATH, 0);
	fd = at(path, O_CREAT | O_EXCL | O_RDONLY, 0644);
	close(fd);
	return fd < 0 ? -1 : at(path, O_PATH, 0);
}

static int is_directory(int fd)
{
	struct stat found;
	if (fstat(fd, &found))
		fail("look at", "a mount");
	return S_ISDIR(found.st_mode);
}

static void place(struct step *step)
{
	const char *path = step->arg[1];
	int fd = target(path, is_directory(step->fd));
	if (fd < 0 || attach(step->fd, fd))
		fail("mount", path);
	close(fd);
	close(step->fd);
}

static void mask(const char *path)
{
	int fd = at(path, O_PATH, 0), cover;
	if (fd < 0) {
		if (errno == ENOENT || errno == ENOTDIR)
			return;
		fail("mask", path);
	}
	if (is_directory(fd)) {
		cover = filesystem("tmpfs", "ro,mode=755,nr_inodes=2", ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC);
	} else {
		cover = tree("/dev/null", 0);
	}
	if (cover < 0 || attach(cover, fd))
		fail("mask", path);
	close(cover);
	close(fd);
}

static void make_readonly(const char *path)
{
	int fd = at(path, O_PATH, 0);
	if (fd < 0) {
		if (errno == ENOENT || errno == ENOTDIR)
			return;
		fail("find", path);
	}
	int mount = tree(path, RECURSIVE);
	if (mount < 0 || set_attributes(mount, ATTR_RDONLY, RECURSIVE) || attach(mount, fd))
		fail("make read-only", path);
	close(mount);
	close(fd);
}

void place_mounts(struct plan *plan)
{
	for (size_t i = 0; i < plan->count; i++) {
		struct step *step = &plan->step[i];
		if (step->kind == BIND || step->kind == FS)
			place(step);
		else if (step->kind == LINK && symlink(step->arg[0], step->arg[1]))
			fail("link", step->arg[1]);
		else if (step->kind == MASK)
			mask(step->arg[0]);
		else if (step->kind == READONLY)
			make_readonly(step->arg[0]);
	}
}
