/* PID 1 of a Corral sandbox.
 *
 * The problem. Processes in a sandbox must outlive the daemon that started them, with their output and their exit status; a
 * runtime's own `exec` costs 20 to 50 ms and dies with its caller; a thousand sandboxes should cost next to nothing while
 * idle. So the sandbox's first process starts the others itself, on command, and keeps what came of them.
 *
 * How. Commands arrive as frames on fd 0, a FIFO; answers leave on fd 1, another one. Both are open for reading and writing
 * here, so a dead daemon is neither an end of file nor a broken pipe, just silence. The frames are described in
 * src/corral/wire/guest.py. Output of processes is pumped from pipes or a pseudo-terminal into files (the spool,
 * /run/corral/io/ID.out and .err), which the daemon reads from the host's side: nothing is lost while no daemon runs, and a slow
 * daemon slows nobody down. When the disk is full, output is dropped and marked, for a process that writes its log must not hang.
 *
 * We never wait for the daemon. Answers are not queued: each process has one report (its state, counts, exit) which is either
 * up to date at the other end or not; those that are not stand in a list, and are sent while the FIFO takes them. A thousand
 * changes while nobody reads make one report. An ended process stays in the table until the daemon says FORGET. Stdin works by a
 * window of 64 KiB per process: what exceeds it is dropped, so memory is bounded and fd 0 is always read at once.
 *
 * The exit of a process is reported after its output was drained: once the kernel says that it ended, everything that it wrote is in
 * the pipe. What it left running in the background may hold the pipe for ever, so the end of file is not waited for; what comes
 * later is read and dropped (a closed pipe would kill the background process with SIGPIPE).
 *
 * Everything else that dies below us is reaped in the same loop: a status belongs to the record with that PID or to nobody.
 *
 * What still fails: a program that clears its environment and leaves its session survives KILL until the sandbox stops
 * (tree.c); the sandbox's root may write garbage into the spool. The daemon treats all of it as hostile.
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
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define VERSION 1
#define SPOOL "/run/corral/io"
#define MAX_FRAME 4096
#define HEADER_SIZE 8
#define MAX_BLOB ((128 + 64) * 1024)
#define DRAIN_READS 32 /* twice what the largest pipe holds: whoever still writes is not the process that ended */
#define SWEEP_MS 10    /* between two attempts to kill a tree */
#define QUIET_SWEEPS 3 /* that find nobody, until a tree counts as gone */
#define STUCK_MS 5000  /* after the last KILL: the kernel holds something; end all the same */

enum { HELLO = 1, EXEC, EXEC_DATA, STDIN, STDIN_CLOSE, RESIZE, SIGNAL, KILL, FORGET, SHUTDOWN };
enum { WELCOME = 65, READY, REPORT };
enum { EXEC_STDIN = 1, EXEC_TERMINAL = 2 };
enum state { ARRIVING, RUNNING, EXITED, FAILED };
enum { STDOUT_TRUNCATED = 1, STDERR_TRUNCATED = 2, STDIN_BROKEN = 4, TREE_GONE = 8 };

struct header {
	uint8_t type, flags;
	uint16_t length;
	uint32_t id;
} __attribute__((packed));

struct exec_payload {
	uint32_t size;
	uint16_t argc, envc, rows, cols;
	uint32_t flags;
} __attribute__((packed));

struct welcome_payload {
	uint16_t version, reserved;
	uint32_t processes;
} __attribute__((packed));

struct report_payload {
	uint8_t state, flags, signal, stage;
	uint16_t error, code;
	int32_t pid;
	uint32_t reserved;
	uint64_t out, err, received, consumed;
} __attribute__((packed));

/* What an epoll event is about. */
enum watch_kind { ON_COMMANDS, ON_REPLIES, ON_SIGNALS, ON_STDIN, ON_STDOUT, ON_STDERR, ON_START };
struct watch {
	enum watch_kind kind;
	int fd; /* -1: closed */
	struct process *process;
};

