/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The layer-2 header of frames: made anew for the way to a backend, with the VLAN tags of that way, or kept while what follows
 * it grows. The head of the packet is moved at most once, for tags and encapsulation together.
 */
#ifndef TIDEGATE_FRAME_H
#define TIDEGATE_FRAME_H

#include "choose.h"

/* An Ethernet header with up to two tags. */
struct l2_header {
	struct ethhdr ethernet;
	struct vlan_tag tags[MAX_TAGS];
	__u32 tag_count;
};

static __always_inline __u32 l2_length(__u32 tag_count)
{
	return ETH_HLEN + tag_count * sizeof(struct vlan_tag);
}

/* The header that the frame came with. Returns 0, or -1 where it is not there. */
static __always_inline int l2_read(void *data, void *data_end, __u32 l3_offset, struct l2_header *header)
{
	struct ethhdr *eth = data;
	struct vlan_tag *tags = data + ETH_HLEN;

	header->tag_count = (l3_offset - ETH_HLEN) / sizeof(struct vlan_tag);
	if ((void *)(eth + 1) > data_end)
		return -1;
	header->ethernet = *eth;
	if (header->tag_count > 0) {
		if ((void *)(tags + 1) > data_end)
			return -1;
		header->tags[0] = tags[0];
	}
	if (header->tag_count > 1) {
		if ((void *)(tags + 2) > data_end)
			return -1;
		header->tags[1] = tags[1];
	}
	return 0;
}

/* The header that the frame came with, without its tags. Returns 0, or -1 where it is not there. */
static __always_inline int l2_read_untagged(void *data, void *data_end, struct l2_header *header)
{
	struct ethhdr *eth = data;

	header->tag_count = 0;
	if ((void *)(eth + 1) > data_end)
		return -1;
	header->ethernet = *eth;
	return 0;
}

/* The header for the way to a backend whose next hop is known. */
static __always_inline void l2_towards(const struct choice *choice, struct l2_header *header)
{
	const struct backend *backend = choice->backend;
	__be16 outer = bpf_htons(choice->flags & BACKEND_SERVICE_TAG ? ETH_P_8021AD : ETH_P_8021Q);

	__builtin_memcpy(header->ethernet.h_dest, backend->destination_mac, ETH_ALEN);
	__builtin_memcpy(header->ethernet.h_source, backend->source_mac, ETH_ALEN);
	header->tag_count = !!backend->tags[0] + !!backend->tags[1];
	header->ethernet.h_proto = outer;
	header->tags[0].tci = backend->tags[0];
	header->tags[0].ethertype = bpf_htons(ETH_P_8021Q);
	header->tags[1].tci = backend->tags[1];
}

/* Writes the header at the front of the frame; `ethertype` is that of what follows it. */
static __always_inline int l2_write(void *data, void *data_end, const struct l2_header *header, __be16 ethertype)
{
	struct ethhdr *eth = data;
	struct vlan_tag *tags = data + ETH_HLEN;

	if ((void *)(eth + 1) > data_end)
		return -1;
	*eth = header->ethernet;
	if (!header->tag_count) {
		eth->h_proto = ethertype;
		return 0;
	}
	if ((void *)(tags + 1) > data_end)
		return -1;
	tags[0] = header->tags[0];
	if (header->tag_count == 1) {
		tags[0].ethertype = ethertype;
		return 0;
	}
	if ((void *)(tags + 2) > data_end)
		return -1;
	tags[1].tci = header->tags[1].tci;
	tags[1].ethertype = ethertype;
	return 0;
}

/*
 * Gives the packet that begins at `offset` the layer-2 header `header`, with `overhead` bytes of room between the two. Returns
 * the offset of that room, or -1.
 */
static __always_inline int reframe(struct xdp_md *ctx, __u32 offset, const struct l2_header *header, __u32 overhead,
				   __be16 ethertype)
{
	__u32 length = l2_length(header->tag_count);
	int shift = (int)offset - (int)(length + overhead);

	if (shift && bpf_xdp_adjust_head(ctx, shift))
		return -1;
	if (l2_write((void *)(long)ctx->data, (void *)(long)ctx->data_end, header, ethertype))
		return -1;
	return length;
}

static __always_inline __be16 ethertype_of(__u8 family)
{
	return family == FAMILY_IPV4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
}

#endif /* TIDEGATE_FRAME_H */
