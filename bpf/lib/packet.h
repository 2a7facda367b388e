/* SPDX-License-Identifier: GPL-2.0-only */
/* What is this packet? Ethernet with up to two VLAN tags, IPv4 with options, IPv6 with extension headers, TCP, UDP. */
#ifndef TIDEGATE_PACKET_H
#define TIDEGATE_PACKET_H

#include <bpf/bpf_endian.h>
#include <tidegate/ledger.h>
#include <tidegate/records.h>

#include "protocol.h"

/* VLAN tags that are stepped over. */
#define MAX_TAGS 2

/* Extension headers of IPv6 that are stepped over, and a mask that keeps offsets within what the verifier can follow. */
#define MAX_EXTENSIONS 6
#define OFFSET_MASK    0x1ff

/* What part of a datagram a packet is. */
enum fragment {
	FRAGMENT_NONE = 0,  /* all of it */
	FRAGMENT_FIRST = 1, /* the one with the ports */
	FRAGMENT_LATER = 2, /* one without */
};

/* What the rest of a program needs to know of a packet. Addresses and ports are in network byte order. */
struct packet {
	__be32 source[4];
	__be32 destination[4];
	__be16 source_port;
	__be16 destination_port;
	__u32 datagram;	       /* identification of a fragmented datagram, as it lies in the header */
	__u16 l3_offset;       /* of the IP header, from the start of the frame */
	__u16 l4_offset;       /* of what follows the IP headers, from the start of the frame */
	__u16 ip_length;       /* of the IP packet, as its header says; 65,535 for more, which no frame has */
	__u16 frame_length;    /* bytes of the frame after the Ethernet header and its tags */
	__u16 l4_length;       /* shortest TCP or UDP packet that the L4 header admits, header included */
	__u16 fragment_offset; /* of a fragment within its datagram, in bytes */
	__u8 family;	       /* enum address_family; 0: not IP */
	__u8 protocol;	       /* of what follows the IP headers */
	__u8 tcp_flags;	       /* 0 for UDP */
	__u8 fragment;	       /* enum fragment */
	__u8 nat_sources;      /* enum nat_source, set by is_from_nat_backend() */
	__u8 pad[3];
};

static __always_inline __u32 parse_ports(void *l4, void *data_end, struct packet *packet)
{
	if (packet->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if ((void *)(tcp + 1) > data_end)
			return PASS_MALFORMED;
		packet->source_port = tcp->source;
		packet->destination_port = tcp->dest;
		packet->tcp_flags = tcp->flags;
		packet->l4_length = tcp->doff * 4;
		return packet->l4_length < sizeof(*tcp) ? PASS_MALFORMED : LEDGER_NONE;
	}
	if (packet->protocol == IPPROTO_UDP) {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > data_end)
			return PASS_MALFORMED;
		packet->source_port = udp->source;
		packet->destination_port = udp->dest;
		packet->l4_length = bpf_ntohs(udp->len);
		if (packet->l4_length < sizeof(*udp))
			return PASS_MALFORMED;
		/* The length is that of the whole datagram, of which this is only the first part. */
		if (packet->fragment == FRAGMENT_FIRST)
			packet->l4_length = sizeof(*udp);
		return LEDGER_NONE;
	}
	return PASS_NOT_TCP_UDP;
}

static __always_inline __u8 fragment_of(int more, __u16 offset)
{
	if (offset)
		return FRAGMENT_LATER;
	return more ? FRAGMENT_FIRST : FRAGMENT_NONE;
}

static __always_inline __u32 parse_ipv4(void *data, void *data_end, struct packet *packet)
{
	struct iphdr *ip = data + packet->l3_offset;
	__u32 header_length;

	if ((void *)(ip + 1) > data_end)
		return PASS_MALFORMED;
	header_length = ip->ihl * 4;
	if (ip->version != 4 || header_length < sizeof(*ip))
		return PASS_MALFORMED;
	packet->family = FAMILY_IPV4;
	packet->protocol = ip->protocol;
	packet->source[0] = ip->saddr;
	packet->destination[0] = ip->daddr;
	packet->ip_length = bpf_ntohs(ip->tot_len);
	packet->l4_offset = packet->l3_offset + header_length;
	packet->datagram = ip->id;
	packet->fragment_offset = bpf_ntohs(ip->frag_off) << 3;
	packet->fragment = fragment_of(ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS), packet->fragment_offset);
	if (packet->fragment == FRAGMENT_LATER)
		return PASS_FRAGMENT;
	return parse_ports((void *)ip + header_length, data_end, packet);
}

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_FRAGMENT;
}

/* Steps over one extension header. Returns 1 to go on with the next, 0 at the end, else minus the reason to pass it on. */
static __always_inline int step_extension(void *data, void *data_end, struct packet *packet)
{
	__u32 offset = packet->l4_offset & OFFSET_MASK;
	struct ipv6_extension *extension = data + offset;
	struct ipv6_fragment *fragment = data + offset;
	__u8 kind = packet->protocol;

	if (!is_extension(kind))
		return 0;
	if ((void *)(fragment + 1) > data_end)
		return -PASS_MALFORMED;
	packet->protocol = extension->nexthdr;
	if (kind == IPPROTO_FRAGMENT) {
		/* A fragment of a fragment; the second header must not make it look whole. */
		if (packet->fragment)
			return -PASS_EXTENSION_HEADER;
		packet->datagram = fragment->identification;
		packet->fragment_offset = bpf_ntohs(fragment->frag_off) & IP6_OFFSET_MASK;
		packet->fragment =
			fragment_of(fragment->frag_off & bpf_htons(IP6_MORE_FRAGMENTS), packet->fragment_offset);
		offset += sizeof(*fragment);
	} else {
		/* With segments left, the destination in the header is only a way-point. */
		if (kind == IPPROTO_ROUTING && extension->segments_left)
			return -PASS_EXTENSION_HEADER;
		offset += (extension->hdrlen + 1) * 8;
	}
	if (offset > OFFSET_MASK)
		return -PASS_EXTENSION_HEADER;
	packet->l4_offset = offset;
	/* What follows in a later fragment is payload, whatever its next header says. */
	return packet->fragment != FRAGMENT_LATER;
}

