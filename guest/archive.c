/* `unpack DIRECTORY`: a tar stream into a directory, as the user who is to own what is made.
 *
 * An archive that breaks off, because its sender or the daemon ends, leaves each file as it was or as it is to be: each is
 * written beside its place and renamed. Read are POSIX tar with pax headers, and GNU's long names and large numbers. Names are
 * taken as below the directory; one with `..` is left out and told, as are devices and what this does not know. A link that
 * could lead out of the directory is made once all else is there, so that nothing of the archive goes through it. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 512
#define MAX_HEADER (1 << 20) /* of what comes before a member: names, attributes */

struct header_block {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6],
	     version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

struct member {
	char type, name[PATH_MAX], link[PATH_MAX];
	mode_t mode;
	uint64_t size;
	struct timespec mtime;
	bool has_name, has_link, has_size, has_mtime, sparse; /* told by what comes before the header */
};

/* What is done at the end: times and modes of directories, links that lead out. */
struct later {
	struct later *next;
	mode_t mode;
	struct timespec mtime;
	char *link; /* NULL: a directory */
	char name[];
};

static struct later *laters;
static int outcome; /* the exit code, while what can be unpacked is */

static int left_out(const char *name, const char *why)
{
	fprintf(stderr, "%s: %s\n", name, why);
	outcome = 5;
	return 0;
}

static bool parse_octal(const char *field, size_t size, uint64_t *value)
{
	const unsigned char *bytes = (const unsigned char *)field;
	size_t at = 0;
	*value = 0;
	if (bytes[0] & 0x80) { /* GNU: a binary number */
		if (bytes[0] != 0x80)
			return false;
		for (at = 1; at < size; at++) {
			if (*value >> 55)
				return false;
			*value = *value << 8 | bytes[at];
		}
		return true;
	}
	while (at < size && field[at] == ' ')
		at++;
	for (; at < size && field[at] >= '0' && field[at] <= '7'; at++)
		*value = *value << 3 | (uint64_t)(field[at] - '0');
	return at == size || field[at] == 0 || field[at] == ' ';
}

static bool sound(const struct header_block *block)
{
	const unsigned char *bytes = (const unsigned char *)block;
	size_t from = offsetof(struct header_block, checksum);
	uint64_t told, sum = 0;
	for (size_t at = 0; at < BLOCK; at++)
		sum += at >= from && at < from + sizeof block->checksum ? ' ' : bytes[at];
	return parse_octal(block->checksum, sizeof block->checksum, &told) && told == sum;
}

static bool copy_name(char into[PATH_MAX], const char *from, size_t size)
{
	size = strnlen(from, size);
	if (size >= PATH_MAX)
		return false;
	memcpy(into, from, size);
	into[size] = 0;
	return true;
}

/* Seconds with a fraction. */
static bool parse_time(const char *text, struct timespec *time)
{
	char *end;
	errno = 0;
	long long seconds = strtoll(text, &end, 10);
	long nanoseconds = 0, digit = 100000000;
	if (errno || end == text)
		return false;
	if (*end == '.')
		for (end++; *end >= '0' && *end <= '9'; end++, digit /= 10)
			nanoseconds += (*end - '0') * digit;
	*time = (struct timespec){(time_t)seconds, seconds < 0 ? 0 : nanoseconds};
	return !*end;
}

static bool take_attribute(struct member *next, const char *key, const char *value, size_t size)
{
	char *end;
	if (!strcmp(key, "path"))
		return next->has_name = strlen(value) == size && copy_name(next->name, value, size);
	if (!strcmp(key, "linkpath"))
		return next->has_link = strlen(value) == size && copy_name(next->link, value, size);
	if (!strcmp(key, "mtime"))
		return next->has_mtime = parse_time(value, &next->mtime);
	if (!strcmp(key, "size")) {
		errno = 0;
		next->size = strtoull(value, &end, 10);
		return next->has_size = *value >= '0' && *value <= '9' && !*end && !errno && next->size < 1ULL << 62;
	}
	if (!strncmp(key, "GNU.sparse.", 11))
		next->sparse = true;
	return true;
}

