/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The backend's side of a tunnel: takes the outer headers off packets in IP-in-IP, GRE or GUE that are addressed to this host,
 * both outside and inside, and passes them up. What is not tunnelled is passed untouched, and so is what the kernel will refuse
 * for its outer headers: their lengths, or their checksums. VLAN tags stay.
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

/* Bytes that are added to a checksum at once. */
#define SUM_CHUNK 128

/* An IP header as far as decapsulation needs it. */
struct tunnel_header {
	struct endpoint_v6 destination;
	__u32 header_length;
	__u32 length; /* of the whole packet */
	__u8 family;
	__u8 protocol;
	__u8 fragment;
	__u8 ecn;
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
		header->ecn = ip->tos & ECN_MASK;
		header->fragment = !!(ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK));
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end || ip->version != 6)
			return -1;
		__builtin_memcpy(header->destination.address, &ip->daddr, sizeof(ip->daddr));
		header->header_length = sizeof(*ip);
		header->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		header->protocol = ip->nexthdr;
		header->ecn = ip->flow_lbl[0] >> 4 & ECN_MASK;
	}
	return header->length >= header->header_length ? 0 : -1;
}

/* A sum of bytes of the frame that is being made. */
struct frame_sum {
	struct xdp_md *ctx;
	__u32 offset; /* of the bytes that are still to be added */
	__u32 length; /* how many those are */
	__u32 sum;
	__u32 failed;
};

/* Adds the next bytes, up to SUM_CHUNK of them. Returns 1 where none are left, or they are not in the frame. */
static int add_chunk(__u32 index, void *context)
{
	struct frame_sum *state = context;
	__be32 chunk[SUM_CHUNK / 4] = {};
	__u32 size = state->length < SUM_CHUNK ? state->length : SUM_CHUNK;
	__s64 sum;

	(void)index;
	if (!size)
		return 1;
	if (size > SUM_CHUNK || bpf_xdp_load_bytes(state->ctx, state->offset, chunk, size))
		goto failed;
	sum = bpf_csum_diff(0, 0, chunk, sizeof(chunk), state->sum);
	if (sum < 0)
		goto failed;
	state->sum = sum;
	state->offset += size;
	state->length -= size;
	return 0;
failed:
	state->failed = 1;
	return 1;
}

/* True where `length` bytes from `offset` on, and `seed`, do not add up to all ones, or are not in the frame. */
static __always_inline int sum_wrong(struct xdp_md *ctx, __u32 offset, __u32 length, __u32 seed)
{
	struct frame_sum state = {.ctx = ctx, .offset = offset, .length = length, .sum = seed};

	bpf_loop(0x10000 / SUM_CHUNK, add_chunk, &state, 0);
	return state.failed || checksum_fold(state.sum) != 0xffff;
}

/*
 * True where the header checksum of the outer IPv4 packet is wrong, or the checksum of the UDP datagram in it (or in an IPv6
 * packet) that begins at `udp_offset`, unless that is 0. Once the outer headers are off, nobody else looks at these.
 */
__noinline int outer_sums_wrong(struct xdp_md *ctx, __u32 l3_offset, __u32 udp_offset, __u32 is_ipv6)
{
	__be32 addresses[8] = {};
	struct udphdr udp;
	struct iphdr ip;
	__s64 sum;

	if (!is_ipv6) {
		if (bpf_xdp_load_bytes(ctx, l3_offset, &ip, sizeof(ip)) || sum_wrong(ctx, l3_offset, ip.ihl * 4, 0))
			return 1;
		addresses[0] = ip.saddr;
		addresses[1] = ip.daddr;
	} else if (bpf_xdp_load_bytes(ctx, l3_offset + 8, addresses, sizeof(addresses))) {
		return 1;
	}
	if (!udp_offset)
		return 0;
	if (bpf_xdp_load_bytes(ctx, udp_offset, &udp, sizeof(udp)))
		return 1;
	/* None: right over IPv4 (RFC 768), and allowed to tunnels over IPv6 (RFC 6935). */
	if (!udp.check)
		return 0;
	/* The pseudo-header first. */
	sum = bpf_csum_diff(0, 0, addresses, sizeof(addresses), (__u32)udp.len + bpf_htons(IPPROTO_UDP));
	return sum < 0 || sum_wrong(ctx, udp_offset, bpf_ntohs(udp.len), sum);
}

/*
 * The congestion marks of the inner header after decapsulation, by those of both (RFC 6040, section 4.2); -1 where the packet
 * must be dropped, as its transport would not understand that it met congestion.
 */
static __always_inline int decapsulated_ecn(__u8 outer, __u8 inner)
{
	if (inner == ECN_NOT_CAPABLE)
		return outer == ECN_CONGESTION ? -1 : inner;
	if (outer == ECN_CONGESTION || (outer == ECN_CAPABLE_1 && inner == ECN_CAPABLE_0))
		return outer;
	return inner;
}

/* Writes the marks into the IP header at `offset`. Returns 0, or -1 where it is not in the frame. */
static __always_inline int set_ecn(struct xdp_md *ctx, __u32 offset, __u8 family, __u8 ecn)
{
	void *l3 = (void *)(long)ctx->data + (offset & OFFSET_MASK);
	void *data_end = (void *)(long)ctx->data_end;

	if (family == FAMILY_IPV4) {
		struct iphdr *ip = l3;
		__u8 tos;

		if ((void *)(ip + 1) > data_end)
			return -1;
		tos = (ip->tos & ~ECN_MASK) | ecn;
		ip->check = checksum_replace(ip->check, bpf_htons(ip->tos), bpf_htons(tos));
		ip->tos = tos;
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return -1;
		ip->flow_lbl[0] = (ip->flow_lbl[0] & ~(ECN_MASK << 4)) | ecn << 4;
	}
	return 0;
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
	__be16 ethertype;
	__u16 l3_offset;
	__u32 reason;

	reason = step_link_layer(data, data_end, &l3_offset, &ethertype);
	if (reason)
		return reason;
	*offset = l3_offset;
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
	__u32 l3_offset, offset, reason, udp_offset;
	__u8 family, inner_family = 0;
	int ecn, lies;

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
	udp_offset = outer.protocol == IPPROTO_UDP ? offset : 0;
	reason = step_shim(data, data_end, &outer, &offset, &inner_family);
	if (reason)
		return reason;
	if (!is_local(&outer))
		return PASS_OUTER_NOT_LOCAL;
	if (lies)
		return DROP_INNER_MALFORMED;
	if (outer_sums_wrong(ctx, l3_offset, udp_offset, family == FAMILY_IPV6))
		return PASS_OUTER_CHECKSUM;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (tunnel_read(data + offset, data_end, inner_family, &inner))
		return DROP_INNER_MALFORMED;
	if (offset - l3_offset + inner.length > outer.length)
		return DROP_INNER_MALFORMED;
	if (!is_local(&inner))
		return DROP_INNER_NOT_LOCAL;
	ecn = decapsulated_ecn(outer.ecn, inner.ecn);
	if (ecn < 0)
		return DROP_ECN_CONFLICT;
	if (ecn != inner.ecn && set_ecn(ctx, offset, inner_family, ecn))
		return DROP_INTERNAL;
	if (l2_read(data, data_end, l3_offset, &header) ||
	    reframe(ctx, offset, &header, 0, ethertype_of(inner_family)) < 0)
		return DROP_INTERNAL;
	return FORWARD_DECAPSULATED;
}

#endif /* TIDEGATE_DECAPSULATE_H */
