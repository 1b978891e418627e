/* PID 1 of a Corral sandbox.
 *
 * The problem. Processes in a sandbox must outlive the daemon that started them, with their output and
 * their exit status; a runtime's own `exec` costs 20 to 50 ms and dies with its caller; a thousand
 * sandboxes should cost next to nothing while idle. So the sandbox's first process starts the others
 * itself, on command, and keeps what came of them.
 *
 * How. Commands arrive as frames on fd 0, a FIFO; answers leave on fd 1, another one. Both are open for
 * reading and writing here, so a dead daemon is neither an end of file nor a broken pipe, just silence. The
 * frames are described in src/corral/wire/guest.py. Output of processes is pumped from pipes or a pseudo-
 * terminal into files (the spool, /run/corral/io/ID.out and .err), which the daemon reads from the host's
 * side: nothing is lost while no daemon runs, and a slow daemon slows nobody down. When the disk is full,
 * output is dropped and marked, for a process that writes its log must not hang.
 *
 * We never wait for the daemon. Answers are not queued: each process has one report (its state, counts,
 * exit) which is either up to date at the other end or not; those that are not stand in a list, and are
 * sent while the FIFO takes them. A thousand changes while nobody reads make one report. An ended process
 * stays in the table until the daemon says FORGET. Stdin works by a window of 64 KiB per process: what
 * exceeds it is dropped, so memory is bounded and fd 0 is always read at once.
 *
 * The exit of a process is reported after its output was drained: once the kernel says that it ended,
 * everything that it wrote is in the pipe. What it left running in the background may hold the pipe for
 * ever, so the end of file is not waited for; what comes later is read and dropped (a closed pipe would
 * kill the background process with SIGPIPE).
 *
 * Everything else that dies below us is reaped in the same loop: a status belongs to the record with that
 * PID or to nobody.
 *
 * What still fails: a program that clears its environment and leaves its session survives KILL until the
 * sandbox stops (tree.c); the sandbox's root may write garbage into the spool. The daemon treats all of it
 * as hostile.
 */
#define _GNU_SOURCE
#include "corral-init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_BLOB ((128 + 64) * 1024)
#define SWEEP_MS 10    /* between two attempts to kill a tree */
#define QUIET_SWEEPS 3 /* that find nobody, until a tree counts as gone */
#define STUCK_MS 5000  /* after the last KILL: the kernel holds something; end all the same */

static char command_buffer[BUFFER_SIZE];
static size_t command_size;
static int epoll = -1;
static struct watch commands = {ON_COMMANDS, 0, NULL}, signals = {ON_SIGNALS, -1, NULL};
static bool stopping, killed_all;
static int64_t deadline; /* of SHUTDOWN's grace, then of the patience after KILL; in ms */

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- ending ---- */

/* Once more at everything that is to die; the time of the next attempt is the loop's timeout. */
static void sweep(void)
{
	for (struct process *p = processes; p; p = p->next) {
		if (!p->killing || now_ms() < p->next_sweep)
			continue;
		p->next_sweep = now_ms() + SWEEP_MS;
		/* First everybody stands still, so that nobody can be born while the others are being killed. */
		if (signal_tree(p->id, p->pid, p->reaped, SIGSTOP) && signal_tree(p->id, p->pid, p->reaped, SIGKILL)) {
			p->quiet = 0;
			continue;
		}
		/* In the middle of exec a process has no environment, and so no mark. */
		if (p->state == RUNNING || ++p->quiet < QUIET_SWEEPS)
			continue;
		p->killing = false;
		p->flags |= TREE_GONE;
		mark_dirty(p);
	}
}

static void begin_shutdown(int64_t grace)
{
	if (!stopping)
		deadline = now_ms() + grace;
	stopping = true;
	/* Shells on terminals ignore TERM, and leave when their terminal does. */
	for (struct process *p = processes; p; p = p->next)
		if (p->state == RUNNING && p->command.terminal)
			kill(-p->pid, SIGHUP);
	kill(-1, SIGTERM);
	kill(-1, SIGCONT);
}

