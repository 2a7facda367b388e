/* SPDX-License-Identifier: GPL-2.0-only */
/* Replies of NAT backends that come up through the network stack of this node: translated on egress, in TC. */
#ifndef TIDEGATE_REPLY_H
#define TIDEGATE_REPLY_H

#include "icmp.h"

/* Bytes that must be linear for the headers to be read: as far as extension headers are followed, and TCP. */
#define REPLY_HEADERS (OFFSET_MASK + 20)

/* Offset of the checksum in a TCP or UDP header. */
static __always_inline __u32 l4_checksum_offset(const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP ? __builtin_offsetof(struct tcphdr, check)
					       : __builtin_offsetof(struct udphdr, check);
}

/*
 * Gives a reply the service as its source. The helpers know about checksums that the hardware is still to complete, where the
 * field holds only the sum of the pseudo-header: addresses count there, ports do not.
 */
static __always_inline __u32 translate_reply(struct __sk_buff *skb, const struct packet *packet,
					     const struct service *service)
{
	__u32 l3 = packet->l3_offset & OFFSET_MASK;
	__u32 l4 = packet->l4_offset & OFFSET_MASK;
	__u32 l4_check = l4 + l4_checksum_offset(packet);
	__u64 mangled = packet->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 words = packet->family == FAMILY_IPV4 ? 1 : 4;
	__u32 address_offset;
	__be16 port = reply_port(packet, service);
	__be32 address[4];
	__u32 i;

	__builtin_memcpy(address, service->address, sizeof(address));
	for (i = 0; i < words; i++) {
		if (bpf_l4_csum_replace(skb, l4_check, packet->source[i & 3], address[i & 3],
					mangled | BPF_F_PSEUDO_HDR | sizeof(__be32)))
			return DROP_INTERNAL;
	}
	if (bpf_l4_csum_replace(skb, l4_check, packet->source_port, port, mangled | sizeof(port)))
		return DROP_INTERNAL;
	if (packet->family == FAMILY_IPV4) {
		address_offset = l3 + __builtin_offsetof(struct iphdr, saddr);
		if (bpf_l3_csum_replace(skb, l3 + __builtin_offsetof(struct iphdr, check), packet->source[0],
					address[0], sizeof(__be32)) ||
		    bpf_skb_store_bytes(skb, address_offset, address, sizeof(__be32), 0))
			return DROP_INTERNAL;
	} else {
		address_offset = l3 + __builtin_offsetof(struct ipv6hdr, saddr);
		if (bpf_skb_store_bytes(skb, address_offset, address, sizeof(address), 0))
			return DROP_INTERNAL;
	}
	if (bpf_skb_store_bytes(skb, l4 + __builtin_offsetof(struct udphdr, source), &port, sizeof(port), 0))
		return DROP_INTERNAL;
	return FORWARD_REPLY_HANDOFF;
}

/* An ICMP packet that leaves this node. */
static __always_inline __u32 icmp_reply_from_stack(struct __sk_buff *skb, struct packet *packet)
{
	struct quotation quotation = {};
	__u32 reason, service_id;

	/* The quoted headers are seldom linear. */
	bpf_skb_pull_data(skb, skb->len < ICMP_TRANSLATED ? skb->len : ICMP_TRANSLATED);
	reason = icmp_read_tc(skb, packet, &quotation);
	if (reason)
		return reason;
	service_id = find_quoted_service(packet);
	return service_id ? icmp_from_stack(skb, packet, &quotation, service_id) : PASS_NOT_TCP_UDP;
}

/* Judges a packet that leaves this node, and translates it where it is the reply of a tracked flow. */
static __always_inline __u32 reply_from_stack(struct __sk_buff *skb, struct packet *packet)
{
	struct service *service;
	__u32 service_id = 0;
	__u32 reason;

	reason = parse_tc(skb, packet);
	if (reason == PASS_MALFORMED) {
		/* Perhaps only not linear. */
		bpf_skb_pull_data(skb, skb->len < REPLY_HEADERS ? skb->len : REPLY_HEADERS);
		__builtin_memset(packet, 0, sizeof(*packet));
		reason = parse_tc(skb, packet);
	}
	if (reason == PASS_NOT_TCP_UDP && is_icmp(packet))
		return icmp_reply_from_stack(skb, packet);
	if (reason)
		return reason;
	/* Only the first piece has ports: translated alone, it would never be put together with the others. */
	if (packet->fragment)
		return PASS_FRAGMENT;
	if (!is_from_nat_backend(packet))
		return PASS_NO_SERVICE;
	service = find_reply_service(packet, &service_id);
	if (!service)
		return PASS_NOT_A_REPLY;
	return translate_reply(skb, packet, service);
}

#endif /* TIDEGATE_REPLY_H */
