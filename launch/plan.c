/* The plan: what the daemon wants, as strings. */
#include "corral-launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name; int args; } KINDS[] = {
	[CGROUP] = {"cgroup", 2},     /* directory of a hierarchy, path of the group below it */
	[LIMIT] = {"limit", 2},       /* file of the last group, value */
	[NETNS] = {"netns", 1},       /* path */
	[IDS] = {"ids", 2},           /* first id on the host, how many */
	[ROOT] = {"root", 1},         /* path; a mount */
	[BIND] = {"bind", 3},         /* source, target, MOUNT_ATTR_* */
	[FS] = {"fs", 4},             /* type, target, MOUNT_ATTR_*, options separated by commas */
	[LINK] = {"link", 2},         /* what it says, path */
	[MASK] = {"mask", 1},         /* path; skipped where it does not exist, as the next */
	[READONLY] = {"readonly", 1}, /* path */
	[HOSTNAME] = {"hostname", 1},
	[RLIMIT] = {"rlimit", 3},     /* number, soft, hard */
	[CAPS] = {"caps", 1},         /* set of capabilities as a number */
	[NNP] = {"nnp", 0},           /* no new privileges */
	[SECCOMP] = {"seccomp", 1},   /* path of a filter */
	[EXEC] = {"exec", 1},         /* path in the sandbox; once more for each argument */
};

static char text[MAX_PLAN];

static size_t read_all(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fail("open the plan", path);
	size_t size = 0;
	ssize_t got;
	while ((got = read(fd, text + size, sizeof text - size)) > 0)
		size += (size_t)got;
	if (got < 0 || size == 0 || size == sizeof text || text[size - 1] != '\0') {
		errno = EINVAL;
		fail("read the plan", path);
	}
	close(fd);
	return size;
}

static enum kind kind_of(const char *name)
{
	for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
		if (strcmp(KINDS[i].name, name) == 0)
			return (enum kind)i;
	errno = EINVAL;
	fail("understand the step", name);
}

void read_plan(const char *path, struct plan *plan)
{
	char *at = text, *end = text + read_all(path);
	plan->count = 0;
	while (at < end) {
		const char *name = at;
		if (plan->count == MAX_STEPS) {
			errno = E2BIG;
			fail("read the plan", path);
		}
		struct step *step = &plan->step[plan->count++];
		step->kind = kind_of(name);
		step->fd = -1;
		at += strlen(at) + 1;
		for (int i = 0; i < KINDS[step->kind].args; i++) {
			if (at >= end) {
				errno = EINVAL;
				fail("read the arguments of", name);
			}
			step->arg[i] = at;
			at += strlen(at) + 1;
		}
	}
}

unsigned long long number(const char *digits)
{
	char *end;
	errno = 0;
	unsigned long long value = strtoull(digits, &end, 10);
	if (errno || *end || end == digits) {
		errno = EINVAL;
		fail("read the number", digits);
	}
	return value;
}
