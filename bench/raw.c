/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures a drive with a bare io_uring loop, independent of nvswap: a registered file, registered
 * memory on huge pages, direct I/O, sequential offsets. `make bench` compares nvswap with it and
 * with fio. Moves blocks of one file for some time, or copies one file to another once. Prints JSON
 * with fio's names.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HUGE_PAGE   (UINT64_C(2) << 20)
#define HUGE_2M	    (21 << MAP_HUGE_SHIFT)
#define MEMORY_MAX  (UINT64_C(1) << 30) /* the kernel's limit for one registered region */
#define NS_PER_S    UINT64_C(1000000000)
#define REAPED_MOST 64

enum mode { MODE_READ, MODE_WRITE, MODE_RW, MODE_COPY };
static const char *const mode_names[] = {"read", "write", "rw", "copy"};

struct options {
	const char *file, *from; /* from: that MODE_COPY reads */
	uint64_t nbytes, block;
	unsigned depth;
	enum mode mode;
	uint64_t seconds, ramp;
};

/* A block of memory and its I/O. */
struct slot {
	unsigned char *memory;
	bool writes;
};

struct loop {
	const struct options *options;
	struct io_uring ring;
	int fd, from;
	bool created; /* the file was shorter */
	unsigned char *memory;
	struct slot *slots;
	uint64_t begun, ended; /* I/Os submitted, and completed */
	uint64_t limit;	       /* of I/Os to submit */
	uint64_t done[2];      /* bytes by direction since the ramp */
};

