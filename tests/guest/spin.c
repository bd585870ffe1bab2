/*
 * A ping-pong of messages between rank 0 and the last rank: spin BYTES TIMES HOW, where HOW is what a rank does until
 * something has arrived. Prints the time of each round trip.
 *   block    waits in recv()
 *   recv     asks again and again with MSG_DONTWAIT
 *   poll     asks poll() with a timeout of 0
 *   epoll    asks epoll_wait() on two sets in turn, of which the second has the connection
 *   many     asks recv() on 200 other sockets first
 *   tsc      asks poll() only when the time stamp counter has moved, as Open MPI does; prints how often it has slept
 *   yield    calls sched_yield() in between
 *   thread   spins with sched_yield() until another thread, which waits in recv(), has written to memory
 *   pause    as thread, but spins in memory alone, with PAUSE instructions
 *   memory   as thread, but spins in memory alone
 *   clock    reads the clock until a second has passed, without any message
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OTHERS 200

static const char *how;
static unsigned long long asked_at;
static int others[OTHERS], empty_set, set;
static atomic_long arrived;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int is(const char *name)
{
	return !strcmp(how, name);
}

/* Return whether another thread waits for messages. */
static int is_threaded(void)
{
	return is("thread") || is("pause") || is("memory");
}

static void ask(int s)
{
	struct pollfd one = { .fd = s, .events = POLLIN };
	struct epoll_event event;
	unsigned long long before;
	char byte;

	if (is("poll"))
		while (poll(&one, 1, 0) == 0)
			;
	if (is("tsc"))
		do {
			for (before = asked_at; asked_at == before;)
				asked_at = __builtin_ia32_rdtsc();
		} while (poll(&one, 1, 0) == 0);
	if (is("epoll"))
		while (epoll_wait(empty_set, &event, 1, 0) == 0 && epoll_wait(set, &event, 1, 0) == 0)
			;
	if (is("many"))
		for (int i = 0; i < OTHERS; i++)
			recv(others[i], &byte, 1, MSG_DONTWAIT);
	if (is("yield"))
		sched_yield();
}

static void get(int s, char *p, size_t n)
{
	int flags = is("block") || is_threaded() ? 0 : MSG_DONTWAIT;

	while (n) {
		ssize_t k;

		ask(s);
		k = recv(s, p, n, flags);
		if (k > 0) {
			p += k;
			n -= k;
		} else if (k == 0 || errno != EAGAIN) {
			exit(1);
		}
	}
}

static void put(int s, char *p, size_t n)
{
	while (n) {
		ssize_t k = send(s, p, n, is("block") || is_threaded() ? 0 : MSG_DONTWAIT);

		if (k > 0) {
			p += k;
			n -= k;
		} else if (errno != EAGAIN) {
			exit(1);
		}
	}
}

static struct { int s; char *p; size_t n; } wanted;

static void *receiver(void *rounds)
{
	for (long round = 1; round <= (long) rounds; round++) {
		get(wanted.s, wanted.p, wanted.n);
		atomic_store(&arrived, round);
	}
	return 0;
}

static void await(long round)
{
	if (is("thread"))
		while (atomic_load(&arrived) < round)
			sched_yield();
	else if (is("pause"))
		while (atomic_load(&arrived) < round)
			__builtin_ia32_pause();
	else if (is("memory"))
		while (atomic_load(&arrived) < round)
			;
	else
		get(wanted.s, wanted.p, wanted.n);
}

int main(int argc, char **argv)
{
	size_t n = argc > 3 ? atol(argv[1]) : 1;
	int times = argc > 3 ? atoi(argv[2]) : 1, rank = atoi(getenv("RANK")), one = 1;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(7000) };
	int s = socket(AF_INET, SOCK_STREAM, 0);
	char *b = calloc(n, 1);
	struct rusage used;
	pthread_t thread;

	how = argv[argc - 1];
	if (is("clock")) {
		double begun = now();

		while (now() - begun < 1)
			;
		printf("%.9f\n", now() - begun);
		return 0;
	}
	if (rank == 0) {
		a.sin_addr.s_addr = INADDR_ANY;
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		bind(s, (void *) &a, sizeof(a));
		listen(s, 1);
		s = accept(s, 0, 0);
	} else {
		inet_aton(getenv("MASTER_ADDR"), &a.sin_addr);
		if (connect(s, (void *) &a, sizeof(a)))
			return 1;
	}
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	for (int i = 0; i < OTHERS; i++) {
		struct sockaddr_in any = { .sin_family = AF_INET };

		others[i] = socket(AF_INET, SOCK_DGRAM, 0);
		bind(others[i], (void *) &any, sizeof(any));
	}
	empty_set = epoll_create1(0);
	set = epoll_create1(0);
	epoll_ctl(set, EPOLL_CTL_ADD, s, &(struct epoll_event) { .events = EPOLLIN });
	wanted.s = s;
	wanted.p = b;
	wanted.n = n;
	if (is_threaded())
		pthread_create(&thread, 0, receiver, (void *) (long) times);
	for (int i = 1; i <= times; i++) {
		double begun = now();

		if (rank == 0) {
			await(i);
			put(s, b, n);
		} else {
			put(s, b, n);
			await(i);
			printf("%.9f\n", now() - begun);
			fflush(stdout);
		}
	}
	getrusage(RUSAGE_SELF, &used);
	if (is("tsc") && rank)
		printf("%ld\n", used.ru_nvcsw);
	return 0;
}
