/* Finding all processes that came from one of ours. A process group or a session is left by setsid,
 * ancestry by a double fork; the mark in the environment stays, unless a program clears or overwrites it.
 * Together they find all but a process that tries to hide; those end with the sandbox.
 *
 * To read the environment of another user's process PID 1 needs CAP_SYS_PTRACE in the sandbox's user
 * namespace. The driver grants it to PID 1 alone: children drop it from their bounding set before they run
 * anything of the guest's. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum mark { MARK_NONE, MARK_OURS, MARK_OTHERS };

struct entry {
	pid_t pid, parent, group, session;
	enum mark mark;
	bool found;
};

static ssize_t read_proc(pid_t pid, const char *name, char *buffer, size_t size)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t total = 0, got;
	while ((size_t)total < size && (got = read(fd, buffer + total, size - (size_t)total)) > 0)
		total += got;
	close(fd);
	return total;
}

/* Whose mark the first 64 KiB of the environment hold. */
static enum mark find_mark(pid_t pid, uint32_t id)
{
	char ours[32];
	snprintf(ours, sizeof ours, MARK "%u", id);
	ssize_t size = read_proc(pid, "environ", io_buffer, BUFFER_SIZE - 1);
	if (size <= 0)
		return MARK_NONE;
	io_buffer[size] = 0;
	for (char *at = io_buffer; at < io_buffer + size; at += strlen(at) + 1) {
		if (!strcmp(at, ours))
			return MARK_OURS;
		if (!strncmp(at, MARK, strlen(MARK)))
			return MARK_OTHERS;
	}
	return MARK_NONE;
}

/* Fill `entry` from /proc/PID/stat; false for a zombie or what is gone. The command's name may hold any
 * character. */
static bool read_entry(pid_t pid, struct entry *entry)
{
	char text[512], state;
	int parent, group, session;
	ssize_t size = read_proc(pid, "stat", text, sizeof text - 1);
	if (size <= 0)
		return false;
	text[size] = 0;
	char *after = strrchr(text, ')');
	if (!after || sscanf(after + 1, " %c %d %d %d", &state, &parent, &group, &session) != 4)
		return false;
	if (state == 'Z' || state == 'X')
		return false;
	*entry = (struct entry){.pid = pid, .parent = parent, .group = group, .session = session};
	return true;
}

static size_t read_table(uint32_t id, struct entry **table)
{
	size_t count = 0, room = 0;
	DIR *proc = opendir("/proc");
	*table = NULL;
	for (struct dirent *item; proc && (item = readdir(proc));) {
		pid_t pid = (pid_t)atoi(item->d_name);
		if (pid <= 1)
			continue;
		if (count == room) {
			room = room ? room * 2 : 64;
			struct entry *larger = realloc(*table, room * sizeof **table);
			if (!larger)
				break;
			*table = larger;
		}
		if (read_entry(pid, &(*table)[count])) {
			(*table)[count].mark = find_mark(pid, id);
			count++;
		}
	}
	if (proc)
		closedir(proc);
	return count;
}

static bool found_pid(const struct entry *table, size_t count, pid_t pid)
{
	for (size_t i = 0; i < count; i++)
		if (table[i].pid == pid)
			return table[i].found;
	return false;
}

/* Another process's mark always excludes: it keeps a number that was given again from being taken for ours. */
static bool belongs(const struct entry *entry, pid_t leader, bool reaped)
{
	if (entry->mark != MARK_NONE)
		return entry->mark == MARK_OURS;
	return entry->group == leader || entry->session == leader || (!reaped && entry->pid == leader);
}

int signal_tree(uint32_t id, pid_t leader, bool reaped, int number)
{
	struct entry *table;
	size_t count = read_table(id, &table);
	int alive = 0;
	for (size_t i = 0; i < count; i++)
		table[i].found = belongs(&table[i], leader, reaped);
	for (bool more = true; more;) {
		more = false;
		for (size_t i = 0; i < count; i++)
			if (!table[i].found && table[i].mark == MARK_NONE && found_pid(table, count, table[i].parent))
				table[i].found = more = true;
	}
	for (size_t i = 0; i < count; i++)
		if (table[i].found) {
			kill(table[i].pid, number);
			alive++;
		}
	free(table);
	return alive;
}
