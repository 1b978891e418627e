/* The way from fork to exec: who the process is, where it runs, what its environment holds. Everything that
 * is read here (/etc/passwd, /etc/group, terminfo) belongs to the sandbox and may be hostile: sizes are
 * bounded, and only regular files are read. It happens in the child, so that PID 1 cannot be held up by it. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE (1 << 20)
#define MAX_GROUPS 64
/* Of linux/capability.h, which musl does not have. */
#define CAP_SYS_PTRACE 19
#define CAP_SYS_ADMIN 21
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct identity {
	uid_t uid;
	gid_t gid;
	gid_t groups[MAX_GROUPS];
	size_t group_count;
	const char *name, *home, *shell;
};

static _Noreturn void fail(int report, enum stage stage, int error)
{
	int record[2] = {(int)stage, error};
	ssize_t written = write(report, record, sizeof record);
	_exit(written == sizeof record ? 126 : 125);
}

/* A whole small regular file as a string, or NULL. */
static char *read_file(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return NULL;
	char *text = NULL;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= MAX_FILE && (text = malloc(MAX_FILE + 1))) {
		size_t filled = 0;
		ssize_t got;
		while (filled < MAX_FILE && (got = read(fd, text + filled, MAX_FILE - filled)) > 0)
			filled += (size_t)got;
		text[filled] = 0;
	}
	close(fd);
	return text;
}

/* Split a line of a colon-separated database in place; returns the number of fields found. */
static int split(char *line, char **fields, int most)
{
	int count = 0;
	for (char *field; count < most && (field = strsep(&line, ":"));)
		fields[count++] = field;
	return count;
}

static bool parse_id(const char *text, const char *end_chars, const char **end, uint32_t *value)
{
	char *stop;
	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	unsigned long number = strtoul(text, &stop, 10);
	if (errno || number > 0xfffffffeUL || !strchr(end_chars, *stop))
		return false;
	*value = (uint32_t)number;
	if (end)
		*end = stop;
	return true;
}

/* Find the user's line in /etc/passwd, by name or (`by_uid`) by number. */
static bool find_user(struct identity *who, const char *name, bool by_uid)
{
	char *text = read_file("/etc/passwd");
	for (char *line; text && (line = strsep(&text, "\n"));) {
		char *field[7];
		uint32_t uid, gid;
		if (split(line, field, 7) < 7 || !parse_id(field[2], "", NULL, &uid) || !parse_id(field[3], "", NULL, &gid))
			continue;
		if (by_uid ? uid != who->uid : strcmp(field[0], name) != 0)
			continue;
		who->uid = uid, who->gid = gid;
		who->name = field[0];
		who->home = field[5];
		who->shell = field[6];
		return true;
	}
	return false;
}

static void find_groups(struct identity *who)
{
	char *text = read_file("/etc/group");
	who->groups[who->group_count++] = who->gid;
	for (char *line; text && (line = strsep(&text, "\n"));) {
		char *field[4], *member;
		uint32_t gid;
		if (split(line, field, 4) < 4 || !parse_id(field[2], "", NULL, &gid) || gid == who->gid)
			continue;
		while ((member = strsep(&field[3], ",")))
			if (!strcmp(member, who->name) && who->group_count < MAX_GROUPS) {
				who->groups[who->group_count++] = gid;
				break;
			}
	}
}

/* `name`, `uid` or `uid:gid`. A number needs no entry in /etc/passwd, nor does root: an image may be without the file.
 * The group is then the same number. */
static bool resolve(const char *spec, struct identity *who)
{
	const char *end;
	uint32_t gid;
	bool number = parse_id(spec, ":", &end, &who->uid);
	if (!find_user(who, spec, number)) {
		if (!number && strcmp(spec, "root"))
			return false;
		if (!number)
			who->uid = 0;
		who->gid = who->uid;
		who->name = spec;
		who->home = "/";
		who->shell = "";
	}
	if (*spec >= '0' && *spec <= '9' && *end == ':') {
		if (!parse_id(end + 1, "", NULL, &gid))
			return false;
		who->gid = gid;
	}
	if (!*who->shell)
		who->shell = "/bin/sh";
	find_groups(who);
	return true;
}

/* PID 1 may read every process's environment (CAP_SYS_PTRACE, see tree.c), and under gVisor change the host
 * name (CAP_SYS_ADMIN); nothing that it starts may get these rights. */
static bool drop_capabilities(void)
{
	static const int dropped[] = {CAP_SYS_PTRACE, CAP_SYS_ADMIN};
	for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
		if (prctl(PR_CAPBSET_READ, dropped[i], 0, 0, 0) == 1 && prctl(PR_CAPBSET_DROP, dropped[i], 0, 0, 0))
			return false;
	return true;
}

static bool known_terminal(const char *name)
{
	static const char *const directories[] = {"/lib/terminfo", "/usr/share/terminfo", "/etc/terminfo", "/usr/lib/terminfo"};
	char path[128];
	if (!*name || strchr(name, '/'))
		return false;
	for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
		snprintf(path, sizeof path, "%s/%c/%s", directories[i], *name, name);
		if (!access(path, F_OK))
			return true;
	}
	return false;
}

