/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * May this packet use the service? Lists of sources, limits, and packets that cannot be sound.
 *
 * A node where nothing of it is configured pays for one comparison. The rest stands in functions of their own, which are
 * verified once however often they are called.
 */
#ifndef TIDEGATE_ADMIT_H
#define TIDEGATE_ADMIT_H

#include "flow.h"

/* How often a token is tried for that others take at the same time, and a place that others take. */
#define LIMIT_ATTEMPTS 8
#define PLACE_ATTEMPTS 4

#define IPV6_MULTICAST 0xff

/* True where a packet may come from the very address and port that it goes to. */
static __always_inline int may_be_land(const struct packet *packet)
{
	return packet->source[0] == packet->destination[0] && packet->source_port == packet->destination_port;
}

static __always_inline int is_from_destination(const struct packet *packet)
{
	return packet->source[0] == packet->destination[0] && packet->source[1] == packet->destination[1] &&
	       packet->source[2] == packet->destination[2] && packet->source[3] == packet->destination[3];
}

/* True for sources that no packet of another host can have: RFC 6890 and RFC 4291. */
static __always_inline int is_bogon(const struct packet *packet)
{
	const __be32 *source = packet->source;
	__u8 first = *(const __u8 *)source;

	if (packet->family == FAMILY_IPV4)
		return first == 0 || first == 127 || first >= 224;
	if (first == IPV6_MULTICAST)
		return 1;
	/* The unspecified address and the loopback address. */
	return !source[0] && !source[1] && !source[2] && !(source[3] & ~bpf_htonl(1));
}

/* True for flags that no TCP sends: none, or a SYN that also ends the connection. */
static __always_inline int has_senseless_flags(const struct packet *packet)
{
	__u8 flags = packet->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_PSH | TCP_ACK | TCP_URG);

	if (packet->protocol != IPPROTO_TCP || packet->fragment == FRAGMENT_LATER)
		return 0;
	return !flags || (flags & TCP_SYN && flags & (TCP_FIN | TCP_RST));
}

/* What list `index` says of the packet's source: 0 where there is no list. */
static __always_inline __u8 source_verdict(const struct packet *packet, __u32 index)
{
	struct source_rule *rule = 0;
	void *list;

	if (packet->family == FAMILY_IPV4) {
		struct source_key_v4 key = {.length = 32, .address = packet->source[0]};

		list = bpf_map_lookup_elem(&source_lists_v4, &index);
		if (list)
			rule = bpf_map_lookup_elem(list, &key);
	} else {
		struct source_key_v6 key = {.length = 128};

		__builtin_memcpy(key.address, packet->source, sizeof(key.address));
		list = bpf_map_lookup_elem(&source_lists_v6, &index);
		if (list)
			rule = bpf_map_lookup_elem(list, &key);
	}
	return rule ? rule->verdict : 0;
}

/* Asks list `index`, where `checks` say that there is one for the packet's family. `refused` is the reason where it refuses. */
static __always_inline __u32 check_source(const struct packet *packet, __u32 index, __u32 checks, __u32 refused)
{
	if (!(checks & (packet->family == FAMILY_IPV4 ? CHECK_SOURCES_V4 : CHECK_SOURCES_V6)))
		return LEDGER_NONE;
	switch (source_verdict(packet, index)) {
	case SOURCE_ALLOWED:
		return LEDGER_NONE;
	case SOURCE_REFUSED:
		return refused;
	default:
		return DROP_INTERNAL;
	}
}

/*
 * Takes a token, where one is left. `arrival` is shared by all CPUs, so the rate holds on whatever queue packets come in. Returns 0
 * where none is left; nothing is written then, so that packets above a limit do not compete for the line.
 */
static __always_inline int take_token(__u64 *arrival, __u64 interval, __u32 burst, __u64 now)
{
	int i;

	for (i = 0; i < LIMIT_ATTEMPTS; i++) {
		__u64 old = *(volatile __u64 *)arrival;
		__u64 next = ((__s64)(old - now) > 0 ? old : now) + interval;

		if ((__s64)(next - now) > (__s64)(interval * burst))
			return 0;
		if (__sync_val_compare_and_swap(arrival, old, next) == old)
			return 1;
	}
	/* Others were quicker each time, and so brought the time up to now: one more is admitted, and charged. */
	__sync_fetch_and_add(arrival, interval);
	return 1;
}