static void continue_shutdown(void)
{
	if (now_ms() < deadline)
		return;
	if (killed_all)
		_exit(0);
	killed_all = true;
	deadline = now_ms() + STUCK_MS;
	kill(-1, SIGKILL);
}

/* ---- commands ---- */

static void on_hello(uint32_t id)
{
	struct process *next;
	for (struct process *p = processes; p; p = next) {
		next = p->next;
		if (p->state == ARRIVING)
			free_process(p);
	}
	answer_hello(id);
}

static void on_exec(uint32_t id, const char *data, size_t size)
{
	struct exec_payload payload;
	struct process *known = find(id);
	if (known || size < sizeof payload) {
		if (known)
			mark_dirty(known);
		return;
	}
	memcpy(&payload, data, sizeof payload);
	struct process *p = add_process(id);
	if (!p)
		return;
	p->command = (struct command){
		.size = payload.size, .argc = payload.argc, .envc = payload.envc, .rows = payload.rows, .cols = payload.cols,
		.stdin_open = payload.flags & EXEC_STDIN, .terminal = payload.flags & EXEC_TERMINAL,
	};
	if (stopping)
		fail_start(p, STAGE_FORK, ESHUTDOWN);
	else if (!payload.size || payload.size > MAX_BLOB || !payload.argc)
		fail_start(p, STAGE_COMMAND, E2BIG);
	else if (!(p->command.blob = malloc(payload.size)))
		fail_start(p, STAGE_COMMAND, ENOMEM);
}

static void on_exec_data(struct process *p, const char *data, size_t size)
{
	struct command *command = &p->command;
	if (p->state != ARRIVING)
		return;
	if (size > command->size - command->filled) {
		fail_start(p, STAGE_COMMAND, EINVAL);
		return;
	}
	memcpy(command->blob + command->filled, data, size);
	command->filled += (uint32_t)size;
	if (command->filled < command->size)
		return;
	if (command->blob[command->size - 1])
		fail_start(p, STAGE_COMMAND, EINVAL);
	else
		start_process(p);
}

static void on_resize(struct process *p, const char *data, size_t size)
{
	uint16_t rows_cols[2];
	if (size < sizeof rows_cols || p->in.fd < 0 || !p->command.terminal)
		return;
	memcpy(rows_cols, data, sizeof rows_cols);
	struct winsize window = {.ws_row = rows_cols[0], .ws_col = rows_cols[1]};
	ioctl(p->in.fd, TIOCSWINSZ, &window);
}

static void on_signal_command(struct process *p, const char *data, size_t size)
{
	if (size < 2 || data[0] < 1 || data[0] > 64 || !p->pid)
		return;
	if (data[1])
		signal_tree(p->id, p->pid, p->reaped, data[0]);
	else if (!p->reaped && kill(-p->pid, data[0]))
		kill(p->pid, data[0]); /* has not made its group yet */
}

static void on_forget(struct process *p)
{
	if (p->state == EXITED || p->state == FAILED)
		forget(p);
}

static void on_process_command(uint8_t type, struct process *p, const char *data, size_t size)
{
	switch (type) {
	case EXEC_DATA:
		on_exec_data(p, data, size);
		break;
	case STDIN:
		take_input(p, data, size);
		break;
	case STDIN_CLOSE:
		if (p->in.fd >= 0) {
			p->closing = true;
			pump_input(p);
		}
		break;
	case RESIZE:
		on_resize(p, data, size);
		break;
	case SIGNAL:
		on_signal_command(p, data, size);
		break;
	case KILL:
		p->killing = p->pid > 0;
		p->next_sweep = p->quiet = 0;
		break;
	case FORGET:
		on_forget(p);
		break;
	}
}

static void on_command(const struct header *header, char *data)
{
	struct process *p;
	if (header->type == HELLO)
		on_hello(header->id);
	else if (header->type == EXEC)
		on_exec(header->id, data, header->length);
	else if (header->type == SHUTDOWN)
		begin_shutdown(header->id);
	else if (header->type == HOSTNAME)
		sethostname(data, header->length); /* under gVisor; elsewhere the host does it, and we have no right to */
	else if (header->type == ANNOUNCE)
		announce(data, header->length); /* under gVisor, whose /run the host does not see */
	else if ((p = find(header->id)))
		on_process_command(header->type, p, data, header->length);
}

