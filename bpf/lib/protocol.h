/* SPDX-License-Identifier: GPL-2.0-only */
/* Numbers of the wire protocols, which BTF cannot give. */
#ifndef TIDEGATE_PROTOCOL_H
#define TIDEGATE_PROTOCOL_H

#define ETH_HLEN   14
#define ETH_ALEN   6
#define ETH_P_IP   0x0800
#define ETH_P_IPV6 0x86DD

/* Of the kernel's sockets, as bpf_fib_lookup and bpf_redirect_neigh want them. */
#define AF_INET	 2
#define AF_INET6 10

#define IPPROTO_IPIP	 4
#define IPPROTO_TCP	 6
#define IPPROTO_UDP	 17
#define IPPROTO_IPV6	 41
#define IPPROTO_FRAGMENT 44

#define IP_DONT_FRAGMENT  0x4000
#define IP_MORE_FRAGMENTS 0x2000
#define IP_OFFSET_MASK	  0x1fff

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#endif /* TIDEGATE_PROTOCOL_H */
