/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of the header and of the linked library.
 */
#ifndef NVSWAP_VERSION_H
#define NVSWAP_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

#define NVS_VERSION_MAJOR 0
#define NVS_VERSION_MINOR 2
#define NVS_VERSION_PATCH 0
#define NVS_VERSION	  "0.2.0"

#define NVS_API __attribute__((visibility("default")))

/* Returns the version of the linked library, which may differ from this header's: "0.2.0". */
NVS_API const char *nvs_version(void);

#ifdef __cplusplus
}
#endif

#endif
