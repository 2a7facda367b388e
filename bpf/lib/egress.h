/* SPDX-License-Identifier: GPL-2.0-only */
/* Sending a packet by an interface of the kernel's routing table, which may be a VLAN sub-interface, or no device at all. */
#ifndef TIDEGATE_EGRESS_H
#define TIDEGATE_EGRESS_H

#include "frame.h"
#include "handoff.h"

/* Leaves a packet for a client to the kernel, without the tags that it came with: the kernel would send them on. */
static __always_inline __u32 leave_reply(struct xdp_md *ctx, const struct packet *packet, __u32 interface)
{
	struct l2_header header = {};

	if (handoff_note(ctx, interface, 0))
		return DROP_UNRESOLVED;
	if (l2_read_untagged((void *)(long)ctx->data, (void *)(long)ctx->data_end, &header) ||
	    reframe(ctx, packet->l3_offset, &header, 0, ethertype_of(packet->family)) < 0)
		return DROP_INTERNAL;
	return FORWARD_REPLY_HANDOFF;
}

/* Sends a packet for a client by an interface, to a neighbour there. */
static __always_inline __u32 send_reply(struct xdp_md *ctx, const struct packet *packet, __u32 interface,
					const __u8 *destination_mac, const __u8 *source_mac)
{
	struct egress *way = bpf_map_lookup_elem(&egress, &interface);
	struct l2_header header = {};
	__u32 device = interface;

	if (way) {
		if (!way->device)
			return leave_reply(ctx, packet, interface);
		device = way->device;
		header.tag_count = 1 + !!way->tags[1];
		header.ethernet.h_proto = bpf_htons(way->service_tag ? ETH_P_8021AD : ETH_P_8021Q);
		header.tags[0].tci = way->tags[0];
		header.tags[0].ethertype = bpf_htons(ETH_P_8021Q);
		header.tags[1].tci = way->tags[1];
	}
	__builtin_memcpy(header.ethernet.h_dest, destination_mac, ETH_ALEN);
	__builtin_memcpy(header.ethernet.h_source, source_mac, ETH_ALEN);
	if (reframe(ctx, packet->l3_offset, &header, 0, ethertype_of(packet->family)) < 0)
		return DROP_INTERNAL;
	if (device == ctx->ingress_ifindex)
		return FORWARD_REPLY_TX;
	bpf_redirect(device, 0);
	return FORWARD_REPLY_REDIRECT;
}

#endif /* TIDEGATE_EGRESS_H */
