/* File operations from within, for runtimes whose kernel would not see what the host changes (gVisor). Run
 * by PID 1 as the sandbox's root; paths are absolute. Exit codes: 0 done, 2 nothing there, 3 wrong type,
 * exists or not empty, 4 disk full, 6 may not be changed, 5 anything else; one line of text on stderr. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct owner {
	mode_t mode;
	uid_t uid;
	gid_t gid;
};

static bool parse_number(const char *text, int base, unsigned long most, unsigned long *value)
{
	char *end;
	errno = 0;
	*value = strtoul(text, &end, base);
	return *text >= '0' && *text <= '9' && !*end && !errno && *value <= most;
}

static bool parse_owner(char **argv, struct owner *owner)
{
	unsigned long mode, uid, gid;
	if (!parse_number(argv[0], 8, 07777, &mode) || !parse_number(argv[1], 10, 0xfffffffe, &uid)
	    || !parse_number(argv[2], 10, 0xfffffffe, &gid))
		return false;
	*owner = (struct owner){(mode_t)mode, (uid_t)uid, (gid_t)gid};
	return true;
}

/* Create one directory; 1 if it was there as a directory or a link to one, 0 if made, -1 on error. */
static int make_one(const char *path, mode_t mode, const struct owner *owner)
{
	struct stat st;
	if (!mkdir(path, mode & 0777)) {
		if (chown(path, owner->uid, owner->gid) || chmod(path, mode))
			return -1;
		return 0;
	}
	if (errno != EEXIST)
		return -1;
	if (stat(path, &st))
		return -1;
	if (S_ISDIR(st.st_mode))
		return 1;
	errno = ENOTDIR;
	return -1;
}

static int make_parents(char *path, const struct owner *owner)
{
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		int made = make_one(path, 0755, owner);
		*slash = '/';
		if (made < 0)
			return -1;
	}
	return 0;
}

static int copy_input(int fd)
{
	int got;
	while ((got = take_part(io_buffer, BUFFER_SIZE)) > 0)
		if (write_all(fd, io_buffer, (size_t)got))
			return -1;
	return got;
}

/* Write the input beside the target, then rename: a reader sees the old or the new content. */
static int write_file(char *path, const struct owner *owner)
{
	char real[PATH_MAX];
	struct pending pending;
	struct stat st;
	if (make_parents(path, owner))
		return failed(path);
	if (!realpath(path, real)) {
		if (errno != ENOENT || strlen(path) >= sizeof real)
			return failed(path);
		strcpy(real, path);
	} else if (!stat(real, &st) && !S_ISREG(st.st_mode)) {
		errno = S_ISDIR(st.st_mode) ? EISDIR : ENXIO;
		return failed(path);
	}
	if (open_pending(&pending, real))
		return failed(path);
	if (copy_input(pending.fd) || fchown(pending.fd, owner->uid, owner->gid) || fchmod(pending.fd, owner->mode))
		return drop_pending(&pending), failed(path);
	return place_pending(&pending, real) ? failed(path) : 0;
}

/* "made" or "existed" on stdout. */
static int make_directory(char *path, const struct owner *owner)
{
	int result = make_parents(path, owner) ? -1 : make_one(path, owner->mode, owner);
	if (result < 0)
		return failed(path);
	puts(result ? "existed" : "made");
	return 0;
}

static int remove_at(int directory, const char *name, dev_t device);

/* What is mounted there is not removed with what it is mounted on: a volume belongs to others, too. */
static int remove_children(int directory, const char *name, dev_t device)
{
	int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -1;
	struct stat status;
	if (fstat(fd, &status) || status.st_dev != device) {
		close(fd);
		errno = EBUSY;
		return -1;
	}
	DIR *stream = fdopendir(fd);
	if (!stream) {
		close(fd);
		return -1;
	}
	int result = 0;
	for (struct dirent *item; !result && (item = readdir(stream));)
		if (strcmp(item->d_name, ".") && strcmp(item->d_name, ".."))
			result = remove_at(fd, item->d_name, device);
	int error = errno;
	closedir(stream);
	errno = error;
	return result;
}

static int remove_at(int directory, const char *name, dev_t device)
{
	if (!unlinkat(directory, name, 0))
		return 0;
	if (errno != EISDIR && errno != EPERM) /* POSIX says EPERM for a directory */
		return errno == ENOENT && directory != AT_FDCWD ? 0 : -1;
	/* A running process may add files meanwhile: try a few times before giving up. */
	for (int attempt = 0; attempt < 3; attempt++) {
		if (remove_children(directory, name, device))
			return -1;
		if (!unlinkat(directory, name, AT_REMOVEDIR))
			return 0;
		if (errno != ENOTEMPTY && errno != EEXIST)
			return -1;
	}
	return -1;
}

static int remove_tree(char *path)
{
	struct rlimit limit; /* one descriptor for each level of depth */
	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
	for (char *end = strchr(path, 0); end[-1] == '/' && end > path + 1;)
		*--end = 0;
	if (!path[1]) {
		errno = EBUSY;
		return failed(path);
	}
	char *slash = strrchr(path, '/');
	*slash = 0;
	struct stat status;
	int result = stat(slash == path ? "/" : path, &status);
	*slash = '/';
	return result || remove_at(AT_FDCWD, path, status.st_dev) ? failed(path) : 0;
}

/* A file at the target is replaced, as rename(2) does it. */
static int move_file(const char *source, const char *target)
{
	return rename(source, target) ? failed(source) : 0;
}

/* A path, a NUL, and what the file is to hold. A reader sees the old or the new content. The sandbox's root may have put
 * anything there: what it can make of that is its own, for it is we. */
void announce(char *data, size_t size)
{
	const struct owner owner = {0755, 0, 0};
	char temporary[PATH_MAX];
	size_t length = strnlen(data, size);
	if (length == size || strncmp(data, "/run/", 5) || make_parents(data, &owner))
		return;
	if ((size_t)snprintf(temporary, sizeof temporary, "%s.new", data) >= sizeof temporary)
		return;
	unlink(temporary);
	int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	bool whole = !write_all(fd, data + length + 1, size - length - 1) && !fchmod(fd, 0644);
	close(fd);
	if (!whole || rename(temporary, data))
		unlink(temporary);
}

int file_command(int argc, char **argv)
{
	struct owner owner;
	umask(0);
	if (argc == 6 && !strcmp(argv[1], "write") && argv[2][0] == '/' && parse_owner(argv + 3, &owner))
		return write_file(argv[2], &owner);
	if (argc == 6 && !strcmp(argv[1], "mkdir") && argv[2][0] == '/' && parse_owner(argv + 3, &owner))
		return make_directory(argv[2], &owner);
	if (argc == 4 && !strcmp(argv[1], "move") && argv[2][0] == '/' && argv[3][0] == '/')
		return move_file(argv[2], argv[3]);
	if (argc == 3 && !strcmp(argv[1], "remove") && argv[2][0] == '/')
		return remove_tree(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "unpack") && argv[2][0] == '/')
		return unpack_archive(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "relay"))
		return relay_port(argv[2], argv[3]);
	fprintf(stderr, "usage: corral-init write|mkdir PATH MODE UID GID, move SOURCE TARGET, remove PATH, unpack DIRECTORY, relay ADDRESS PORT\n");
	return 5;
}