/* The time in the unit of limits. It stands still between two ticks of the kernel, which every burst must outlast. */
static __always_inline __u64 limit_now(void)
{
	return bpf_ktime_get_coarse_ns() << LIMIT_TIME_SHIFT;
}

/*
 * Keyed hash that names one limit of one source. What the limit is goes into it, so that a changed one begins anew.
 */
static __always_inline __u64 source_tag(const struct packet *packet, __u32 service_id, const struct admission *limits,
					__u32 kind, const struct node_settings *settings)
{
	const __u64 *words = (const __u64 *)packet->source;
	__u64 hash;

	hash = hash_round(settings->flow_secret[0], (__u64)service_id << 32 | kind << 8 | packet->family,
			  HASH_MULTIPLIER_A);
	hash = hash_round(hash, limits->interval[kind] << 16 ^ limits->burst[kind], HASH_MULTIPLIER_B);
	if (packet->family == FAMILY_IPV4) {
		__u32 length = limits->prefix_v4 & 63;

		hash = hash_round(hash, packet->source[0] & bpf_htonl(~0ULL << (32 - length)), HASH_MULTIPLIER_A);
	} else {
		__u32 upper = limits->prefix_v6 < 64 ? limits->prefix_v6 : 64;
		__u32 lower = limits->prefix_v6 - upper;

		hash = hash_round(hash, upper ? words[0] & bpf_cpu_to_be64(~0ULL << ((64 - upper) & 63)) : 0,
				  HASH_MULTIPLIER_A);
		hash = hash_round(hash, lower ? words[1] & bpf_cpu_to_be64(~0ULL << ((64 - lower) & 63)) : 0,
				  HASH_MULTIPLIER_B);
	}
	return hash_round(hash, settings->flow_secret[1], HASH_MULTIPLIER_B) | 1;
}

/*
 * The bucket of tokens of a source, or 0 where its line has no room. Only one that is full is taken for another source. An
 * entry is read `arrival` first: whoever claims it writes its tag before, so that one source never gets two.
 */
static __always_inline __u64 *find_source(struct source_bucket *line, __u64 tag, __u64 now)
{
	int attempt, i;

	for (attempt = 0; attempt < PLACE_ATTEMPTS; attempt++) {
		struct source_limit *idle = 0;
		__u64 idle_tag = 0, found;

		for (i = 0; i < SOURCES_PER_BUCKET; i++) {
			struct source_limit *entry = &line->sources[i];
			__u64 arrival = *(volatile __u64 *)&entry->arrival;
			__u64 owner = *(volatile __u64 *)&entry->tag;

			if (owner == tag)
				return &entry->arrival;
			if (!idle && (__s64)(arrival - now) <= 0) {
				idle = entry;
				idle_tag = owner;
			}
		}
		if (!idle)
			return 0;
		found = __sync_val_compare_and_swap(&idle->tag, idle_tag, tag);
		if (found == idle_tag || found == tag)
			return &idle->arrival;
	}
	return 0;
}

/* True where the packet's source is above this limit of its own. */
static __always_inline int source_exceeds(const struct packet *packet, __u32 service_id, const struct admission *limits,
					  __u32 kind, const struct node_settings *settings, __u32 buckets, __u64 now)
{
	struct source_bucket *line;
	__u64 *arrival, tag;
	__u32 index;

	if (!limits->interval[kind])
		return 0;
	tag = source_tag(packet, service_id, limits, kind, settings);
	index = (tag >> 32) & (buckets - 1);
	line = bpf_map_lookup_elem(&source_limits, &index);
	arrival = line ? find_source(line, tag, now) : 0;
	/* A source without a place is held by the limits of the service alone. */
	return arrival && !take_token(arrival, limits->interval[kind], limits->burst[kind], now);
}

