/* What the parts of corral-init share. The theory of operation stands in corral-init.c. */
#ifndef CORRAL_INIT_H
#define CORRAL_INIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MARK "CORRAL_PROCESS=" /* in the environment of every process of ours, followed by its id */
#define BUFFER_SIZE 65536

extern char io_buffer[BUFFER_SIZE]; /* scratch; valid until the next call that reads something */

enum stage { /* where the start of a process failed; StartStage in wire/guest.py */
	STAGE_NONE, STAGE_COMMAND, STAGE_FORK, STAGE_TERMINAL, STAGE_USER, STAGE_CREDENTIALS, STAGE_WORKDIR,
};

/* A command as it arrived: `blob` holds NUL-ended strings: user, cwd, arguments, KEY=VALUE pairs. */
struct command {
	char *blob;
	uint32_t size, filled;
	uint16_t argc, envc, rows, cols;
	bool stdin_open, terminal;
};

/* child.c: in the forked child; fd 0, 1, 2 are in place, `report` is closed by a successful exec. Does not return. */
_Noreturn void run_command(const struct command *command, uint32_t id, int report);

/* tree.c: signal a process, its group, session, descendants and marked processes; returns how many are alive.
 * `reaped`: the leader has been waited for, so its number may belong to someone else by now. */
int signal_tree(uint32_t id, pid_t leader, bool reaped, int number);

/* files.c: `put`, `mkdir`, `move`, `remove`; the exit code. */
int file_command(int argc, char **argv);

#endif
