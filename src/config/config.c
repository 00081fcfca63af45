/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public functions of the configuration: defaults, loading, copies. A file is read into a copy,
 * which replaces the caller's configuration only if the whole file is valid.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/threads/cancel.h"
#include "config/reader.h"

bool config_verifies(const struct nvs_config *config)
{
	return config->verify == VERIFY_ON ||
	       (config->verify == VERIFY_IF_KEPT && (config->keep || config->read_only));
}

void config_init(struct nvs_config *config)
{
	if (!config)
		return;
	memset(config, 0, sizeof(*config));
	config->param_dtype = NVS_F32;
	for (unsigned i = 0; i < config_key_count; i++)
		config_key_set_default(&config_keys[i], config);
	config->offload[NVS_OFFLOAD_PARAM].ratio = 1;
	config_derive(config);
}

void config_free(struct nvs_config *config)
{
	if (!config)
		return;
	paths_free(&config->offload[NVS_OFFLOAD_PARAM]);
	paths_free(&config->offload[NVS_OFFLOAD_OPTIMIZER]);
}

int nvs_config_parse(struct nvs_config *config, const char *text, size_t nbytes, const char *name,
		     struct nvs_error *error)
{
	HOLD_CANCEL;
	struct json_document *document;
	char label[208];
	struct reader r = {.caller = config, .error = error};
	char size[32], limit[32];
	int result;

	if (!config || !text || !name)
		return error_set(error, -EINVAL, "the configuration, the text or the name is NULL");
	r.config = *config;
	r.file = json_file_label(name, label);
	if (nbytes > CONFIG_TEXT_MAX)
		return error_set(error, -EFBIG, "%s: the text is %s long; the limit is %s", r.file,
				 size_text(nbytes, size), size_text(CONFIG_TEXT_MAX, limit));
	result = json_parse_relaxed(&document, text, nbytes, name, CONFIG_MEMORY_MAX, error);
	if (result)
		return result;
	result = reader_read(&r, json_root(document));
	json_free(document);
	return result;
}

int nvs_config_open(struct nvs_config **config, struct nvs_error *error)
{
	struct nvs_config *opened;

	if (!config)
		return error_set(error, -EINVAL, "config is NULL");
	*config = NULL;
	opened = malloc(sizeof(*opened));
	if (!opened)
		return error_set(error, -ENOMEM, "out of memory for the configuration");
	config_init(opened);
	*config = opened;
	return 0;
}

int nvs_config_copy(const struct nvs_config *config, struct nvs_config **copy,
		    struct nvs_error *error)
{
	struct nvs_config *opened = NULL;
	int rc;

	if (!config || !copy)
		return error_set(error, -EINVAL, "config or copy is NULL");
	rc = nvs_config_open(&opened, error);
	if (!opened)
		return rc;
	*opened = *config;
	for (int i = NVS_OFFLOAD_PARAM; i <= NVS_OFFLOAD_OPTIMIZER; i++) {
		const struct offload_config *from = &config->offload[i];

		opened->offload[i].npaths = 0;
		rc = rc ? rc
			: paths_copy(&opened->offload[i], (const char *const *)from->nvme_path,
				     from->npaths);
	}
	if (rc) {
		nvs_config_close(opened);
		return error_set(error, -ENOMEM, "out of memory for the configuration's paths");
	}
	*copy = opened;
	return 0;
}

void nvs_config_close(struct nvs_config *config)
{
	config_free(config);
	free(config);
}

void nvs_config_set_log(struct nvs_config *config, nvs_log_fn *fn, void *arg)
{
	if (config)
		config->log = (struct nvs_log){fn, arg};
}

void nvs_config_set_trace(struct nvs_config *config, struct nvs_trace *trace)
{
	if (config)
		config->trace = trace;
}

int nvs_config_load(struct nvs_config *config, const char *path, struct nvs_error *error)
{
	HOLD_CANCEL;
	char *text = NULL, label[208];
	size_t nbytes = 0;
	int fd, result;

	if (!config || !path)
		return error_set(error, -EINVAL, "the configuration or the path is NULL");
	do
		fd = open(path, O_RDONLY | O_CLOEXEC);
	while (fd < 0 && errno == EINTR);
	if (fd < 0) {
		result = -errno;
		return error_set(error, result, "%s: can't be opened: %s",
				 json_file_label(path, label), nvs_strerror(result));
	}
	result = file_read_all(fd, CONFIG_TEXT_MAX, &text, &nbytes);
	close(fd);
	if (result)
		return error_set(error, result, "%s: can't be read: %s",
				 json_file_label(path, label), nvs_strerror(result));
	result = nvs_config_parse(config, text, nbytes, path, error);
	free(text);
	return result;
}
