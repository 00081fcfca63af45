/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in flight for longer than io_timeout_ms: marks their tensors. The runs stay in flight and
 * land like others.
 */
#include "swap/moves/moves.h"

int check_overdue(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		  struct nvs_error *error)
{
	if (!is_overdue(tensor))
		return 0;
	return aio_describe_overdue(engine->aio, &tensor->run_first->rest->transfer,
				    tensor->rest->name, error);
}

void runs_overdue(struct nvs_engine *engine)
{
	for (size_t i = 0; i < engine->ntensors; i++) {
		struct nvs_tensor *first = engine->tensors[i];
		struct nvs_error error = {.size = sizeof(error)};
		uint64_t offset;

		if (!in_flight(first) || first->run_first != first || is_overdue(first) ||
		    !aio_is_overdue(engine->aio, &first->rest->transfer, &offset))
			continue;
		for (struct nvs_tensor *tensor = first; tensor; tensor = tensor->run_next)
			tensor->hangs_at = offset;
		engine->moves.overdue[first->rest->transfer.direction]++;
		check_overdue(engine, first, &error);
		log_later(&engine->log, NVS_LOG_ERROR, "%s", error.text);
	}
}

void landed_late(struct nvs_engine *engine, const struct transfer *run)
{
	struct nvs_tensor *first = run->user;

	if (!is_overdue(first))
		return;
	engine->moves.overdue[run->direction]--;
	log_later(&engine->log, NVS_LOG_WARNING, "%s: %s completed late: %s", first->rest->name,
		  run->direction == NVS_WRITE ? "writing" : "reading", nvs_strerror(run->status));
	for (struct nvs_tensor *tensor = first; tensor; tensor = tensor->run_next)
		tensor->hangs_at = NOWHERE;
}

int first_overdue(const struct nvs_engine *engine, bool writes_alone, struct nvs_error *error)
{
	for (size_t i = 0; i < engine->ntensors; i++)
		if (!writes_alone || tensor_state(engine->tensors[i]) == NVS_WRITING) {
			int rc = check_overdue(engine, engine->tensors[i], error);

			if (rc)
				return rc;
		}
	assert(!engine->moves.overdue[NVS_WRITE] &&
	       (writes_alone || !engine->moves.overdue[NVS_READ]));
	return 0;
}

int check_hung(const struct nvs_engine *engine, struct nvs_error *error)
{
	uint64_t hung = engine->moves.overdue[NVS_READ] + engine->moves.overdue[NVS_WRITE];
	int rc;

	if (!hung || hung < runs_in_flight(&engine->moves))
		return 0;
	rc = first_overdue(engine, false, error);
	assert(rc == -ETIMEDOUT);
	return rc;
}
