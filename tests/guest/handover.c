/*
 * A thread that waits in memory, in a loop of many functions and without a system call, for one that could run at once.
 * Prints how long the wait took.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static atomic_int is_done;
static volatile unsigned long turns[4096];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *other(void *unused)
{
	atomic_store(&is_done, 1);
	return unused;
}

/* A lock per turn, as a library that is asked whether a request has ended: each loop has other registers. */
static __attribute__((noinline)) int ask(unsigned long turn)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int done;

	pthread_mutex_lock(&lock);
	turns[turn % 4096] += turn;
	done = atomic_load(&is_done);
	pthread_mutex_unlock(&lock);
	return done;
}

int main(void)
{
	pthread_t thread;
	double begun = now();

	pthread_create(&thread, 0, other, 0);
	for (unsigned long turn = 0; !ask(turn); turn++)
		;
	pthread_join(thread, 0);
	printf("%.9f\n", now() - begun);
	return 0;
}
