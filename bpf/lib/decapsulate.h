/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The backend's side of a tunnel: takes the outer headers off packets in IP-in-IP, GRE or GUE that are addressed to this host,
 * both outside and inside, and passes them up. What is not tunnelled is passed untouched.
 */
#ifndef TIDEGATE_DECAPSULATE_H
#define TIDEGATE_DECAPSULATE_H

#include "account.h"
#include "encapsulate.h"

/* The UDP port of GUE. */
const volatile __u16 decap_gue_port = 6080;

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

/* Steps over what stands between the outer IP header and the inner packet. `offset` is that of the former's end. */
static __always_inline __u32 step_shim(void *data, void *data_end, struct tunnel_header *outer, __u32 *offset,
				       __u8 *inner_family)
{
	void *shim = data + *offset;
	__u32 length;

	switch (outer->protocol) {
	case IPPROTO_IPIP:
		*inner_family = FAMILY_IPV4;
		return LEDGER_NONE;
	case IPPROTO_IPV6:
		*inner_family = FAMILY_IPV6;
		return LEDGER_NONE;
	case IPPROTO_GRE: {
		struct gre_header *gre = shim;

		if ((void *)(gre + 1) > data_end)
			return PASS_MALFORMED;
		/* With options, or with something else than IP inside, it is another's tunnel. */
		if (gre->flags_and_version ||
		    (gre->protocol != bpf_htons(ETH_P_IP) && gre->protocol != bpf_htons(ETH_P_IPV6)))
			return PASS_NOT_TUNNELLED;
		*inner_family = gre->protocol == bpf_htons(ETH_P_IP) ? FAMILY_IPV4 : FAMILY_IPV6;
		*offset += sizeof(*gre);
		return LEDGER_NONE;
	}
	case IPPROTO_UDP: {
		struct udphdr *udp = shim;
		__u8 *version = (void *)(udp + 1);

		if ((void *)(version + 1) > data_end)
			return PASS_NOT_TUNNELLED;
		if (udp->dest != bpf_htons(decap_gue_port) || (*version >> 4 != 4 && *version >> 4 != 6))
			return PASS_NOT_TUNNELLED;
		length = bpf_ntohs(udp->len);
		if (length < sizeof(*udp) || outer->header_length + length > outer->length)
			return PASS_MALFORMED;
		/* What follows the datagram is none of the tunnel's. */
		outer->length = outer->header_length + length;
		*inner_family = *version >> 4 == 4 ? FAMILY_IPV4 : FAMILY_IPV6;
		*offset += sizeof(*udp);
		return LEDGER_NONE;
	}
	default:
		return PASS_NOT_TUNNELLED;
	}
}

/* Where the IP header of a frame is, and of which family. Returns LEDGER_NONE or the reason to pass the frame on. */
static __always_inline __u32 find_outer(void *data, void *data_end, __u32 *offset, __u8 *family)
{
	struct ethhdr *eth = data;
	__be16 ethertype;
	__u32 i;

	if ((void *)(eth + 1) > data_end)
		return PASS_MALFORMED;
	*offset = ETH_HLEN;
	ethertype = eth->h_proto;
	for (i = 0; i < MAX_TAGS && is_tag(ethertype); i++) {
		struct vlan_tag *tag = data + ETH_HLEN + i * sizeof(*tag);

		if ((void *)(tag + 1) > data_end)
			return PASS_MALFORMED;
		ethertype = tag->ethertype;
		*offset += sizeof(*tag);
	}
	if (ethertype != bpf_htons(ETH_P_IP) && ethertype != bpf_htons(ETH_P_IPV6))
		return PASS_NOT_IP;
	*family = ethertype == bpf_htons(ETH_P_IP) ? FAMILY_IPV4 : FAMILY_IPV6;
	return LEDGER_NONE;
}

/* Judges a frame and takes its outer header off where it is for this host. `bytes` is set to its IP length. */
static __always_inline __u32 decapsulate(struct xdp_md *ctx, __u32 *bytes)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct tunnel_header outer, inner;
	struct l2_header header = {};
	__u32 l3_offset, offset, reason;
	__u8 family, inner_family = 0;
	int lies;

	reason = find_outer(data, data_end, &l3_offset, &family);
	if (reason)
		return reason;
	if (tunnel_read(data + l3_offset, data_end, family, &outer))
		return PASS_MALFORMED;
	*bytes = counted_bytes(outer.length, data_end - data - l3_offset);
	lies = outer.length > *bytes;
	/* A later fragment has no shim to look at. */
	if (outer.fragment)
		return PASS_FRAGMENT;
	offset = (l3_offset + outer.header_length) & OFFSET_MASK;
	reason = step_shim(data, data_end, &outer, &offset, &inner_family);
	if (reason)
		return reason;
	if (!is_local(&outer))
		return PASS_OUTER_NOT_LOCAL;
	if (tunnel_read(data + offset, data_end, inner_family, &inner))
		return DROP_INNER_MALFORMED;
	if (offset - l3_offset + inner.length > outer.length || lies)
		return DROP_INNER_MALFORMED;
	if (!is_local(&inner))
		return DROP_INNER_NOT_LOCAL;
	if (l2_read(data, data_end, l3_offset, &header) ||
	    reframe(ctx, offset, &header, 0, ethertype_of(inner_family)) < 0)
		return DROP_INTERNAL;
	return FORWARD_DECAPSULATED;
}

#endif /* TIDEGATE_DECAPSULATE_H */
