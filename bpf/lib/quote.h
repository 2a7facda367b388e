/* SPDX-License-Identifier: GPL-2.0-only */
/* The packet that an ICMP or ICMPv6 error quotes: reading it, and translating it with all checksums around it. */
#ifndef TIDEGATE_QUOTE_H
#define TIDEGATE_QUOTE_H

#include "nat.h"

/* Bytes of the quoted TCP or UDP header that must be there: ports, and the whole of a UDP header. */
#define QUOTED_L4 8

/* Where the parts of an ICMP error are, from the start of the frame. */
struct quotation {
	__u16 icmp_offset;
	__u16 l3_offset;     /* of the quoted IP header */
	__u16 end;	     /* of the ICMP packet */
	__u8 from_addressee; /* the error comes from the host that the quoted packet was for */
	__u8 pad;
};

static __always_inline int is_icmp(const struct packet *packet)
{
	return packet->family == FAMILY_IPV4 ? packet->protocol == IPPROTO_ICMP : packet->protocol == IPPROTO_ICMPV6;
}

/* True for the messages that quote a packet that could not be delivered. A redirect quotes one that was. */
static __always_inline int is_icmp_error(__u8 family, __u8 type)
{
	if (family == FAMILY_IPV4)
		return type == ICMP_DEST_UNREACH || type == ICMP_SOURCE_QUENCH || type == ICMP_TIME_EXCEEDED ||
		       type == ICMP_PARAMETER_PROBLEM;
	return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMETER_PROBLEM;
}

static __always_inline int same_address(const __be32 *one, const __be32 *other)
{
	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3];
}

/*
 * Reads the quoted IP header into `packet`: addresses inverted, so that it becomes the packet that answers the quoted one, while
 * its offset, length and family stay those of the ICMP packet. Returns 0, or -1 where the quote is of no use.
 */
static __always_inline int read_quoted_ip(void *data, void *data_end, struct packet *packet,
					  struct quotation *quotation)
{
	void *l3 = data + (quotation->l3_offset & OFFSET_MASK);
	__be32 source[4] = {}, destination[4] = {};

	if (packet->family == FAMILY_IPV4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > data_end || ip->version != 4 || ip->ihl < 5)
			return -1;
		/* A later fragment has no ports. */
		if (ip->frag_off & bpf_htons(IP_OFFSET_MASK))
			return -1;
		source[0] = ip->saddr;
		destination[0] = ip->daddr;
		packet->protocol = ip->protocol;
		packet->l4_offset = quotation->l3_offset + ip->ihl * 4;
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end || ip->version != 6)
			return -1;
		__builtin_memcpy(source, &ip->saddr, sizeof(source));
		__builtin_memcpy(destination, &ip->daddr, sizeof(destination));
		packet->protocol = ip->nexthdr;
		packet->l4_offset = quotation->l3_offset + sizeof(*ip);
	}
	/* An error goes to who sent the quoted packet. One that does not is no business of ours. */
	if (!same_address(packet->destination, source))
		return -1;
	quotation->from_addressee = same_address(packet->source, destination);
	__builtin_memcpy(packet->source, destination, sizeof(packet->source));
	__builtin_memcpy(packet->destination, source, sizeof(packet->destination));
	return 0;
}

/* The first half of reading an error: up to the quoted IP header. Returns LEDGER_NONE or the reason to pass the packet. */
static __always_inline __u32 read_error(void *data, void *data_end, struct packet *packet, struct quotation *quotation)
{
	struct icmp_header *icmp = data + (packet->l4_offset & OFFSET_MASK);

	/* What is broken, the kernel judges: it is no service's. */
	if (packet->fragment || packet->ip_length > packet->frame_length || (void *)(icmp + 1) > data_end ||
	    !is_icmp_error(packet->family, icmp->type))
		return PASS_NOT_TCP_UDP;
	quotation->icmp_offset = packet->l4_offset;
	quotation->l3_offset = packet->l4_offset + sizeof(*icmp);
	quotation->end = packet->l3_offset + packet->ip_length;
	return read_quoted_ip(data, data_end, packet, quotation) ? PASS_NOT_TCP_UDP : LEDGER_NONE;
}

/* The second half: the quoted ports, behind IPv6 extension headers that were stepped over meanwhile. */
static __always_inline __u32 read_quoted_ports(void *data, void *data_end, struct packet *packet,
					       const struct quotation *quotation)
{
	__be16 *ports = data + (packet->l4_offset & OFFSET_MASK);

	if (packet->fragment == FRAGMENT_LATER)
		return PASS_NOT_TCP_UDP;
	packet->fragment = FRAGMENT_NONE;
	if (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP)
		return PASS_NOT_TCP_UDP;
	if (packet->l4_offset > OFFSET_MASK || packet->l4_offset + QUOTED_L4 > quotation->end ||
	    (void *)ports + QUOTED_L4 > data_end)
		return PASS_NOT_TCP_UDP;
	packet->source_port = ports[1];
	packet->destination_port = ports[0];
	return LEDGER_NONE;
}

/*
 * Reads an ICMP error. Returns LEDGER_NONE with `packet` made the answer to the quoted packet, or the reason to pass the
 * error on.
 */
