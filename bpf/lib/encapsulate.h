/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Outer headers, either family in either:
 *   ipip  IP in IP: RFC 2003 (4 in 4), RFC 4213 (6 in 4), RFC 2473 (4 and 6 in 6)
 *   gre   RFC 2784 without checksum, key or sequence number
 *   gue   UDP with the IP packet right behind it (Generic UDP Encapsulation, variant 1)
 *
 * The inner packet is left as it came, TTL included: this node and the backend act as one host towards the client. DSCP and
 * ECN are copied outwards (RFC 6040, normal mode). Outer fragments are not wanted: DF is copied from an inner IPv4
 * packet (RFC 2003, with its identification for where it is clear) and set for IPv6. The outer UDP checksum is zero, which
 * is right for IPv4 (RFC 768) and allowed to tunnels over IPv6 (RFC 6935).
 *
 * Paths and queues are chosen by outer headers, so flows differ there: in the UDP source port, the IPv6 flow label
 * (RFC 6438), and where a prefix is configured in the source address.
 */
#ifndef TIDEGATE_ENCAPSULATE_H
#define TIDEGATE_ENCAPSULATE_H

#include "checksum.h"
#include "frame.h"

#define OUTER_TTL 64
/* Odd, so that pieces of one datagram get different identifications. */
#define FRAGMENT_SPREAD 0x9e37
/* Source ports of GUE: the dynamic range. */
#define GUE_SOURCE_PORT_BASE 0xc000
#define GUE_SOURCE_PORT_MASK 0x3fff

/*
 * The hash from this bit on tells flows apart in a few bits. The lowest bits do not: a client's port, in network byte order,
 * hardly reaches them.
 */
#define ENTROPY_SHIFT 24

struct gre_header {
	__be16 flags_and_version;
	__be16 protocol;
};

/* What of the inner header goes into the outer one. */
struct inner {
	__u8 traffic_class;
	__be16 identification;
	__be16 fragment;
};

/* Bytes between the outer IP header and the inner packet. */
static __always_inline __u32 shim_length(__u8 mode)
{
	if (mode == MODE_GUE)
		return sizeof(struct udphdr);
	return mode == MODE_GRE ? sizeof(struct gre_header) : 0;
}

