/* The table of processes: who is watched, what is out of date at the daemon's end, and telling it. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct process *processes;
static struct process *dirty_first, **dirty_last = &dirty_first;
static int epoll = -1;
static struct watch replies = {ON_REPLIES, 1, NULL};
static bool replies_full, welcome_due, ready_due;
static uint32_t nonce, ready_after; /* READY goes out after this many more reports */

/* ---- descriptors ---- */

int watch_fd(struct watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = watch};
	return epoll_ctl(epoll, EPOLL_CTL_ADD, watch->fd, &event);
}

void rewatch_fd(struct watch *watch, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = watch};
	epoll_ctl(epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

void close_watch(struct watch *watch)
{
	if (watch->fd < 0)
		return;
	/* A copy of the descriptor may live on in a child that has not yet reached exec: close() alone would
	 * keep it watched. */
	epoll_ctl(epoll, EPOLL_CTL_DEL, watch->fd, NULL);
	close(watch->fd);
	watch->fd = -1;
}

void close_spools(struct process *p)
{
	for (int i = 0; i < 2; i++)
		if (p->spool[i] >= 0) {
			close(p->spool[i]);
			p->spool[i] = -1;
		}
}

/* ---- the table ---- */

struct process *find(uint32_t id)
{
	for (struct process *p = processes; p; p = p->next)
		if (p->id == id && !p->forgotten)
			return p;
	return NULL;
}

/* Whether there is something to say of it: not before exec has succeeded, or the child that could not is gone. */
static bool reportable(const struct process *p)
{
	return !p->forgotten && (p->state > RUNNING || (p->state == RUNNING && p->start.fd < 0 && !p->stage));
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

void mark_dirty(struct process *p)
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

struct process *add_process(uint32_t id)
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

void free_process(struct process *p)
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

/*
 * The daemon removes the files, too. But a kernel that was not told that they are gone (gVisor's) would look for them when
 * it goes on from a saved image.
 */
static void remove_spool(const struct process *p)
{
	char path[64];
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, SPOOL "/%u.%s", p->id, i ? "err" : "out");
		unlink(path);
	}
}

void forget(struct process *p)
{
	remove_spool(p);
	unmark_dirty(p);
	p->forgotten = true;
}

/* Forgotten ones stay until their background processes let go of the pipes, and until their tree is dead.
 * Called between two rounds of events, which may hold pointers to them. */
void free_forgotten(void)
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

/* The whole table is told anew, and READY after it. */
void answer_hello(uint32_t id)
{
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

void answers_writable(void)
{
	replies_full = false;
	rewatch_fd(&replies, 0);
}

bool open_answers(int events_fd)
{
	epoll = events_fd;
	fcntl(replies.fd, F_SETFL, fcntl(replies.fd, F_GETFL) | O_NONBLOCK);
	return watch_fd(&replies, 0) == 0;
}

void send_answers(void)
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
