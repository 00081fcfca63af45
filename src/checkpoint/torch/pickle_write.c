/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes pickles of protocol 2: dictionaries, lists, strings, numbers and tensors whose data are
 * records of the same zip.
 */
#include "checkpoint/torch/pickle_write.h"

#include <assert.h>
#include <string.h>

#include "checkpoint/torch/pickle.h"

void put_number(FILE *out, uint64_t value, unsigned nbytes)
{
	for (unsigned i = 0; i < nbytes; i++)
		fputc((int)(value >> (8 * i) & 0xff), out);
}

void pickle_text(FILE *out, const char *text)
{
	fputc('X', out);
	put_number(out, strlen(text), 4);
	fputs(text, out);
}

void pickle_number(FILE *out, uint64_t number)
{
	unsigned nbytes = 1;

	if (number <= INT32_MAX) {
		fputc('J', out);
		put_number(out, number, 4);
		return;
	}
	while (nbytes < 9 && (nbytes == 8 || number >> (8 * nbytes - 1)))
		nbytes++;
	fputs("\x8a", out);
	fputc((int)nbytes, out);
	put_number(out, number, nbytes < 8 ? nbytes : 8);
	if (nbytes == 9)
		fputc(0, out);
}

static void pickle_name(FILE *out, const char *name)
{
	const char *dot = strrchr(name, '.');

	assert(dot);
	fprintf(out, "c%.*s\n%s\n", (int)(dot - name), name, dot + 1);
}

/* Types without a storage of their own lie in bytes, and name the type behind the rest. */
void pickle_tensor(FILE *out, const struct entry *entry, size_t index)
{
	const char *storage = pickle_name_of(NAME_STORAGE, entry->dtype);
	char number[24];

	snprintf(number, sizeof(number), "%zu", index);
	fprintf(out, "ctorch._utils\n_rebuild_tensor_v%d\n((", storage ? 2 : 3);
	pickle_text(out, "storage");
	pickle_name(out, storage ? storage : "torch.storage.UntypedStorage");
	pickle_text(out, number);
	pickle_text(out, "cpu");
	pickle_number(out, storage ? entry->numel : entry->nbytes);
	fputs("tQK", out);
	fputc(0, out);

	uint64_t stride;

	fputc('(', out);
	for (size_t i = 0; i < entry->ndim; i++)
		pickle_number(out, entry->shape[i]);
	fputs("t(", out);
	for (size_t i = 0; i < entry->ndim; i++) {
		stride = 1;
		for (size_t j = i + 1; j < entry->ndim; j++)
			stride *= entry->shape[j] ? entry->shape[j] : 1;
		pickle_number(out, stride);
	}
	fputc('t', out);
	fputs("\x89"
	      "ccollections\nOrderedDict\n)R",
	      out);
	if (!storage)
		pickle_name(out, pickle_name_of(NAME_CONSTANT, entry->dtype));
	fputs("tR", out);
}

void pickle_begin(FILE *out)
{
	fputs("\x80\x02", out);
}

void pickle_end(FILE *out)
{
	fputc('.', out);
}