static _Noreturn void fail(int error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void fail(int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* ---- Memory, file, ring ---- */

static unsigned char *map_memory(uint64_t nbytes)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *memory;

	nbytes = (nbytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB | HUGE_2M, -1, 0);
	if (memory == MAP_FAILED) {
		memory = mmap(NULL, nbytes + HUGE_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
		if (memory == MAP_FAILED)
			fail(errno, "mapping %" PRIu64 " bytes", nbytes);
		memory += HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE;
		madvise(memory, nbytes, MADV_HUGEPAGE);
	}
	/* Not zeros, which drives may treat specially. */
	for (uint64_t i = 0; i < nbytes; i++)
		memory[i] = (unsigned char)(i * 131 >> 3);
	return memory;
}

/* Unwritten extents are slower than written ones, so write every block once, but for a copy. */
static void lay_out(struct loop *loop)
{
	const struct options *options = loop->options;
	struct stat stat;
	int rc;

	if (fstat(loop->fd, &stat))
		fail(errno, "%s", options->file);
	loop->created = S_ISREG(stat.st_mode) && (uint64_t)stat.st_size < options->nbytes;
	if (!loop->created)
		return;
	if ((rc = posix_fallocate(loop->fd, 0, (off_t)options->nbytes)))
		fail(rc, "reserving %" PRIu64 " bytes for %s", options->nbytes, options->file);
	if (options->mode == MODE_COPY)
		return;
	for (uint64_t at = 0; at < options->nbytes; at += options->block)
		if (pwrite(loop->fd, loop->memory, options->block, (off_t)at) !=
		    (ssize_t)options->block)
			fail(errno, "laying out %s", options->file);
	if (fsync(loop->fd))
		fail(errno, "laying out %s", options->file);
}

static void open_ring(struct loop *loop, const struct iovec *memory)
{
	unsigned depth = loop->options->depth;
	const int files[] = {loop->fd, loop->from};
	int rc = io_uring_queue_init(depth, &loop->ring,
				     IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);

	if (rc == -EINVAL) /* a kernel before 6.1 */
		rc = io_uring_queue_init(depth, &loop->ring, 0);
	if (rc)
		fail(-rc, "io_uring");
	if ((rc = io_uring_register_buffers(&loop->ring, memory, 1)))
		fail(-rc, "registering %zu bytes of memory, for which ulimit -l may be too low",
		     memory->iov_len);
	if ((rc = io_uring_register_files(&loop->ring, files, loop->from < 0 ? 1 : 2)))
		fail(-rc, "registering the files");
}

static void open_loop(struct loop *loop, const struct options *options)
{
	struct iovec memory = {.iov_len = options->block * options->depth};

	*loop = (struct loop){.options = options, .from = -1, .limit = UINT64_MAX};
	loop->fd = open(options->file, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	if (loop->fd < 0)
		fail(errno, "%s", options->file);
	if (options->from) {
		loop->from = open(options->from, O_RDONLY | O_DIRECT | O_CLOEXEC);
		if (loop->from < 0)
			fail(errno, "%s", options->from);
		loop->limit = 2 * (options->nbytes / options->block);
	}
	memory.iov_base = loop->memory = map_memory(memory.iov_len);
	loop->slots = calloc(options->depth, sizeof(*loop->slots));
	if (!loop->slots)
		fail(ENOMEM, "%u slots", options->depth);
	for (unsigned i = 0; i < options->depth; i++)
		loop->slots[i].memory = loop->memory + i * options->block;
	if (options->mode != MODE_COPY)
		lay_out(loop);
	open_ring(loop, &memory);
}

static void close_loop(struct loop *loop)
{
	io_uring_queue_exit(&loop->ring);
	free(loop->slots);
	close(loop->fd);
	if (loop->from >= 0)
		close(loop->from);
}

/* ---- The loop ---- */

/*
 * With rw and copy, every second I/O is a write: half a file away from the reads, or of the same
 * block of the other file, whatever the memory has.
 */
static void begin(struct loop *loop, struct slot *slot)
{
	const struct options *options = loop->options;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);
	uint64_t blocks = options->nbytes / options->block, block = loop->begun;
	unsigned nbytes = (unsigned)options->block;
	int from = options->mode == MODE_COPY;

	slot->writes = options->mode == MODE_WRITE;
	if (options->mode == MODE_RW || options->mode == MODE_COPY) {
		slot->writes = loop->begun % 2;
		block = loop->begun / 2;
		if (options->mode == MODE_RW && slot->writes)
			block += blocks / 2;
	}
	block %= blocks;
	loop->begun++;
	if (slot->writes)
		io_uring_prep_write_fixed(sqe, 0, slot->memory, nbytes, block * options->block, 0);
	else
		io_uring_prep_read_fixed(sqe, from, slot->memory, nbytes, block * options->block,
					 0);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data(sqe, slot);
}

/* Submits, waits for `least` completions and begins as many I/Os again, up to the limit. */
static void turn(struct loop *loop, unsigned least)
{
	struct io_uring_cqe *cqes[REAPED_MOST];
	int rc = io_uring_submit_and_wait(&loop->ring, least);
	unsigned n;

	if (rc < 0 && rc != -EINTR)
		fail(-rc, "submitting");
	n = io_uring_peek_batch_cqe(&loop->ring, cqes, REAPED_MOST);
	for (unsigned i = 0; i < n; i++) {
		struct slot *slot = io_uring_cqe_get_data(cqes[i]);

		if (cqes[i]->res != (int)loop->options->block)
			fail(cqes[i]->res < 0 ? -cqes[i]->res : 0, "a block was not %s whole",
			     slot->writes ? "written" : "read");
		loop->done[slot->writes] += loop->options->block;
		if (loop->begun < loop->limit)
			begin(loop, slot);
	}
	io_uring_cq_advance(&loop->ring, n);
	loop->ended += n;
}

/* Ends earlier where the limit is reached. */
static void go_on_until(struct loop *loop, uint64_t end_ns)
{
	/* Waking up for every completion would cost processor time without benefit. */
	unsigned least = (loop->options->depth + 7) / 8;

	while (loop->begun < loop->limit && now_ns() < end_ns)
		turn(loop, least);
}

static void drain(struct loop *loop)
{
	loop->limit = loop->begun;
	while (loop->ended < loop->begun)
		turn(loop, 1);
}

/* A new file is made durable. */
static void copy(struct loop *loop)
{
	go_on_until(loop, UINT64_MAX);
	drain(loop);
	if (loop->created && fsync(loop->fd))
		fail(errno, "syncing %s", loop->options->file);
}

/* ---- Output ---- */

static double seconds_of(const struct timeval *time)
{
	return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

static void print_direction(const char *name, uint64_t nbytes, double seconds)
{
	printf("   \"%s\": {\"io_bytes\": %" PRIu64 ", \"bw_bytes\": %.0f, \"runtime\": %.0f},\n",
	       name, nbytes, (double)nbytes / seconds, nbytes ? seconds * 1e3 : 0);
}

static void print(const struct loop *loop, const struct rusage *from, const struct rusage *to,
		  double seconds)
{
	printf("{\n \"jobs\": [\n  {\n   \"jobname\": \"%s\",\n", mode_names[loop->options->mode]);
	print_direction("read", loop->done[0], seconds);
	print_direction("write", loop->done[1], seconds);
	printf("   \"usr_cpu\": %.4f,\n   \"sys_cpu\": %.4f\n  }\n ]\n}\n",
	       (seconds_of(&to->ru_utime) - seconds_of(&from->ru_utime)) / seconds * 100,
	       (seconds_of(&to->ru_stime) - seconds_of(&from->ru_stime)) / seconds * 100);
}

static void begin_all(struct loop *loop)
{
	for (unsigned i = 0; i < loop->options->depth && loop->begun < loop->limit; i++)
		begin(loop, &loop->slots[i]);
}

static void measure(struct loop *loop)
{
	bool copies = loop->options->mode == MODE_COPY;
	struct rusage from, to;
	uint64_t from_ns, to_ns;

	if (!copies) {
		begin_all(loop);
		go_on_until(loop, now_ns() + loop->options->ramp * NS_PER_S);
		loop->done[0] = loop->done[1] = 0;
	}
	getrusage(RUSAGE_SELF, &from);
	from_ns = now_ns();
	if (copies) {
		lay_out(loop);
		begin_all(loop);
		copy(loop);
	} else {
		go_on_until(loop, from_ns + loop->options->seconds * NS_PER_S);
	}
	to_ns = now_ns();
	getrusage(RUSAGE_SELF, &to);
	print(loop, &from, &to, (double)(to_ns - from_ns) / NS_PER_S);
	drain(loop);
}

/* ---- Options ---- */

static const char *const usage =
	"usage: raw --file FILE [--size SIZE] [--rw read|write|rw] [--bs SIZE] [--iodepth N]\n"
	"           [--seconds N] [--ramp N]\n"
	"       raw --file FILE --rw copy --from FILE [--size SIZE] [--bs SIZE] [--iodepth N]\n"
	"FILE is extended to SIZE if it is shorter, overwritten, and kept.\n";

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
	static const char units[] = "kmgt";
	char *end;
	uint64_t value;
	const char *unit;

	errno = 0;
	value = strtoull(text, &end, 10);
	unit = *end ? strchr(units, *end | 0x20) : NULL;
	if (unit && *unit) {
		unsigned shift = 10 * (unsigned)(unit - units + 1);

		value = value > UINT64_MAX >> shift ? UINT64_MAX : value << shift;
		end++;
	}
	if (errno || end == text || *end || value < least || value > most)
		fail(0, "%s: must be %" PRIu64 " to %" PRIu64, text, least, most);
	return value;
}

static enum mode mode_of(const char *text)
{
	for (unsigned i = 0; i < sizeof(mode_names) / sizeof(mode_names[0]); i++)
		if (!strcmp(text, mode_names[i]))
			return (enum mode)i;
	fail(0, "%s: --rw must be read, write, rw or copy", text);
}

static void set(struct options *options, int name, const char *value)
{
	switch (name) {
	case 'f':
		options->file = value;
		break;
	case 'o':
		options->from = value;
		break;
	case 'z':
		options->nbytes = number(value, 1, UINT64_C(1) << 50);
		break;
	case 'm':
		options->mode = mode_of(value);
		break;
	case 'b':
		options->block = number(value, 512, MEMORY_MAX);
		break;
	case 'd':
		options->depth = (unsigned)number(value, 1, 4096);
		break;
	case 's':
		options->seconds = number(value, 1, 86400);
		break;
	case 'r':
		options->ramp = number(value, 0, 86400);
		break;
	default:
		fail(0, "%s", usage);
	}
}

static struct options parse(int argc, char **argv)
{
	static const struct option names[] = {
		{"file", required_argument, NULL, 'f'},
		{"from", required_argument, NULL, 'o'},
		{"size", required_argument, NULL, 'z'},
		{"rw", required_argument, NULL, 'm'},
		{"bs", required_argument, NULL, 'b'},
		{"iodepth", required_argument, NULL, 'd'},
		{"seconds", required_argument, NULL, 's'},
		{"ramp", required_argument, NULL, 'r'},
		{0},
	};
	struct options options = {
		.nbytes = UINT64_C(1) << 30, .block = UINT64_C(1) << 20, .depth = 32, .seconds = 2};
	int name;

	while ((name = getopt_long(argc, argv, "", names, NULL)) != -1)
		set(&options, name, optarg);
	if (!options.file || (options.mode == MODE_COPY) != !!options.from || optind < argc ||
	    options.block * options.depth > MEMORY_MAX || options.nbytes < options.block)
		fail(0, "%sAt most 1 GiB of memory, at least one block of file.", usage);
	options.nbytes -= options.nbytes % options.block;
	return options;
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);
	struct loop loop;

	open_loop(&loop, &options);
	measure(&loop);
	close_loop(&loop);
	return 0;
}
