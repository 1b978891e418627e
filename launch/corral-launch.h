/* Shared by the parts of corral-launch; corral-launch.c tells how it works. */
#ifndef CORRAL_LAUNCH_H
#define CORRAL_LAUNCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAX_STEPS 256
#define MAX_ARGS 4
#define MAX_PLAN (256 * 1024)

enum kind {
	CGROUP, LIMIT, NETNS, IDS, ROOT, BIND, FS, LINK, MASK, READONLY, HOSTNAME, RLIMIT, CAPS, NNP, SECCOMP, EXEC
};

/* One line of the plan. `fd`: what it was opened as, -1 before. */
struct step {
	enum kind kind;
	const char *arg[MAX_ARGS];
	int fd;
};

struct plan {
	struct step step[MAX_STEPS];
	size_t count;
};

/* plan.c: reads a file of strings that end in NUL: a step's name and its arguments, again and again. */
void read_plan(const char *path, struct plan *plan);
unsigned long long number(const char *text);

/* mounts.c: `open_*` before the old root is gone, `place_*` after. */
void open_sources(struct plan *plan);
void open_filesystems(struct plan *plan);
void enter_root(int root);
void place_mounts(struct plan *plan);

/* rights.c */
void drop_to_root_of_namespace(void);
void give_up_rights(struct plan *plan);

/* corral-launch.c: end with a message about `what`, `subject` and errno; to the log, or by way of the parent. */
_Noreturn void fail(const char *what, const char *subject);

#endif
