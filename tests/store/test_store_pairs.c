/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Labels and manifests that are damaged in two places at once: after each commit, after a power
 * failure of the simulated drive at each write and sync of a commit, and after the run that
 * follows it, every pair of damages in every pair of places is tried. An opening gives the last
 * commit, or an error that says what is there; after a power failure the commit that was under way
 * may be the last one as well. `make check` has the power failures of the last commit alone, and
 * `make check-all` those of each, more of them, and more cuts of a torn write.
 */
#include <sys/syscall.h>
#include <time.h>

#include "store/kept_fixture.h"
#include "support/sim/sim_drive.h"

/* ---- The drive ---- */

enum { LABELS = LABEL_COPY_COUNT, FILES = LABELS + MANIFEST_SLOT_COUNT, SECTOR = 512 };

/* Copy i of the label, then the manifests. */
static struct {
	int fd;
	ino_t ino;
	uint64_t offset;
} files[FILES];

/* Sectors that can't be read, of the two damages. */
static struct {
	ino_t ino;
	uint64_t from, end;
} unreadable[2];

ssize_t pread(int fd, void *data, size_t nbytes, off_t offset)
{
	uint64_t from = (uint64_t)offset, end = from + nbytes;
	struct stat st;

	for (unsigned i = 0; i < LENGTH(unreadable); i++)
		if (unreadable[i].end > from && unreadable[i].from < end && !fstat(fd, &st) &&
		    st.st_ino == unreadable[i].ino) {
			errno = EIO;
			return -1;
		}
	return syscall(SYS_pread64, fd, data, nbytes, offset);
}

/* The simulated drive says what is durable. */
int fdatasync(int fd)
{
	(void)fd;
	return 0;
}

int fsync(int fd)
{
	(void)fd;
	return 0;
}

/* A commit that is made again has the same bytes. */
time_t time(time_t *now)
{
	(void)now;
	return 1000000000;
}

/* What is in one place, and in all. */
struct content {
	size_t nbytes;
	uint8_t bytes[LABEL_BYTES];
};

struct image {
	struct content of[FILES];
};

static bool is_label(unsigned file)
{
	return file < LABELS;
}

static bool same_content(const struct content *a, const struct content *b)
{
	return a->nbytes == b->nbytes && !memcmp(a->bytes, b->bytes, a->nbytes);
}

static bool same_image(const struct image *a, const struct image *b)
{
	for (unsigned i = 0; i < FILES; i++)
		if (!same_content(&a->of[i], &b->of[i]))
			return false;
	return true;
}

static void put(unsigned file, const struct content *content)
{
	assert_int_equal(
		pwrite(files[file].fd, content->bytes, content->nbytes, (off_t)files[file].offset),
		content->nbytes);
	if (!is_label(file))
		assert_int_equal(ftruncate(files[file].fd, (off_t)content->nbytes), 0);
}

static void put_image(const struct image *image)
{
	for (unsigned i = 0; i < FILES; i++)
		put(i, &image->of[i]);
}

static void take_image(struct image *image)
{
	memset(image, 0, sizeof(*image));
	for (unsigned i = 0; i < FILES; i++) {
		ssize_t n = pread(files[i].fd, image->of[i].bytes, LABEL_BYTES,
				  (off_t)files[i].offset);

		assert_true(n >= 0 && (!is_label(i) || n == LABEL_BYTES));
		image->of[i].nbytes = (size_t)n;
	}
}

static uint64_t newest_label(const struct image *image)
{
	uint64_t newest = 0;

	for (unsigned i = 0; i < LABELS; i++) {
		struct label label;

		if (!label_decode(image->of[i].bytes, &label) && label.generation > newest)
			newest = label.generation;
	}
	return newest;
}

/* ---- Commits ---- */

/* The note makes a manifest longer than a few sectors; its bytes are the commit's number. */
static int commit_number(struct store *store, unsigned number)
{
	uint8_t bytes[2 * SECTOR];
	const struct store_note note = {.data = bytes, .nbytes = sizeof(bytes)};
	uint64_t offsets[EXTENTS];
	size_t n;

	memset(bytes, (int)number, sizeof(bytes));
	store_entries(store, &n);
	if (n)
		found_offsets(store, offsets);
	else
		reserve_entries(store, offsets);
	make_entries(number, offsets);
	return store_commit(store, entries, ENTRIES, &note, &error);
}

/* The commit that a store is as of: its number, note and entries are of one commit. */
static uint64_t number_of(struct store *store)
{
	uint64_t number = store_generation(store);
	struct store_note note = store_found_note(store);
	size_t n;
	const struct store_entry *found = store_entries(store, &n);

	assert_int_equal(n, number ? ENTRIES : 0);
	if (number) {
		assert_int_equal(found[0].checksum / 1000, number);
		assert_int_equal(((const uint8_t *)note.data)[note.nbytes - 1], number);
	}
	return number;
}

