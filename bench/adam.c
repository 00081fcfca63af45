/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares Adam's kernels with the memory bandwidth: bytes per second of an update with bf16
 * gradients and weights over arrays much larger than the caches, alternating with simple memory
 * loops on as many threads; for each format of the state. Prints one JSON object.
 */
#include "base/clock.h"
#include "optim/optimizer.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define THREADS_MAX 64u
#define ROUNDS_MAX  64u
#define KERNELS_MAX 8u

enum { MASTER, EXP_AVG, EXP_AVG_SQ, FP32_ARRAYS };

/* `bytes`: read and written per element, of state, gradients and weights. */
static const struct format {
	const char *name;
	enum moments moments;
	bool split;
	double bytes;
} formats[] = {
	{"fp32", MOMENTS_FP32, false, 28},
	{"split", MOMENTS_FP32, true, 26},
	{"bf16", MOMENTS_BF16, true, 18},
	{"8bit", MOMENTS_8BIT, true, 14 + 16.0 / STATE_BLOCK},
};

#define FORMATS (sizeof(formats) / sizeof(formats[0]))

struct arrays {
	float *state[FP32_ARRAYS];
	uint16_t *gradients, *weights;
	struct state_run packed[FORMATS]; /* of the first format: `state` */
	uint16_t *packed_weights[FORMATS];
	size_t elements;
};

/* ---- The loops: each runs on a part of the arrays in one thread ---- */

/* Machines differ in which mix of reads and writes is fastest; the best loop counts. */
typedef void loop_fn(const struct arrays *arrays, size_t from, size_t n);

/* Reads and writes in the proportion and the streams of Adam's update. */
static void loop_update(const struct arrays *arrays, size_t from, size_t n)
{
	float *restrict a = arrays->state[MASTER] + from;
	float *restrict b = arrays->state[EXP_AVG] + from;
	float *restrict c = arrays->state[EXP_AVG_SQ] + from;
	const uint16_t *restrict in = arrays->gradients + from;
	uint16_t *restrict out = arrays->weights + from;

	for (size_t i = 0; i < n; i++) {
		a[i] += 1;
		b[i] += 1;
		c[i] += 1;
		out[i] = (uint16_t)(in[i] + 1);
	}
}

static void loop_scale(const struct arrays *arrays, size_t from, size_t n)
{
	for (unsigned k = 0; k < FP32_ARRAYS; k++) {
		float *restrict a = arrays->state[k] + from;

		for (size_t i = 0; i < n; i++)
			a[i] += 1;
	}
}

static void loop_copy(const struct arrays *arrays, size_t from, size_t n)
{
	memcpy(arrays->state[MASTER] + from, arrays->state[EXP_AVG] + from, n * sizeof(float));
}

static void loop_triad(const struct arrays *arrays, size_t from, size_t n)
{
	float *restrict a = arrays->state[MASTER] + from;
	const float *restrict b = arrays->state[EXP_AVG] + from;
	const float *restrict c = arrays->state[EXP_AVG_SQ] + from;

	for (size_t i = 0; i < n; i++)
		a[i] = b[i] + 3 * c[i];
}

#define ADAM_BYTES 28u /* per element: 3 x 4 + 2 read, as many written */

static const struct loop {
	const char *name;
	loop_fn *fn;
	unsigned bytes; /* per element */
} loops[] = {
	{"update", loop_update, ADAM_BYTES},
	{"scale", loop_scale, 24},
	{"copy", loop_copy, 8},
	{"triad", loop_triad, 12},
};

#define LOOPS (sizeof(loops) / sizeof(loops[0]))

/* ---- Threads, each bound to its own processor ---- */

struct part {
	pthread_t thread;
	pthread_barrier_t *barrier;
	const struct kernel *kernel; /* NULL: run `loop` */
	unsigned format;
	loop_fn *loop;
	const struct arrays *arrays;
	size_t from, n;
	unsigned cpu;
	uint64_t began_ns, ended_ns;
};

static void work(const struct part *part)
{
	static const struct scalars adam = {
		.beta1 = 0.9f,
		.beta2 = 0.999f,
		.one_minus_beta1 = 0.1f,
		.one_minus_beta2 = 0.001f,
		.eps = 1e-8f,
		.step_size = 1e-3f,
		.root_factor = 1.5f,
		.decay = 1e-5f,
		.decoupled = true,
		.grad_factor = 1,
	};
	const struct arrays *arrays = part->arrays;
	size_t from = part->from;

	if (part->kernel) {
		struct state_run run = state_run_from(&arrays->packed[part->format], from);
		struct noise noise = noise_of(1, 0, 1, from);

		part->kernel->adam_packed(&adam, &run, &noise, arrays->gradients + from, NVS_BF16,
					  arrays->packed_weights[part->format] + from, NVS_BF16,
					  part->n);
	} else {
		part->loop(arrays, from, part->n);
	}
}

