/* SPDX-License-Identifier: GPL-2.0-only */
/* Internet checksums (RFC 1071), updated incrementally (RFC 1624) from sums that the daemon computed beforehand. */
#ifndef TIDEGATE_CHECKSUM_H
#define TIDEGATE_CHECKSUM_H

#include "packet.h"

/* Folds a sum of up to some thousand 16-bit words. */
static __always_inline __u16 checksum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The sum of an address, from that of the address and the port. */
static __always_inline __u16 checksum_without(__u16 sum, __u16 word)
{
	return checksum_fold(sum + (__u16)~word);
}

/* The checksum after words that add up to `old` were replaced by words that add up to `new` (RFC 1624, equation 3). */
static __always_inline __u16 checksum_replace(__u16 check, __u16 old, __u16 new)
{
	return ~checksum_fold((__u16)~check + (__u16)~old + new);
}

/*
 * Updates the checksum of a TCP or UDP header. A UDP checksum of zero over IPv4 means that there is none and stays zero; one
 * that comes out as zero is sent as all ones (RFC 768).
 * Returns 0, or -1 where the header is not in the packet.
 */
static __always_inline int checksum_replace_l4(void *l4, void *data_end, __u8 protocol, __u16 old, __u16 new)
{
	if (protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if ((void *)(tcp + 1) > data_end)
			return -1;
		tcp->check = checksum_replace(tcp->check, old, new);
	} else {
		struct udphdr *udp = l4;
		__u16 check;

		if ((void *)(udp + 1) > data_end)
			return -1;
		if (!udp->check)
			return 0;
		check = checksum_replace(udp->check, old, new);
		udp->check = check ? check : 0xffff;
	}
	return 0;
}

#endif /* TIDEGATE_CHECKSUM_H */