/* ---- Damages ---- */

/* A place is a copy, both labels (PLACE_DATA), or all manifests (PLACE_MANIFESTS). */
enum { PLACE_DATA = FILES, PLACE_MANIFESTS, PLACES, DAMAGES = 512 };

static struct damage {
	const char *kind;
	unsigned place;
	struct content content;	   /* of a copy */
	const struct image *as_of; /* of several */
	uint64_t from, end;	   /* of an unreadable sector */
} damages[DAMAGES];

static unsigned ndamages;

/* What each copy had, oldest first. */
static struct history {
	struct content was[32];
	unsigned n;
} history[FILES];

static void remember_contents(const struct image *image)
{
	for (unsigned i = 0; i < FILES; i++) {
		unsigned k = 0;

		while (k < history[i].n && !same_content(&history[i].was[k], &image->of[i]))
			k++;
		if (k < history[i].n)
			continue;
		assert_true(k < LENGTH(history[i].was));
		history[i].was[history[i].n++] = image->of[i];
	}
}

static void add_damage(const struct image *image, struct damage damage)
{
	bool content = !damage.as_of && damage.from == damage.end;

	if (content && same_content(&damage.content, &image->of[damage.place]))
		return;
	for (unsigned i = 0; i < ndamages && content; i++)
		if (damages[i].place == damage.place && !damages[i].as_of &&
		    damages[i].from == damages[i].end &&
		    same_content(&damages[i].content, &damage.content))
			return;
	assert_true(ndamages < DAMAGES);
	damages[ndamages++] = damage;
}

/* Writes that were lost, or all since a commit. */
static void add_stale(const struct image *image, unsigned place)
{
	for (unsigned k = history[place].n; k-- > 0;)
		add_damage(image, (struct damage){.kind = "lost write",
						  .place = place,
						  .content = history[place].was[k]});
}

/* A write over another content was cut off: what comes first is new, or what comes last. */
static void add_torn(const struct image *image, unsigned place)
{
	const struct content *now = &image->of[place];

	for (unsigned k = 0; k < history[place].n; k++) {
		const struct content *was = &history[place].was[k];
		size_t n = now->nbytes < was->nbytes ? now->nbytes : was->nbytes;
		size_t step = is_label(place) ? SECTOR / 2 : SECTOR;

		for (size_t cut = step; cut < (is_label(place) ? SECTOR : n);
		     cut += at_length((unsigned)step, 2 * SECTOR)) {
			struct damage torn = {
				.kind = "torn write", .place = place, .content = *now};

			memcpy(torn.content.bytes, was->bytes, cut);
			add_damage(image, torn);
			torn.content = *was;
			memcpy(torn.content.bytes, now->bytes, cut);
			add_damage(image, torn);
		}
	}
}

static void add_unreadable(const struct image *image, unsigned place)
{
	for (uint64_t at_byte = 0; at_byte < (is_label(place) ? SECTOR : image->of[place].nbytes);
	     at_byte += at_length(SECTOR, 2 * SECTOR))
		add_damage(image, (struct damage){.kind = "unreadable",
						  .place = place,
						  .from = files[place].offset + at_byte,
						  .end = files[place].offset + at_byte + SECTOR});
}

static void add_replaced(const struct image *image, unsigned place)
{
	struct damage damage = {.kind = "junk", .place = place, .content = image->of[place]};

	fill(damage.content.bytes, damage.content.nbytes, place);
	add_damage(image, damage);
	damage.kind = "zeros";
	memset(damage.content.bytes, 0, LABEL_BYTES);
	if (is_label(place) || at_length(1, 0))
		add_damage(image, damage);
	damage = (struct damage){.kind = "cut off", .place = place, .content = image->of[place]};
	if (is_label(place) || !damage.content.nbytes)
		return;
	damage.content.nbytes = SECTOR;
	add_damage(image, damage);
	damage.content.nbytes = 100;
	if (at_length(1, 0))
		add_damage(image, damage);
}

/* All damages of `image`, which was left by commit `commits` + 1 or the run after it. */
static void find_damages(const struct image *image, const struct image *as_of, unsigned commits)
{
	ndamages = 0;
	for (unsigned place = 0; place < FILES; place++) {
		add_stale(image, place);
		add_torn(image, place);
		add_unreadable(image, place);
		add_replaced(image, place);
	}
	for (unsigned k = 0; k < commits; k++)
		for (unsigned place = PLACE_DATA; place < PLACES; place++)
			add_damage(image, (struct damage){.kind = "as of an earlier commit",
							  .place = place,
							  .as_of = &as_of[k]});
}

