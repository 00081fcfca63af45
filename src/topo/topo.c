/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA nodes of drives, cores of nodes, and binding to them. Relies on hwloc, and on sysfs for
 * drives that hwloc can't place.
 */
#include "topo/topo.h"

#include <fcntl.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/numbers.h"

struct topo {
	hwloc_topology_t hwloc;
	hwloc_bitmap_t allowed; /* CPUs that the process could run on at topo_open */
};

static int load_with(struct topo *topo, const char *xml_path, enum hwloc_type_filter_e devices)
{
	if (hwloc_topology_init(&topo->hwloc))
		return -ENOMEM;

	/* Detecting accelerators would start their runtimes in the caller's process. */
	static const char *const components[] = {"cuda", "nvml", "opencl",
						 "gl",	 "rsmi", "levelzero"};
	const unsigned long flag = HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST;

	/* Fails if this hwloc lacks the component, which is harmless. */
	for (unsigned i = 0; i < COUNT_OF(components); i++)
		(void)hwloc_topology_set_components(topo->hwloc, flag, components[i]);
	errno = 0;
	if (hwloc_topology_set_io_types_filter(topo->hwloc, devices) ||
	    (xml_path && hwloc_topology_set_xml(topo->hwloc, xml_path)) ||
	    hwloc_topology_load(topo->hwloc)) {
		int code = errno ? -errno : -EINVAL;

		hwloc_topology_destroy(topo->hwloc);
		return code;
	}
	return 0;
}

