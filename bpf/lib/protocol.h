/* SPDX-License-Identifier: GPL-2.0-only */
/* Numbers of the wire protocols, which BTF cannot give. */
#ifndef TIDEGATE_PROTOCOL_H
#define TIDEGATE_PROTOCOL_H

#include <bpf/bpf_endian.h>

#define ETH_HLEN     14
#define ETH_ALEN     6
#define ETH_P_IP     0x0800
#define ETH_P_IPV6   0x86DD
#define ETH_P_8021Q  0x8100
#define ETH_P_8021AD 0x88A8

/* Of the kernel's sockets, as bpf_fib_lookup and bpf_redirect_neigh want them. */
#define AF_INET	 2
#define AF_INET6 10

#define IPPROTO_HOPOPTS	 0
#define IPPROTO_ICMP	 1
#define IPPROTO_IPIP	 4
#define IPPROTO_TCP	 6
#define IPPROTO_UDP	 17
#define IPPROTO_IPV6	 41
#define IPPROTO_ROUTING	 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_GRE	 47
#define IPPROTO_ICMPV6	 58
#define IPPROTO_DSTOPTS	 60

#define IP_DONT_FRAGMENT   0x4000
#define IP_MORE_FRAGMENTS  0x2000
#define IP_OFFSET_MASK	   0x1fff
#define IP6_MORE_FRAGMENTS 0x0001
#define IP6_OFFSET_MASK	   0xfff8

/* Marks of Explicit Congestion Notification (RFC 3168), the lowest two bits of the traffic class. */
#define ECN_MASK	0x03
#define ECN_NOT_CAPABLE 0x00
#define ECN_CAPABLE_1	0x01
#define ECN_CAPABLE_0	0x02
#define ECN_CONGESTION	0x03

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_URG 0x20

/* ICMP (RFC 792, 1812) and ICMPv6 (RFC 4443): the messages that we read or send. */
#define ICMP_DEST_UNREACH	 3
#define ICMP_SOURCE_QUENCH	 4
#define ICMP_TIME_EXCEEDED	 11
#define ICMP_PARAMETER_PROBLEM	 12
#define ICMP_PORT_UNREACH	 3
#define ICMP_FRAG_NEEDED	 4
#define ICMPV6_DEST_UNREACH	 1
#define ICMPV6_PKT_TOOBIG	 2
#define ICMPV6_TIME_EXCEEDED	 3
#define ICMPV6_PARAMETER_PROBLEM 4
#define ICMPV6_PORT_UNREACH	 4

/* The fixed part of an ICMP or ICMPv6 error; the quoted packet follows. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 rest; /* by type: an MTU, a pointer, or nothing */
};

struct vlan_tag {
	__be16 tci;
	__be16 ethertype; /* of what follows the tag */
};

/* The beginning of an IPv6 extension header; of a routing header four bytes. */
struct ipv6_extension {
	__u8 nexthdr;
	__u8 hdrlen; /* in units of 8 bytes, the first not counted */
	__u8 routing_type;
	__u8 segments_left;
};

struct ipv6_fragment {
	__u8 nexthdr;
	__u8 reserved;
	__be16 frag_off;
	__be32 identification;
};

static __always_inline int is_tag(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

#endif /* TIDEGATE_PROTOCOL_H */
