/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Answers that XDP makes itself from the packet that they answer, and sends back the way it came:
 *
 *   too big         ICMP "fragmentation needed" with the MTU (RFC 1191), ICMPv6 "packet too big" (RFC 4443)
 *   TTL used up     "time exceeded"
 *   no backend      a TCP reset (RFC 9293, 3.10.7.1), or "port unreachable"
 *
 * The source is the address that the packet was for. An error quotes at most 128 bytes: more than the longest IPv4 and TCP headers
 * together (120), what RFC 792 asks for many times over, and never more than what is answered, so that nobody gains by
 * having us answer to a forged source. Fewer than RFC 1812 would like (548) and RFC 4443 allows (1232), since a verified loop sums
 * them up, and all that a receiver looks at are the headers.
 *
 * Never answered: ICMP errors, resets, fragments, multicast and broadcast, and addresses that cannot be a sender's. One
 * budget for the node limits all answers. What was answered is counted as dropped under a reason of its own, so that the
 * ledger tells how many answers there were.
 */
#ifndef TIDEGATE_RESPOND_H
#define TIDEGATE_RESPOND_H

#include "forward.h"

/* Bytes quoted at most, from the IP header on; a multiple of 4, like all that is quoted. */
#define ANSWER_QUOTE 128
#define ANSWER_TTL   64
/* The smallest MTU that IPv4 allows (RFC 791). */
#define IPV4_MIN_MTU 68
/* Attempts to take from the budget while others do the same. */
#define BUDGET_ATTEMPTS 4

/* The budget: nanoseconds that one answer costs, and how many nanoseconds may be spent in advance. */
const volatile __u64 answer_interval = 1000 * 1000;
const volatile __u64 answer_burst = 1000 * 1000 * 1000;

/* When the answers given until now are paid for (generic cell rate algorithm), in nanoseconds of CLOCK_MONOTONIC. */
__u64 answers_paid_until;

/*
 * Takes one answer from the budget of the node, which all CPUs share. Returns 0, or -1 where it is used up. A refusal only
 * reads, so a flood of refused packets does not fight over the line.
 */
static __always_inline int take_answer(void)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 i;

	for (i = 0; i < BUDGET_ATTEMPTS; i++) {
		__u64 paid_until = *(volatile __u64 *)&answers_paid_until;
		__u64 next = (paid_until > now ? paid_until : now) + answer_interval;

		if (next > now + answer_burst)
			return -1;
		if (__sync_val_compare_and_swap(&answers_paid_until, paid_until, next) == paid_until)
			return 0;
	}
	return -1;
}

/* True for an address that a sender can have: no multicast, no broadcast, no loopback, not unspecified. */
static __always_inline int may_be_sender(const __be32 *address, __u8 family)
{
	if (family == FAMILY_IPV4) {
		__u8 first = bpf_ntohl(address[0]) >> 24;

		return first != 0 && first != 127 && first < 224;
	}
	if (address[0] | address[1] | address[2])
		return bpf_ntohl(address[0]) >> 24 != 0xff;
	/* Unspecified, loopback, and the IPv4-compatible addresses that nobody uses. */
	return 0;
}

/* Puts source and destination of the frame in each other's place. Returns 0, or -1 for a frame that nobody should answer. */
static __always_inline int turn_around(struct xdp_md *ctx, struct packet *packet, struct l2_header *header)
{
	__u8 mac[ETH_ALEN];
	__u32 i, differs = 0;

	if (packet->fragment || !may_be_sender(packet->source, packet->family))
		return -1;
	for (i = 0; i < 4; i++)
		differs |= packet->source[i] ^ packet->destination[i];
	if (!differs)
		return -1;
	if (l2_read((void *)(long)ctx->data, (void *)(long)ctx->data_end, packet->l3_offset, header))
		return -1;
	/* To or from a group. */
	if ((header->ethernet.h_dest[0] | header->ethernet.h_source[0]) & 1)
		return -1;
	__builtin_memcpy(mac, header->ethernet.h_dest, ETH_ALEN);
	__builtin_memcpy(header->ethernet.h_dest, header->ethernet.h_source, ETH_ALEN);
	__builtin_memcpy(header->ethernet.h_source, mac, ETH_ALEN);
	return 0;
}

