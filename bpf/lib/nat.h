/* SPDX-License-Identifier: GPL-2.0-only */
/* Address translation: requests get the backend as destination, replies the service as source. */
#ifndef TIDEGATE_NAT_H
#define TIDEGATE_NAT_H

#include "checksum.h"
#include "flow.h"

/*
 * One translation: which end of the packet, and from what to what. The sums are those of struct service and struct backend.
 */
struct translation {
	const __be32 *address;
	__be16 port;
	__u16 old_address_sum;
	__u16 new_address_sum;
	__u16 old_endpoint_sum;
	__u16 new_endpoint_sum;
	__u8 source; /* translate the source, else the destination */
};

/* Takes one off the TTL. Returns LEDGER_NONE, or the reason to drop the packet where it is used up. */
static __always_inline __u32 take_hop_ipv4(struct iphdr *ip)
{
	if (ip->ttl <= 1)
		return DROP_TTL_EXPIRED;
	/* TTL is the high byte of its word: one less is the word 0x0100 less. */
	ip->check = checksum_replace(ip->check, bpf_htons(0x0100), 0);
	ip->ttl--;
	return LEDGER_NONE;
}

static __always_inline __u32 take_hop_ipv6(struct ipv6hdr *ip)
{
	if (ip->hop_limit <= 1)
		return DROP_TTL_EXPIRED;
	ip->hop_limit--;
	return LEDGER_NONE;
}

static __always_inline __u32 translate_address_ipv4(void *l3, void *data_end, const struct translation *translation)
{
	struct iphdr *ip = l3;

	if ((void *)(ip + 1) > data_end)
		return DROP_INTERNAL;
	ip->check = checksum_replace(ip->check, translation->old_address_sum, translation->new_address_sum);
	if (translation->source)
		ip->saddr = translation->address[0];
	else
		ip->daddr = translation->address[0];
	return LEDGER_NONE;
}

static __always_inline __u32 translate_address_ipv6(void *l3, void *data_end, const struct translation *translation)
{
	struct ipv6hdr *ip = l3;

	if ((void *)(ip + 1) > data_end)
		return DROP_INTERNAL;
	__builtin_memcpy(translation->source ? &ip->saddr : &ip->daddr, translation->address, sizeof(ip->saddr));
	return LEDGER_NONE;
}

static __always_inline __u32 translate_ipv4(void *l3, void *data_end, const struct translation *translation)
{
	if (l3 + sizeof(struct iphdr) > data_end)
		return DROP_INTERNAL;
	if (take_hop_ipv4(l3))
		return DROP_TTL_EXPIRED;
	return translate_address_ipv4(l3, data_end, translation);
}

static __always_inline __u32 translate_ipv6(void *l3, void *data_end, const struct translation *translation)
{
	if (l3 + sizeof(struct ipv6hdr) > data_end)
		return DROP_INTERNAL;
	if (take_hop_ipv6(l3))
		return DROP_TTL_EXPIRED;
	return translate_address_ipv6(l3, data_end, translation);
}

/* Translates the port, and the checksum with it. */
static __always_inline __u32 translate_l4(void *l4, void *data_end, __u8 protocol,
					  const struct translation *translation)
{
	struct udphdr *ports = l4; /* TCP has its ports in the same place */

	if ((void *)(ports + 1) > data_end)
		return DROP_INTERNAL;
	if (translation->source)
		ports->source = translation->port;
	else
		ports->dest = translation->port;
	if (checksum_replace_l4(l4, data_end, protocol, translation->old_endpoint_sum, translation->new_endpoint_sum))
		return DROP_INTERNAL;
	return LEDGER_NONE;
}

static __always_inline __u32 translate(struct xdp_md *ctx, const struct packet *packet,
				       const struct translation *translation)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	void *l3 = data + (packet->l3_offset & OFFSET_MASK);
	void *l4 = data + (packet->l4_offset & OFFSET_MASK);
	__u32 reason;

	if (packet->fragment != FRAGMENT_LATER && l4 + sizeof(struct udphdr) > data_end)
		return DROP_INTERNAL;
	reason = packet->family == FAMILY_IPV4 ? translate_ipv4(l3, data_end, translation)
					       : translate_ipv6(l3, data_end, translation);
	/* The one checksum of a fragmented datagram stands in its first piece, and changes by what changes in the headers. */
	if (reason || packet->fragment == FRAGMENT_LATER)
		return reason;
	return translate_l4(l4, data_end, packet->protocol, translation);
}

