/* What the parts of corral-init share. The theory of operation stands in corral-init.c. */
#ifndef CORRAL_INIT_H
#define CORRAL_INIT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#define MARK "CORRAL_PROCESS=" /* in the environment of every process of ours, followed by its id */
#define SPOOL "/run/corral/io"
#define BUFFER_SIZE 65536

/* ---- frames: see src/corral/wire/guest.py ---- */

#define VERSION 1
#define MAX_FRAME 4096
#define HEADER_SIZE 8

enum { HELLO = 1, EXEC, EXEC_DATA, STDIN, STDIN_CLOSE, RESIZE, SIGNAL, KILL, FORGET, SHUTDOWN, HOSTNAME, ANNOUNCE };
enum { WELCOME = 65, READY, REPORT };
enum { EXEC_STDIN = 1, EXEC_TERMINAL = 2 };
enum state { ARRIVING, RUNNING, EXITED, FAILED };
enum { STDOUT_TRUNCATED = 1, STDERR_TRUNCATED = 2, STDIN_BROKEN = 4, TREE_GONE = 8 };
enum stage { /* where the start of a process failed */
	STAGE_NONE, STAGE_COMMAND, STAGE_FORK, STAGE_TERMINAL, STAGE_USER, STAGE_CREDENTIALS, STAGE_WORKDIR,
};

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

/* ---- processes ---- */

/* A command as it arrived: `blob` holds NUL-ended strings: user, cwd, arguments, KEY=VALUE pairs. */
struct command {
	char *blob;
	uint32_t size, filled;
	uint16_t argc, envc, rows, cols;
	bool stdin_open, terminal;
};

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

extern char io_buffer[BUFFER_SIZE]; /* scratch; valid until the next call that reads something */
extern struct rlimit own_files;     /* the limit of open files that PID 1 was given */

/* ---- table.c: the table, its descriptors, and what is told of it ---- */

extern struct process *processes;

int watch_fd(struct watch *watch, uint32_t events);
void rewatch_fd(struct watch *watch, uint32_t events);
void close_watch(struct watch *watch);
void close_spools(struct process *p);
struct process *find(uint32_t id);
struct process *add_process(uint32_t id);
void free_process(struct process *p);
void free_forgotten(void);
void forget(struct process *p);
void mark_dirty(struct process *p);
bool open_answers(int events_fd); /* true on success; `events_fd` is the epoll descriptor */
void answer_hello(uint32_t id);
void answers_writable(void);
void send_answers(void);

/* ---- pump.c: output into the spool, frames into stdin ---- */

void on_output(struct process *p, int which);
void drain_output(struct process *p, int which);
void on_stdin(struct process *p, uint32_t events);
void pump_input(struct process *p);
void take_input(struct process *p, const char *data, size_t size);
void drop_input(struct process *p);

/* ---- start.c: from a command to a process, and to its exit ---- */

void start_process(struct process *p);
void fail_start(struct process *p, enum stage stage, int error);
void on_start(struct process *p);
bool reap(void); /* everything that ended, ours or left behind by ours; false once no process is left */

/* ---- child.c: in the forked child ---- */

/* fd 0, 1, 2 are in place; `report` is closed by a successful exec, or gets a stage and an errno. */
_Noreturn void run_command(const struct command *command, uint32_t id, int report);

/* ---- tree.c ---- */

/* Signal a process, its group, session, descendants and marked processes; returns how many are alive.
 * `reaped`: the leader has been waited for, so its number may belong to someone else by now. */
int signal_tree(uint32_t id, pid_t leader, bool reaped, int number);

/* ---- files.c: `write`, `mkdir`, `move`, `remove`; the exit code; and what the daemon announces ---- */

int file_command(int argc, char **argv);
void announce(char *data, size_t size);

/* ---- pending.c: what is not there before it is whole ---- */

int failed(const char *path); /* the exit code for errno, told on stderr */

/* An entry that will be in its place at once. It has a hidden name beside that, or none. */
struct pending {
	int fd; /* -1: none */
	char name[PATH_MAX]; /* empty: none */
};

int open_pending(struct pending *pending, const char *target); /* a file, to be written to */
int name_pending(struct pending *pending, const char *target); /* a free name, to be made by the caller */
int place_pending(struct pending *pending, const char *target); /* ends it, whether it succeeds or not */
int drop_pending(struct pending *pending); /* -1, errno as it was */

/* The input is pieces, each after its length (four bytes, big-endian), up to an empty one. Who feeds us may be killed: without that one
 * the end of the input is not its end. */
int take_piece(char *into, size_t size); /* exactly so much */
int take_some(char *into, size_t size);  /* so much: 1; 0 if there was nothing more */
int take_part(char *into, size_t size);  /* at most so much: how much, 0 if there was nothing more */
int drain_pieces(void);                  /* up to the end, whatever is there */
int write_all(int fd, const char *from, size_t size);

/* ---- archive.c: `unpack DIRECTORY`; the exit code ---- */

int unpack_archive(const char *directory);

/* ---- relay.c: `relay ADDRESS PORT`; the exit code ---- */

int relay_port(const char *address, const char *port);

#endif
