/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The backend's side of a tunnel: takes the outer header off IP-in-IP packets that are addressed to this host, both outside
 * and inside, and passes them up. What is not tunnelled is passed untouched.
 */
#ifndef TIDEGATE_DECAPSULATE_H
#define TIDEGATE_DECAPSULATE_H

#include "packet.h"

/* Does this host own the address? The port of the key is zero, its protocol is enum address_family. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint_v6);
	__type(value, __u32);
} decap_addresses SEC(".maps");

/* What became of the packets that xdp_decap saw? One element. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ledger);
} decap_ledger SEC(".maps");

/* An IP header as far as decapsulation needs it. */
struct tunnel_header {
	struct endpoint_v6 destination;
	__u32 header_length;
	__u32 length; /* of the whole packet */
	__u8 family;
	__u8 protocol;
	__u8 fragment;
};

/* Reads the IP header at `l3`, whose family the version nibble must confirm. Returns 0, or -1 where it is malformed. */
static __always_inline int tunnel_read(void *l3, void *data_end, __u8 family, struct tunnel_header *header)
{
	__builtin_memset(header, 0, sizeof(*header));
	header->family = family;
	header->destination.protocol = family; /* an IPv4 address is not the IPv6 address with the same first word */
	if (family == FAMILY_IPV4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > data_end || ip->version != 4 || ip->ihl < 5)
			return -1;
		header->destination.address[0] = ip->daddr;
		header->header_length = ip->ihl * 4;
		header->length = bpf_ntohs(ip->tot_len);
		header->protocol = ip->protocol;
		header->fragment = !!(ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK));
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end || ip->version != 6)
			return -1;
		__builtin_memcpy(header->destination.address, &ip->daddr, sizeof(ip->daddr));
		header->header_length = sizeof(*ip);
		header->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		header->protocol = ip->nexthdr;
	}
	return header->length >= header->header_length ? 0 : -1;
}

static __always_inline int is_local(const struct tunnel_header *header)
{
	return bpf_map_lookup_elem(&decap_addresses, &header->destination) != 0;
}

/* Takes `overhead` bytes between the Ethernet header and the inner packet away. */
static __always_inline int strip_outer(struct xdp_md *ctx, __u32 overhead, __be16 inner_ethertype)
{
	struct ethhdr ethernet, *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	ethernet = *eth;
	ethernet.h_proto = inner_ethertype;
	if (bpf_xdp_adjust_head(ctx, overhead))
		return -1;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	*eth = ethernet;
	return 0;
}

/* Judges a frame and takes its outer header off where it is for this host. `bytes` is set to its IP length. */
static __always_inline __u32 decapsulate(struct xdp_md *ctx, __u32 *bytes)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct tunnel_header outer, inner;
	__u8 inner_family;

	if ((void *)(eth + 1) > data_end)
		return PASS_MALFORMED;
	if (eth->h_proto != bpf_htons(ETH_P_IP) && eth->h_proto != bpf_htons(ETH_P_IPV6))
		return PASS_NOT_IP;
	if (tunnel_read(eth + 1, data_end, eth->h_proto == bpf_htons(ETH_P_IP) ? FAMILY_IPV4 : FAMILY_IPV6, &outer))
		return PASS_MALFORMED;
	*bytes = outer.length;
	if (outer.protocol != IPPROTO_IPIP && outer.protocol != IPPROTO_IPV6)
		return PASS_NOT_TUNNELLED;
	if (!is_local(&outer))
		return PASS_OUTER_NOT_LOCAL;
	if (outer.fragment)
		return PASS_FRAGMENT;
	inner_family = outer.protocol == IPPROTO_IPIP ? FAMILY_IPV4 : FAMILY_IPV6;
	if (tunnel_read((void *)(eth + 1) + (outer.header_length & 0x3f), data_end, inner_family, &inner))
		return DROP_INNER_MALFORMED;
	if (outer.header_length + inner.length > outer.length || outer.length > (__u32)(data_end - data) - ETH_HLEN)
		return DROP_INNER_MALFORMED;
	if (!is_local(&inner))
		return DROP_INNER_NOT_LOCAL;
	if (strip_outer(ctx, outer.header_length & 0x3f,
			inner_family == FAMILY_IPV4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6)))
		return DROP_INTERNAL;
	return FORWARD_DECAPSULATED;
}

#endif /* TIDEGATE_DECAPSULATE_H */
