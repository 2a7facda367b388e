/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Echo requests to service addresses: answered here, so that monitoring sees the node that would forward. They are not sent
 * to a backend: which one would that be?
 *
 * Never answered, but left to the kernel: pieces of datagrams, options, what comes from or goes to more than one host.
 */
#ifndef TIDEGATE_ECHO_H
#define TIDEGATE_ECHO_H

#include "address.h"
#include "checksum.h"

#define ICMP_ECHO_REQUEST   8
#define ICMP_ECHO_REPLY	    0
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY   129
#define ECHO_TTL	    64

/* Answers in a row, and nanoseconds until there is another one, of each CPU. */
#define ECHO_BURST	 1000
#define ECHO_NANOSECONDS 1000000ULL

struct echo_header {
	__u8 type;
	__u8 code;
	__be16 check;
	__be32 identity;
};

/* How many answers may this CPU still give? Not pinned: it may begin anew with each program. */
struct echo_allowance {
	__u64 empty_at; /* when, at CLOCK_MONOTONIC, there would be none left */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct echo_allowance);
} echo_allowance SEC(".maps");

/* Takes one answer from the allowance. False where none is left. */
static __always_inline int echo_allowed(void)
{
	struct echo_allowance *allowance;
	__u64 now = bpf_ktime_get_ns();
	__u64 oldest = now - ECHO_BURST * ECHO_NANOSECONDS;
	__u32 only = 0;

	allowance = bpf_map_lookup_elem(&echo_allowance, &only);
	if (!allowance)
		return 0;
	/* Unused allowance beyond a burst is lost. */
	if ((__s64)(allowance->empty_at - oldest) < 0)
		allowance->empty_at = oldest;
	if ((__s64)(allowance->empty_at + ECHO_NANOSECONDS - now) > 0)
		return 0;
	allowance->empty_at += ECHO_NANOSECONDS;
	return 1;
}

/* True for the address of one host, as far as the address tells. */
static __always_inline int is_unicast(const __be32 *address, __u8 family)
{
	__u32 first = bpf_ntohl(address[0]);

	if (family == FAMILY_IPV4)
		return first >> 24 != 0 && first >> 24 != 127 && first >> 28 < 0xe;
	if (first >> 24 == 0xff)
		return 0;
	/* Neither unspecified nor loopback, nor IPv4 in disguise. */
	return first || address[1];
}

static __always_inline int same_host(const struct packet *packet)
{
	return packet->source[0] == packet->destination[0] && packet->source[1] == packet->destination[1] &&
	       packet->source[2] == packet->destination[2] && packet->source[3] == packet->destination[3];
}

/* True where the packet has no options or extension headers, is whole, and its lengths agree. */
static __always_inline int is_plain(const struct packet *packet)
{
	__u32 header = packet->family == FAMILY_IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);

	return !packet->fragment && packet->l4_offset - packet->l3_offset == header &&
	       packet->ip_length <= packet->frame_length && packet->ip_length >= header + sizeof(struct echo_header);
}

/* Turns the request in the frame into the reply. Returns 0, or -1 where the headers are not in the frame. */
static __always_inline int turn_round(void *data, void *data_end, const struct packet *packet)
{
	void *l3 = data + (packet->l3_offset & OFFSET_MASK);
	struct ethhdr *eth = data;
	struct echo_header *echo;
	__u8 mac[ETH_ALEN];

	if ((void *)(eth + 1) > data_end)
		return -1;
	if (packet->family == FAMILY_IPV4) {
		struct iphdr *ip = l3;
		__be16 old = 0;

		if ((void *)(ip + 1) > data_end)
			return -1;
		/* TTL is the high byte of its word. The addresses change places, and their sum stays. */
		old = bpf_htons(ip->ttl << 8);
		ip->check = checksum_replace(ip->check, old, bpf_htons(ECHO_TTL << 8));
		ip->ttl = ECHO_TTL;
		ip->saddr = packet->destination[0];
		ip->daddr = packet->source[0];
		echo = (void *)(ip + 1);
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return -1;
		ip->hop_limit = ECHO_TTL;
		__builtin_memcpy(&ip->saddr, packet->destination, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, packet->source, sizeof(ip->daddr));
		echo = (void *)(ip + 1);
	}
	if ((void *)(echo + 1) > data_end)
		return -1;
	if (packet->family == FAMILY_IPV4) {
		echo->type = ICMP_ECHO_REPLY;
		echo->check = checksum_replace(echo->check, bpf_htons(ICMP_ECHO_REQUEST << 8),
					       bpf_htons(ICMP_ECHO_REPLY << 8));
	} else {
		echo->type = ICMPV6_ECHO_REPLY;
		echo->check = checksum_replace(echo->check, bpf_htons(ICMPV6_ECHO_REQUEST << 8),
					       bpf_htons(ICMPV6_ECHO_REPLY << 8));
	}
	__builtin_memcpy(mac, eth->h_dest, sizeof(mac));
	__builtin_memcpy(eth->h_dest, eth->h_source, sizeof(mac));
	__builtin_memcpy(eth->h_source, mac, sizeof(mac));
	return 0;
}

/* True where the frame has an echo request behind its IP headers. */
static __always_inline int is_echo_request(void *data, void *data_end, const struct packet *packet)
{
	struct echo_header *echo = data + (packet->l4_offset & OFFSET_MASK);

	if ((void *)(echo + 1) > data_end || echo->code)
		return 0;
	if (packet->family == FAMILY_IPV4)
		return packet->protocol == IPPROTO_ICMP && echo->type == ICMP_ECHO_REQUEST;
	return packet->protocol == IPPROTO_ICMPV6 && echo->type == ICMPV6_ECHO_REQUEST;
}

/* What becomes of a packet that is neither TCP nor UDP, where echo requests are to be dropped or answered. */
__noinline __u32 judge_echo(struct xdp_md *ctx, const struct packet *packet, __u32 policies)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if (!packet || packet->fragment == FRAGMENT_LATER || !is_echo_request(data, data_end, packet) ||
	    !find_address(packet))
		return PASS_NOT_TCP_UDP;
	if (policies & ADDRESS_ECHO_DROP)
		return DROP_ECHO;
	if ((void *)(eth + 1) > data_end || eth->h_dest[0] & 1 || eth->h_source[0] & 1 || !is_plain(packet) ||
	    !is_unicast(packet->source, packet->family) || same_host(packet))
		return PASS_NOT_TCP_UDP;
	if (!echo_allowed())
		return DROP_ECHO;
	return turn_round(data, data_end, packet) ? DROP_INTERNAL : FORWARD_ECHO_REPLY;
}

#endif /* TIDEGATE_ECHO_H */