/* The sum of up to `words` 32-bit words, as far as there are any. */
static __always_inline __u64 sum_words(const void *from, const void *data_end, __u32 words)
{
	const __u32 *word = from;
	__u64 sum = 0;
	__u32 i;

	for (i = 0; i < words; i++) {
		if ((const void *)(word + i + 1) > data_end)
			break;
		sum += word[i];
	}
	return sum;
}

static __always_inline __u16 fold_words(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	return checksum_fold(sum);
}

/* The sum of an ICMP error from `offset` to the end of the frame; a function of its own, since a loop multiplies what follows it. */
__noinline __u32 sum_error(struct xdp_md *ctx, __u32 offset)
{
	void *data = (void *)(long)ctx->data;

	return fold_words(sum_words(data + (offset & OFFSET_MASK), (void *)(long)ctx->data_end,
				    (sizeof(struct icmp_header) + ANSWER_QUOTE) / 4));
}

/* Writes the IP header of an answer whose payload is `length` bytes. Returns 0, or -1 where it is not in the frame. */
static __always_inline int answer_ip(void *l3, void *data_end, const struct packet *packet, __u8 protocol, __u16 length)
{
	if (packet->family == FAMILY_IPV4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return -1;
		ip->version = 4;
		ip->ihl = sizeof(*ip) / 4;
		ip->tos = 0;
		ip->tot_len = bpf_htons(sizeof(*ip) + length);
		ip->id = 0;
		ip->frag_off = bpf_htons(IP_DONT_FRAGMENT);
		ip->ttl = ANSWER_TTL;
		ip->protocol = protocol;
		ip->check = 0;
		ip->saddr = packet->destination[0];
		ip->daddr = packet->source[0];
		ip->check = ~fold_words(sum_words(ip, data_end, sizeof(*ip) / 4));
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end)
			return -1;
		*(__be32 *)ip = bpf_htonl(6U << 28);
		ip->payload_len = bpf_htons(length);
		ip->nexthdr = protocol;
		ip->hop_limit = ANSWER_TTL;
		__builtin_memcpy(&ip->saddr, packet->destination, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, packet->source, sizeof(ip->daddr));
	}
	return 0;
}

/* The sum of the pseudo-header of an answer (RFC 9293, RFC 8200). */
static __always_inline __u64 answer_pseudo_sum(const struct packet *packet, __u8 protocol, __u16 length)
{
	return (__u64)sum_address(packet->source, packet) + sum_address(packet->destination, packet) +
	       bpf_htons(protocol) + bpf_htons(length);
}

/* Cuts off what follows the first `length` bytes from where the packet's IP header was. Returns 0, or -1. */
static __always_inline int trim(struct xdp_md *ctx, const struct packet *packet, __u32 length)
{
	int surplus = (int)packet->frame_length - (int)length;

	return surplus > 0 && bpf_xdp_adjust_tail(ctx, -surplus) ? -1 : 0;
}

