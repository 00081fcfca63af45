/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Universal checkpoints for `bench`: a parameter for each tensor of the model, the directory, and
 * how state is saved to it and restored. Never removes what does not have its fixed names.
 */
#include "cli/modes/checkpoint/universal.h"

#include <assert.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"

/* Adds elements of a tensor, and what lies in the next groups. */
static int add(struct universal *universal, const struct parameters *parameters, size_t tensor,
	       uint64_t at, uint64_t numel)
{
	char name[64];

	for (unsigned piece = 0; numel; piece++) {
		struct nvs_checkpoint_param *param = &universal->params[universal->n];
		uint64_t within = at % parameters->group_numel;
		uint64_t n = parameters->group_numel - within < numel
				     ? parameters->group_numel - within
				     : numel;
		int length = snprintf(name, sizeof(name), "tensor%zu.%u", tensor, piece);

		assert(length > 0 && (size_t)length < sizeof(name));
		*param = (struct nvs_checkpoint_param){.size = sizeof(*param),
						       .name = strdup(name),
						       .group = at / parameters->group_numel,
						       .offset = within,
						       .numel = n};
		if (!param->name)
			return -ENOMEM;
		universal->n++;
		at += n;
		numel -= n;
	}
	return 0;
}

int universal_open(struct universal *universal, const struct model *model,
		   const struct parameters *parameters, struct nvs_error *error)
{
	uint64_t at = 0;
	int rc = 0;

	universal->n = 0;
	universal->params = calloc(model->n + parameters->ngroups, sizeof(*universal->params));
	if (!universal->params)
		return error_set(error, -ENOMEM, "no memory for the names of parameters");
	for (size_t i = 0; i < model->n && !rc; i++) {
		uint64_t numel = parameters_numel_of(model, i, parameters->dtype);

		rc = add(universal, parameters, i, at, numel);
		at += numel;
	}
	assert(rc || at == parameters->numel);
	return rc ? error_set(error, rc, "no memory for the names of parameters") : 0;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
	(void)status;
	(void)kind;
	(void)walk;
	return remove(path);
}

int universal_remove(const struct universal *universal, struct nvs_error *error)
{
	int rc;

	if (!nftw(universal->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS) || errno == ENOENT)
		return 0;
	rc = -errno;
	return error_set(error, rc, "can't remove %s: %s", universal->directory, nvs_strerror(rc));
}

int universal_save(const struct universal *universal, struct nvs_optimizer *optimizer,
		   struct nvs_error *error)
{
	if (mkdir(universal->directory, 0700) && errno != EEXIST)
		return error_set(error, -errno, "can't make the directory %s: %s",
				 universal->directory, nvs_strerror(-errno));
	return nvs_checkpoint_export_universal(optimizer, universal->params, universal->n,
					       universal->tag, NULL, error);
}

int universal_restore(const struct universal *universal, struct nvs_optimizer *optimizer,
		      struct nvs_error *error)
{
	return nvs_checkpoint_import_universal(optimizer, universal->params, universal->n,
					       universal->tag, error);
}

void universal_close(struct universal *universal)
{
	if (!universal->params)
		return;
	universal_remove(universal, NULL);
	for (size_t i = 0; i < universal->n; i++)
		free((char *)(uintptr_t)universal->params[i].name);
	free(universal->params);
	universal->params = NULL;
}
