/* SPDX-License-Identifier: GPL-2.0-only */
/* Replies of NAT backends that come up through the network stack of this node: translated on egress, in TC. */
#ifndef TIDEGATE_REPLY_H
#define TIDEGATE_REPLY_H

#include "fragment.h"
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
 * Brings the checksum of the TCP or UDP header up to date. The helpers know about checksums that the hardware is still to
 * complete, where the field holds only the sum of the pseudo-header: addresses count there, ports do not.
 */
static __always_inline int update_l4_checksum(struct __sk_buff *skb, const struct packet *packet,
					      const struct service *service)
{
	__u32 check = (packet->l4_offset & OFFSET_MASK) + l4_checksum_offset(packet);
	__u64 mangled = packet->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 words = packet->family == FAMILY_IPV4 ? 1 : 4;
	__u32 i;

	for (i = 0; i < words; i++) {
		if (bpf_l4_csum_replace(skb, check, packet->source[i & 3], service->address[i & 3],
					mangled | BPF_F_PSEUDO_HDR | sizeof(__be32)))
			return -1;
	}
	return bpf_l4_csum_replace(skb, check, packet->source_port, reply_port(packet, service),
				   mangled | sizeof(__be16));
}

/*
 * Gives a reply the service as its source. A piece without ports has addresses alone; those of IPv6 stand in no checksum of its
 * own, so that a sum that the driver made over the packet must follow.
 */
static __always_inline __u32 translate_reply(struct __sk_buff *skb, const struct packet *packet,
					     const struct service *service)
{
	int has_ports = packet->fragment != FRAGMENT_LATER;
	__u32 l3 = packet->l3_offset & OFFSET_MASK;
	__u32 l4 = packet->l4_offset & OFFSET_MASK;
	__u32 address_offset;
	__be16 port = reply_port(packet, service);
	__be32 address[4];

	__builtin_memcpy(address, service->address, sizeof(address));
	if (has_ports && update_l4_checksum(skb, packet, service))
		return DROP_INTERNAL;
	if (packet->family == FAMILY_IPV4) {
		address_offset = l3 + __builtin_offsetof(struct iphdr, saddr);
		if (bpf_l3_csum_replace(skb, l3 + __builtin_offsetof(struct iphdr, check), packet->source[0],
					address[0], sizeof(__be32)) ||
		    bpf_skb_store_bytes(skb, address_offset, address, sizeof(__be32), 0))
			return DROP_INTERNAL;
	} else {
		address_offset = l3 + __builtin_offsetof(struct ipv6hdr, saddr);
		if (bpf_skb_store_bytes(skb, address_offset, address, sizeof(address),
					has_ports ? 0 : BPF_F_RECOMPUTE_CSUM))
			return DROP_INTERNAL;
	}
	if (has_ports &&
	    bpf_skb_store_bytes(skb, l4 + __builtin_offsetof(struct udphdr, source), &port, sizeof(port), 0))
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

/* The service of whose reply this is a piece without ports, or 0. */
static __always_inline struct service *find_service_of_piece(const struct packet *packet)
{
	__u32 service_id = find_reply_datagram(packet);

	return service_id ? bpf_map_lookup_elem(&services, &service_id) : 0;
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
	if (reason == PASS_FRAGMENT) {
		service = find_service_of_piece(packet);
		return service ? translate_reply(skb, packet, service) : reason;
	}
	if (reason)
		return reason;
	if (!is_from_nat_backend(packet))
		return PASS_NO_SERVICE;
	service = find_reply_service(packet, &service_id);
	if (!service)
		return PASS_NOT_A_REPLY;
	if (packet->fragment)
		remember_reply(packet, service_id);
	return translate_reply(skb, packet, service);
}

#endif /* TIDEGATE_REPLY_H */