/*
 * True where the packet begins a flow: a SYN, or where flows are tracked, a packet of none that is. It is asked for only where new
 * flows are limited.
 */
static __always_inline int begins_flow(const struct packet *packet, __u32 service_id)
{
	struct service *service = bpf_map_lookup_elem(&services, &service_id);
	struct flow_query query;
	struct flow *vacant = 0;

	if (packet->fragment == FRAGMENT_LATER)
		return 0;
	if (packet->protocol == IPPROTO_TCP && (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return 1;
	if (!service || service->mode != MODE_NAT ||
	    flow_query_init(&query, packet->source, packet->source_port, packet))
		return 0;
	return !flow_find_request(&query, service_id, &vacant);
}

/* True where the packet is above a limit of its service. Sources are asked first, so that one of them does not use up all. */
__noinline int exceeds_limit(struct packet *packet, __u32 service_id)
{
	struct admission *limits = bpf_map_lookup_elem(&admission, &service_id);
	struct node_settings *settings;
	struct admission *of_node;
	__u32 only = 0, buckets;
	int begins = 0;
	__u64 now;

	settings = bpf_map_lookup_elem(&node, &only);
	of_node = bpf_map_lookup_elem(&admission, &only);
	if (!packet || !limits || !settings || !of_node)
		return 0;
	buckets = of_node->source_buckets;
	now = limit_now();
	if (limits->interval[LIMIT_NEW_FLOWS] || limits->interval[LIMIT_SOURCE_NEW_FLOWS])
		begins = begins_flow(packet, service_id);
	if (source_exceeds(packet, service_id, limits, LIMIT_SOURCE_PACKETS, settings, buckets, now))
		return 1;
	if (begins && source_exceeds(packet, service_id, limits, LIMIT_SOURCE_NEW_FLOWS, settings, buckets, now))
		return 1;
	if (limits->interval[LIMIT_PACKETS] &&
	    !take_token(&limits->arrival[LIMIT_PACKETS], limits->interval[LIMIT_PACKETS], limits->burst[LIMIT_PACKETS],
			now))
		return 1;
	return begins && limits->interval[LIMIT_NEW_FLOWS] &&
	       !take_token(&limits->arrival[LIMIT_NEW_FLOWS], limits->interval[LIMIT_NEW_FLOWS],
			   limits->burst[LIMIT_NEW_FLOWS], now);
}

/* The checks that `checks` of the node ask for. Returns LEDGER_NONE, or the reason to drop the packet. */
__noinline int carry_out_checks(struct packet *packet, __u32 service_id, __u32 checks)
{
	struct admission *own;
	__u32 reason;

	if (!packet)
		return DROP_INTERNAL;
	if (is_from_destination(packet) && (checks & CHECK_BOGONS || packet->source_port == packet->destination_port))
		return DROP_BOGON;
	if (checks & CHECK_BOGONS && (is_bogon(packet) || has_senseless_flags(packet)))
		return DROP_BOGON;
	reason = check_source(packet, 0, checks, DROP_BLOCKED);
	if (reason || !(checks & CHECK_SERVICES))
		return reason;
	own = bpf_map_lookup_elem(&admission, &service_id);
	if (!own)
		return DROP_INTERNAL;
	checks = own->checks;
	reason = check_source(packet, service_id, checks, DROP_SOURCE_REFUSED);
	if (reason)
		return reason;
	return checks & CHECK_LIMITS && exceeds_limit(packet, service_id) ? DROP_RATE_LIMIT : LEDGER_NONE;
}

/* Returns LEDGER_NONE where the packet may use the service, or the reason to drop it. */
static __always_inline __u32 admit(struct packet *packet, __u32 service_id)
{
	struct admission *of_node;
	__u32 only = 0;

	of_node = bpf_map_lookup_elem(&admission, &only);
	if (!of_node)
		return DROP_INTERNAL;
	if (!of_node->checks && !may_be_land(packet))
		return LEDGER_NONE;
	return carry_out_checks(packet, service_id, of_node->checks);
}

#endif /* TIDEGATE_ADMIT_H */
