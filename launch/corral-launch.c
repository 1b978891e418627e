/* corral-launch PLAN LOG PIDFILE: starts PID 1 of a sandbox, and ends once that runs.
 *
 * What an OCI runtime does for a container, and no more: control groups, namespaces, mounts, rights, exec. A runtime takes
 * 30 ms, most of it to start itself three times and to compile the system call filter; this takes a few. What is to be done
 * stands in the plan, which the daemon writes; it is trusted, the image that it starts is not.
 *
 * Two processes. The parent keeps the host's rights: it makes the groups, maps the ids, and opens what is the host's. The child is
 * born into new user, mount, pid, ipc and uts namespaces, so that all of them belong to the sandbox's own user namespace,
 * and does whatever touches the image. They talk over a socket pair:
 *
 *     parent                                   child
 *     clone ─────────────────────────────────▶ waits
 *     maps ids; opens sources, as seen from
 *     the child's mount namespace
 *     sends their descriptors ───────────────▶ becomes root of its namespace, opens its own file systems,
 *     makes the groups, puts the child in      enters the root, mounts
 *     says so ───────────────────────────────▶ cgroup namespace; gives up rights; exec
 *     ◀──────────────────────────────────────  the socket closes with the exec; or an error comes
 *
 * A child whose parent ends early reads the end of the socket, and ends. What inherits the parent's other descriptors (a
 * lock of the daemon's) is closed with the exec.
 */
#include "corral-launch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYS_CLOSE_RANGE 436
#define RANGE_CLOEXEC 4
#define SANDBOX (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS)
#define MAX_FDS 64
#define NEW_CGROUP 0x02000000

static int channel = -1;  /* the child's end; -1 in the parent */
static int log_fd = -1;
static pid_t child;

static void write_log(const char *message)
{
	char line[2048];
	char *out = line + snprintf(line, sizeof line, "{\"level\":\"error\",\"msg\":\"corral-launch: ");
	for (; *message && out < line + sizeof line - 8; message++) {
		if (*message == '"' || *message == '\\')
			*out++ = '\\';
		*out++ = (unsigned char)*message < ' ' ? ' ' : *message;
	}
	out += snprintf(out, 4, "\"}\n");
	if (write(log_fd, line, (size_t)(out - line)) < 0)
		_exit(2);
}

_Noreturn void fail(const char *what, const char *subject)
{
	char message[1024];
	int size = snprintf(message, sizeof message, "cannot %s %.500s: %s", what, subject, strerror(errno));
	if (channel >= 0) {
		if (send(channel, message, (size_t)size, MSG_NOSIGNAL) < 0)
			_exit(2);
		_exit(1);
	}
	write_log(message);
	if (child > 0)
		kill(child, SIGKILL);
	_exit(1);
}

static struct step *find(struct plan *plan, enum kind kind)
{
	for (size_t i = 0; i < plan->count; i++)
		if (plan->step[i].kind == kind)
			return &plan->step[i];
	return NULL;
}

static struct step *need(struct plan *plan, enum kind kind, const char *name)
{
	struct step *found = find(plan, kind);
	if (found)
		return found;
	errno = EINVAL;
	fail("find in the plan the step", name);
}

/* -- the parent ------------------------------------------------------------------------------------------------------ */

static void write_file(int directory, const char *name, const char *value)
{
	int fd = openat(directory, name, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		fail("write", name);
	close(fd);
}

/* Hierarchies are opened first: the parent's own paths end when the child changes the root of their namespace. */
static void open_host_files(struct plan *plan)
{
	for (size_t i = 0; i < plan->count; i++) {
		struct step *step = &plan->step[i];
		if (step->kind != CGROUP && step->kind != SECCOMP)
			continue;
		step->fd = open(step->arg[0], O_RDONLY | O_CLOEXEC | (step->kind == CGROUP ? O_DIRECTORY : 0));
		if (step->fd < 0)
			fail("open", step->arg[0]);
	}
}

static void make_group(struct step *step)
{
	char path[512];
	size_t size = strlen(step->arg[1]);
	if (size >= sizeof path) {
		errno = ENAMETOOLONG;
		fail("make the group", step->arg[1]);
	}
	memcpy(path, step->arg[1], size + 1);
	for (size_t i = 1; i <= size; i++) {
		char kept = path[i];
		if (kept != '/' && kept != '\0')
			continue;
		path[i] = '\0';
		if (mkdirat(step->fd, path, 0755) && errno != EEXIST)
			fail("make the group", path);
		path[i] = kept;
	}
	int group = openat(step->fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (group < 0)
		fail("open the group", path);
	close(step->fd);
	step->fd = group;
}

static void join_groups(struct plan *plan)
{
	char pid[32];
	struct step *group = NULL;
	snprintf(pid, sizeof pid, "%d", (int)child);
	for (size_t i = 0; i < plan->count; i++) {
		struct step *step = &plan->step[i];
		if (step->kind == CGROUP)
			make_group(group = step);
		else if (step->kind == LIMIT && group)
			write_file(group->fd, step->arg[0], step->arg[1]);
	}
	for (size_t i = 0; i < plan->count; i++)
		if (plan->step[i].kind == CGROUP)
			write_file(plan->step[i].fd, "cgroup.procs", pid);
}

static void map_ids(const struct step *step)
{
	static const char *const FILES[] = {"uid_map", "gid_map"};
	char path[64], line[128];
	snprintf(path, sizeof path, "/proc/%d", (int)child);
	int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		fail("open", path);
	snprintf(line, sizeof line, "0 %s %s\n", step->arg[0], step->arg[1]);
	for (int i = 0; i < 2; i++)
		write_file(folder, FILES[i], line);
	int mounts = openat(folder, "ns/mnt", O_RDONLY | O_CLOEXEC);
	if (mounts < 0 || setns(mounts, CLONE_NEWNS))
		fail("enter", "the sandbox's mount namespace");
	close(mounts);
	close(folder);
}

static void send_sources(struct plan *plan, int socket)
{
	int fds[MAX_FDS];
	size_t count = 0;
	for (size_t i = 0; i < plan->count; i++) {
		struct step *step = &plan->step[i];
		if (step->kind != BIND && step->kind != ROOT)
			continue;
		if (count == MAX_FDS) {
			errno = E2BIG;
			fail("send", step->arg[0]);
		}
		fds[count++] = step->fd;
	}
	union { char bytes[CMSG_SPACE(sizeof fds)]; struct cmsghdr align; } control = {0};
	char go = 'm';
	struct iovec part = {&go, 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_SPACE(count * sizeof *fds),
	};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(count * sizeof *fds);
	memcpy(CMSG_DATA(head), fds, count * sizeof *fds);
	if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1)
		fail("send", "the mounts");
}

static void await_exec(int socket)
{
	char message[1024];
	ssize_t size = recv(socket, message, sizeof message - 1, 0);
	if (size == 0)
		return;
	message[size < 0 ? 0 : size] = '\0';
	write_log(size < 0 ? "the child cannot be heard" : message);
	kill(child, SIGKILL);
	_exit(1);
}

static void note_pid(int folder, const char *name)
{
	char pid[32], fresh[256];
	int size = snprintf(pid, sizeof pid, "%d", (int)child);
	snprintf(fresh, sizeof fresh, "%s.new", name);
	int fd = openat(folder, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, pid, (size_t)size) != size || close(fd) || renameat(folder, fresh, folder, name))
		fail("write", name);
}