static bool touches(const struct damage *damage, unsigned file)
{
	return damage->place == file ||
	       damage->place == (is_label(file) ? PLACE_DATA : PLACE_MANIFESTS);
}

static void do_damage(const struct damage *damage, unsigned which)
{
	if (damage->from < damage->end) {
		unreadable[which].ino = files[damage->place].ino;
		unreadable[which].from = damage->from;
		unreadable[which].end = damage->end;
		return;
	}
	for (unsigned i = 0; i < FILES; i++)
		if (touches(damage, i))
			put(i, damage->as_of ? &damage->as_of->of[i] : &damage->content);
}

static void undo_damage(const struct image *image, const struct damage *damage, unsigned which)
{
	unreadable[which].end = 0;
	for (unsigned i = 0; i < FILES && damage->from == damage->end; i++)
		if (touches(damage, i))
			put(i, &image->of[i]);
}

/* ---- Trying them ---- */

static struct {
	unsigned pairs, opened, refused, rolled_back;
} counts;

static char where[256];

/* In memory if possible: there are many, and the simulated drive says what is durable. */
static int make_memory(void **state)
{
	const char *memory = memory_directory(), *path = memory ? memory : temp_directory();

	(void)state;
	assert_true(strlen(path) < sizeof(root));
	strcpy(root, path);
	return 0;
}

static int say_where(void **state)
{
	print_message("last: %s\n", where);
	return cleanup(state);
}

/* Opens the store as it is: as of one of the two commits, or with an error. */
static void try_damaged(uint64_t least, uint64_t most)
{
	static const char back[] = "\"rollback\": true} goes back to number ";
	struct how how = {.keep = true, .read_only = true};
	struct store *store;
	const char *older;
	int rc = try_open(how, &store);

	log_text[0] = 0;
	counts.pairs++;
	if (!rc) {
		uint64_t number = number_of(store);

		store_close(store);
		counts.opened++;
		if (number < least || number > most)
			fail_msg("it opened as of commit %" PRIu64 " of %" PRIu64, number, most);
		return;
	}
	counts.refused++;
	/* Without labels, and before the first commit, nothing is there. */
	if ((rc == -ENODATA || rc == -EMEDIUMTYPE) && !least)
		return;
	assert_true(rc == -EUCLEAN || rc == -EIO);
	assert_says(error.text, "nvswap/rank0");
	assert_true(rc == -EIO || strstr(error.text, "rollback") ||
		    strstr(error.text, "from a copy"));
	older = strstr(error.text, back);
	if (!older)
		return;
	how.rollback = true;
	store = must_open(how);
	assert_int_equal(number_of(store), strtoull(older + strlen(back), NULL, 10));
	store_close(store);
	assert_says(log_text, "as \"rollback\" asks");
	log_text[0] = 0;
	counts.rolled_back++;
}

/* The whole store as of an earlier commit is no damage, but that store. */
static bool is_restored(const struct damage *a, const struct damage *b)
{
	return a->as_of && a->as_of == b->as_of;
}

static void try_pairs(const char *state, const struct image *image, const struct image *as_of,
		      unsigned commits, uint64_t least, uint64_t most)
{
	put_image(image);
	find_damages(image, as_of, commits);
	for (unsigned a = 0; a < ndamages; a++) {
		const struct damage *first = &damages[a];

		do_damage(first, 0);
		snprintf(where, sizeof(where), "%s, %s in %u", state, first->kind, first->place);
		try_damaged(least, most);
		for (unsigned b = a + 1; b < ndamages; b++) {
			const struct damage *second = &damages[b];

			if (second->place == first->place || is_restored(first, second))
				continue;
			snprintf(where, sizeof(where), "%s, %s in %u, %s in %u", state, first->kind,
				 first->place, second->kind, second->place);
			do_damage(second, 1);
			try_damaged(least, most);
			undo_damage(image, second, 1);
			/* One may lie within the other. */
			do_damage(first, 0);
		}
		undo_damage(image, first, 0);
	}
}

/* ---- Power failures ---- */

static const enum sim_crash ways[] = {SIM_KEEP, SIM_LOSE, SIM_TEAR, SIM_ANY};

/* Commits after `before`; the power fails at write or sync `at`. Returns whether it did not. */
static bool crash_in_commit(const struct image *before, unsigned number, uint64_t seed,
			    enum sim_crash way, uint64_t at_call, struct image *after)
{
	struct sim *sim = sim_open(&(const struct sim_drive){.seed = seed});
	struct store *store;
	bool ended;
	int rc;