/* Steps over the extension headers of an IPv6 packet. Returns LEDGER_NONE, or the reason to pass it on. */
static __always_inline __u32 step_extensions(void *data, void *data_end, struct packet *packet)
{
	int i, step;

	for (i = 0; i < MAX_EXTENSIONS; i++) {
		step = step_extension(data, data_end, packet);
		if (step < 0)
			return -step;
		if (!step)
			return LEDGER_NONE;
	}
	return is_extension(packet->protocol) ? PASS_EXTENSION_HEADER : LEDGER_NONE;
}

/*
 * The same, verified once and called seldom: inlined, each number of headers would be a path of its own through the rest of
 * the program. It reads `l3_offset` and leaves `l4_offset`, `protocol`, `fragment` and `datagram`.
 */
__noinline __u32 step_extensions_xdp(struct xdp_md *ctx, struct packet *packet)
{
	if (!packet)
		return PASS_MALFORMED;
	return step_extensions((void *)(long)ctx->data, (void *)(long)ctx->data_end, packet);
}

__noinline __u32 step_extensions_tc(struct __sk_buff *skb, struct packet *packet)
{
	if (!packet)
		return PASS_MALFORMED;
	return step_extensions((void *)(long)skb->data, (void *)(long)skb->data_end, packet);
}

/* The programs whose context a packet may come with. */
struct packet_context {
	struct xdp_md *xdp;
	struct __sk_buff *skb;
};

static __always_inline __u32 parse_ipv6(void *data, void *data_end, struct packet_context context,
					struct packet *packet)
{
	struct ipv6hdr *ip = data + packet->l3_offset;
	__u32 reason, length;

	if ((void *)(ip + 1) > data_end || ip->version != 6)
		return PASS_MALFORMED;
	packet->family = FAMILY_IPV6;
	packet->protocol = ip->nexthdr;
	__builtin_memcpy(packet->source, &ip->saddr, sizeof(packet->source));
	__builtin_memcpy(packet->destination, &ip->daddr, sizeof(packet->destination));
	length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	packet->ip_length = length < 0xffff ? length : 0xffff;
	packet->l4_offset = packet->l3_offset + sizeof(*ip);
	if (packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP)
		return parse_ports(ip + 1, data_end, packet);
	reason = context.xdp ? step_extensions_xdp(context.xdp, packet) : step_extensions_tc(context.skb, packet);
	if (reason)
		return reason;
	if (packet->fragment == FRAGMENT_LATER)
		return PASS_FRAGMENT;
	return parse_ports(data + (packet->l4_offset & OFFSET_MASK), data_end, packet);
}

/*
 * Steps over the Ethernet header and its tags. `offset` and `ethertype` are set to those of what follows. Returns LEDGER_NONE or
 * the reason to pass the frame on.
 */
static __always_inline __u32 step_link_layer(void *data, void *data_end, __u16 *offset, __be16 *ethertype)
{
	struct ethhdr *eth = data;
	__u32 i;

	*offset = ETH_HLEN;
	if (data + ETH_HLEN > data_end)
		return PASS_MALFORMED;
	*ethertype = eth->h_proto;
	for (i = 0; i < MAX_TAGS && is_tag(*ethertype); i++) {
		struct vlan_tag *tag = data + ETH_HLEN + i * sizeof(*tag);

		if ((void *)(tag + 1) > data_end)
			return PASS_MALFORMED;
		*ethertype = tag->ethertype;
		*offset += sizeof(*tag);
	}
	return LEDGER_NONE;
}

/*
 * Fills `packet`, which must be zero. Returns LEDGER_NONE where it is TCP or UDP with whole headers, else the reason to pass
 * it on. Lengths are checked later, by packet_lengths_agree(), and only for packets that are ours: the kernel judges others.
 */
static __always_inline __u32 parse(void *data, void *data_end, struct packet_context context, struct packet *packet)
{
	__be16 ethertype;
	__u32 reason;

	reason = step_link_layer(data, data_end, &packet->l3_offset, &ethertype);
	if (reason)
		return reason;
	packet->frame_length = data_end - data - packet->l3_offset;
	if (ethertype == bpf_htons(ETH_P_IP))
		return parse_ipv4(data, data_end, packet);
	if (ethertype == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(data, data_end, context, packet);
	return PASS_NOT_IP;
}

static __always_inline __u32 parse_xdp(struct xdp_md *ctx, struct packet *packet)
{
	struct packet_context context = {.xdp = ctx};

	return parse((void *)(long)ctx->data, (void *)(long)ctx->data_end, context, packet);
}

static __always_inline __u32 parse_tc(struct __sk_buff *skb, struct packet *packet)
{
	struct packet_context context = {.skb = skb};

	return parse((void *)(long)skb->data, (void *)(long)skb->data_end, context, packet);
}

/*
 * True where the IP length fits the frame and the L4 header fits the IP length. The frame may be longer: Ethernet pads to
 * 60 bytes, and the IP length is the truth (some drivers count the padding). A UDP length above the IP payload is a lie.
 */
static __always_inline int packet_lengths_agree(const struct packet *packet)
{
	__u32 needed = packet->l4_offset - packet->l3_offset + packet->l4_length;

	return packet->ip_length <= packet->frame_length && needed <= packet->ip_length;
}

#endif /* TIDEGATE_PACKET_H */
