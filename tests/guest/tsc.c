/*
 * What processes read from the time stamp counter, by RDTSC and RDTSCP in all encodings.
 *
 * Prints a line for each way of reading: its name, and how far CLOCK_MONOTONIC (in ns) and the counter moved during a
 * sleep. Then `spin` and the ns that a loop took until the counter had moved by a million, as OpenMP's libraries
 * calibrate themselves. A register with a wrong value ends it with status 1.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ucontext.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SLEEP_NS = 5000000 };

struct way { const char *name; int size; unsigned char code[8]; };

static const struct way WAYS[] = {
	{ "rdtsc", 2, { 0x0f, 0x31 } },
	{ "operand-size", 3, { 0x66, 0x0f, 0x31 } },
	{ "address-size", 3, { 0x67, 0x0f, 0x31 } },
	{ "segment", 3, { 0x2e, 0x0f, 0x31 } },
	{ "rex", 3, { 0x48, 0x0f, 0x31 } },
	{ "many", 6, { 0x66, 0x3e, 0x65, 0x41, 0x0f, 0x31 } },
	{ "rdtscp", 3, { 0x0f, 0x01, 0xf9 } },
	{ "rdtscp-rex", 4, { 0x4f, 0x0f, 0x01, 0xf9 } },
};

static unsigned char *page; /* two pages, of which the second can be missing */
static sigjmp_buf back;
static volatile uint64_t found;

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Call code that reads the counter and returns; all three registers are full of ones before. */
static uint64_t call(const void *code, int is_rdtscp)
{
	uint64_t low = -1, high = -1, other = -1;

	asm volatile("call *%3" : "+a"(low), "+d"(high), "+c"(other) : "r"(code) : "memory", "cc");
	if (low >> 32 || high >> 32 || (is_rdtscp ? other >> 32 : other != (uint64_t)-1)) {
		fprintf(stderr, "rax %lx, rdx %lx, rcx %lx\n", low, high, other);
		exit(1);
	}
	return high << 32 | low;
}

/* Read the counter with an instruction that ends `after` bytes after the end of the first page. */
static uint64_t read_with(const struct way *way, int after)
{
	unsigned char *at = page + PAGE + after - way->size;

	memcpy(at, way->code, way->size);
	at[way->size] = 0xc3; /* return */
	return call(at, way->code[way->size - 1] == 0xf9);
}

static void caught(int number, siginfo_t *info, void *given)
{
	greg_t *registers = ((ucontext_t *)given)->uc_mcontext.gregs;

	(void)number;
	found = info->si_addr == page + PAGE ? (uint64_t)registers[REG_RDX] << 32 | registers[REG_RAX] : 0;
	siglongjmp(back, 1);
}

/* Read the counter with the last bytes that are mapped: the next instruction is a fault. */
static uint64_t read_at_end(const struct way *way)
{
	munmap(page + PAGE, PAGE);
	memcpy(page + PAGE - way->size, way->code, way->size);
	if (!sigsetjmp(back, 1))
		((void (*)(void))(page + PAGE - way->size))();
	mmap(page + PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	return found;
}

static uint64_t read_counter(const struct way *way, int where)
{
	return where < 0 ? read_at_end(way) : read_with(way, where);
}

static void show(const char *name, const struct way *way, int where)
{
	struct timespec pause = { 0, SLEEP_NS };
	int64_t clock = now_ns();
	uint64_t counter = read_counter(way, where);

	nanosleep(&pause, NULL);
	counter = read_counter(way, where) - counter;
	printf("%s %ld %lu\n", name, now_ns() - clock, counter);
	fflush(stdout);
}

static void *in_thread(void *unused)
{
	show("thread", &WAYS[0], 20);
	return unused;
}

int main(int count, char **arguments)
{
	struct sigaction action = { .sa_sigaction = caught, .sa_flags = SA_SIGINFO };
	pthread_t thread;
	char name[40];

	sigaction(SIGSEGV, &action, NULL);
	page = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (count > 1) {
		show(arguments[1], &WAYS[0], 20);
		return 0;
	}
	for (unsigned i = 0; i < sizeof(WAYS) / sizeof(*WAYS); i++) {
		show(WAYS[i].name, &WAYS[i], 20);
		snprintf(name, sizeof(name), "%s-across", WAYS[i].name);
		show(name, &WAYS[i], 1);
		snprintf(name, sizeof(name), "%s-at-end", WAYS[i].name);
		show(name, &WAYS[i], -1);
	}
	pthread_create(&thread, NULL, in_thread, NULL);
	pthread_join(thread, NULL);
	if (!fork()) {
		show("fork", &WAYS[0], 20);
		execl("/proc/self/exe", arguments[0], "exec", NULL);
	}
	wait(NULL);

	int64_t clock = now_ns();
	uint64_t goal = __builtin_ia32_rdtsc() + 1000000;
	while (__builtin_ia32_rdtsc() < goal)
		;
	printf("spin %ld 0\n", now_ns() - clock);
	return 0;
}