__noinline __u32 icmp_read_xdp(struct xdp_md *ctx, struct packet *packet, struct quotation *quotation)
{
	__u32 reason;

	if (!packet || !quotation)
		return PASS_NOT_TCP_UDP;
	reason = read_error((void *)(long)ctx->data, (void *)(long)ctx->data_end, packet, quotation);
	if (reason)
		return reason;
	if (packet->family == FAMILY_IPV6 && step_extensions_xdp(ctx, packet))
		return PASS_NOT_TCP_UDP;
	return read_quoted_ports((void *)(long)ctx->data, (void *)(long)ctx->data_end, packet, quotation);
}

__noinline __u32 icmp_read_tc(struct __sk_buff *skb, struct packet *packet, struct quotation *quotation)
{
	__u32 reason;

	if (!packet || !quotation)
		return PASS_NOT_TCP_UDP;
	reason = read_error((void *)(long)skb->data, (void *)(long)skb->data_end, packet, quotation);
	if (reason)
		return reason;
	if (packet->family == FAMILY_IPV6 && step_extensions_tc(skb, packet))
		return PASS_NOT_TCP_UDP;
	return read_quoted_ports((void *)(long)skb->data, (void *)(long)skb->data_end, packet, quotation);
}

/* Translates one address of the quoted IP header, and its checksum. Returns the ICMP checksum that goes with it. */
static __always_inline __u16 translate_quoted_ipv4(struct iphdr *ip, const struct translation *translation, __u16 check)
{
	__u16 old = ip->check;

	ip->check = checksum_replace(old, translation->old_address_sum, translation->new_address_sum);
	if (translation->source)
		ip->saddr = translation->address[0];
	else
		ip->daddr = translation->address[0];
	check = checksum_replace(check, old, ip->check);
	return checksum_replace(check, translation->old_address_sum, translation->new_address_sum);
}

/* Corrects the checksum of the quoted TCP or UDP header, where it is quoted. Returns the ICMP checksum that goes with it. */
static __always_inline __u16 translate_quoted_check(void *l4, void *data_end, int reaches_tcp_check, __u8 protocol,
						    const struct translation *translation, __u16 check)
{
	__u16 old, new;

	if (protocol == IPPROTO_TCP) {
		__u16 *tcp_check = l4 + __builtin_offsetof(struct tcphdr, check);

		if (!reaches_tcp_check || (void *)(tcp_check + 1) > data_end)
			return check;
		old = *tcp_check;
		new = checksum_replace(old, translation->old_endpoint_sum, translation->new_endpoint_sum);
		*tcp_check = new;
	} else {
		struct udphdr *udp = l4;

		old = udp->check;
		if (!old)
			return check;
		new = checksum_replace(old, translation->old_endpoint_sum, translation->new_endpoint_sum);
		/* Zero would say that there is none (RFC 768). */
		new = new ? new : 0xffff;
		udp->check = new;
	}
	return checksum_replace(check, old, new);
}

/* Translates the quoted TCP or UDP header as far as it is quoted. Returns the ICMP checksum that goes with it. */
static __always_inline __u16 translate_quoted_l4(void *l4, void *data_end, int reaches_tcp_check, __u8 protocol,
						 const struct translation *translation, __u16 check)
{
	struct udphdr *ports = l4; /* TCP has its ports in the same place */
	__be16 *port = translation->source ? &ports->source : &ports->dest;

	check = checksum_replace(check, *port, translation->port);
	*port = translation->port;
	return translate_quoted_check(l4, data_end, reaches_tcp_check, protocol, translation, check);
}

/*
 * Translates the quoted packet, and corrects the ICMP checksum. `outer` says that the other end of the ICMP packet itself is
 * translated likewise, which counts for ICMPv6 alone.
 */
static __always_inline __u32 translate_quote(void *data, void *data_end, const struct packet *packet,
					     const struct quotation *quotation, const struct translation *translation,
					     int outer)
{
	struct icmp_header *icmp = data + (quotation->icmp_offset & OFFSET_MASK);
	void *l3 = data + (quotation->l3_offset & OFFSET_MASK);
	void *l4 = data + (packet->l4_offset & OFFSET_MASK);
	int reaches_tcp_check =
		packet->l4_offset + __builtin_offsetof(struct tcphdr, check) + sizeof(__u16) <= quotation->end;
	__u16 check;

	if ((void *)(icmp + 1) > data_end || l4 + QUOTED_L4 > data_end)
		return DROP_INTERNAL;
	check = icmp->check;
	if (packet->family == FAMILY_IPV4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return DROP_INTERNAL;
		check = translate_quoted_ipv4(ip, translation, check);
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return DROP_INTERNAL;
		__builtin_memcpy(translation->source ? &ip->saddr : &ip->daddr, translation->address,
				 sizeof(ip->saddr));
		check = checksum_replace(check, translation->old_address_sum, translation->new_address_sum);
		if (outer)
			check = checksum_replace(check, translation->old_address_sum, translation->new_address_sum);
	}
	icmp->check = translate_quoted_l4(l4, data_end, reaches_tcp_check, packet->protocol, translation, check);
	return LEDGER_NONE;
}

#endif /* TIDEGATE_QUOTE_H */
