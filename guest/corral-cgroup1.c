/*
 * Runs a program in whose sight there are cgroups of version 1 only.
 *
 *   corral-cgroup1 HIERARCHY PROGRAM [ARGUMENT]...
 *
 * On a host that has both versions, crun refuses to start although version 1 has all that it needs. Here an empty
 * directory lies over HIERARCHY, the mount of version 2, in a mount namespace that ends with the program.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <unistd.h>

static int failed(const char *what)
{
	perror(what);
	return 125;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fputs("usage: corral-cgroup1 HIERARCHY PROGRAM [ARGUMENT]...\n", stderr);
		return 125;
	}
	if (unshare(CLONE_NEWNS))
		return failed("unshare");
	/* Nothing that is mounted here may be seen outside. */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return failed("mount /");
	if (mount("none", argv[1], "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64k"))
		return failed(argv[1]);
	execv(argv[2], argv + 2);
	return failed(argv[2]);
}
