/* SPDX-License-Identifier: GPL-2.0-only */
/* What is this packet? Ethernet, IPv4 with options, IPv6, TCP, UDP. */
#ifndef TIDEGATE_PACKET_H
#define TIDEGATE_PACKET_H

#include <bpf/bpf_endian.h>
#include <tidegate/ledger.h>
#include <tidegate/records.h>

#include "protocol.h"

/* What the rest of a program needs to know of a packet. Addresses and ports are in network byte order. */
struct packet {
	__be32 source[4];
	__be32 destination[4];
	__be16 source_port;
	__be16 destination_port;
	__u16 l4_offset;    /* of the TCP or UDP header, from the start of the frame */
	__u16 ip_length;    /* of the IP packet, headers included, as its header says */
	__u16 frame_length; /* bytes of the frame after the Ethernet header */
	__u16 l4_length;    /* shortest TCP or UDP packet that the L4 header admits, header included */
	__u8 family;	    /* enum address_family; 0: not IP */
	__u8 protocol;
	__u8 tcp_flags;	   /* 0 for UDP */
	__u8 ipv4_options; /* bytes of IPv4 options */
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
		if (packet->l4_length < sizeof(*tcp))
			return PASS_MALFORMED;
		return LEDGER_NONE;
	}
	if (packet->protocol == IPPROTO_UDP) {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > data_end)
			return PASS_MALFORMED;
		packet->source_port = udp->source;
		packet->destination_port = udp->dest;
		packet->tcp_flags = 0;
		packet->l4_length = bpf_ntohs(udp->len);
		if (packet->l4_length < sizeof(*udp))
			return PASS_MALFORMED;
		return LEDGER_NONE;
	}
	return PASS_NOT_TCP_UDP;
}

static __always_inline __u32 parse_ipv4(void *l3, void *data_end, struct packet *packet)
{
	struct iphdr *ip = l3;
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
	packet->ipv4_options = header_length - sizeof(*ip);
	packet->l4_offset = ETH_HLEN + header_length;
	if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK))
		return PASS_FRAGMENT;
	return parse_ports(l3 + header_length, data_end, packet);
}

static __always_inline __u32 parse_ipv6(void *l3, void *data_end, struct packet *packet)
{
	struct ipv6hdr *ip = l3;

	if ((void *)(ip + 1) > data_end || ip->version != 6)
		return PASS_MALFORMED;
	packet->family = FAMILY_IPV6;
	packet->protocol = ip->nexthdr;
	__builtin_memcpy(packet->source, &ip->saddr, sizeof(packet->source));
	__builtin_memcpy(packet->destination, &ip->daddr, sizeof(packet->destination));
	packet->ip_length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	packet->ipv4_options = 0;
	packet->l4_offset = ETH_HLEN + sizeof(*ip);
	if (packet->protocol == IPPROTO_FRAGMENT)
		return PASS_FRAGMENT;
	return parse_ports(ip + 1, data_end, packet);
}

/*
 * Fills `packet`. Returns LEDGER_NONE where it is TCP or UDP with whole headers, else the reason to pass it on. Lengths are
 * checked later, by packet_lengths_agree(), and only for packets that are ours: the kernel judges the others.
 */
static __always_inline __u32 parse(void *data, void *data_end, struct packet *packet)
{
	struct ethhdr *eth = data;
	void *l3 = eth + 1;

	packet->family = 0;
	packet->frame_length = 0;
	packet->ip_length = 0;
	if (l3 > data_end)
		return PASS_MALFORMED;
	packet->frame_length = data_end - l3;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return parse_ipv4(l3, data_end, packet);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(l3, data_end, packet);
	return PASS_NOT_IP;
}

/*
 * True where the IP length fits the frame and the L4 header fits the IP length. The frame may be longer: Ethernet pads to
 * 60 bytes, and the IP length is the truth (some drivers count the padding). A UDP length above the IP payload is a lie.
 */
static __always_inline int packet_lengths_agree(const struct packet *packet)
{
	__u32 needed = packet->l4_offset - ETH_HLEN + packet->l4_length;

	return packet->ip_length <= packet->frame_length && needed <= packet->ip_length;
}

#endif /* TIDEGATE_PACKET_H */