static void *run_part(void *arg)
{
	struct part *part = arg;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(part->cpu, &cpus);
	/* If binding fails, the thread runs unbound. */
	(void)pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
	pthread_barrier_wait(part->barrier);
	part->began_ns = clock_ns();
	work(part);
	part->ended_ns = clock_ns();
	return NULL;
}

static void die(const char *what, int error)
{
	fprintf(stderr, "adam: %s: %s\n", what, strerror(error));
	exit(1);
}

/* The i-th processor that the program may run on, wrapping around. */
static unsigned processor(unsigned i)
{
	cpu_set_t cpus;
	unsigned count, cpu = 0;

	if (sched_getaffinity(0, sizeof(cpus), &cpus))
		die("sched_getaffinity", errno);
	count = (unsigned)CPU_COUNT(&cpus);
	for (unsigned left = i % count + 1; left; cpu++)
		left -= CPU_ISSET(cpu, &cpus) != 0;
	return cpu - 1;
}

/* One pass over all elements by `threads` threads; returns the seconds from the first start to the
 * last end. */
static double pass(const struct arrays *arrays, const struct kernel *kernel, unsigned format,
		   loop_fn *loop, unsigned threads)
{
	struct part parts[THREADS_MAX];
	pthread_barrier_t barrier;
	uint64_t began_ns = UINT64_MAX, ended_ns = 0;

	pthread_barrier_init(&barrier, NULL, threads);
	for (unsigned i = 0; i < threads; i++) {
		size_t each = arrays->elements / threads / STATE_BLOCK * STATE_BLOCK;
		size_t from = each * i;
		size_t to = i + 1 == threads ? arrays->elements : from + each;
		int error;

		parts[i] = (struct part){
			.barrier = &barrier,
			.kernel = kernel,
			.format = format,
			.loop = loop,
			.arrays = arrays,
			.from = from,
			.n = to - from,
			.cpu = processor(i),
		};
		if ((error = pthread_create(&parts[i].thread, NULL, run_part, &parts[i])))
			die("pthread_create", error);
	}
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(parts[i].thread, NULL);
		if (parts[i].began_ns < began_ns)
			began_ns = parts[i].began_ns;
		if (parts[i].ended_ns > ended_ns)
			ended_ns = parts[i].ended_ns;
	}
	pthread_barrier_destroy(&barrier);
	return (double)(ended_ns - began_ns) / 1e9;
}

/* ---- Rounds ---- */

/* Bytes per second, by round. */
struct measured {
	unsigned rounds;
	double kernel[KERNELS_MAX][FORMATS][ROUNDS_MAX];
	double loop[LOOPS][ROUNDS_MAX];
};

static void take_turns(const struct arrays *arrays, unsigned threads, double seconds,
		       struct measured *measured)
{
	uint64_t end_ns = clock_ns() + (uint64_t)(seconds * 1e9);
	unsigned round = 0;

	for (; round < ROUNDS_MAX && (round < 3 || clock_ns() < end_ns); round++) {
		const struct kernel *kernel;

		for (unsigned i = 0; i < LOOPS; i++)
			measured->loop[i][round] = (double)loops[i].bytes *
						   (double)arrays->elements /
						   pass(arrays, NULL, 0, loops[i].fn, threads);
		for (unsigned i = 0; (kernel = kernel_at(i)) && i < KERNELS_MAX; i++)
			for (unsigned f = 0; f < FORMATS; f++)
				measured->kernel[i][f][round] =
					formats[f].bytes * (double)arrays->elements /
					pass(arrays, kernel, f, NULL, threads);
	}
	measured->rounds = round;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const double *values, unsigned n)
{
	double sorted[ROUNDS_MAX];

	memcpy(sorted, values, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), by_value);
	return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* The median of ratios within a round, since the machine's other load varies between rounds. */
static double median_ratio(const double *a, const double *b, unsigned n)
{
	double ratios[ROUNDS_MAX] = {0};

	for (unsigned i = 0; i < n; i++)
		ratios[i] = a[i] / b[i];
	return median(ratios, n);
}