static __always_inline __u32 ip_header_length(const struct packet *packet)
{
	return packet->family == FAMILY_IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/*
 * Makes the reset that answers a segment. Its sequence numbers are those of RFC 9293 3.10.7.1 for a connection that does not
 * exist. A reset is never answered.
 */
__noinline __u32 answer_with_reset(struct xdp_md *ctx, struct packet *packet)
{
	struct l2_header header = {};
	struct tcphdr reset = {};
	void *data, *data_end;
	struct ethhdr *eth;
	struct tcphdr *tcp;
	__u32 at, length;

	if (!packet)
		return DROP_INTERNAL;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	tcp = data + (packet->l4_offset & OFFSET_MASK);
	if ((void *)(tcp + 1) > data_end || tcp->flags & TCP_RST || turn_around(ctx, packet, &header) || take_answer())
		return DROP_NO_BACKEND;
	reset.source = tcp->dest;
	reset.dest = tcp->source;
	reset.doff = sizeof(reset) / 4;
	if (tcp->flags & TCP_ACK) {
		reset.seq = tcp->ack_seq;
		reset.flags = TCP_RST;
	} else {
		length = packet->ip_length - (packet->l4_offset - packet->l3_offset) - packet->l4_length +
			 !!(tcp->flags & TCP_SYN) + !!(tcp->flags & TCP_FIN);
		reset.ack_seq = bpf_htonl(bpf_ntohl(tcp->seq) + length);
		reset.flags = TCP_RST | TCP_ACK;
	}
	at = ip_header_length(packet) + (packet->l3_offset & OFFSET_MASK);
	if (trim(ctx, packet, ip_header_length(packet) + sizeof(*tcp)))
		return DROP_INTERNAL;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	eth = data;
	tcp = data + at;
	if ((void *)(eth + 1) > data_end || (void *)(tcp + 1) > data_end ||
	    answer_ip(data + (packet->l3_offset & OFFSET_MASK), data_end, packet, IPPROTO_TCP, sizeof(*tcp)))
		return DROP_INTERNAL;
	*eth = header.ethernet;
	*tcp = reset;
	tcp->check = ~fold_words(answer_pseudo_sum(packet, IPPROTO_TCP, sizeof(*tcp)) +
				 sum_words(tcp, data_end, sizeof(*tcp) / 4));
	return DROP_NO_BACKEND_ANSWERED;
}

/* Type and code of the error for a reason. */
static __always_inline void answer_type(struct icmp_header *icmp, __u8 family, __u32 reason, __u32 mtu)
{
	int ipv4 = family == FAMILY_IPV4;

	switch (reason) {
	case DROP_TOO_BIG:
		icmp->type = ipv4 ? ICMP_DEST_UNREACH : ICMPV6_PKT_TOOBIG;
		icmp->code = ipv4 ? ICMP_FRAG_NEEDED : 0;
		icmp->rest = bpf_htonl(mtu);
		break;
	case DROP_TTL_EXPIRED:
		icmp->type = ipv4 ? ICMP_TIME_EXCEEDED : ICMPV6_TIME_EXCEEDED;
		break;
	default:
		icmp->type = ipv4 ? ICMP_DEST_UNREACH : ICMPV6_DEST_UNREACH;
		icmp->code = ipv4 ? ICMP_PORT_UNREACH : ICMPV6_PORT_UNREACH;
	}
}

/* True where a packet that is too big may be answered: over IPv4, one without DF expects to be fragmented instead. */
static __always_inline int wants_to_know_mtu(struct xdp_md *ctx, const struct packet *packet, __u32 mtu)
{
	struct iphdr *ip = (void *)(long)ctx->data + (packet->l3_offset & OFFSET_MASK);

	/* 65535 stands for "not known". */
	if (mtu < IPV4_MIN_MTU || mtu >= 0xffff)
		return 0;
	if (packet->family != FAMILY_IPV4)
		return 1;
	return (void *)(ip + 1) <= (void *)(long)ctx->data_end && ip->frag_off & bpf_htons(IP_DONT_FRAGMENT);
}

/* Makes the ICMP or ICMPv6 error that answers a packet. Returns the reason under which the packet is to be counted. */
__noinline __u32 answer_with_error(struct xdp_md *ctx, struct packet *packet, __u32 reason, __u32 mtu)
{
	struct l2_header header = {};
	struct icmp_header *icmp;
	__u32 quoted, overhead;
	void *l3, *data_end;
	__u8 protocol;
	__u64 sum = 0;
	int offset;

	if (!packet)
		return DROP_INTERNAL;
	if (reason == DROP_TOO_BIG && !wants_to_know_mtu(ctx, packet, mtu))
		return reason;
	if (turn_around(ctx, packet, &header) || take_answer())
		return reason;
	quoted = packet->ip_length < ANSWER_QUOTE ? packet->ip_length & ~3U : ANSWER_QUOTE;
	overhead = ip_header_length(packet) + sizeof(*icmp);
	offset = reframe(ctx, packet->l3_offset, &header, overhead, ethertype_of(packet->family));
	if (offset < 0 || trim(ctx, packet, quoted))
		return DROP_INTERNAL;
	l3 = (void *)(long)ctx->data + (offset & OFFSET_MASK);
	data_end = (void *)(long)ctx->data_end;
	protocol = packet->family == FAMILY_IPV4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	if (answer_ip(l3, data_end, packet, protocol, sizeof(*icmp) + quoted))
		return DROP_INTERNAL;
	icmp = l3 + ip_header_length(packet);
	if ((void *)(icmp + 1) > data_end)
		return DROP_INTERNAL;
	__builtin_memset(icmp, 0, sizeof(*icmp));
	answer_type(icmp, packet->family, reason, mtu);
	if (packet->family == FAMILY_IPV6)
		sum = answer_pseudo_sum(packet, protocol, sizeof(*icmp) + quoted);
	icmp->check = ~fold_words(sum + sum_error(ctx, offset + ip_header_length(packet)));
	switch (reason) {
	case DROP_TOO_BIG:
		return DROP_TOO_BIG_ANSWERED;
	case DROP_TTL_EXPIRED:
		return DROP_TTL_EXPIRED_ANSWERED;
	default:
		return DROP_NO_BACKEND_ANSWERED;
	}
}

/* What to do with a request that is not forwarded for `reason`. Returns the reason under which it is counted. */
static __always_inline __u32 answer_request(struct xdp_md *ctx, struct packet *packet, const struct service *service,
					    const struct choice *choice, __u32 reason)
{
	switch (reason) {
	case DROP_NO_BACKEND:
		if (service->on_no_backend == NO_BACKEND_PASS)
			return PASS_NO_BACKEND;
		if (service->on_no_backend != NO_BACKEND_REJECT)
			return reason;
		return packet->protocol == IPPROTO_TCP ? answer_with_reset(ctx, packet)
						       : answer_with_error(ctx, packet, reason, 0);
	case DROP_TOO_BIG:
		return answer_with_error(ctx, packet, reason, choice->mtu - encapsulation_overhead(choice));
	case DROP_TTL_EXPIRED:
		return answer_with_error(ctx, packet, reason, 0);
	default:
		return reason;
	}
}

/* Takes the translation of a reply back, so that its error quotes it as it came. */
static __always_inline void undo_reply(struct xdp_md *ctx, const struct packet *packet, const struct service *service)
{
	__u16 address_sum = sum_address(packet->source, packet);
	struct translation translation = {
		.address = packet->source,
		.port = packet->source_port,
		.old_address_sum = checksum_without(service->endpoint_sum, service->port),
		.new_address_sum = address_sum,
		.old_endpoint_sum = service->endpoint_sum,
		/* A port that is kept is in neither of the endpoint sums. */
		.new_endpoint_sum = checksum_fold(address_sum + (service->port ? packet->source_port : 0)),
		.source = 1,
	};
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	void *l3 = data + (packet->l3_offset & OFFSET_MASK);

	if (packet->family == FAMILY_IPV4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > data_end || translate_address_ipv4(l3, data_end, &translation))
			return;
		ip->ttl++;
		ip->check = checksum_replace(ip->check, 0, bpf_htons(0x0100));
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > data_end || translate_address_ipv6(l3, data_end, &translation))
			return;
		ip->hop_limit++;
	}
	translate_l4(data + (packet->l4_offset & OFFSET_MASK), data_end, packet->protocol, &translation);
}

