/* Bytes between processes and the daemon: output into spool files, frames into stdin. Nothing here waits
 * for either side. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <termios.h>
#include <unistd.h>

#define DRAIN_READS 32 /* twice what the largest pipe holds: whoever still writes is not the process that ended */

char io_buffer[BUFFER_SIZE];

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

/* Nobody has the terminal open any more. Its process may be about to exit: were our end closed now, the
 * process would get SIGHUP instead. It may also open the terminal again. So keep it, and be woken by
 * changes only. */
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
void drain_output(struct process *p, int which)
{
	for (int reads = 0; reads < DRAIN_READS && pump_output(p, which); reads++)
		;
}

void on_output(struct process *p, int which)
{
	if (p->hung_up)
		drain_output(p, which);
	else
		pump_output(p, which);
}

/* ---- input: from frames to pipes and terminals ---- */

void drop_input(struct process *p)
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

void pump_input(struct process *p)
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

void on_stdin(struct process *p, uint32_t events)
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

void take_input(struct process *p, const char *data, size_t size)
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
