/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of tidegate: entry points only. What they do stands in lib/, one concern a file. */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

#include "lib/account.h"
#include "lib/admit.h"
#include "lib/contract.h"
#include "lib/decapsulate.h"
#include "lib/echo.h"
#include "lib/flow.h"
#include "lib/forward.h"
#include "lib/fragment.h"
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
	case FORWARD_ECHO_REPLY:
		return XDP_TX;
	case FORWARD_REDIRECT:
	case FORWARD_REPLY_REDIRECT:
		return XDP_REDIRECT;
	default:
		return reason >= LEDGER_FIRST_DROPPED ? XDP_DROP : XDP_PASS;
	}
}

/* The backend that was chosen for a piece without ports. */
static __always_inline __u32 choose_held(const struct service *service, __u32 number, struct choice *choice)
{
	if (load_backend(service, number, choice))
		return DROP_INTERNAL;
	return backend_serves(choice) ? LEDGER_NONE : DROP_BACKEND_DOWN;
}

/* Lets the first piece of a datagram, that would go to `choice`, go where others went before it. */
static __always_inline __u32 choose_with_others(const struct packet *packet, __u32 service_id,
						const struct service *service, struct choice *choice)
{
	__u32 own = service_id << 16 | choice->number;
	__u32 owner = follow_datagram(packet, own);

	if (owner == own)
		return LEDGER_NONE;
	if (load_backend(service, owner & 0xffff, choice))
		return DROP_INTERNAL;
	return service->mode == MODE_NAT ? track_aside(packet, owner) : LEDGER_NONE;
}

/*
 * A packet for a service: choose its backend and send it there. For a piece without ports, `held` is the number of the
 * backend.
 */
static __always_inline __u32 handle_request(struct xdp_md *ctx, struct packet *packet, __u32 service_id, __u32 held)
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
	if (held) {
		reason = choose_held(service, held, &choice);
	} else {
		table_hash = hash_for_table(packet, service, hash);
		reason = service->mode == MODE_NAT ? choose_tracked(service_id, service, table_hash, packet, &choice)
						   : choose_by_table(service_id, service, table_hash, &choice);
	}
	if (packet->fragment) {
		if (!reason && !held)
			reason = choose_with_others(packet, service_id, service, &choice);
		/* All pieces look alike from outside, so that none overtakes another. */
		hash = hash_hosts(packet);
	}
	if (!reason)
		reason = forward_to_backend(ctx, packet, service, &choice, hash);
	if (reason >= LEDGER_FIRST_PASSED)
		return answer_request(ctx, packet, service, &choice, reason);
	account_backend(choice.record, packet->ip_length);
	return reason;
}

/*
 * A packet from a NAT backend: translate it where it is a reply. `service_id` is set to the service of its flow; for a piece
 * without ports it comes with it.
 */
static __always_inline __u32 handle_reply(struct xdp_md *ctx, struct packet *packet, __u32 *service_id)
{
	struct service *service;
	__u32 reason;

	if (!packet_lengths_agree(packet)) {
		*service_id = 0;
		return PASS_MALFORMED;
	}
	if (packet->fragment == FRAGMENT_LATER)
		service = bpf_map_lookup_elem(&services, service_id);
	else
		service = find_reply_service(packet, service_id);
	if (!service) {
		*service_id = 0;
		return PASS_NOT_A_REPLY;
	}
	if (packet->fragment == FRAGMENT_FIRST)
		remember_reply(packet, *service_id);
	reason = nat_reply(ctx, packet, service);
	if (!reason)
		reason = forward_to_client(ctx, packet, service);
	return reason >= LEDGER_FIRST_DROPPED ? answer_reply(ctx, packet, *service_id, reason) : reason;
}

/*
 * Finds the service of a piece without ports, and in `held` the number of its backend: 0 for a reply. Returns LEDGER_NONE, or
 * the reason why there is none.
 */
static __always_inline __u32 find_owner(const struct packet *packet, __u32 *service_id, __u32 *held)
{
	union datagram_verdict found = {.word = find_datagram(packet)};

	*service_id = found.verdict.owner >> 16;
	*held = found.verdict.owner & 0xffff;
	if (!found.verdict.reason && *held && overlaps_header(packet))
		return DROP_FRAGMENT_SHORT;
	return found.verdict.reason;
}

/* A packet that is about to be passed: what it is to a service address may be decided by configuration. */
static __always_inline __u32 judge_passed(struct xdp_md *ctx, struct packet *packet, __u32 reason)
{
	struct node_settings *settings;
	__u32 only = 0;

	if (packet->fragment == FRAGMENT_FIRST)
		reason = pass_datagram(packet, reason);
	settings = bpf_map_lookup_elem(&node, &only);
	if (!settings)
		return reason;
	if (reason == PASS_NOT_TCP_UDP)
		return settings->policies & (ADDRESS_ECHO_ANSWER | ADDRESS_ECHO_DROP)
			       ? judge_echo(ctx, packet, settings->policies)
			       : reason;
	if (settings->policies & ADDRESS_UNSERVED_DROP)
		return judge_unserved(packet, reason);
	return reason;
}

/* An ICMP packet: an echo request to a service address, or an error about a packet of a flow. */
static __always_inline __u32 handle_control(struct xdp_md *ctx, struct packet *packet, __u32 *service_id)
{
	__u32 reason = judge_passed(ctx, packet, PASS_NOT_TCP_UDP);

	return reason == PASS_NOT_TCP_UDP ? handle_icmp(ctx, packet, service_id) : reason;
}

/* Any other packet, for which the parser gave `reason`. */
static __always_inline __u32 handle_transport(struct xdp_md *ctx, struct packet *packet, __u32 *service_id,
					      __u32 reason)
{
	__u32 held = 0;

	if (packet->fragment == FRAGMENT_LATER && reason == PASS_FRAGMENT)
		reason = find_owner(packet, service_id, &held);
	else if (!reason)
		*service_id = find_service(packet);
	if (!reason) {
		if (*service_id && (held || packet->fragment != FRAGMENT_LATER))
			reason = handle_request(ctx, packet, *service_id, held);
		else if (*service_id || is_from_nat_backend(packet))
			reason = handle_reply(ctx, packet, service_id);
		else
			reason = PASS_NO_SERVICE;
	}
	if (reason >= LEDGER_FIRST_PASSED && reason < LEDGER_FIRST_DROPPED)
		reason = judge_passed(ctx, packet, reason);
	return reason;
}

/* The load balancer: every packet that arrives on an interface. */
SEC("xdp")
int xdp_lb(struct xdp_md *ctx)
{
	struct packet packet = {};
	__u32 service_id = 0;
	__u32 reason;

	reason = parse_xdp(ctx, &packet);
	if (reason == PASS_NOT_TCP_UDP && is_icmp(&packet))
		reason = handle_control(ctx, &packet, &service_id);
	else
		reason = handle_transport(ctx, &packet, &service_id, reason);
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
