/*
 * Whether processes, threads and signal handlers of the VM keep their vector registers apart.
 *
 * Two processes of two threads each fill every vector register (AVX-512's if the CPU has them, otherwise AVX's) with
 * bytes of their own, give up the processor in every possible way (a page fault, a signal whose handler fills the
 * registers with other bytes, a pipe to the other process, a turn for the other thread, a fork), and compare. Prints
 * the registers that were tried and the rounds; the first difference ends it with status 1. Compiled with
 * -mgeneral-regs-only, so that only the assembly here touches the registers; the system calls between filling and
 * comparing are made by hand.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 200, REGISTERS = 32, WIDTH = 64, PAGE = 4096 };

struct bank { unsigned char bytes[REGISTERS][WIDTH] __attribute__((aligned(64))); };

static int wide; /* 32 registers of 64 bytes; otherwise 16 of 32 */

#define EACH16(op, at, of) \
	op(0, at, of) op(1, at, of) op(2, at, of) op(3, at, of) op(4, at, of) op(5, at, of) op(6, at, of) op(7, at, of) \
	op(8, at, of) op(9, at, of) op(10, at, of) op(11, at, of) op(12, at, of) op(13, at, of) op(14, at, of) op(15, at, of)
#define EACH32(op, at, of) EACH16(op, at, of) \
	op(16, at, of) op(17, at, of) op(18, at, of) op(19, at, of) op(20, at, of) op(21, at, of) op(22, at, of) \
	op(23, at, of) op(24, at, of) op(25, at, of) op(26, at, of) op(27, at, of) op(28, at, of) op(29, at, of) \
	op(30, at, of) op(31, at, of)
#define LOAD(n, at, of) "vmovdqu" at " 64*" #n "(%0), %%" of #n "\n\t"
#define STORE(n, at, of) "vmovdqu" at " %%" of #n ", 64*" #n "(%0)\n\t"

static void fill(const struct bank *from)
{
	if (wide)
		asm volatile(EACH32(LOAD, "64", "zmm") : : "r"(from) : "memory");
	else
		asm volatile(EACH16(LOAD, "", "ymm") : : "r"(from) : "memory");
}

static void keep(struct bank *to)
{
	if (wide)
		asm volatile(EACH32(STORE, "64", "zmm") : : "r"(to) : "memory");
	else
		asm volatile(EACH16(STORE, "", "ymm") : : "r"(to) : "memory");
}

static long call(long number, long a, long b, long c)
{
	long result;

	asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

static void pattern(struct bank *bank, unsigned who, unsigned round)
{
	unsigned state = who * 2654435761u + round * 40503u + 1;

	for (int i = 0; i < REGISTERS; i++)
		for (int j = 0; j < WIDTH; j++) {
			state = state * 1664525u + 1013904223u;
			bank->bytes[i][j] = state >> 24;
		}
}

static void compare(const struct bank *wanted, const struct bank *found, unsigned who, unsigned round, const char *after)
{
	int registers = wide ? REGISTERS : REGISTERS / 2, width = wide ? WIDTH : WIDTH / 2;

	for (int i = 0; i < registers; i++)
		for (int j = 0; j < width; j++)
			if (wanted->bytes[i][j] != found->bytes[i][j]) {
				fprintf(stderr, "worker %u, round %u, after %s: register %d, byte %d is %d, not %d\n", who, round, after,
					i, j, found->bytes[i][j], wanted->bytes[i][j]);
				_exit(1);
			}
}

static volatile sig_atomic_t handled;

static void handler(int number)
{
	struct bank other;

	memset(&other, number, sizeof(other));
	fill(&other);
	handled++;
}

struct worker { unsigned who; int in, out; };

static void *work(void *given)
{
	struct worker *worker = given;
	struct bank wanted, found;
	char byte = 0;

	for (unsigned round = 0; round < ROUNDS; round++) {
		pattern(&wanted, worker->who, round);
		unsigned char *fresh = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

#define AFTER(what, does) do { fill(&wanted); does; keep(&found); compare(&wanted, &found, worker->who, round, what); } while (0)
		AFTER("nothing", );
		AFTER("a page fault", *(volatile unsigned char *)fresh = 1);
		AFTER("a system call", call(SYS_getpid, 0, 0, 0));
		AFTER("a turn for others", call(SYS_sched_yield, 0, 0, 0));
		AFTER("a signal", call(SYS_tkill, call(SYS_gettid, 0, 0, 0), SIGUSR1, 0));
		AFTER("a message to the other process", call(SYS_write, worker->out, (long)&byte, 1);
						      call(SYS_read, worker->in, (long)&byte, 1));
		AFTER("a message, with a fault", call(SYS_write, worker->out, (long)&byte, 1); call(SYS_sched_yield, 0, 0, 0);
					       call(SYS_madvise, (long)fresh, PAGE, MADV_DONTNEED);
					       *(volatile unsigned char *)fresh = 2; call(SYS_read, worker->in, (long)&byte, 1));
#undef AFTER
		munmap(fresh, PAGE);
	}
	return NULL;
}

/* A child begins with its parent's registers. */
static void forked(unsigned who)
{
	struct bank wanted, found;
	int status;

	pattern(&wanted, who, 1000);
	fill(&wanted);
	long child = call(SYS_fork, 0, 0, 0);
	keep(&found);
	compare(&wanted, &found, who, 0, child == 0 ? "being forked" : "a fork");
	if (child == 0)
		_exit(0);
	if (waitpid((pid_t)child, &status, 0) != child || status != 0)
		_exit(1);
}

static int process(unsigned who, int in[2][2], int out[2][2])
{
	pthread_t threads[2];
	struct worker workers[2];

	forked(who);
	for (int i = 0; i < 2; i++) {
		workers[i] = (struct worker){ .who = 2 * who + i, .in = in[i][0], .out = out[i][1] };
		pthread_create(&threads[i], NULL, work, &workers[i]);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return handled == 2 * ROUNDS ? 0 : 1;
}

int main(void)
{
	struct sigaction action = { .sa_handler = handler };
	int there[2][2], back[2][2], status;

	__builtin_cpu_init();
	wide = __builtin_cpu_supports("avx512f");
	if (!wide && !__builtin_cpu_supports("avx"))
		return fprintf(stderr, "this CPU has no AVX\n"), 3;
	sigaction(SIGUSR1, &action, NULL);
	for (int i = 0; i < 2; i++)
		if (pipe(there[i]) || pipe(back[i]))
			return 1;
	pid_t child = fork();
	if (child == 0)
		_exit(process(1, there, back));
	if (process(0, back, there) || waitpid(child, &status, 0) != child || status != 0)
		return 1;
	printf("%s %d\n", wide ? "avx512" : "avx", ROUNDS);
	return 0;
}
