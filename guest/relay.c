/* Connections to a port of the sandbox's own address, handed on to what listens on its loopback only: for kernels whose
 * loopback nothing outside reaches (gVisor). It takes the port while it is used, and gives it back soon after, so that a
 * server may come to listen on all addresses. */
#define _GNU_SOURCE
#include "corral-init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IDLE_MS = 2000, WAITING = 128, CHUNK = 1 << 16 };

static int connect_loopback(uint16_t port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&to, sizeof to)) {
		close(fd);
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

static bool write_whole(int fd, const char *data, ssize_t size)
{
	while (size > 0) {
		ssize_t done = send(fd, data, (size_t)size, MSG_NOSIGNAL);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return false;
		data += done, size -= done;
	}
	return true;
}

/* Until both sides have ended; what one side says last reaches the other. */
static void join(int one, int other)
{
	static char chunk[CHUNK];
	struct pollfd ends[2] = {{.fd = one, .events = POLLIN}, {.fd = other, .events = POLLIN}};
	while (ends[0].fd >= 0 || ends[1].fd >= 0) {
		if (poll(ends, 2, -1) < 0 && errno != EINTR)
			return;
		for (int i = 0; i < 2; i++) {
			if (ends[i].fd < 0 || !ends[i].revents)
				continue;
			int to = i ? one : other;
			ssize_t size = recv(ends[i].fd, chunk, sizeof chunk, 0);
			if (size < 0 && errno == EINTR)
				continue;
			if (size < 0 || (size > 0 && !write_whole(to, chunk, size)))
				return;
			if (size == 0) {
				shutdown(to, SHUT_WR);
				ends[i].fd = -1;
			}
		}
	}
}

static void serve(int listener, uint16_t port)
{
	struct pollfd waiting = {.fd = listener, .events = POLLIN};
	int running = 0;
	for (;;) {
		int came = poll(&waiting, 1, IDLE_MS);
		while (running > 0 && waitpid(-1, NULL, WNOHANG) > 0)
			running--;
		if (came <= 0) {
			if (came == 0 && !running)
				return;
			continue;
		}
		int from = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (from < 0)
			continue;
		int to = connect_loopback(port);
		if (to < 0) /* the server has ended: what holds the port must not be this */
			return;
		pid_t child = fork();
		if (child == 0) {
			close(listener);
			join(from, to);
			_exit(0);
		}
		running += child > 0;
		close(from);
		close(to);
	}
}

/* The exit code: 0 where the port can be connected to now, 2 where nothing listens, 5 for anything else. */
int relay_port(const char *address, const char *text)
{
	char *end;
	unsigned long port = strtoul(text, &end, 10);
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	if (*end || port == 0 || port > 65535 || inet_pton(AF_INET, address, &own.sin_addr) != 1)
		return 5;
	int there = connect_loopback((uint16_t)port);
	if (there < 0)
		return 2;
	close(there);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0)
		return 5;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&own, sizeof own) || listen(listener, WAITING))
		return errno == EADDRINUSE ? 0 : 5; /* by another relay, or by the server itself */
	pid_t child = fork();
	if (child)
		return child < 0 ? 5 : 0;
	int null = open("/dev/null", O_RDWR);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	setsid();
	serve(listener, (uint16_t)port);
	_exit(0);
}