/* The translation of a request's destination, from the service to the backend. A port that is kept is in neither sum. */
static __always_inline void translation_of_request(const struct packet *packet, const struct service *service,
						   const struct backend *backend, struct translation *translation)
{
	translation->address = backend->address;
	translation->port = backend->port ? backend->port : packet->destination_port;
	translation->old_address_sum = checksum_without(service->endpoint_sum, service->port);
	translation->new_address_sum = checksum_without(backend->endpoint_sum, backend->port);
	translation->old_endpoint_sum = service->endpoint_sum;
	translation->new_endpoint_sum = backend->endpoint_sum;
	translation->source = 0;
}

/* Gives a request the backend as its destination. */
static __always_inline __u32 nat_request(struct xdp_md *ctx, const struct packet *packet, const struct service *service,
					 const struct backend *backend)
{
	struct translation translation;

	translation_of_request(packet, service, backend, &translation);
	return translate(ctx, packet, &translation);
}

/* One's complement sum of the address and port that a reply comes from. */
static __always_inline __u16 sum_address(const __be32 *address, const struct packet *packet)
{
	__u64 sum = address[0];

	if (packet->family == FAMILY_IPV6)
		sum += (__u64)address[1] + address[2] + address[3];
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	return checksum_fold(sum);
}

/* The port that a reply is given as its source: the service's, or where that keeps ports the one it has. */
static __always_inline __be16 reply_port(const struct packet *packet, const struct service *service)
{
	return service->port ? service->port : packet->source_port;
}

/* The translation of a reply's source, from the backend to the service. */
static __always_inline void translation_of_reply(const struct packet *packet, const struct service *service,
						 struct translation *translation)
{
	__u16 address_sum = sum_address(packet->source, packet);
	__be16 replaced_port = service->port ? packet->source_port : 0;

	translation->address = service->address;
	translation->port = reply_port(packet, service);
	translation->old_address_sum = address_sum;
	translation->new_address_sum = checksum_without(service->endpoint_sum, service->port);
	translation->old_endpoint_sum = checksum_fold(address_sum + replaced_port);
	translation->new_endpoint_sum = service->endpoint_sum;
	translation->source = 1;
}

/* Gives a reply the service as its source. */
static __always_inline __u32 nat_reply(struct xdp_md *ctx, const struct packet *packet, const struct service *service)
{
	struct translation translation;

	translation_of_reply(packet, service, &translation);
	return translate(ctx, packet, &translation);
}

/* As find_reply_service(), for services of the fixed kind. Returns 1 with `service_id` set, or 0. */
static __always_inline int find_fixed_reply(const struct packet *packet, __u32 *service_id)
{
	struct flow_query query;
	struct flow *flow;

	if (flow_query_init(&query, packet->destination, packet->destination_port, packet))
		return 0;
	flow = flow_find_reply(&query, packet->source, packet->source_port, packet->protocol, service_id);
	if (!flow)
		return 0;
	flow_touch(&query, flow, flow_read(flow), packet, 0);
	return 1;
}

/*
 * The service through which the client of this reply reached its backend, or 0 where it is no reply of a tracked flow.
 * `service_id` is set with it. Notes the packet in the flow's entry. is_from_nat_backend() said where to look.
 */
static __always_inline struct service *find_reply_service(struct packet *packet, __u32 *service_id)
{
	if (packet->nat_sources & NAT_SOURCE_FIXED && find_fixed_reply(packet, service_id))
		return bpf_map_lookup_elem(&services, service_id);
	if (!(packet->nat_sources & NAT_SOURCE_KEEPING))
		return 0;
	*service_id = flow_of_keeping_reply(packet);
	return *service_id ? bpf_map_lookup_elem(&services, service_id) : 0;
}

#endif /* TIDEGATE_NAT_H */
