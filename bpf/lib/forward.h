/* SPDX-License-Identifier: GPL-2.0-only */
/* Sending a packet on: towards a backend by its mode, and a translated reply towards its client. */
#ifndef TIDEGATE_FORWARD_H
#define TIDEGATE_FORWARD_H

#include "egress.h"
#include "encapsulate.h"
#include "handoff.h"
#include "nat.h"

/* Gives the frame the headers with which it leaves. Returns LEDGER_NONE or the reason to drop it. */
static __always_inline __u32 wrap(struct xdp_md *ctx, const struct packet *packet, const struct choice *choice,
				  __u64 hash)
{
	struct l2_header header = {};

	if (choice->flags & BACKEND_RESOLVED)
		l2_towards(choice, &header);
	else if (l2_read_untagged((void *)(long)ctx->data, (void *)(long)ctx->data_end, &header))
		return DROP_INTERNAL;
	if (encapsulation_overhead(choice))
		return encapsulate(ctx, packet, choice, &header, hash);
	return reframe(ctx, packet->l3_offset, &header, 0, ethertype_of(packet->family)) < 0 ? DROP_INTERNAL
											     : LEDGER_NONE;
}

/*
 * Leaves the next hop to the kernel. The tags that the frame came with are taken off: the kernel would send them on, by
 * whatever interface it takes. A NAT packet is an ordinary packet to route, so it can do without a note, and keeps its tags then.
 */
static __always_inline __u32 hand_off(struct xdp_md *ctx, const struct packet *packet, const struct choice *choice,
				      __u64 hash)
{
	__u8 mode = choice->backend->mode;
	__u32 reason;

	if (!choice->interface || handoff_note(ctx, choice->interface, mode == MODE_DSR ? choice : 0))
		return mode == MODE_NAT ? FORWARD_HANDOFF : DROP_UNRESOLVED;
	reason = wrap(ctx, packet, choice, hash);
	return reason ? reason : FORWARD_HANDOFF;
}

/* True where the packet fits the way to the backend, outer headers included. */
static __always_inline int fits_path(const struct packet *packet, const struct choice *choice)
{
	return choice->flags & BACKEND_LOCAL || packet->ip_length + encapsulation_overhead(choice) <= choice->mtu;
}

/* Sends a packet that fits, and is translated where it must be, to a backend. */
static __always_inline __u32 send_to_backend(struct xdp_md *ctx, const struct packet *packet,
					     const struct choice *choice, __u64 hash)
{
	__u32 reason;

	if (choice->flags & BACKEND_LOCAL)
		return FORWARD_LOCAL;
	if (!(choice->flags & BACKEND_RESOLVED))
		return hand_off(ctx, packet, choice, hash);
	reason = wrap(ctx, packet, choice, hash);
	if (reason)
		return reason;
	if (choice->interface == ctx->ingress_ifindex)
		return FORWARD_TX;
	bpf_redirect(choice->interface, 0);
	return FORWARD_REDIRECT;
}

/* Sends a packet of a service to the backend chosen for it. */
static __always_inline __u32 forward_to_backend(struct xdp_md *ctx, const struct packet *packet,
						const struct service *service, const struct choice *choice, __u64 hash)
{
	__u32 reason;

	if (!fits_path(packet, choice))
		return DROP_TOO_BIG;
	if (choice->backend->mode == MODE_NAT) {
		reason = nat_request(ctx, packet, service, choice->backend);
		if (reason)
			return reason;
	}
	return send_to_backend(ctx, packet, choice, hash);
}

/* Fills the question after the route of a translated reply. */
static __always_inline void fib_towards_client(struct xdp_md *ctx, const struct packet *packet,
					       const struct service *service, struct bpf_fib_lookup *fib)
{
	fib->l4_protocol = packet->protocol;
	fib->sport = reply_port(packet, service);
	fib->dport = packet->destination_port;
	fib->tot_len = packet->ip_length;
	fib->ifindex = ctx->ingress_ifindex;
	if (packet->family == FAMILY_IPV4) {
		fib->family = AF_INET;
		fib->ipv4_src = service->address[0];
		fib->ipv4_dst = packet->destination[0];
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, service->address, sizeof(fib->ipv6_src));
		__builtin_memcpy(fib->ipv6_dst, packet->destination, sizeof(fib->ipv6_dst));
	}
}

/* Sends a translated reply to its client, by the kernel's routing table: there is no record of clients' next hops. */
static __always_inline __u32 forward_to_client(struct xdp_md *ctx, const struct packet *packet,
					       const struct service *service)
{
	struct bpf_fib_lookup fib = {};

	fib_towards_client(ctx, packet, service, &fib);
	switch (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return send_reply(ctx, packet, fib.ifindex, fib.dmac, fib.smac);
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return leave_reply(ctx, packet, fib.ifindex);
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return DROP_TOO_BIG;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return DROP_FORWARDING_DISABLED;
	default:
		/* There is a route, and it says that there is no way: blackhole, unreachable or prohibit. */
		return DROP_REPLY_NO_ROUTE;
	}
}

#endif /* TIDEGATE_FORWARD_H */
