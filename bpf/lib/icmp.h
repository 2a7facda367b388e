/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * ICMP and ICMPv6 errors that quote a packet of a service's flow: they go where the flow goes.
 *
 *   to the backend  The quoted packet is from the service to a client: a backend sent it, and somebody behind us could not
 *                   deliver it. Forwarded like the client's packets, in every mode.
 *   to the client   The quoted packet is from a client to a NAT backend: we translated it, and the backend or somebody before it
 *                   could not deliver it. Forwarded like the backend's replies.
 *
 * With NAT the quoted packet is translated too, so that its sender knows it again. Eight bytes of the quoted TCP or UDP header
 * are enough; its checksum is corrected where the quote reaches it.
 *
 * All of this is verified once and called seldom. Each step is a function of its own, called from the entry point, so that the
 * frames on the stack do not add up.
 */
#ifndef TIDEGATE_ICMP_H
#define TIDEGATE_ICMP_H

#include "account.h"
#include "forward.h"
#include "quote.h"

/* Translates one end of the ICMP packet itself, or only takes a hop from it. */
static __always_inline __u32 translate_error(void *data, void *data_end, const struct packet *packet,
					     const struct translation *translation, int translated)
{
	void *l3 = data + (packet->l3_offset & OFFSET_MASK);

	if (packet->family == FAMILY_IPV4) {
		if (translated)
			return translate_ipv4(l3, data_end, translation);
		return l3 + sizeof(struct iphdr) > data_end ? DROP_INTERNAL : take_hop_ipv4(l3);
	}
	if (translated)
		return translate_ipv6(l3, data_end, translation);
	return l3 + sizeof(struct ipv6hdr) > data_end ? DROP_INTERNAL : take_hop_ipv6(l3);
}

/* Where would the packet that answers the quoted one go? Nothing is recorded. Returns LEDGER_NONE or a reason. */
static __always_inline __u32 choose_for_error(__u32 service_id, const struct service *service, __u64 hash,
					      struct packet *packet, struct choice *choice)
{
	struct flow *flow, *vacant = 0;
	struct flow_query query;

	if (service->mode != MODE_NAT)
		return choose_by_table(service_id, service, hash_for_table(packet, service, hash), choice);
	if (flow_query_request(&query, service, packet))
		return DROP_INTERNAL;
	flow = flow_find_request(&query, service_id, &vacant);
	if (!flow)
		return PASS_ICMP_UNKNOWN_FLOW;
	if (load_backend(service, flow_read(flow).entry.owner & 0xffff, choice) || !backend_serves(choice))
		return DROP_BACKEND_DOWN;
	return LEDGER_NONE;
}

/* Gives the backend an error about a packet that it sent. Expects what icmp_read_xdp() made of the packet. */
__noinline __u32 icmp_to_backend(struct xdp_md *ctx, struct packet *packet, struct quotation *quotation,
				 __u32 *service_id)
{
	struct choice choice = {};
	struct service *service;
	__u32 id, reason;
	__u64 hash;

	if (!packet || !quotation || !service_id)
		return DROP_INTERNAL;
	id = find_service(packet);
	if (!id)
		return PASS_NO_SERVICE;
	*service_id = id;
	service = bpf_map_lookup_elem(&services, &id);
	if (!service)
		return DROP_INTERNAL;
	hash = hash_five_tuple(packet);
	reason = choose_for_error(id, service, hash, packet, &choice);
	if (reason)
		return reason;
	if (!fits_path(packet, &choice))
		return DROP_TOO_BIG;
	if (service->mode == MODE_NAT) {
		void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
		struct translation translation;

		translation_of_request(packet, service, choice.backend, &translation);
		reason = translate_error(data, data_end, packet, &translation, 1);
		if (reason)
			return reason;
		translation.source = 1;
		reason = translate_quote(data, data_end, packet, quotation, &translation, 1);
		if (reason)
			return reason;
	}
	reason = send_to_backend(ctx, packet, &choice, hash);
	if (reason < LEDGER_FIRST_PASSED)
		account_backend(choice.record, packet->ip_length);
	return reason;
}

/* ID of the service, of either kind, of whose live flow the quoted request is, or 0. The flow is left as it is. */
__noinline __u32 quoted_flow(struct packet *packet, __u32 keeping)
{
	struct flow_query query;
	__u32 service_id = 0;
	__u64 ports;

	if (!packet)
		return 0;
	ports = keeping ? flow_ports_keeping(packet->destination_port, packet->source_port, packet)
			: flow_ports(packet->destination_port, packet);
	if (flow_query_ports(&query, packet->destination, ports, packet) ||
	    !flow_find_reply(&query, packet->source, keeping ? 0 : packet->source_port, packet->protocol, &service_id))
		return 0;
	return service_id;
}