/* Lines "LENGTH KEY=VALUE\n". */
static bool take_attributes(struct member *next, char *text, size_t size)
{
	while (size) {
		char *end;
		unsigned long length = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
		if (length < 5 || length > size || *end != ' ' || text[length - 1] != '\n')
			return false;
		char *key = end + 1, *equals = memchr(key, '=', (size_t)(text + length - key));
		if (!equals)
			return false;
		*equals = text[length - 1] = 0;
		if (!take_attribute(next, key, equals + 1, (size_t)(text + length - 1 - (equals + 1))))
			return false;
		text += length;
		size -= length;
	}
	return true;
}

static int skip(uint64_t size)
{
	while (size) {
		size_t part = size < BUFFER_SIZE ? (size_t)size : BUFFER_SIZE;
		if (take_piece(io_buffer, part))
			return -1;
		size -= part;
	}
	return 0;
}

static uint64_t padding(uint64_t size)
{
	return -size % BLOCK;
}

/* 'x', 'L', 'K': what is told of the member after it. */
static int read_before(struct member *next, char type, uint64_t size)
{
	char *text = size <= MAX_HEADER ? malloc((size_t)size + 1) : NULL;
	bool valid = false;
	if (text && !take_piece(text, (size_t)size) && !skip(padding(size))) {
		text[size] = 0;
		if (type == 'x')
			valid = take_attributes(next, text, (size_t)size);
		else if (type == 'L')
			valid = next->has_name = copy_name(next->name, text, (size_t)size);
		else
			valid = next->has_link = copy_name(next->link, text, (size_t)size);
	}
	free(text);
	if (!valid)
		errno = EBADMSG;
	return valid ? 0 : -1;
}

/* The next member; 1 if there is one, 0 at the end. */
static int read_member(struct member *next)
{
	struct header_block block;
	uint64_t size, mode, mtime;
	memset(next, 0, sizeof *next);
	for (;;) {
		int got = take_some((char *)&block, sizeof block);
		static const char zeros[BLOCK];
		if (got <= 0 || !memcmp(&block, zeros, BLOCK))
			return got < 0 ? -1 : 0;
		if (!sound(&block) || !parse_octal(block.size, sizeof block.size, &size) || size >= 1ULL << 62
		    || !parse_octal(block.mode, sizeof block.mode, &mode)) {
			errno = EBADMSG;
			return -1;
		}
		if (block.type == 'g' ? skip(size + padding(size)) : strchr("xLK", block.type) && block.type
		    ? read_before(next, block.type, size) : 0)
			return -1;
		if (!block.type || !strchr("gxLK", block.type))
			break;
	}
	next->type = block.type;
	next->mode = (mode_t)mode & 07777;
	if (!next->has_size)
		next->size = size;
	if (!next->has_mtime && parse_octal(block.mtime, sizeof block.mtime, &mtime))
		next->mtime = (struct timespec){(time_t)mtime, 0};
	if (!next->has_name) {
		bool split = !memcmp(block.magic, "ustar", 6) && *block.prefix; /* GNU's has a space there, and no prefix */
		snprintf(next->name, sizeof next->name, "%.155s%s%.100s", split ? block.prefix : "", split ? "/" : "", block.name);
	}
	if (!next->has_link)
		copy_name(next->link, block.link, sizeof block.link);
	if ((next->type == 0 || next->type == '0') && *next->name && strchr(next->name, 0)[-1] == '/')
		next->type = '5';
	return 1;
}

/* The name below the directory, without slashes around it: "." for itself; NULL for one that leads out. */
static const char *below(char *name)
{
	while (*name == '/')
		name++;
	for (char *end = strchr(name, 0); end > name && end[-1] == '/';)
		*--end = 0;
	for (const char *part = name; part; part = strchr(part, '/')) {
		part += *part == '/';
		if (!strncmp(part, "..", 2) && (!part[2] || part[2] == '/'))
			return NULL;
	}
	return *name ? name : ".";
}

static bool leads_out(const char *link)
{
	return *link == '/' || strstr(link, "..");
}

static bool put_off(const char *name, const char *link, const struct member *member)
{
	struct later *later = malloc(sizeof *later + strlen(name) + 1);
	if (!later)
		return false;
	*later = (struct later){laters, member->mode, member->mtime, link ? strdup(link) : NULL};
	strcpy(later->name, name);
	laters = later;
	return true;
}