struct process {
	struct process *next, *next_dirty;
	uint32_t id;
	pid_t pid;
	enum state state;
	uint8_t flags, signal, stage;
	uint16_t error, code;
	bool dirty, reaped, forgotten, killing;
	int64_t next_sweep;
	int quiet;    /* sweeps since the last one that found somebody to kill */
	bool closing; /* stdin ends after what is buffered */
	bool hung_up; /* the terminal has been seen without anybody who has it open */
	struct watch in, out[2], start;
	int spool[2];
	uint64_t written[2], received, consumed;
	char *input; /* up to BUFFER_SIZE bytes on their way to stdin, from `input_start`; NULL if there are none */
	size_t input_start, input_size;
	struct command command;
};

char io_buffer[BUFFER_SIZE];
static char command_buffer[BUFFER_SIZE];
static size_t command_size;
static struct process *processes, *dirty_first, **dirty_last = &dirty_first;
static int epoll = -1;
static struct watch commands = {ON_COMMANDS, 0, NULL}, replies = {ON_REPLIES, 1, NULL}, signals = {ON_SIGNALS, -1, NULL};
static struct rlimit own_files;
static bool replies_full, welcome_due, ready_due, stopping;
static uint32_t nonce, ready_after; /* READY goes out after this many more reports */
static int64_t deadline;            /* of SHUTDOWN's grace, then of the patience after KILL; in ms */
static bool killed_all;

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- descriptors ---- */

static int watch_fd(struct watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = watch};
	return epoll_ctl(epoll, EPOLL_CTL_ADD, watch->fd, &event);
}