/* ID of the service through which the client of a quoted request reached its backend, or 0. */
static __always_inline __u32 find_quoted_service(struct packet *packet)
{
	__u32 service_id = 0;

	if (!is_from_nat_backend(packet))
		return 0;
	if (packet->nat_sources & NAT_SOURCE_FIXED)
		service_id = quoted_flow(packet, 0);
	if (!service_id && packet->nat_sources & NAT_SOURCE_KEEPING)
		service_id = quoted_flow(packet, 1);
	return service_id;
}

/*
 * Translates an error about a packet of a client that we translated. Expects what icmp_read_xdp() made of the packet. Returns
 * LEDGER_NONE or a reason.
 */
__noinline __u32 icmp_translate_to_client(struct xdp_md *ctx, struct packet *packet, struct quotation *quotation,
					  __u32 service_id)
{
	struct service *service = bpf_map_lookup_elem(&services, &service_id);
	struct translation translation = {};
	void *data, *data_end;
	__u32 reason;

	if (!packet || !quotation || !service)
		return DROP_INTERNAL;
	translation_of_reply(packet, service, &translation);
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	reason = translate_error(data, data_end, packet, &translation, quotation->from_addressee);
	if (reason)
		return reason;
	translation.source = 0;
	return translate_quote(data, data_end, packet, quotation, &translation, quotation->from_addressee);
}

/* Sends a translated error to the client, by the route that the flow's replies take. */
__noinline __u32 icmp_send_to_client(struct xdp_md *ctx, struct packet *packet, __u32 service_id)
{
	struct service *service = bpf_map_lookup_elem(&services, &service_id);

	if (!packet || !service)
		return DROP_INTERNAL;
	return forward_to_client(ctx, packet, service);
}

/* An ICMP packet in XDP. Returns the reason under which it is to be counted. */
static __always_inline __u32 handle_icmp(struct xdp_md *ctx, struct packet *packet, __u32 *service_id)
{
	struct quotation quotation = {};
	__u32 reason;

	reason = icmp_read_xdp(ctx, packet, &quotation);
	if (reason)
		return reason;
	reason = icmp_to_backend(ctx, packet, &quotation, service_id);
	if (reason != PASS_NO_SERVICE)
		return reason;
	*service_id = find_quoted_service(packet);
	if (!*service_id)
		return PASS_NOT_TCP_UDP;
	reason = icmp_translate_to_client(ctx, packet, &quotation, *service_id);
	return reason ? reason : icmp_send_to_client(ctx, packet, *service_id);
}

/* Bytes of an ICMP error that must be linear for it to be translated; more is not needed, and not there in short ones. */
#define ICMP_TRANSLATED (OFFSET_MASK + 1)

/* An ICMP packet that leaves this node: translated where it is an error about a packet that we translated. */
__noinline __u32 icmp_from_stack(struct __sk_buff *skb, struct packet *packet, struct quotation *quotation,
				 __u32 service_id)
{
	struct service *service = bpf_map_lookup_elem(&services, &service_id);
	struct translation translation = {};
	void *data, *data_end;
	__u32 reason;

	if (!packet || !quotation || !service)
		return DROP_INTERNAL;
	/* Makes it linear and writable. */
	if (bpf_skb_pull_data(skb, skb->len < ICMP_TRANSLATED ? skb->len : ICMP_TRANSLATED))
		return DROP_INTERNAL;
	translation_of_reply(packet, service, &translation);
	data = (void *)(long)skb->data;
	data_end = (void *)(long)skb->data_end;
	if (quotation->from_addressee) {
		void *l3 = data + (packet->l3_offset & OFFSET_MASK);

		translation.source = 1;
		reason = packet->family == FAMILY_IPV4 ? translate_address_ipv4(l3, data_end, &translation)
						       : translate_address_ipv6(l3, data_end, &translation);
		if (reason)
			return reason;
	}
	translation.source = 0;
	reason = translate_quote(data, data_end, packet, quotation, &translation, quotation->from_addressee);
	return reason ? reason : FORWARD_REPLY_HANDOFF;
}

#endif /* TIDEGATE_ICMP_H */