/* Programs end when they find no description of $TERM: give them one that the image has. */
static const char *terminal_name(const char *wanted)
{
	static const char *const fallbacks[] = {"xterm-256color", "xterm", "vt100"};
	if (wanted && known_terminal(wanted))
		return wanted;
	for (size_t i = 0; i < sizeof fallbacks / sizeof *fallbacks; i++)
		if (known_terminal(fallbacks[i]))
			return fallbacks[i];
	return wanted ? wanted : fallbacks[0];
}

static const char *value_of(char **env, size_t count, const char *key)
{
	size_t length = strlen(key);
	for (size_t i = 0; i < count; i++)
		if (!strncmp(env[i], key, length) && env[i][length] == '=')
			return env[i] + length + 1;
	return NULL;
}

static void set_default(char **env, size_t *count, const char *key, const char *value)
{
	char *text;
	if (!value_of(env, *count, key) && asprintf(&text, "%s=%s", key, value) >= 0)
		env[(*count)++] = text;
}

/* The given environment with the mark in front, which `env` must not give, and the defaults behind. */
static char **build_environment(char **given, uint16_t count, const struct identity *who, bool terminal, uint32_t id)
{
	char **env = calloc((size_t)count + 8, sizeof *env);
	size_t filled = 1;
	if (!env || asprintf(&env[0], MARK "%u", id) < 0)
		return NULL;
	for (uint16_t i = 0; i < count; i++)
		if (strncmp(given[i], MARK, strlen(MARK)) && !(terminal && !strncmp(given[i], "TERM=", 5)))
			env[filled++] = given[i];
	if (terminal)
		set_default(env, &filled, "TERM", terminal_name(value_of(given, count, "TERM")));
	set_default(env, &filled, "HOME", who->home);
	set_default(env, &filled, "USER", who->name);
	set_default(env, &filled, "LOGNAME", who->name);
	set_default(env, &filled, "SHELL", who->shell);
	set_default(env, &filled, "PATH", DEFAULT_PATH);
	return env;
}

/* As a shell does it: a text file without an interpreter line is run by sh. */
static int try_exec(const char *path, char **argv, size_t argc, char **env)
{
	execve(path, argv, env);
	if (errno == ENOEXEC) {
		char **script = calloc(argc + 2, sizeof *script);
		if (!script)
			return ENOMEM;
		script[0] = "sh";
		script[1] = (char *)path;
		memcpy(script + 2, argv + 1, argc * sizeof *script);
		execve("/bin/sh", script, env);
	}
	return errno;
}

static int search_and_exec(char **argv, size_t argc, char **env, size_t env_count)
{
	const char *path = value_of(env, env_count, "PATH");
	int result = ENOENT;
	char file[4096];
	if (strchr(argv[0], '/'))
		return try_exec(argv[0], argv, argc, env);
	while (path && *path) {
		const char *end = strchrnul(path, ':');
		int length = snprintf(file, sizeof file, "%.*s/%s", (int)(end - path), path, argv[0]);
		if (end > path && length > 0 && (size_t)length < sizeof file) {
			int error = try_exec(file, argv, argc, env);
			if (error != ENOENT && error != ENOTDIR)
				result = error;
			if (error != ENOENT && error != ENOTDIR && error != EACCES)
				break;
		}
		path = *end ? end + 1 : end;
	}
	return result;
}

/* Pointers to the blob's strings; NULL if it holds fewer than `count`. */
static char **strings_of(const struct command *command, size_t count)
{
	char **list = calloc(count + 1, sizeof *list);
	const char *end = command->blob + command->size;
	char *next = command->blob;
	for (size_t i = 0; list && i < count; i++) {
		if (next >= end)
			return NULL;
		list[i] = next;
		next += strlen(next) + 1; /* the blob ends with a NUL: checked before the fork */
	}
	return list;
}

_Noreturn void run_command(const struct command *command, uint32_t id, int report)
{
	struct identity who = {0};
	char **strings = strings_of(command, 2 + (size_t)command->argc + command->envc);
	if (!strings)
		fail(report, STAGE_COMMAND, EINVAL);
	char **argv = calloc((size_t)command->argc + 1, sizeof *argv);
	if (!argv)
		fail(report, STAGE_COMMAND, ENOMEM);
	memcpy(argv, strings + 2, command->argc * sizeof *argv);
	if (!resolve(strings[0], &who))
		fail(report, STAGE_USER, ENOENT);
	char **env = build_environment(strings + 2 + command->argc, command->envc, &who, command->terminal, id);
	if (!env)
		fail(report, STAGE_COMMAND, ENOMEM);

	umask(022);
	if (command->terminal && fchown(0, who.uid, (gid_t)-1))
		fail(report, STAGE_TERMINAL, errno);
	if (!drop_capabilities() || setgroups(who.group_count, who.groups) || setgid(who.gid) || setuid(who.uid))
		fail(report, STAGE_CREDENTIALS, errno);
	if (chdir(*strings[1] ? strings[1] : who.home))
		fail(report, STAGE_WORKDIR, errno);

	size_t env_count = 0;
	while (env[env_count])
		env_count++;
	int error = search_and_exec(argv, command->argc, env, env_count);
	if (error == EAGAIN || error == ENOMEM)
		fail(report, STAGE_FORK, error);
	dprintf(2, "corral: %s: %s\n", argv[0], error == ENOENT ? "command not found" : strerror(error));
	_exit(error == ENOENT || error == ENOTDIR ? 127 : 126);
}