int topo_open(struct topo **topo, const char *xml_path, struct nvs_error *error)
{
	struct topo *new = calloc(1, sizeof(*new));
	int rc;

	if (!new)
		return error_set(error, -ENOMEM, "no memory for the machine's topology");
	rc = load_with(new, xml_path,
		       xml_path ? HWLOC_TYPE_FILTER_KEEP_IMPORTANT : HWLOC_TYPE_FILTER_KEEP_NONE);
	/* Scanning the PCI bus for devices is slow and only needed with several nodes. */
	if (!rc && !xml_path && hwloc_get_nbobjs_by_type(new->hwloc, HWLOC_OBJ_NUMANODE) > 1) {
		hwloc_topology_destroy(new->hwloc);
		rc = load_with(new, NULL, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
	}
	if (rc) {
		free(new);
		return error_set(error, rc, "hwloc can't read the topology of %s: %s",
				 xml_path ? xml_path : "this machine", nvs_strerror(rc));
	}
	/* The union over all threads, because the calling one may be bound more tightly. */
	new->allowed = hwloc_bitmap_alloc();
	if (new->allowed && (!hwloc_topology_is_thissystem(new->hwloc) ||
			     hwloc_get_cpubind(new->hwloc, new->allowed, HWLOC_CPUBIND_PROCESS)))
		hwloc_bitmap_copy(new->allowed, hwloc_topology_get_allowed_cpuset(new->hwloc));
	if (!new->allowed) {
		topo_close(new);
		return error_set(error, -ENOMEM, "no memory for the machine's topology");
	}
	*topo = new;
	return 0;
}

void topo_close(struct topo *topo)
{
	if (!topo)
		return;
	hwloc_bitmap_free(topo->allowed);
	hwloc_topology_destroy(topo->hwloc);
	free(topo);
}

int topo_node_of_devices(const struct topo *topo, const char *const *devices, unsigned n)
{
	int node = -1;

	if (hwloc_get_nbobjs_by_type(topo->hwloc, HWLOC_OBJ_NUMANODE) < 2)
		return -1;
	for (unsigned i = 0; i < n; i++) {
		hwloc_obj_t device = NULL, near;
		const char *name = devices[i];
		int its;

		while ((device = hwloc_get_next_osdev(topo->hwloc, device)))
			if (device->attr->osdev.type == HWLOC_OBJ_OSDEV_BLOCK && device->name &&
			    !strcmp(device->name, name))
				break;
		near = device ? hwloc_get_non_io_ancestor_obj(topo->hwloc, device) : NULL;
		if (near && near->nodeset && hwloc_bitmap_weight(near->nodeset) == 1)
			its = hwloc_bitmap_first(near->nodeset);
		else {
			/* hwloc places multipath drives, and those near a package with several
			 * nodes (HBM, CXL), where no single node is above them; sysfs may still
			 * name one. */
			its = hwloc_topology_is_thissystem(topo->hwloc) ? sysfs_node(SYSFS, name)
									: -1;
		}

		if (its < 0 || (i > 0 && its != node))
			return -1;
		node = its;
	}
	return node;
}

int topo_node_of_paths(const struct topo *topo, const char *const *paths, unsigned n)
{
	static const unsigned max = NVS_PATHS_MAX * DEVICES_MAX;
	char names[NVS_PATHS_MAX * DEVICES_MAX][64];
	const char *devices[NVS_PATHS_MAX * DEVICES_MAX];
	unsigned ndevices = 0;

	for (unsigned i = 0; i < n && ndevices + DEVICES_MAX <= max; i++) {
		int fd = open(paths[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
		unsigned found;

		if (fd < 0)
			return -1;
		found = path_devices(fd, &names[ndevices]);
		close(fd);
		if (!found)
			return -1;
		ndevices += found;
	}
	for (unsigned i = 0; i < ndevices; i++)
		devices[i] = names[i];
	return topo_node_of_devices(topo, devices, ndevices);
}

static hwloc_obj_t find_node(const struct topo *topo, int node)
{
	return node < 0 ? NULL : hwloc_get_numanode_obj_by_os_index(topo->hwloc, (unsigned)node);
}

/* 0, or why nothing can be bound to the node or core. */
static int check_bindable(const struct topo *topo, hwloc_obj_t object)
{
	return !hwloc_topology_is_thissystem(topo->hwloc) ? -ENOTSUP : object ? 0 : -EINVAL;
}

int topo_bind_memory(const struct topo *topo, int node, void *data, size_t nbytes)
{
	hwloc_obj_t object = find_node(topo, node);
	int rc = check_bindable(topo, object);

	/* Not HWLOC_MEMBIND_STRICT: with it, a full node kills the process instead of falling back
	 * to another node. */
	if (!rc && hwloc_set_area_membind(topo->hwloc, data, nbytes, object->nodeset,
					  HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET))
		rc = errno == ENOSYS ? -ENOTSUP : -errno;
	return rc;
}

/* Binds the calling thread to those of these CPUs that the process may run on. */
static int bind_to_allowed(const struct topo *topo, hwloc_const_cpuset_t among)
{
	hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
	int code = 0;

	if (!cpus)
		return -ENOMEM;
	hwloc_bitmap_and(cpus, among, topo->allowed);
	if (hwloc_bitmap_iszero(cpus))
		code = -EINVAL;
	else if (hwloc_set_cpubind(topo->hwloc, cpus, HWLOC_CPUBIND_THREAD))
		code = errno == ENOSYS ? -ENOTSUP : -errno;
	hwloc_bitmap_free(cpus);
	return code;
}

int topo_bind_thread(const struct topo *topo, int node)
{
	hwloc_obj_t object = find_node(topo, node);
	int rc = check_bindable(topo, object);

	return rc ? rc : bind_to_allowed(topo, object->cpuset);
}

/* The next core after `core` (NULL: the first) near the node of which the process may use at least
 * one hardware thread. */
static hwloc_obj_t next_core(const struct topo *topo, int node, hwloc_obj_t core)
{
	/* Falls back to hardware threads where cores are unknown. */
	int depth = hwloc_get_type_or_below_depth(topo->hwloc, HWLOC_OBJ_CORE);
	hwloc_obj_t near = node < 0 ? hwloc_get_root_obj(topo->hwloc) : find_node(topo, node);

	if (!near)
		return NULL;
	while ((core = hwloc_get_next_obj_by_depth(topo->hwloc, depth, core)))
		if (hwloc_bitmap_isincluded(core->cpuset, near->cpuset) &&
		    hwloc_bitmap_intersects(core->cpuset, topo->allowed))
			return core;
	return NULL;
}

unsigned topo_cores(const struct topo *topo, int node)
{
	unsigned n = 0;

	for (hwloc_obj_t core = next_core(topo, node, NULL); core;
	     core = next_core(topo, node, core))
		n++;
	return n;
}

int topo_bind_thread_to_core(const struct topo *topo, int node, unsigned core)
{
	hwloc_obj_t object = next_core(topo, node, NULL);
	int rc;

	for (unsigned i = 0; object && i < core; i++)
		object = next_core(topo, node, object);
	rc = check_bindable(topo, object);
	return rc ? rc : bind_to_allowed(topo, object->cpuset);
}
