/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of tidegate: entry points only. What they do stands in lib/, one concern a file. */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

#include "lib/account.h"
#include "lib/admit.h"
#include "lib/contract.h"
#include "lib/decapsulate.h"
#include "lib/flow.h"
#include "lib/forward.h"
#include "lib/icmp.h"
#include "lib/reply.h"
#include "lib/respond.h"

/* What the driver is to do with a packet for which this is the reason. */
static __always_inline int xdp_action_of(__u32 reason)
{
	switch (reason) {
	case FORWARD_TX:
	case FORWARD_REPLY_TX:
	case DROP_NO_BACKEND_ANSWERED:
	case DROP_TOO_BIG_ANSWERED:
	case DROP_TTL_EXPIRED_ANSWERED:
		return XDP_TX;
	case FORWARD_REDIRECT:
	case FORWARD_REPLY_REDIRECT:
		return XDP_REDIRECT;
	default:
		return reason >= LEDGER_FIRST_DROPPED ? XDP_DROP : XDP_PASS;
	}
}

/* A packet for a service: choose its backend and send it there. */
static __always_inline __u32 handle_request(struct xdp_md *ctx, struct packet *packet, __u32 service_id)
{
	struct service *service = bpf_map_lookup_elem(&services, &service_id);
	struct choice choice = {};
	__u64 hash, table_hash;
	__u32 reason;

	if (!service)
		return DROP_INTERNAL;
	if (!packet_lengths_agree(packet))
		return DROP_BAD_LENGTH;
	reason = admit(packet, service_id);
	if (reason)
		return reason;
	hash = hash_five_tuple(packet);
	table_hash = hash_for_table(packet, service, hash);
	reason = service->mode == MODE_NAT ? choose_tracked(service_id, service, table_hash, packet, &choice)
					   : choose_by_table(service_id, service, table_hash, &choice);
	if (!reason)
		reason = forward_to_backend(ctx, packet, service, &choice, hash);
	if (reason >= LEDGER_FIRST_PASSED)
		return answer_request(ctx, packet, service, &choice, reason);
	account_backend(choice.record, packet->ip_length);
	return reason;
}

/* A packet from a NAT backend: translate it where it is a reply. `service_id` is set to the service of its flow. */
static __always_inline __u32 handle_reply(struct xdp_md *ctx, struct packet *packet, __u32 *service_id)
{
	struct service *service;
	__u32 reason;

	if (!packet_lengths_agree(packet))
		return PASS_MALFORMED;
	service = find_reply_service(packet, service_id);
	if (!service) {
		*service_id = 0;
		return PASS_NOT_A_REPLY;
	}
	reason = nat_reply(ctx, packet, service);
	if (!reason)
		reason = forward_to_client(ctx, packet, service);
	return reason >= LEDGER_FIRST_DROPPED ? answer_reply(ctx, packet, *service_id, reason) : reason;
}

/* The load balancer: every packet that arrives on an interface. */
SEC("xdp")
int xdp_lb(struct xdp_md *ctx)
{
	struct packet packet = {};
	__u32 service_id = 0;
	__u32 reason;

	reason = parse_xdp(ctx, &packet);
	if (packet.fragment && !reason)
		reason = PASS_FRAGMENT;
	if (reason == PASS_NOT_TCP_UDP && is_icmp(&packet)) {
		reason = handle_icmp(ctx, &packet, &service_id);
	} else if (!reason) {
		service_id = find_service(&packet);
		if (service_id)
			reason = handle_request(ctx, &packet, service_id);
		else if (is_from_nat_backend(&packet))
			reason = handle_reply(ctx, &packet, &service_id);
		else
			reason = PASS_NO_SERVICE;
	}
	account(service_id, counted_bytes(packet.ip_length, packet.frame_length), reason);
	return xdp_action_of(reason);
}

/* Replies of NAT backends that this node's own stack sends or routes. */
SEC("tcx/egress")
int tc_nat(struct __sk_buff *skb)
{
	struct packet packet = {};
	__u32 reason = reply_from_stack(skb, &packet);

	account_hook(LEDGER_HOOK_TC_NAT, counted_bytes(packet.ip_length, skb->len - packet.l3_offset), reason);
	return reason >= LEDGER_FIRST_DROPPED ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Packets that xdp_lb passed up only because it did not know the next hop's MAC address. */
SEC("tcx/ingress")
int tc_handoff(struct __sk_buff *skb)
{
	int action = handoff_carry_out(skb);

	if (action != TC_ACT_UNSPEC)
		account_hook(LEDGER_HOOK_TC_HANDOFF, skb->len - ETH_HLEN,
			     action == TC_ACT_REDIRECT ? FORWARD_HANDOFF : DROP_UNRESOLVED);
	return action;
}

/* The backend's side of a tunnel. */
SEC("xdp")
int xdp_decap(struct xdp_md *ctx)
{
	__u32 only = 0, bytes = 0;
	__u32 reason = decapsulate(ctx, &bytes);

	account_block(bpf_map_lookup_elem(&decap_ledger, &only), bytes, reason);
	return xdp_action_of(reason);
}

char LICENSE[] SEC("license") = "GPL";
