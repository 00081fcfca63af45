/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With a pool that holds the whole model, rw=params would read nothing, so its default is half of
 * the model if that suffices to read one layer while another is in use.
 */
#include "cli/modes/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory/room.h"
#include "base/numbers.h"
#include "cli/modes/model/layers.h"
#include "cli/modes/model/parameters.h"
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

static int set_buffer_count(struct nvs_config *config, enum nvs_block block, uint64_t count,
			    struct nvs_error *error)
{
	return nvs_config_set_number(config,
				     block == NVS_OFFLOAD_PARAM ? "offload_param.buffer_count"
								: "offload_optimizer.buffer_count",
				     count, error);
}

/* The optimizer's groups follow, because a buffer holds one. */
static int set_buffer_size(struct nvs_config *config, enum nvs_block block, uint64_t numel,
			   struct nvs_error *error)
{
	return nvs_config_set_number(config, setting_buffer_size_key(block), numel, error);
}

/* Keeps the number of buffers if they can make up the pool exactly. */
static int set_pool(struct nvs_config *config, enum nvs_block block, uint64_t nbytes,
		    struct nvs_error *error)
{
	uint64_t element = element_bytes(config, block);
	uint64_t count = setting_of_block(config, block, "buffer_count");
	int rc = 0;

	if (nbytes % (count * element)) {
		count = 1;
		rc = set_buffer_count(config, block, count, error);
	}
	return rc ? rc
		  : set_buffer_size(config, block, buffer_size_for(nbytes, count, element), error);
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

static uint64_t usual_pool(const struct bench_options *options)
{
	uint64_t share = memory_share(options);

	if (share >= DEFAULT_BYTES)
		return DEFAULT_BYTES;
	return max_u64(share - share % ROUNDING, ROUNDING);
}

static uint64_t default_pool(const struct bench_options *options, const struct model *model)
{
	uint64_t largest = options->rw == RW_PARAMS ? layers_largest(model).room
						    : model_largest(model)->nbytes;
	uint64_t half = model->nbytes / 2, nbytes;

	if (options->rw == RW_STEP)
		return usual_pool(options);
	/* No machine has memory for such a tensor; avoid an overflow. */
	if (largest > UINT64_MAX / 4)
		return largest;
	nbytes = max_u64(2 * largest + ROUNDING, usual_pool(options));
	if (options->rw != RW_PARAMS)
		return nbytes;
	nbytes = max_u64(nbytes, 3 * largest + ROUNDING);
	return nbytes < half ? nbytes : max_u64(half, 2 * largest);
}

/* The optimizer's pool is no larger than all of its state. */
static uint64_t state_numel(const struct bench_options *options, const struct model *model,
			    const struct nvs_config *config, enum nvs_block block)
{
	uint64_t element = element_bytes(config, block);

	return options->rw == RW_STEP ? parameters_numel(model, setting_param_dtype(config))
				      : (model->nbytes + element - 1) / element;
}

static int size_pool(const struct bench_options *options, const struct model *model,
		     struct nvs_config *config, enum nvs_block block, struct nvs_error *error)
{
	uint64_t numel;

	if (options->pool || !options->config)
		return set_pool(config, block,
				options->pool ? options->pool : default_pool(options, model),
				error);
	if (block == NVS_OFFLOAD_PARAM)
		return 0;
	numel = state_numel(options, model, config, block);
	return numel >= setting_number(config, setting_buffer_size_key(block))
		       ? 0
		       : set_buffer_size(config, block, max_u64(numel, 1), error);
}

/* The bytes that must be in the pool at the same time; *name is the tensor or layer. */
static uint64_t most_at_a_time(const struct bench_options *options, const struct model *model,
			       char *name, size_t nbytes)
{
	const struct model_tensor *longest = model_largest(model);
	struct layer layer;

	if (options->rw != RW_PARAMS) {
		snprintf(name, nbytes, "tensor %s", longest->name);
		return model_room(longest);
	}
	layer = layers_largest(model);
	snprintf(name, nbytes, "layer ");
	layer_name(model, &layer, name + strlen(name), nbytes - strlen(name));
	return layer.room;
}

static int check_pool(const struct bench_options *options, const struct model *model,
		      struct nvs_config *config, enum nvs_block block, struct nvs_error *error)
{
	uint64_t count = setting_of_block(config, block, "buffer_count");
	uint64_t pool = model_pages(nvs_config_pool_bytes(config, block));
	uint64_t need = most_at_a_time(options, model, error->subject, sizeof(error->subject));

	if (need <= pool)
		return 0;
	error->code = -E2BIG;
	snprintf(error->text, sizeof(error->text),
		 "%s takes %" PRIu64 " bytes, more than the whole pool of %" PRIu64
		 ": give --pool %" PRIu64 " or more, or in the configuration \"%s\": %" PRIu64
		 " (elements, in each of %" PRIu64 " buffers)",
		 error->subject, need, pool, need,
		 block == NVS_OFFLOAD_PARAM ? "buffer_size" : "sub_group_size",
		 buffer_size_for(need, count, element_bytes(config, block)), count);
	return error->code;
}

int pool_choose(const struct bench_options *options, const struct model *model,
		struct nvs_config *config, enum nvs_block block, struct nvs_error *error)
{
	int rc = size_pool(options, model, config, block, error);

	/* The optimizer cuts its own tiles, and checks that the pool holds enough of them. */
	return rc || options->rw == RW_STEP ? rc : check_pool(options, model, config, block, error);
}