/*
 * Prepares the answer to a reply that was not forwarded for `reason`: it comes from the service, and quotes the reply as the
 * backend sent it. Returns the MTU of the client's route where the reply was too big for it, else 0.
 */
__noinline __u32 prepare_reply_answer(struct xdp_md *ctx, struct packet *packet, __u32 service_id, __u32 reason)
{
	struct service *service = bpf_map_lookup_elem(&services, &service_id);
	struct bpf_fib_lookup fib = {};
	__u32 mtu = 0;

	if (!packet || !service)
		return 0;
	if (reason == DROP_TOO_BIG) {
		fib_towards_client(ctx, packet, service, &fib);
		if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
			mtu = fib.mtu_result;
		undo_reply(ctx, packet, service);
	}
	__builtin_memcpy(packet->destination, service->address, sizeof(packet->destination));
	return mtu;
}

/* What to do with a reply that is not forwarded for `reason`. Returns the reason under which it is counted. */
static __always_inline __u32 answer_reply(struct xdp_md *ctx, struct packet *packet, __u32 service_id, __u32 reason)
{
	if (reason != DROP_TOO_BIG && reason != DROP_TTL_EXPIRED)
		return reason;
	return answer_with_error(ctx, packet, reason, prepare_reply_answer(ctx, packet, service_id, reason));
}

#endif /* TIDEGATE_RESPOND_H */
