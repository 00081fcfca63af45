/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With a pool that holds the whole model, rw=params would read nothing, so its default is half of
 * the model if that suffices to read one layer while another is in use.
 */
#include "cli/modes/modes.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/memory/room.h"
#include "base/numbers.h"
#include "cli/settings.h"

#define DEFAULT_BYTES (256u << 20)
#define ROUNDING      (1u << 20) /* rounding tensors up to whole pages adds at most this */

/* Bytes of the pool for one element of a buffer. Optimizer state is fp32. */
static uint64_t element_bytes(const struct nvs_config *config, enum nvs_block block)
{
	return nvs_dtype_size(block == NVS_OFFLOAD_PARAM ? setting_param_dtype(config) : NVS_F32);
}

/* Elements in each of `count` buffers of `nbytes` together. */
static uint64_t buffer_size_for(uint64_t nbytes, uint64_t count, uint64_t element)
{
	return (nbytes / count + (nbytes % count != 0) + element - 1) / element;
}

/* Of what the process may take, half of a job's share; the other is for weights and gradients. */
static uint64_t memory_share(const struct bench_options *options)
{
	struct memory_room room;

	memory_room(&room);
	return memory_room_bytes(&room) / 8 * 3 / options->numjobs;
}

uint64_t pool_tensor_size(const struct bench_options *options)
{
	uint64_t share = memory_share(options), nbytes = options->tensor_size;
	/* Beside the pool there are weights and gradients of all tensors. */
	uint64_t tensors = options->rw == RW_STEP && !options->size ? 2 * options->tensors : 4;

	while (nbytes > ROUNDING / 16 && nbytes > share / tensors)
		nbytes /= 2;
	return nbytes;
}

static struct layer largest_layer(const struct model *model)
{
	struct layer largest = {0}, layer;

	for (size_t at = 0; at < model->n; at += layer.n) {
		layer = model_layer(model, at);
		if (!largest.n || layer.room > largest.room)
			largest = layer;
	}
	return largest;
}

static uint64_t default_pool(const struct bench_options *options, const struct model *model)
{
	uint64_t share = memory_share(options), half = model->nbytes / 2, largest, nbytes;
	uint64_t usual = share >= DEFAULT_BYTES ? DEFAULT_BYTES
						: max_u64(share - share % ROUNDING, ROUNDING);

	if (options->rw == RW_STEP)
		return usual;
	largest = options->rw == RW_PARAMS ? largest_layer(model).room
					   : model_largest(model)->nbytes;
	/* No machine has memory for such a tensor; avoid an overflow. */
	if (largest > UINT64_MAX / 4)
		return largest;
	nbytes = max_u64(2 * largest + ROUNDING, usual);
	if (options->rw != RW_PARAMS)
		return nbytes;
	nbytes = max_u64(nbytes, 3 * largest + ROUNDING);
	return nbytes < half ? nbytes : max_u64(half, 2 * largest);
}

/*
 * Keeps the number of buffers if they can make up the pool exactly. The optimizer's groups follow its
 * buffers' size, because a buffer holds one.
 */
static int size_pool(const struct bench_options *options, const struct model *model,
		     struct nvs_config *config, enum nvs_block block, struct nvs_error *error)
{
	const char *key = setting_buffer_size_key(block);
	uint64_t count = setting_of_block(config, block, "buffer_count");
	uint64_t element = element_bytes(config, block), nbytes = options->pool, numel;
	int rc = 0;

	if (nbytes || !options->config) {
		if (!nbytes)
			nbytes = default_pool(options, model);
		if (nbytes % (count * element)) {
			count = 1;
			rc = nvs_config_set_number(config,
						   block == NVS_OFFLOAD_PARAM
							   ? "offload_param.buffer_count"
							   : "offload_optimizer.buffer_count",
						   count, error);
		}
		numel = buffer_size_for(nbytes, count, element);
		return rc ? rc : nvs_config_set_number(config, key, numel, error);
	}
	if (block == NVS_OFFLOAD_PARAM)
		return 0;
	/* The optimizer's pool is no larger than all of its state. */
	numel = options->rw == RW_STEP ? model_trained(model, setting_param_dtype(config))
				       : (model->nbytes + element - 1) / element;
	return numel >= setting_number(config, key)
		       ? 0
		       : nvs_config_set_number(config, key, max_u64(numel, 1), error);
}

int pool_choose(const struct bench_options *options, const struct model *model,
		struct nvs_config *config, enum nvs_block block, struct nvs_error *error)
{
	int rc = size_pool(options, model, config, block, error);
	const struct model_tensor *longest;
	uint64_t count, pool, need;
	char *name = error->subject;
	size_t room = sizeof(error->subject);

	/* The optimizer cuts its own tiles, and checks that the pool holds enough of them. */
	if (rc || options->rw == RW_STEP)
		return rc;
	pool = model_pages(nvs_config_pool_bytes(config, block));
	if (options->rw == RW_PARAMS) {
		struct layer layer = largest_layer(model);
		size_t n = (size_t)snprintf(name, room, "layer ");

		model_layer_name(model, &layer, name + n, room - n);
		need = layer.room;
	} else {
		longest = model_largest(model);
		snprintf(name, room, "tensor %s", longest->name);
		need = model_room(longest);
	}
	if (need <= pool)
		return 0;
	count = setting_of_block(config, block, "buffer_count");
	error->code = -E2BIG;
	snprintf(error->text, sizeof(error->text),
		 "%s takes %" PRIu64 " bytes, more than the whole pool of %" PRIu64
		 ": give --pool %" PRIu64 " or more, or in the configuration \"%s\": %" PRIu64
		 " (elements, in each of %" PRIu64 " buffers)",
		 name, need, pool, need,
		 block == NVS_OFFLOAD_PARAM ? "buffer_size" : "sub_group_size",
		 buffer_size_for(need, count, element_bytes(config, block)), count);
	return error->code;
}