static void print_measured(const struct measured *measured, unsigned threads)
{
	unsigned n = measured->rounds, best = 0;

	printf("    {\"threads\": %u, \"rounds\": %u,\n     \"memory\": {", threads, n);
	for (unsigned i = 0; i < LOOPS; i++) {
		printf("%s\"%s\": %.0f", i ? ", " : "", loops[i].name,
		       median(measured->loop[i], n));
		if (median(measured->loop[i], n) > median(measured->loop[best], n))
			best = i;
	}
	printf("},\n     \"best_memory\": \"%s\",\n     \"kernels\": [", loops[best].name);
	for (unsigned i = 0; i < KERNELS_MAX && kernel_at(i); i++)
		for (unsigned f = 0; f < FORMATS; f++)
			printf("%s\n      {\"kernel\": \"%s\", \"format\": \"%s\", "
			       "\"bytes_per_element\": %.3f, \"bytes_per_second\": %.0f, "
			       "\"of_memory\": %.3f}",
			       i || f ? "," : "", kernel_at(i)->name, formats[f].name,
			       formats[f].bytes, median(measured->kernel[i][f], n),
			       median_ratio(measured->kernel[i][f], measured->loop[best], n));
	printf("]}");
}

/* ---- Memory and options ---- */

static void *map(size_t nbytes)
{
	void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);

	if (memory == MAP_FAILED)
		die("out of memory for the arrays; use fewer --elements", errno);
	/* Huge pages, as in the pool: otherwise TLB misses would dominate. */
	(void)madvise(memory, nbytes, MADV_HUGEPAGE);
	return memory;
}

/* Values of an ordinary step, without subnormals, which are slow. */
static void make_arrays(struct arrays *arrays, size_t elements)
{
	arrays->elements = elements;
	for (unsigned k = 0; k < FP32_ARRAYS; k++) {
		arrays->state[k] = map(elements * sizeof(float));
		for (size_t i = 0; i < elements; i++)
			arrays->state[k][i] = 1 + (float)(i % 1024) / 1024;
	}
	arrays->gradients = map(elements * sizeof(uint16_t));
	arrays->weights = map(elements * sizeof(uint16_t));
	for (size_t i = 0; i < elements; i++)
		arrays->gradients[i] = (uint16_t)(0x3c00 + i % 1024);
	memset(arrays->weights, 0, elements * sizeof(uint16_t));
	arrays->packed[0] = (struct state_run){
		.moments = MOMENTS_FP32,
		.master = arrays->state[MASTER],
		.exp_avg = arrays->state[EXP_AVG],
		.exp_avg_sq = arrays->state[EXP_AVG_SQ],
	};
	arrays->packed_weights[0] = arrays->weights;
	for (unsigned f = 1; f < FORMATS; f++) {
		enum moments moments = formats[f].moments;
		size_t scales = scales_count(moments, elements);

		arrays->packed[f] = (struct state_run){
			.moments = moments,
			.split = formats[f].split,
			.master = map(elements * master_size(formats[f].split)),
			.exp_avg = map(elements * moment_size(moments)),
			.exp_avg_sq = map(elements * moment_size(moments)),
			.exp_avg_scales = scales ? map(scales * sizeof(float)) : NULL,
			.exp_avg_sq_scales = scales ? map(scales * sizeof(float)) : NULL,
		};
		arrays->packed_weights[f] = map(elements * sizeof(uint16_t));
		kernel_best()->pack(&arrays->packed[f], NULL, arrays->state[MASTER],
				    arrays->state[EXP_AVG], arrays->state[EXP_AVG_SQ],
				    arrays->packed_weights[f], NVS_BF16, elements);
	}
}

static double number(const char *text, const char *option)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value > 0)) {
		fprintf(stderr, "adam: %s needs a number above 0, not '%s'\n", option, text);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"seconds", required_argument, NULL, 's'},
		{"elements", required_argument, NULL, 'e'},
		{"threads", required_argument, NULL, 't'},
		{NULL, 0, NULL, 0},
	};
	double seconds = 3, elements = 16 << 20;
	unsigned threads_max = 2;
	struct arrays arrays;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 's') {
			seconds = number(optarg, "--seconds");
		} else if (option == 'e') {
			elements = number(optarg, "--elements");
		} else if (option == 't') {
			threads_max = (unsigned)number(optarg, "--threads");
		} else {
			fputs("usage: adam [--seconds S] [--elements N] [--threads UP_TO]\n",
			      stderr);
			return 2;
		}
	}
	if (threads_max < 1 || threads_max > THREADS_MAX || elements < threads_max) {
		fprintf(stderr, "adam: use 1 to %u threads, and at least one element per thread\n",
			THREADS_MAX);
		return 2;
	}
	make_arrays(&arrays, (size_t)elements);
	printf("{\"elements\": %zu, \"best_kernel\": \"%s\",\n   \"runs\": [\n", arrays.elements,
	       kernel_best()->name);
	for (unsigned threads = 1; threads <= threads_max; threads++) {
		static struct measured measured;

		take_turns(&arrays, threads, seconds / threads_max, &measured);
		print_measured(&measured, threads);
		puts(threads < threads_max ? "," : "]}");
	}
	return 0;
}
