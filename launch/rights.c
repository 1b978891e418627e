/* Who PID 1 is, and what it may not do. */
#include "corral-launch.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CAPABILITY_VERSION 0x20080522
#define LAST_CAPABILITY 63
#define JOIN_SESSION_KEYRING 1
#define SET_MODE_FILTER 1
#define MAX_FILTER 4096

struct header { uint32_t version; int pid; };
struct data { uint32_t effective, permitted, inheritable; };
struct instruction { uint16_t code; uint8_t jt, jf; uint32_t k; };
struct program { uint16_t length; struct instruction *filter; };

/* Until this the process has the host's uid 0, though no rights that go with it. */
void drop_to_root_of_namespace(void)
{
	if (setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0))
		fail("become", "root of the user namespace");
}

static void reset_signals(void)
{
	sigset_t none;
	for (int i = 1; i < 65; i++)
		signal(i, SIG_DFL); /* refused for some, whose action cannot be changed */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static void limit(const struct step *step)
{
	struct rlimit wanted = {number(step->arg[1]), number(step->arg[2])};
	if (setrlimit((int)number(step->arg[0]), &wanted))
		fail("set the limit", step->arg[0]);
}

static void keep_capabilities(uint64_t kept)
{
	struct header header = {CAPABILITY_VERSION, 0};
	struct data data[2] = {
		{(uint32_t)kept, (uint32_t)kept, 0},
		{(uint32_t)(kept >> 32), (uint32_t)(kept >> 32), 0},
	};
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
		fail("clear", "the ambient capabilities");
	for (unsigned long i = 0; i <= LAST_CAPABILITY; i++)
		if (!(kept >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) && errno != EINVAL) /* not of this kernel */
			fail("drop", "a capability");
	if (syscall(SYS_capset, &header, data))
		fail("set", "the capabilities");
}


static void load_filter(int fd)
{
	static struct instruction filter[MAX_FILTER];
	ssize_t size = read(fd, filter, sizeof filter);
	if (size <= 0 || size == sizeof filter || (size_t)size % sizeof *filter) {
		errno = EINVAL;
		fail("read", "the system call filter");
	}
	struct program program = {(uint16_t)((size_t)size / sizeof *filter), filter};
	if (syscall(SYS_seccomp, SET_MODE_FILTER, 0, &program))
		fail("load", "the system call filter");
	close(fd);
}

/* The last steps. A filter is loaded before the capabilities go where new privileges are allowed, which needs one; the
 * parent has opened it, since the host's files are out of sight. */
void give_up_rights(struct plan *plan)
{
	struct step *seccomp = NULL;
	uint64_t kept = 0;
	int no_new_privileges = 0;
	reset_signals();
	umask(022);
	if (setsid() < 0)
		fail("make", "a session");
	syscall(SYS_keyctl, JOIN_SESSION_KEYRING, NULL, 0, 0, 0); /* not the daemon's; a kernel may have none */
	for (size_t i = 0; i < plan->count; i++) {
		struct step *step = &plan->step[i];
		if (step->kind == HOSTNAME && syscall(SYS_sethostname, step->arg[0], __builtin_strlen(step->arg[0])))
			fail("set the name", step->arg[0]);
		else if (step->kind == RLIMIT)
			limit(step);
		else if (step->kind == CAPS)
			kept = number(step->arg[0]);
		else if (step->kind == NNP)
			no_new_privileges = 1;
		else if (step->kind == SECCOMP)
			seccomp = step;
	}
	if (no_new_privileges && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		fail("allow", "no new privileges");
	if (seccomp && !no_new_privileges)
		load_filter(seccomp->fd);
	keep_capabilities(kept);
	if (seccomp && no_new_privileges)
		load_filter(seccomp->fd);
}