	put_image(before);
	store = must_open(kept);
	sim_remember(sim, at_call);
	rc = commit_number(store, number);
	ended = !sim_has_crashed(sim);
	store_close(store);
	assert_true(!rc || !ended);
	sim_crashed(sim, way);
	sim_close(sim);
	log_text[0] = 0;
	take_image(after);
	return ended;
}

static uint64_t settle(const struct image *image, struct image *settled)
{
	struct store *store;
	uint64_t number;

	put_image(image);
	store = must_open(kept);
	number = number_of(store);
	store_close(store);
	log_text[0] = 0;
	/* Nothing but the label decides which one it is. */
	assert_int_equal(number, newest_label(image));
	take_image(settled);
	return number;
}

enum { COMMITS = 3, STATES = 128 };

/* Adds an image to `states` unless it is there. */
static bool is_new(struct image *states, unsigned *n, const struct image *image)
{
	for (unsigned i = 0; i < *n; i++)
		if (same_image(&states[i], image))
			return false;
	assert_true(*n < STATES);
	states[(*n)++] = *image;
	return true;
}

/* States that power failures in the commit after `before` leave; *committed: without one. */
static unsigned find_crashes(const struct image *before, unsigned number, struct image *states,
			     struct image *committed)
{
	struct image after;
	unsigned n = 0;

	assert_true(crash_in_commit(before, number, 1, SIM_KEEP, 0, committed));

	for (unsigned seed = 1; seed <= at_length(8, 1); seed++)
		for (size_t way = 0; way < LENGTH(ways); way++) {
			bool ended = false;

			for (uint64_t at_call = 1; !ended; at_call++) {
				ended = crash_in_commit(before, number, seed, ways[way], at_call,
							&after);
				if (!same_image(&after, committed) && is_new(states, &n, &after))
					remember_contents(&after);
			}
		}
	remember_contents(committed);
	return n;
}

TEST_WITH(no_two_damages_lead_to_an_older_commit_in_silence, make_memory, say_where)
{
	static struct image as_of[COMMITS + 1], crashed[STATES], settled[STATES];
	static struct history before[FILES], committed[FILES];
	unsigned ncrashed = 0, nsettled = 0;

	store_close(must_open(kept));
	for (unsigned i = 0; i < FILES; i++) {
		struct stat st;

		files[i].fd = open(is_label(i) ? at(DATA) : at(MANIFEST, i - LABELS),
				   O_RDWR | O_CLOEXEC);
		assert_true(files[i].fd >= 0 && !fstat(files[i].fd, &st));
		files[i].ino = st.st_ino;
		files[i].offset = is_label(i) ? i * LABEL_DISTANCE : 0;
	}
	take_image(&as_of[0]);
	remember_contents(&as_of[0]);
	for (unsigned n = 0; n < COMMITS; n++) {
		char name[64];
		struct image after;
		unsigned found = 0, nstates;

		memcpy(before, history, sizeof(history));
		nstates = find_crashes(&as_of[n], n + 1, crashed, &as_of[n + 1]);
		memcpy(committed, history, sizeof(history));
		snprintf(name, sizeof(name), "commit %u", n + 1);
		try_pairs(name, &as_of[n + 1], as_of, n + 1, n + 1, n + 1);
		if (n + 1 < COMMITS && !at_length(1, 0))
			continue;
		ncrashed += nstates;
		for (unsigned i = 0; i < nstates; i++) {
			snprintf(name, sizeof(name), "state %u of commit %u", i, n + 1);
			try_pairs(name, &crashed[i], as_of, n, n, n + 1);
		}
		for (unsigned i = 0; i < nstates; i++) {
			uint64_t number = settle(&crashed[i], &after);

			if (!is_new(settled, &found, &after))
				continue;
			nsettled++;
			/* Of the commit that was under way the drive has only what is there. */
			memcpy(history, before, sizeof(history));
			remember_contents(&crashed[i]);
			snprintf(name, sizeof(name), "after state %u of commit %u", i, n + 1);
			try_pairs(name, &after, as_of, (unsigned)number, number, number);
		}
		memcpy(history, committed, sizeof(history));
	}
	for (unsigned i = 0; i < FILES; i++)
		close(files[i].fd);
	print_message("%u commits, %u states that power failures left and %u after the next run: "
		      "%u damages and pairs of them, %u opened as of the last commit, %u refused, "
		      "%u of these rolled back when asked\n",
		      COMMITS, ncrashed, nsettled, counts.pairs, counts.opened, counts.refused,
		      counts.rolled_back);
	assert_true(counts.opened && counts.refused && counts.rolled_back);
}

AROUND_TESTS(open_aio, close_aio)
