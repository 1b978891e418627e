/* The life of one process, from a command that has come whole to an exit that can be reported. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

struct rlimit own_files;

struct ends { /* the child's ends of its descriptors */
	int in, out, err;
};

static void close_ends(struct ends *ends)
{
	if (ends->in >= 0)
		close(ends->in);
	if (ends->out >= 0 && ends->out != ends->in)
		close(ends->out);
	if (ends->err >= 0 && ends->err != ends->out)
		close(ends->err);
	*ends = (struct ends){-1, -1, -1};
}

static bool open_pipe(struct watch *ours, int *theirs, bool we_read)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC))
		return false;
	ours->fd = ends[we_read ? 0 : 1];
	*theirs = ends[we_read ? 1 : 0];
	fcntl(ours->fd, F_SETFL, O_NONBLOCK);
	return watch_fd(ours, we_read ? EPOLLIN : EPOLLET) == 0;
}

static bool open_pipes(struct process *p, struct ends *ends)
{
	if (p->command.stdin_open) {
		if (!open_pipe(&p->in, &ends->in, false))
			return false;
	} else if ((ends->in = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0) {
		return false;
	}
	return open_pipe(&p->out[0], &ends->out, true) && open_pipe(&p->out[1], &ends->err, true);
}

static bool open_terminal(struct process *p, struct ends *ends)
{
	struct winsize size = {.ws_row = p->command.rows, .ws_col = p->command.cols};
	int unlock = 0, number;
	char path[32];
	int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	if (master < 0)
		return false;
	p->out[0].fd = master;
	if (ioctl(master, TIOCSPTLCK, &unlock) || ioctl(master, TIOCGPTN, &number))
		return false;
	snprintf(path, sizeof path, "/dev/pts/%d", number);
	ends->in = ends->out = ends->err = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (ends->in < 0 || ioctl(master, TIOCSWINSZ, &size))
		return false;
	p->in.fd = fcntl(master, F_DUPFD_CLOEXEC, 0); /* each descriptor is watched for its own direction */
	return p->in.fd >= 0 && !watch_fd(&p->out[0], EPOLLIN) && !watch_fd(&p->in, EPOLLET);
}

/* Put the child's ends at 0, 1 and 2. None of them is below 3, for PID 1 has those open. */
static _Noreturn void run_child(const struct process *p, const struct ends *ends, int report)
{
	/* As the kernel reads it: zero is the default action. */
	static const struct {
		void *handler;
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} by_default;
	sigset_t none;
	struct rlimit files = own_files;
	sigemptyset(&none);
	/*
	 * Whoever started the daemon may have had signals ignored, as a shell does for what it puts in the background.
	 * By the system call itself, for a libc keeps some real-time signals to itself and refuses them here.
	 */
	for (int number = 1; number < NSIG; number++)
		syscall(SYS_rt_sigaction, number, &by_default, NULL, sizeof by_default.mask);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	setrlimit(RLIMIT_NOFILE, &files);
	if (dup2(ends->in, 0) < 0 || dup2(ends->out, 1) < 0 || dup2(ends->err, 2) < 0)
		_exit(125);
	if (p->command.terminal)
		ioctl(0, TIOCSCTTY, 0);
	run_command(&p->command, p->id, report);
}

void fail_start(struct process *p, enum stage stage, int error)
{
	p->state = FAILED;
	p->reaped = true;
	p->stage = (uint8_t)stage;
	p->error = (uint16_t)error;
	close_watch(&p->in);
	close_watch(&p->out[0]);
	close_watch(&p->out[1]);
	close_watch(&p->start);
	drop_input(p);
	mark_dirty(p);
}

void start_process(struct process *p)
{
	struct ends ends = {-1, -1, -1};
	int report = -1;
	p->state = RUNNING;
	bool opened = p->command.terminal ? open_terminal(p, &ends) : open_pipes(p, &ends);
	if (!opened || !open_pipe(&p->start, &report, true)) {
		fail_start(p, opened ? STAGE_FORK : p->command.terminal ? STAGE_TERMINAL : STAGE_FORK, errno);
	} else if ((p->pid = fork()) < 0) {
		fail_start(p, STAGE_FORK, errno);
	} else if (p->pid == 0) {
		run_child(p, &ends, report);
	}
	close_ends(&ends);
	if (report >= 0)
		close(report);
	free(p->command.blob);
	p->command.blob = NULL;
}

/* The child has called exec (end of file), or says why it could not. */
void on_start(struct process *p)
{
	int record[2] = {0, 0};
	if (p->start.fd < 0)
		return;
	ssize_t got = read(p->start.fd, record, sizeof record);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	close_watch(&p->start);
	if (got == sizeof record) {
		p->stage = (uint8_t)record[0];
		p->error = (uint16_t)record[1];
	}
	mark_dirty(p);
}

static void on_exit_of(struct process *p, int status)
{
	on_start(p);
	p->reaped = true;
	drain_output(p, 0);
	drain_output(p, 1);
	close_spools(p);
	close_watch(&p->in);
	close_watch(&p->start);
	drop_input(p);
	p->state = p->stage ? FAILED : EXITED;
	p->signal = WIFSIGNALED(status) ? (uint8_t)WTERMSIG(status) : 0;
	p->code = (uint16_t)(p->signal ? 128 + p->signal : WEXITSTATUS(status));
	mark_dirty(p);
}

/* Everything that ended, ours or left behind by ours. False once no process is left. */
bool reap(void)
{
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (struct process *p = processes; p; p = p->next)
			if (p->pid == pid && p->state == RUNNING) {
				on_exit_of(p, status);
				break;
			}
	return pid == 0;
}
