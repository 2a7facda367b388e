/* SPDX-License-Identifier: GPL-2.0-only */
/* Which service is a packet for, and is it from a backend whose replies are translated? */
#ifndef TIDEGATE_SERVICE_H
#define TIDEGATE_SERVICE_H

#include "maps.h"
#include "packet.h"

static __always_inline __u32 *lookup_endpoint(void *map_v4, void *map_v6, const __be32 *address, __be16 port,
					      const struct packet *packet)
{
	if (packet->family == FAMILY_IPV4) {
		struct endpoint_v4 key = {.address = address[0], .port = port, .protocol = packet->protocol};

		return bpf_map_lookup_elem(map_v4, &key);
	} else {
		struct endpoint_v6 key = {.port = port, .protocol = packet->protocol};

		__builtin_memcpy(key.address, address, sizeof(key.address));
		return bpf_map_lookup_elem(map_v6, &key);
	}
}

/* ID of the service that the packet is addressed to, or 0. */
static __always_inline __u32 find_service(const struct packet *packet)
{
	__u32 *id = lookup_endpoint(&services_v4, &services_v6, packet->destination, packet->destination_port, packet);

	return id ? *id : 0;
}

/* True where the packet's source is a backend of a NAT service, so that it may be a reply to translate. */
static __always_inline int is_from_nat_backend(const struct packet *packet)
{
	return lookup_endpoint(&nat_sources_v4, &nat_sources_v6, packet->source, packet->source_port, packet) != 0;
}

/*
 * Record index of backend `number` of a service, or 0. Base and limit are read as one word: they are replaced together
 * when a service grows.
 */
static __always_inline __u32 backend_record(const struct service *service, __u32 number)
{
	__u64 range = *(const volatile __u64 *)&service->backends_base;
	__u32 base = range;
	__u32 limit = range >> 32;

	return number && number < limit ? base + number : 0;
}

#endif /* TIDEGATE_SERVICE_H */
