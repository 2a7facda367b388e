/* SPDX-License-Identifier: GPL-2.0-only */
/* Which service is a packet for, and is it from a backend whose replies are translated? */
#ifndef TIDEGATE_SERVICE_H
#define TIDEGATE_SERVICE_H

#include "maps.h"
#include "packet.h"

static __always_inline void *lookup_endpoint(void *map_v4, void *map_v6, const __be32 *address, __be16 port,
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

/* enum node_flags of the node. */
static __always_inline __u32 node_flags(void)
{
	__u32 only = 0;
	struct node_settings *settings = bpf_map_lookup_elem(&node, &only);

	return settings ? settings->flags : 0;
}

/* ID of the service that has the packet's destination port in a range, or 0. Verified once and called seldom. */
__noinline __u32 find_range(struct packet *packet)
{
	struct port_ranges *line;
	__u16 port;
	__u32 i;

	if (!packet)
		return 0;
	line = lookup_endpoint(&ranges_v4, &ranges_v6, packet->destination, 0, packet);
	if (!line)
		return 0;
	port = bpf_ntohs(packet->destination_port);
	for (i = 0; i < RANGES_PER_ADDRESS; i++) {
		const struct port_range *range = &line->ranges[i];

		if (!range->service)
			return 0;
		if (range->first <= port && port <= range->last)
			return range->service;
	}
	return 0;
}

/* ID of the service that the packet is addressed to, or 0. A service with that very port comes before any range. */
static __always_inline __u32 find_service(struct packet *packet)
{
	__u32 *id = lookup_endpoint(&services_v4, &services_v6, packet->destination, packet->destination_port, packet);

	if (id)
		return *id;
	return node_flags() & NODE_PORT_RANGES ? find_range(packet) : 0;
}

/* What kinds of services may a packet be a reply of? */
enum nat_source {
	NAT_SOURCE_FIXED = 1 << 0,   /* those with one port, and one at the backend */
	NAT_SOURCE_KEEPING = 1 << 1, /* those whose ports are kept */
};

/*
 * True where the packet's source is a backend of a NAT service, so that it may be a reply to translate. Of which kinds of
 * services is left in `nat_sources`, for find_reply_service().
 */
static __always_inline int is_from_nat_backend(struct packet *packet)
{
	__u8 kinds = 0;

	/* Port 0 is no server's, and as a key it means something else. */
	if (packet->source_port &&
	    lookup_endpoint(&nat_sources_v4, &nat_sources_v6, packet->source, packet->source_port, packet))
		kinds |= NAT_SOURCE_FIXED;
	if (node_flags() & NODE_PORT_KEEPING_SOURCES &&
	    lookup_endpoint(&nat_sources_v4, &nat_sources_v6, packet->source, 0, packet))
		kinds |= NAT_SOURCE_KEEPING;
	packet->nat_sources = kinds;
	return kinds;
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