/* -- the child ------------------------------------------------------------------------------------------------------- */

static void receive_sources(struct plan *plan)
{
	int fds[MAX_FDS];
	union { char bytes[CMSG_SPACE(sizeof fds)]; struct cmsghdr align; } control;
	char go;
	struct iovec part = {&go, 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes,
	};
	if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != 1)
		_exit(2);
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	if (!head || head->cmsg_type != SCM_RIGHTS || message.msg_flags & MSG_CTRUNC) {
		errno = EPROTO;
		fail("receive", "the mounts");
	}
	size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof *fds, next = 0;
	memcpy(fds, CMSG_DATA(head), count * sizeof *fds);
	for (size_t i = 0; i < plan->count; i++)
		if ((plan->step[i].kind == BIND || plan->step[i].kind == ROOT) && next < count)
			plan->step[i].fd = fds[next++];
}

/* The image's paths are looked at soon: the host's files that the parent had open are closed by then. */
static void close_host_files(struct plan *plan, int folder)
{
	close(folder);
	close(log_fd);
	for (size_t i = 0; i < plan->count; i++)
		if (plan->step[i].kind == CGROUP)
			close(plan->step[i].fd);
}

static _Noreturn void be_child(struct plan *plan, int folder)
{
	char joined;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close_host_files(plan, folder);
	receive_sources(plan);
	drop_to_root_of_namespace();
	if (unshare(CLONE_NEWIPC)) /* by its own root, to whom message queues belong then */
		fail("make", "the ipc namespace");
	open_filesystems(plan);
	enter_root(need(plan, ROOT, "root")->fd);
	place_mounts(plan);
	if (recv(channel, &joined, 1, 0) != 1)
		_exit(2);
	if (unshare(NEW_CGROUP))
		fail("make", "the cgroup namespace");
	if (syscall(SYS_CLOSE_RANGE, 3, ~0U, RANGE_CLOEXEC))
		fail("close", "what is open");
	give_up_rights(plan);
	const char *program = need(plan, EXEC, "exec")->arg[0];
	static char *argv[MAX_STEPS + 1], *env[1];
	size_t count = 0;
	for (size_t i = 0; i < plan->count; i++)
		if (plan->step[i].kind == EXEC)
			argv[count++] = (char *)(uintptr_t)plan->step[i].arg[0];
	execve(program, argv, env);
	fail("start", program);
}

int main(int argc, char **argv)
{
	static struct plan plan;
	int pair[2];
	if (argc != 4)
		return 2;
	log_fd = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	char *slash = strrchr(argv[3], '/');
	if (log_fd < 0 || !slash)
		return 2;
	*slash = '\0';
	int folder = open(argv[3], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		fail("open", argv[3]);
	read_plan(argv[1], &plan);
	open_host_files(&plan);
	struct step *net = find(&plan, NETNS), *ids = need(&plan, IDS, "ids");
	int netns = net ? open(net->arg[0], O_RDONLY | O_CLOEXEC) : -1;
	if (net && (netns < 0 || setns(netns, CLONE_NEWNET)))
		fail("enter", net->arg[0]);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		fail("make", "a socket pair");
	child = (pid_t)syscall(SYS_clone, SANDBOX | (net ? 0 : CLONE_NEWNET) | SIGCHLD, NULL, NULL, NULL, NULL);
	if (child < 0)
		fail("make", "the namespaces");
	if (child == 0) {
		channel = pair[1];
		close(pair[0]);
		be_child(&plan, folder);
	}
	close(pair[1]);
	map_ids(ids);
	open_sources(&plan);
	send_sources(&plan, pair[0]);
	join_groups(&plan);
	if (send(pair[0], "c", 1, MSG_NOSIGNAL) != 1 && errno != EPIPE)
		fail("tell", "the child");
	await_exec(pair[0]);
	note_pid(folder, slash + 1);
	return 0;
}
