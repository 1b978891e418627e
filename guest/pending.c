/* Reading what is fed to us, and putting files in their place when they are whole. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t left;           /* of the piece that is being read */
static bool ended;            /* the empty one has come */
static const char *unlinked;  /* by a signal: the name of what is not whole yet */

int failed(const char *path)
{
	int error = errno;
	fprintf(stderr, "%s: %s\n", path, strerror(error));
	switch (error) {
	case ENOENT:
		return 2;
	case EISDIR: case ENOTDIR: case ENOTEMPTY: case EEXIST: case EBUSY: case ELOOP: case ENXIO: case EINVAL:
		return 3;
	case ENOSPC: case EDQUOT:
		return 4;
	case EROFS: case EACCES: case EPERM:
		return 6;
	default:
		return 5;
	}
}

static int read_whole(char *into, size_t size)
{
	for (ssize_t got; size; into += got, size -= (size_t)got) {
		if ((got = read(0, into, size)) <= 0) {
			errno = got ? errno : EPIPE;
			return -1;
		}
	}
	return 0;
}

int write_all(int fd, const char *from, size_t size)
{
	for (ssize_t put; size; from += put, size -= (size_t)put)
		if ((put = write(fd, from, size)) < 0)
			return -1;
	return 0;
}

/* Begin the next piece where one has ended; false at the end. */
static int next_piece(void)
{
	unsigned char head[4];
	if (left || ended)
		return !ended;
	if (read_whole((char *)head, sizeof head))
		return -1;
	left = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
	ended = !left;
	return !ended;
}

int take_piece(char *into, size_t size)
{
	while (size) {
		int more = next_piece();
		size_t part = left < size ? left : size;
		if (more <= 0 || read_whole(into, part)) {
			errno = more ? errno : EPIPE;
			return -1;
		}
		into += part;
		size -= part;
		left -= part;
	}
	return 0;
}

int take_some(char *into, size_t size)
{
	int more = next_piece();
	return more <= 0 ? more : take_piece(into, size) ? -1 : 1;
}

int take_part(char *into, size_t size)
{
	int more = next_piece();
	size_t part = left < size ? left : size;
	return more <= 0 ? more : take_piece(into, part) ? -1 : (int)part;
}

int drain_pieces(void)
{
	int got;
	while ((got = take_part(io_buffer, BUFFER_SIZE)) > 0)
		;
	return got;
}

static void give_up(int number)
{
	if (unlinked)
		unlink(unlinked);
	_exit(128 + number);
}

int name_pending(struct pending *pending, const char *target)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
	unsigned char random[12];
	char text[sizeof random + 1] = "";
	const char *slash = strrchr(target, '/');
	pending->fd = -1;
	if (getrandom(random, sizeof random, 0) != sizeof random)
		return -1;
	for (size_t at = 0; at < sizeof random; at++)
		text[at] = letters[random[at] % 32];
	int length = snprintf(pending->name, PATH_MAX, "%.*s.corral-%s", slash ? (int)(slash + 1 - target) : 0, target, text);
	if (length < PATH_MAX)
		return 0;
	errno = ENAMETOOLONG;
	return -1;
}

int open_pending(struct pending *pending, const char *target)
{
	char folder[PATH_MAX];
	const char *slash = strrchr(target, '/');
	int size = slash ? (int)(slash - target) + (slash == target) : 0;
	snprintf(folder, sizeof folder, "%.*s", size, target);
	*pending->name = 0;
	/* A file without a name gets one by way of /proc alone. */
	if (!access("/proc/self/fd", X_OK)) {
		pending->fd = open(*folder ? folder : ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
		if (pending->fd >= 0)
			return 0;
		if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)
			return -1;
	}
	/* gVisor, and an overlay before Linux 6.1, have no files without a name. */
	signal(SIGTERM, give_up);
	signal(SIGINT, give_up);
	signal(SIGHUP, give_up);
	do {
		if (name_pending(pending, target))
			return -1;
		pending->fd = open(pending->name, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
	} while (pending->fd < 0 && errno == EEXIST);
	unlinked = pending->fd < 0 ? NULL : pending->name;
	return pending->fd < 0 ? -1 : 0;
}

int drop_pending(struct pending *pending)
{
	int error = errno;
	if (*pending->name)
		unlink(pending->name);
	unlinked = NULL;
	if (pending->fd >= 0)
		close(pending->fd);
	errno = error;
	return -1;
}

static int link_to(int fd, const char *name)
{
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

int place_pending(struct pending *pending, const char *target)
{
	if (!*pending->name && pending->fd >= 0) {
		int fd = pending->fd;
		if (!link_to(fd, target))
			return close(fd);
		if (errno != EEXIST)
			return drop_pending(pending);
		int named = name_pending(pending, target);
		pending->fd = fd;
		if (named || link_to(fd, pending->name)) {
			*pending->name = 0;
			return drop_pending(pending);
		}
	}
	if (rename(pending->name, target))
		return drop_pending(pending);
	unlink(pending->name); /* still there where both are links to one file */
	unlinked = NULL;
	return pending->fd < 0 ? 0 : close(pending->fd);
}