static int make_parents_of(const char *name)
{
	char path[PATH_MAX];
	copy_name(path, name, PATH_MAX);
	for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
		*slash = 0;
		if (mkdir(path, 0755) && errno != EEXIST)
			return -1;
		*slash = '/';
	}
	return 0;
}

static mode_t allowed(mode_t mode)
{
	return geteuid() ? mode & 0755 : mode; /* as tar does it: the umask, but for root */
}

/* Of another kind than a regular file: made under a free name, then renamed. */
static int make_entry(const char *name, const struct member *member, const char *link)
{
	struct pending pending;
	for (int attempt = 0; attempt < 100; attempt++) {
		if (name_pending(&pending, name))
			return -1;
		int made = member->type == '1' ? linkat(AT_FDCWD, link, AT_FDCWD, pending.name, 0)
			: member->type == '2' ? symlink(link, pending.name) : mkfifo(pending.name, allowed(member->mode));
		if (!made)
			return place_pending(&pending, name);
		if (errno != EEXIST)
			return -1;
	}
	return -1;
}

static int make_file(const char *name, const struct member *member)
{
	struct pending pending;
	struct timespec times[2] = {{0, UTIME_OMIT}, member->mtime};
	if (open_pending(&pending, name))
		return -1;
	for (uint64_t left = member->size; left;) {
		size_t part = left < BUFFER_SIZE ? (size_t)left : BUFFER_SIZE;
		if (take_piece(io_buffer, part) || write_all(pending.fd, io_buffer, part))
			return drop_pending(&pending);
		left -= part;
	}
	if (skip(padding(member->size)) || fchmod(pending.fd, allowed(member->mode)) || futimens(pending.fd, times))
		return drop_pending(&pending);
	return place_pending(&pending, name);
}

static int make_folder(const char *name, const struct member *member)
{
	struct stat st;
	if (mkdir(name, 0700)) {
		if (errno != EEXIST || stat(name, &st))
			return -1;
		if (!S_ISDIR(st.st_mode)) {
			errno = ENOTDIR;
			return -1;
		}
		if (st.st_uid != geteuid())
			return 0; /* it stays as it is */
	}
	return put_off(name, NULL, member) ? 0 : -1;
}

static int make_member(struct member *member)
{
	bool is_file = !member->type || member->type == '0' || member->type == '7';
	const char *name = below(member->name), *link = member->link;
	if (!is_file && skip(member->size + padding(member->size)))
		return -1;
	if (!name || member->sparse || (!is_file && !strchr("1256", member->type))) {
		if (is_file && skip(member->size + padding(member->size)))
			return -1;
		return left_out(member->name, !name ? "its name leads out of the directory" : "it is of a kind that is not unpacked");
	}
	if (make_parents_of(name))
		return -1;
	if (is_file)
		return make_file(name, member);
	if (member->type == '5')
		return make_folder(name, member);
	if (member->type == '1' && !(link = below(member->link)))
		return left_out(name, "what it links to is not in the directory");
	if (member->type == '2' && leads_out(link))
		return put_off(name, link, member) ? 0 : -1;
	return make_entry(name, member, link);
}

/* The last first: a directory's time changes by what is made in it. */
static int do_laters(void)
{
	for (struct later *later = laters; later; later = later->next)
		if (later->link && make_entry(later->name, &(struct member){.type = '2'}, later->link))
			return failed(later->name);
	for (struct later *later = laters; later; later = later->next) {
		struct timespec times[2] = {{0, UTIME_OMIT}, later->mtime};
		if (!later->link && (chmod(later->name, allowed(later->mode)) || utimensat(AT_FDCWD, later->name, times, 0)))
			return failed(later->name);
	}
	return 0;
}

static int broken(const char *name)
{
	const char *why = errno == EPIPE ? "it breaks off" : errno == EBADMSG ? "it is no tar archive, or a damaged one" : NULL;
	if (!why)
		return failed(name);
	fprintf(stderr, "%s: %s\n", name, why);
	return 5;
}

int unpack_archive(const char *directory)
{
	static struct member member;
	int got;
	if (chdir(directory))
		return failed(directory);
	while ((got = read_member(&member)) > 0)
		if (make_member(&member))
			return broken(member.name);
	if (got < 0 || drain_pieces())
		return broken("the archive");
	int ended = do_laters();
	return ended ? ended : outcome;
}
