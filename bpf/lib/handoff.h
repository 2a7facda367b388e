/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Handing a packet to the kernel's neighbour table where the next hop's MAC address is not known (yet).
 *
 * XDP cannot ask the kernel to resolve a neighbour and wait for it; TC can, by bpf_redirect_neigh. So xdp_lb puts a note in
 * front of the packet, in the metadata that XDP and TC share, and tc_handoff on ingress carries it out. Plain XDP_PASS would
 * not do: the kernel drops encapsulated packets, whose source is its own address, and keeps DSR packets to itself.
 */
#ifndef TIDEGATE_HANDOFF_H
#define TIDEGATE_HANDOFF_H

#include "choose.h"

#define HANDOFF_MAGIC 0x74696465

/* At most 32 bytes, which older kernels allow, in a multiple of 4. */
struct handoff {
	__u32 magic;
	__u32 ingress;	       /* interface that the packet came in by */
	__u32 interface;       /* interface to send it out of */
	__u32 next_hop_family; /* AF_INET or AF_INET6; 0: by the destination of the packet */
	__be32 next_hop[4];
};

/* Puts the note in front of the packet. Returns 0, or -1 where the driver has no metadata. */
static __always_inline int handoff_note(struct xdp_md *ctx, __u32 interface, const struct choice *next_hop)
{
	struct handoff *note;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*note)))
		return -1;
	note = (void *)(long)ctx->data_meta;
	if ((void *)(note + 1) > (void *)(long)ctx->data)
		return -1;
	note->magic = HANDOFF_MAGIC;
	note->ingress = ctx->ingress_ifindex;
	note->interface = interface;
	note->next_hop_family = 0;
	if (next_hop) {
		note->next_hop_family = next_hop->flags & BACKEND_IPV6 ? AF_INET6 : AF_INET;
		__builtin_memcpy(note->next_hop, next_hop->backend->address, sizeof(note->next_hop));
	}
	return 0;
}

/*
 * Carries out the note that xdp_lb put in front of a packet. Nothing is written: of a packet that somebody else holds as well
 * (a capture is enough), the kernel would make a copy first, which has no metadata. A note stays with its packet, so it is
 * obeyed only where the packet came in, and not again on another interface of this node.
 */
static __always_inline int handoff_carry_out(struct __sk_buff *skb)
{
	struct handoff *note = (void *)(long)skb->data_meta;
	struct bpf_redir_neigh next_hop = {};
	__u32 interface;

	if ((void *)(note + 1) > (void *)(long)skb->data || note->magic != HANDOFF_MAGIC ||
	    note->ingress != skb->ifindex)
		return TC_ACT_UNSPEC;
	interface = note->interface;
	if (!note->next_hop_family)
		return bpf_redirect_neigh(interface, 0, 0, 0);
	next_hop.nh_family = note->next_hop_family;
	__builtin_memcpy(next_hop.ipv6_nh, note->next_hop, sizeof(next_hop.ipv6_nh));
	return bpf_redirect_neigh(interface, &next_hop, sizeof(next_hop), 0);
}

#endif /* TIDEGATE_HANDOFF_H */
