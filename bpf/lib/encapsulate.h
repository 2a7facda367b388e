/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * IP in IP, either family in either: RFC 2003 (4 in 4), RFC 4213 (6 in 4), RFC 2473 (4 and 6 in 6).
 *
 * The inner packet is left as it came, TTL included: this node and the backend act as one host towards the client. DSCP and
 * ECN are copied outwards (RFC 6040, normal mode). Outer fragments are not wanted: DF is copied from an inner IPv4
 * packet (RFC 2003, with its identification for where it is clear) and set for IPv6.
 */
#ifndef TIDEGATE_ENCAPSULATE_H
#define TIDEGATE_ENCAPSULATE_H

#include "checksum.h"
#include "choose.h"

#define OUTER_TTL 64

/* What of the inner header goes into the outer one. */
struct inner {
	__u8 traffic_class;
	__u8 protocol; /* of the outer header: what is inside */
	__be16 identification;
	__be16 fragment;
};

static __always_inline int inner_read(const void *l3, const void *data_end, const struct packet *packet,
				      struct inner *inner)
{
	if (packet->family == FAMILY_IPV4) {
		const struct iphdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return -1;
		inner->traffic_class = ip->tos;
		inner->protocol = IPPROTO_IPIP;
		inner->identification = ip->id;
		inner->fragment = ip->frag_off & bpf_htons(IP_DONT_FRAGMENT);
	} else {
		const struct ipv6hdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return -1;
		inner->traffic_class = ip->priority << 4 | ip->flow_lbl[0] >> 4;
		inner->protocol = IPPROTO_IPV6;
		inner->identification = 0;
		inner->fragment = bpf_htons(IP_DONT_FRAGMENT);
	}
	return 0;
}

static __always_inline void outer_ipv4(struct iphdr *ip, const struct packet *packet, const struct inner *inner,
				       const struct backend *backend)
{
	__be16 length = bpf_htons(packet->ip_length + sizeof(*ip));

	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->tos = inner->traffic_class;
	ip->tot_len = length;
	ip->id = inner->identification;
	ip->frag_off = inner->fragment;
	ip->ttl = OUTER_TTL;
	ip->protocol = inner->protocol;
	ip->saddr = backend->source[0];
	ip->daddr = backend->address[0];
	ip->check = ~checksum_fold(backend->outer_sum + bpf_htons(inner->traffic_class) + length +
				   inner->identification + inner->fragment);
}

/* The flow label spreads flows over paths and queues (RFC 6438). */
static __always_inline void outer_ipv6(struct ipv6hdr *ip, const struct packet *packet, const struct inner *inner,
				       const struct backend *backend, __u32 label)
{
	*(__be32 *)ip = bpf_htonl(6U << 28 | (__u32)inner->traffic_class << 20 | (label & 0xfffff));
	ip->payload_len = bpf_htons(packet->ip_length);
	ip->nexthdr = inner->protocol;
	ip->hop_limit = OUTER_TTL;
	__builtin_memcpy(&ip->saddr, backend->source, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, backend->address, sizeof(ip->daddr));
}

/*
 * Puts the packet into an outer header to the backend. The Ethernet addresses stay those it came with: what sends it on
 * replaces them.
 */
static __always_inline __u32 encapsulate_ipip(struct xdp_md *ctx, const struct packet *packet,
					      const struct choice *choice, __u64 hash)
{
	int outer_is_ipv6 = choice->flags & BACKEND_IPV6;
	int overhead = outer_is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr ethernet, *eth = data;
	struct inner inner;

	if ((void *)(eth + 1) > data_end)
		return DROP_INTERNAL;
	ethernet = *eth;
	if (inner_read(eth + 1, data_end, packet, &inner))
		return DROP_INTERNAL;
	if (bpf_xdp_adjust_head(ctx, -overhead))
		return DROP_INTERNAL;

	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	eth = data;
	if (data + ETH_HLEN + sizeof(struct ipv6hdr) > data_end)
		return DROP_INTERNAL;
	ethernet.h_proto = outer_is_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	*eth = ethernet;
	if (outer_is_ipv6)
		outer_ipv6((void *)(eth + 1), packet, &inner, choice->backend, hash);
	else
		outer_ipv4((void *)(eth + 1), packet, &inner, choice->backend);
	return LEDGER_NONE;
}

#endif /* TIDEGATE_ENCAPSULATE_H */