/* Bytes that a mode adds in front of an IP packet. */
static __always_inline __u32 encapsulation_overhead(const struct choice *choice)
{
	__u8 mode = choice->backend->mode;

	if (mode != MODE_IPIP && mode != MODE_GRE && mode != MODE_GUE)
		return 0;
	return shim_length(mode) + (choice->flags & BACKEND_IPV6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

static __always_inline __u8 outer_protocol(__u8 mode, __u8 inner_family)
{
	if (mode == MODE_GUE)
		return IPPROTO_UDP;
	if (mode == MODE_GRE)
		return IPPROTO_GRE;
	return inner_family == FAMILY_IPV4 ? IPPROTO_IPIP : IPPROTO_IPV6;
}

static __always_inline int inner_read(const void *l3, const void *data_end, const struct packet *packet,
				      struct inner *inner)
{
	if (packet->family == FAMILY_IPV4) {
		const struct iphdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return -1;
		inner->traffic_class = ip->tos;
		/* Pieces have one identification: kept, pieces of their outer packets would be taken for each other's. */
		inner->identification =
			ip->id + (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK)) * FRAGMENT_SPREAD;
		inner->fragment = ip->frag_off & bpf_htons(IP_DONT_FRAGMENT);
	} else {
		const struct ipv6hdr *ip = l3;

		if ((const void *)(ip + 1) > data_end)
			return -1;
		inner->traffic_class = ip->priority << 4 | ip->flow_lbl[0] >> 4;
		inner->identification = 0;
		inner->fragment = bpf_htons(IP_DONT_FRAGMENT);
	}
	return 0;
}

static __always_inline void outer_ipv4(struct iphdr *ip, const struct packet *packet, const struct inner *inner,
				       const struct backend *backend, __u32 shim, __be32 spread)
{
	__be16 length = bpf_htons(packet->ip_length + shim + sizeof(*ip));

	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->tos = inner->traffic_class;
	ip->tot_len = length;
	ip->id = inner->identification;
	ip->frag_off = inner->fragment;
	ip->ttl = OUTER_TTL;
	ip->protocol = outer_protocol(backend->mode, packet->family);
	/* The record's source has zeros where the spread may have ones, so that adding is joining. */
	ip->saddr = backend->source[0] | spread;
	ip->daddr = backend->address[0];
	ip->check = ~checksum_fold(backend->outer_sum + bpf_htons(inner->traffic_class) + length +
				   inner->identification + inner->fragment + (spread & 0xffff) + (spread >> 16));
}

static __always_inline void outer_ipv6(struct ipv6hdr *ip, const struct packet *packet, const struct inner *inner,
				       const struct backend *backend, __u32 shim, const struct node_settings *settings,
				       __u64 hash)
{
	__be32 *source = ip->saddr.in6_u.u6_addr32;

	*(__be32 *)ip =
		bpf_htonl(6U << 28 | (__u32)inner->traffic_class << 20 | ((__u32)(hash >> ENTROPY_SHIFT) & 0xfffff));
	ip->payload_len = bpf_htons(packet->ip_length + shim);
	ip->nexthdr = outer_protocol(backend->mode, packet->family);
	ip->hop_limit = OUTER_TTL;
	source[0] = backend->source[0] | (settings->outer_spread_v6[0] & (__u32)hash);
	source[1] = backend->source[1] | (settings->outer_spread_v6[1] & (__u32)hash);
	source[2] = backend->source[2] | (settings->outer_spread_v6[2] & (__u32)hash);
	source[3] = backend->source[3] | (settings->outer_spread_v6[3] & (__u32)(hash >> 32));
	__builtin_memcpy(&ip->daddr, backend->address, sizeof(ip->daddr));
}

/* Writes what stands between the outer IP header and the inner packet. Returns 0, or -1 where it is not in the frame. */
static __always_inline int write_shim(void *at, void *data_end, const struct packet *packet, __u8 mode,
				      const struct node_settings *settings, __u64 hash)
{
	if (mode == MODE_GRE) {
		struct gre_header *gre = at;

		if ((void *)(gre + 1) > data_end)
			return -1;
		gre->flags_and_version = 0;
		gre->protocol = ethertype_of(packet->family);
	} else if (mode == MODE_GUE) {
		struct udphdr *udp = at;

		if ((void *)(udp + 1) > data_end)
			return -1;
		udp->source = bpf_htons(GUE_SOURCE_PORT_BASE | (hash >> ENTROPY_SHIFT & GUE_SOURCE_PORT_MASK));
		udp->dest = settings->gue_port;
		udp->len = bpf_htons(packet->ip_length + sizeof(*udp));
		udp->check = 0;
	}
	return 0;
}

/* Puts the packet into outer headers to the backend, behind the layer-2 header `header`. */
static __always_inline __u32 encapsulate(struct xdp_md *ctx, const struct packet *packet, const struct choice *choice,
					 const struct l2_header *header, __u64 hash)
{
	int outer_is_ipv6 = choice->flags & BACKEND_IPV6;
	__u32 overhead = encapsulation_overhead(choice);
	__u8 mode = choice->backend->mode;
	struct node_settings *settings;
	struct inner inner = {};
	void *outer, *data_end;
	__u32 only = 0;
	int offset;

	settings = bpf_map_lookup_elem(&node, &only);
	if (!settings)
		return DROP_INTERNAL;
	offset = reframe(ctx, packet->l3_offset, header, overhead,
			 ethertype_of(outer_is_ipv6 ? FAMILY_IPV6 : FAMILY_IPV4));
	if (offset < 0)
		return DROP_INTERNAL;
	outer = (void *)(long)ctx->data + (offset & OFFSET_MASK);
	data_end = (void *)(long)ctx->data_end;
	if (outer_is_ipv6) {
		struct ipv6hdr *ip = outer;

		if ((void *)(ip + 1) > data_end || write_shim(ip + 1, data_end, packet, mode, settings, hash) ||
		    inner_read((void *)(ip + 1) + shim_length(mode), data_end, packet, &inner))
			return DROP_INTERNAL;
		outer_ipv6(ip, packet, &inner, choice->backend, shim_length(mode), settings, hash);
	} else {
		struct iphdr *ip = outer;

		if ((void *)(ip + 1) > data_end || write_shim(ip + 1, data_end, packet, mode, settings, hash) ||
		    inner_read((void *)(ip + 1) + shim_length(mode), data_end, packet, &inner))
			return DROP_INTERNAL;
		outer_ipv4(ip, packet, &inner, choice->backend, shim_length(mode),
			   settings->outer_spread_v4 & (__u32)(hash >> 20));
	}
	return LEDGER_NONE;
}

#endif /* TIDEGATE_ENCAPSULATE_H */