static void on_commands(void)
{
	struct header header;
	size_t at = 0;
	ssize_t got = read(commands.fd, command_buffer + command_size, sizeof command_buffer - command_size);
	if (got <= 0)
		return;
	command_size += (size_t)got;
	while (command_size - at >= HEADER_SIZE) {
		memcpy(&header, command_buffer + at, HEADER_SIZE);
		if (header.length > MAX_FRAME - HEADER_SIZE) { /* not from a daemon: drop it all, and wait for a HELLO */
			at = command_size;
			break;
		}
		if (command_size - at < HEADER_SIZE + (size_t)header.length)
			break;
		on_command(&header, command_buffer + at + HEADER_SIZE);
		at += HEADER_SIZE + (size_t)header.length;
	}
	command_size -= at;
	memmove(command_buffer, command_buffer + at, command_size);
}

/* ---- the loop ---- */

static void on_signals(void)
{
	struct signalfd_siginfo info;
	while (read(signals.fd, &info, sizeof info) == sizeof info)
		if (info.ssi_signo == SIGTERM)
			begin_shutdown(10000);
}

static void on_event(struct watch *watch, uint32_t events)
{
	if (watch->fd < 0)
		return; /* closed by an earlier event of the same round */
	switch (watch->kind) {
	case ON_COMMANDS:
		on_commands();
		break;
	case ON_REPLIES:
		answers_writable();
		break;
	case ON_SIGNALS:
		on_signals();
		break;
	case ON_STDIN:
		on_stdin(watch->process, events);
		break;
	case ON_STDOUT:
		on_output(watch->process, 0);
		break;
	case ON_STDERR:
		on_output(watch->process, 1);
		break;
	case ON_START:
		on_start(watch->process);
		break;
	}
}

static int timeout_ms(void)
{
	int64_t timeout = -1;
	if (stopping && (timeout = deadline - now_ms()) < 0)
		timeout = 0;
	for (struct process *p = processes; p; p = p->next)
		if (p->killing && (timeout < 0 || timeout > SWEEP_MS))
			timeout = SWEEP_MS;
	return timeout > 60000 ? 60000 : (int)timeout;
}

static _Noreturn void run_loop(void)
{
	struct epoll_event events[64];
	for (;;) {
		int count = epoll_wait(epoll, events, 64, timeout_ms());
		for (int i = 0; i < count; i++)
			on_event(events[i].data.ptr, events[i].events);
		bool any = reap();
		sweep();
		if (stopping)
			continue_shutdown();
		send_answers();
		if (stopping && !any)
			_exit(0);
		free_forgotten();
	}
}

static bool set_up(void)
{
	sigset_t mask;
	struct rlimit files;
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigaddset(&mask, SIGTERM);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	signal(SIGPIPE, SIG_IGN);
	umask(077);
	/* Nobody inside may look at our descriptors, through which commands come. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	/* Up to six descriptors a process; children get the limit that was set for them. */
	getrlimit(RLIMIT_NOFILE, &own_files);
	files = (struct rlimit){own_files.rlim_max, own_files.rlim_max};
	setrlimit(RLIMIT_NOFILE, &files);
	fcntl(commands.fd, F_SETFL, fcntl(commands.fd, F_GETFL) | O_NONBLOCK);
	epoll = epoll_create1(EPOLL_CLOEXEC);
	signals.fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
	return epoll >= 0 && signals.fd >= 0 && open_answers(epoll) && !watch_fd(&commands, EPOLLIN)
	       && !watch_fd(&signals, EPOLLIN);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return file_command(argc, argv);
	if (getpid() != 1) {
		fprintf(stderr, "corral-init: runs as PID 1 of a sandbox; the daemon starts it\n");
		return 5;
	}
	if (!set_up()) {
		perror("corral-init");
		return 1;
	}
	run_loop();
}