static void rewatch_fd(struct watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = watch};
	epoll_ctl(epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

static void close_watch(struct watch *watch)
{
	if (watch->fd < 0)
		return;
	/* A copy of the descriptor may live on in a child that has not yet reached exec: close() alone would keep it watched. */
	epoll_ctl(epoll, EPOLL_CTL_DEL, watch->fd, NULL);
	close(watch->fd);
	watch->fd = -1;
}

static void close_spools(struct process *p)
{
	for (int i = 0; i < 2; i++)
		if (p->spool[i] >= 0) {
			close(p->spool[i]);
			p->spool[i] = -1;
		}
}

/* ---- the table of processes ---- */

static struct process *find(uint32_t id)
{
	for (struct process *p = processes; p; p = p->next)
		if (p->id == id && !p->forgotten)
			return p;
	return NULL;
}

/* Whether there is something to say of it: not before exec has succeeded, or failed. */
static bool reportable(const struct process *p)
{
	return !p->forgotten && (p->state > RUNNING || (p->state == RUNNING && p->start.fd < 0));
}

static void queue_report(struct process *p)
{
	if (p->dirty)
		return;
	p->dirty = true;
	p->next_dirty = NULL;
	*dirty_last = p;
	dirty_last = &p->next_dirty;
}

static void mark_dirty(struct process *p)
{
	if (reportable(p))
		queue_report(p);
}

static void unmark_dirty(struct process *p)
{
	struct process **link = &dirty_first;
	if (!p->dirty)
		return;
	while (*link != p)
		link = &(*link)->next_dirty;
	*link = p->next_dirty;
	if (dirty_last == &p->next_dirty)
		dirty_last = link;
	p->dirty = false;
}

static struct process *add_process(uint32_t id)
{
	struct process *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->id = id;
	p->in = (struct watch){ON_STDIN, -1, p};
	p->out[0] = (struct watch){ON_STDOUT, -1, p};
	p->out[1] = (struct watch){ON_STDERR, -1, p};
	p->start = (struct watch){ON_START, -1, p};
	p->spool[0] = p->spool[1] = -1;
	p->next = processes;
	processes = p;
	return p;
}

static void free_process(struct process *p)
{
	struct process **link = &processes;
	while (*link != p)
		link = &(*link)->next;
	*link = p->next;
	unmark_dirty(p);
	close_watch(&p->in);
	close_watch(&p->out[0]);
	close_watch(&p->out[1]);
	close_watch(&p->start);
	close_spools(p);
	free(p->input);
	free(p->command.blob);
	free(p);
}

/* Forgotten ones stay until their background processes let go of the pipes, and until their tree is dead. Called between two rounds
 * of events, which may hold pointers to them. */
static void free_forgotten(void)
{
	for (struct process *p = processes, *next; p; p = next) {
		next = p->next;
		if (p->forgotten && p->out[0].fd < 0 && p->out[1].fd < 0 && !p->killing)
			free_process(p);
	}
}

/* ---- answers ---- */

/* Whole or not at all, for a frame is no larger than PIPE_BUF. */
static bool send_frame(uint8_t type, uint32_t id, const void *payload, uint16_t length)
{
	char frame[HEADER_SIZE + sizeof(struct report_payload)];
	struct header header = {type, 0, length, id};
	memcpy(frame, &header, HEADER_SIZE);
	if (length)
		memcpy(frame + HEADER_SIZE, payload, length);
	if (write(replies.fd, frame, HEADER_SIZE + length) == HEADER_SIZE + length)
		return true;
	replies_full = true;
	rewatch_fd(&replies, EPOLLOUT);
	return false;
}

static bool send_welcome(void)
{
	struct welcome_payload payload = {.version = VERSION, .processes = ready_after};
	return send_frame(WELCOME, nonce, &payload, sizeof payload);
}

static bool send_report(const struct process *p)
{
	struct report_payload payload = {
		.state = (uint8_t)p->state, .flags = p->flags, .signal = p->signal, .stage = p->stage,
		.error = p->error, .code = p->code, .pid = p->pid,
		.out = p->written[0], .err = p->written[1], .received = p->received, .consumed = p->consumed,
	};
	return send_frame(REPORT, p->id, &payload, sizeof payload);
}

static void send_answers(void)
{
	if (replies_full || (welcome_due && !send_welcome()))
		return;
	welcome_due = false;
	for (;;) {
		if (ready_due && !ready_after) {
			if (!send_frame(READY, nonce, NULL, 0))
				return;
			ready_due = false;
		}
		struct process *p = dirty_first;
		if (!p || !send_report(p))
			return;
		unmark_dirty(p);
		if (ready_after)
			ready_after--;
	}
}

/* ---- output: from pipes and terminals to the spool ---- */

/* Created on the first output. Something that a process put in its place before is removed. */
static int open_spool(const struct process *p, int which)
{
	char path[64];
	snprintf(path, sizeof path, SPOOL "/%u.%s", p->id, which ? "err" : "out");
	unlink(path);
	return open(path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static void spool(struct process *p, int which, const char *data, size_t size)
{
	if (p->spool[which] < 0)
		p->spool[which] = open_spool(p, which);
	while (size) {
		ssize_t put = write(p->spool[which], data, size);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0) {
			p->flags |= which ? STDERR_TRUNCATED : STDOUT_TRUNCATED;
			return;
		}
		p->written[which] += (uint64_t)put;
		data += put;
		size -= (size_t)put;
	}
}

/* Nobody has the terminal open any more. Its process may be about to exit: were our end closed now, the process would get
 * SIGHUP instead. It may also open the terminal again. So keep it, and be woken by changes only. */
static void end_output(struct process *p, int which)
{
	if (!p->command.terminal || p->reaped) {
		close_watch(&p->out[which]);
	} else if (!p->hung_up) {
		p->hung_up = true;
		rewatch_fd(&p->out[which], EPOLLIN | EPOLLET);
	}
}

/* One read; false if there is nothing now, or the end was reached. */
static bool pump_output(struct process *p, int which)
{
	struct watch *watch = &p->out[which];
	if (watch->fd < 0)
		return false;
	ssize_t got = read(watch->fd, io_buffer, BUFFER_SIZE);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (got <= 0) { /* a terminal that nobody has open says EIO */
		end_output(p, which);
		return false;
	}
	if (p->state <= RUNNING) {
		spool(p, which, io_buffer, (size_t)got);
		mark_dirty(p);
	}
	return true;
}

/* Everything that is there now. */
static void drain_output(struct process *p, int which)
{
	for (int reads = 0; reads < DRAIN_READS && pump_output(p, which); reads++)
		;
}

static void on_output(struct process *p, int which)
{
	if (p->hung_up)
		drain_output(p, which);
	else
		pump_output(p, which);
}

/* ---- input: from frames to pipes and terminals ---- */

static void drop_input(struct process *p)
{
	p->consumed = p->received;
	p->input_size = 0;
	free(p->input);
	p->input = NULL;
}

/* To a terminal in line mode, the end of input is a character; in other modes there is none. */
static void end_input(struct process *p)
{
	struct termios modes;
	if (p->command.terminal) {
		if (!tcgetattr(p->in.fd, &modes) && (modes.c_lflag & ICANON))
			(void)!write(p->in.fd, &modes.c_cc[VEOF], 1);
		p->closing = false;
		rewatch_fd(&p->in, EPOLLET);
		return;
	}
	close_watch(&p->in);
}

static void pump_input(struct process *p)
{
	while (p->in.fd >= 0 && p->input_size) {
		ssize_t put = write(p->in.fd, p->input + p->input_start, p->input_size);
		if (put < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (put < 0) {
			p->flags |= STDIN_BROKEN;
			close_watch(&p->in);
			break;
		}
		p->input_start += (size_t)put;
		p->input_size -= (size_t)put;
		p->consumed += (uint64_t)put;
		mark_dirty(p);
	}
	if (p->in.fd < 0 || !p->input_size)
		drop_input(p);
	if (p->in.fd < 0)
		return;
	/* Edge-triggered: a terminal that nobody has open would otherwise wake us for ever. */
	if (p->input_size)
		rewatch_fd(&p->in, EPOLLOUT | EPOLLET);
	else if (p->closing)
		end_input(p);
	else
		rewatch_fd(&p->in, EPOLLET);
}

static void on_stdin(struct process *p, uint32_t events)
{
	if (events & EPOLLERR && !p->command.terminal) { /* the process has closed it */
		p->flags |= STDIN_BROKEN;
		close_watch(&p->in);
		drop_input(p);
		mark_dirty(p);
	} else if (p->input_size) {
		pump_input(p);
	}
}

static void take_input(struct process *p, const char *data, size_t size)
{
	if (p->state != RUNNING || p->closing)
		return;
	if (p->in.fd < 0) {
		p->received = p->consumed += size;
		mark_dirty(p);
		return;
	}
	if (!p->input && !(p->input = malloc(BUFFER_SIZE)))
		return;
	if (size > BUFFER_SIZE - p->input_size)
		return; /* beyond the window */
	memmove(p->input, p->input + p->input_start, p->input_size);
	memcpy(p->input + p->input_size, data, size);
	p->input_start = 0;
	p->input_size += size;
	p->received += size;
	pump_input(p);
}

/* ---- starting ---- */

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
	sigset_t none;
	struct rlimit files = own_files;
	sigemptyset(&none);
	signal(SIGPIPE, SIG_DFL);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	setrlimit(RLIMIT_NOFILE, &files);
	if (dup2(ends->in, 0) < 0 || dup2(ends->out, 1) < 0 || dup2(ends->err, 2) < 0)
		_exit(125);
	if (p->command.terminal)
		ioctl(0, TIOCSCTTY, 0);
	run_command(&p->command, p->id, report);
}

static void fail_start(struct process *p, enum stage stage, int error)
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

static void start_process(struct process *p)
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
static void on_start(struct process *p)
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
static bool reap(void)
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
	nonce = id;
	welcome_due = ready_due = true;
	ready_after = 0;
	/* Also what has not reached exec yet, for what is not in the table counts as lost. */
	for (struct process *p = processes; p; p = p->next)
		if (!p->forgotten)
			queue_report(p);
	for (struct process *p = dirty_first; p; p = p->next_dirty)
		ready_after++;
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
	if (p->state != EXITED && p->state != FAILED)
		return;
	unmark_dirty(p);
	p->forgotten = true;
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

static void on_command(const struct header *header, const char *data)
{
	struct process *p;
	if (header->type == HELLO)
		on_hello(header->id);
	else if (header->type == EXEC)
		on_exec(header->id, data, header->length);
	else if (header->type == SHUTDOWN)
		begin_shutdown(header->id);
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
		replies_full = false;
		rewatch_fd(&replies, 0);
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

static int set_up(void)
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
	fcntl(replies.fd, F_SETFL, fcntl(replies.fd, F_GETFL) | O_NONBLOCK);
	epoll = epoll_create1(EPOLL_CLOEXEC);
	signals.fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
	return epoll < 0 || signals.fd < 0 || watch_fd(&commands, EPOLLIN) || watch_fd(&replies, 0)
	       || watch_fd(&signals, EPOLLIN);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return file_command(argc, argv);
	if (getpid() != 1) {
		fprintf(stderr, "corral-init: runs as PID 1 of a sandbox; the daemon starts it\n");
		return 5;
	}
	if (set_up()) {
		perror("corral-init");
		return 1;
	}
	run_loop();
}
