/* SPDX-License-Identifier: Apache-2.0 */
/* The settings with which `store export` and `import` open a store. */
#include "base/error.h"
#include "base/numbers.h"
#include "cli/store/copy.h"

#define MIB	 ((uint64_t)1 << 20)
#define POOL_MIN (64 * MIB)
#define POOL_MAX (512 * MIB)

/* Several transfers at a time, or two of the largest. */
uint64_t copy_pool_bytes(uint64_t total, uint64_t largest)
{
	uint64_t nbytes = total < POOL_MAX ? total : POOL_MAX;

	if (nbytes < 2 * largest)
		nbytes = 2 * largest;
	return nbytes < POOL_MIN ? POOL_MIN : nbytes;
}

struct setting {
	const char *key;
	uint64_t number;
};

static int set_all(struct nvs_config *config, const struct setting *settings, size_t n,
		   struct nvs_error *error)
{
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++)
		rc = nvs_config_set_number(config, settings[i].key, settings[i].number, error);
	return rc;
}

/* One buffer, of elements of float32. */
static int set_pool(struct nvs_config *config, bool optimizer, uint64_t pool,
		    struct nvs_error *error)
{
	const struct setting parameters[] = {{"offload_param.buffer_count", 1},
					     {"offload_param.buffer_size", (pool + 3) / 4},
					     {"offload_param.max_in_cpu", 0}};
	const struct setting state[] = {{"offload_optimizer.buffer_count", 1},
					{"zero_optimization.sub_group_size", (pool + 3) / 4}};

	return optimizer ? set_all(config, state, COUNT_OF(state), error)
			 : set_all(config, parameters, COUNT_OF(parameters), error);
}

int copy_configure(const struct copy *copy, bool keep, uint64_t pool, struct nvs_config **config)
{
	const struct nvs_store_place *place = &copy->place;
	const struct setting settings[] = {
		{"aio.block_size", MIB},
		{"aio.queue_depth", 32},
		{"nvswap.rank", place->rank},
		{keep ? "nvswap.keep" : "nvswap.read_only", 1},
	};
	int rc = nvs_config_open(config, copy->error);

	if (!rc)
		rc = nvs_config_set_paths(
			*config, place->optimizer ? NVS_OFFLOAD_OPTIMIZER : NVS_OFFLOAD_PARAM,
			place->paths, place->npaths, copy->error);
	if (!rc)
		rc = set_pool(*config, place->optimizer, pool, copy->error);
	return rc ? rc : set_all(*config, settings, COUNT_OF(settings), copy->error);
}

int copy_opened(const struct copy *copy, int rc)
{
	struct nvs_store *store;

	/* The engine's advice is for programs: they can take another rank. */
	if (rc != -EBUSY || nvs_store_open(&copy->place, NVS_STORE_LOCK, &store, copy->error))
		return rc;
	nvs_store_close(store);
	return error_set(copy->error, rc, "a process reads the store at %s: wait until it ends",
			 copy->place.paths[0]);
}
