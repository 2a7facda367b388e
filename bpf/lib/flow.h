/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The flow table: which backend does a tracked flow use, and whose reply is this?
 *
 * One record serves both directions. A flow is found by a tag of the client's address, port and protocol, which requests
 * carry as their source and replies as their destination; a request must also match the service, a reply the backend.
 * A flow lives in one of two buckets, so that the table can be filled well without ever moving an entry.
 *
 * There are no locks. An entry is written by two 8-byte stores, and `check` ties the first to the second: see struct flow.
 * A live entry is never displaced.
 */
#ifndef TIDEGATE_FLOW_H
#define TIDEGATE_FLOW_H

#include "choose.h"

/* How many slots are tried where the client's port is in use towards the backend of the first. */
#define FLOW_CONFLICT_ATTEMPTS 16

/* The second word of struct flow, read and written whole. */
union flow_word {
	__u64 word;
	struct {
		__u32 owner;
		__u16 tick;
		__u8 kind;
		__u8 pad;
	} entry;
};

/* Where a flow may be, and the time. */
struct flow_query {
	__u64 tag;
	struct flow_bucket *buckets[2];
	struct node_settings *settings;
	__u16 now;
};

static __always_inline __u64 flow_spread(__u32 owner)
{
	return owner * HASH_MULTIPLIER_C;
}

static __always_inline __u16 flow_now(void)
{
	return bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
}

/* Prepares a search for the flow of a client. Returns 0, or -1 where the maps are not as they must be. */
static __always_inline int flow_query_init(struct flow_query *query, const __be32 *address, __be16 port,
					   const struct packet *packet)
{
	__u32 only = 0, first, second;

	query->settings = bpf_map_lookup_elem(&node, &only);
	if (!query->settings)
		return -1;
	query->tag = hash_client(address, port, packet, query->settings);
	query->now = flow_now();
	first = (query->tag >> 32) & (query->settings->flow_buckets - 1);
	second = (first ^ ((__u32)query->tag | 1)) & (query->settings->flow_buckets - 1);
	query->buckets[0] = bpf_map_lookup_elem(&flows, &first);
	query->buckets[1] = bpf_map_lookup_elem(&flows, &second);
	return query->buckets[0] && query->buckets[1] ? 0 : -1;
}

static __always_inline union flow_word flow_read(const struct flow *flow)
{
	union flow_word word = {.word = *(const volatile __u64 *)&flow->owner};

	return word;
}

/* Ticks that a packet may seem to lie in the future: another CPU noted it, whose clock was a little ahead. */
#define FLOW_TICKS_AHEAD 16

/*
 * True where the entry may be overwritten. Ticks wrap in 78 hours: the entry of a flow that died and was not overwritten
 * until then looks alive again for as long as its kind may be silent. It costs a place for that time, and a client that
 * comes back with the same port meets the same backend; a flow that lives is never taken for dead.
 */
static __always_inline int flow_is_dead(const struct flow_query *query, union flow_word word)
{
	/* Ages are counted from the future on, and without a branch, which the verifier would follow for every entry. */
	__u16 age = query->now + FLOW_TICKS_AHEAD - word.entry.tick;
	__u32 lifetime = query->settings->flow_lifetime[word.entry.kind & (FLOW_KINDS - 1)];

	return !word.entry.owner || age > lifetime + FLOW_TICKS_AHEAD;
}

static __always_inline int flow_has_tag(const struct flow_query *query, const struct flow *flow, union flow_word word)
{
	return word.entry.owner && (flow->check ^ flow_spread(word.entry.owner)) == query->tag;
}

/* Notes a packet of the flow: when, and what it says about the connection. Writes only what changed. */
static __always_inline void flow_touch(const struct flow_query *query, struct flow *flow, union flow_word word,
				       const struct packet *packet, int from_client)
{
	union flow_word updated = word;

	updated.entry.tick = query->now;
	if (packet->tcp_flags & (TCP_FIN | TCP_RST)) {
		/* Only shortens its life: a forged RST or FIN must not make us forget a live flow. */
		updated.entry.kind = FLOW_CLOSING;
	} else if (from_client && packet->protocol == IPPROTO_TCP) {
		if (!(packet->tcp_flags & TCP_SYN)) {
			if (word.entry.kind == FLOW_HALF_OPEN)
				updated.entry.kind = FLOW_ESTABLISHED;
		} else if (word.entry.kind == FLOW_CLOSING) {
			updated.entry.kind = FLOW_HALF_OPEN;
		}
	}
	if (updated.word != word.word)
		*(volatile __u64 *)&flow->owner = updated.word;
}

static __always_inline void flow_store(const struct flow_query *query, struct flow *flow, __u32 owner, __u8 kind)
{
	union flow_word word = {.entry = {.owner = owner, .tick = query->now, .kind = kind}};

	*(volatile __u64 *)&flow->check = query->tag ^ flow_spread(owner);
	*(volatile __u64 *)&flow->owner = word.word;
}

static __always_inline void flow_write(const struct flow_query *query, struct flow *flow, __u32 owner,
				       const struct packet *packet)
{
	__u8 kind;

	if (packet->protocol != IPPROTO_TCP)
		kind = FLOW_DATAGRAM;
	else if (packet->tcp_flags & (TCP_FIN | TCP_RST))
		kind = FLOW_CLOSING;
	else
		kind = packet->tcp_flags & TCP_SYN ? FLOW_HALF_OPEN : FLOW_ESTABLISHED;
	flow_store(query, flow, owner, kind);
}

/* The entry of the service's flow, or 0. `vacant` is set to an entry that could be written, where there is one. */
static __always_inline struct flow *flow_find_request(const struct flow_query *query, __u32 service_id,
						      struct flow **vacant)
{
	__u32 i;

	for (i = 0; i < 2 * FLOWS_PER_BUCKET; i++) {
		struct flow *flow = &query->buckets[i / FLOWS_PER_BUCKET]->flows[i % FLOWS_PER_BUCKET];
		union flow_word word = flow_read(flow);

		if (flow_has_tag(query, flow, word) && word.entry.owner >> 16 == service_id &&
		    word.entry.kind != FLOW_ASIDE) {
			*vacant = flow;
			return flow_is_dead(query, word) ? 0 : flow;
		}
		if (!*vacant && flow_is_dead(query, word))
			*vacant = flow;
	}
	return 0;
}

/* True where the entry's backend has this address, port and protocol. */
static __always_inline int flow_backend_is(union flow_word word, const __be32 *address, __be16 port, __u8 protocol,
					   __u32 *service_id)
{
	struct service *service;
	struct choice choice;
	__u32 i;

	*service_id = word.entry.owner >> 16;
	service = bpf_map_lookup_elem(&services, service_id);
	if (!service || load_backend(service, word.entry.owner & 0xffff, &choice))
		return 0;
	if (choice.backend->port != port || choice.backend->protocol != protocol)
		return 0;
	for (i = 0; i < 4; i++) {
		if (choice.backend->address[i] != address[i])
			return 0;
	}
	return 1;
}

/*
 * The live entry of this client towards the backend with this address and port, through whichever service, or 0.
 * `service_id` is set to that service.
 */
static __always_inline struct flow *flow_find_reply(const struct flow_query *query, const __be32 *address, __be16 port,
						    __u8 protocol, __u32 *service_id)
{
	__u32 i;

	for (i = 0; i < 2 * FLOWS_PER_BUCKET; i++) {
		struct flow *flow = &query->buckets[i / FLOWS_PER_BUCKET]->flows[i % FLOWS_PER_BUCKET];
		union flow_word word = flow_read(flow);

		if (flow_has_tag(query, flow, word) && !flow_is_dead(query, word) &&
		    flow_backend_is(word, address, port, protocol, service_id))
			return flow;
	}
	return 0;
}

/*
 * True where the client of this request uses the same port towards the backend of `record` through another service: replies
 * carry only the client and the backend, so the two could not be told apart. Asked for new flows only, and verified once
 * however often it is called.
 */
__noinline int flow_conflicts(struct packet *packet, __u32 service_id, __u32 record)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &record);
	struct flow_query query;
	__u32 other = 0;

	if (!packet || !backend || flow_query_init(&query, packet->source, packet->source_port, packet))
		return 0;
	return flow_find_reply(&query, backend->address, backend->port, packet->protocol, &other) &&
	       other != service_id;
}

/*
 * Chooses the backend of a new flow: that of its slot, or where that is taken, those of other slots. Returns LEDGER_NONE with
 * `choice` filled, or the reason to drop the packet.
 */
static __always_inline __u32 choose_without_conflict(__u32 service_id, const struct service *service, __u64 hash,
						     struct packet *packet, struct choice *choice)
{
	__u32 attempt, reason;

	for (attempt = 0; attempt < FLOW_CONFLICT_ATTEMPTS; attempt++) {
		reason = choose_by_table(service_id, service, hash, choice);
		if (reason)
			return reason;
		if (!flow_conflicts(packet, service_id, choice->record))
			return LEDGER_NONE;
		hash = hash * HASH_MULTIPLIER_B + HASH_MULTIPLIER_C;
	}
	return DROP_FLOW_CONFLICT;
}

/*
 * Chooses the backend of a packet of a service whose flows are all tracked, and records a new flow. Returns LEDGER_NONE with
 * `choice` filled, or the reason to drop the packet.
 */
static __always_inline __u32 choose_tracked(__u32 service_id, const struct service *service, __u64 hash,
					    struct packet *packet, struct choice *choice)
{
	struct flow_query query;
	struct flow *flow, *vacant = 0;
	__u32 reason;

	if (flow_query_init(&query, packet->source, packet->source_port, packet))
		return DROP_INTERNAL;
	flow = flow_find_request(&query, service_id, &vacant);
	if (flow) {
		union flow_word word = flow_read(flow);

		if (!load_backend(service, word.entry.owner & 0xffff, choice) && backend_serves(choice)) {
			flow_touch(&query, flow, word, packet, 1);
			return LEDGER_NONE;
		}
		/* Its backend is gone: choose anew and use the entry again. */
	}
	reason = choose_without_conflict(service_id, service, hash, packet, choice);
	if (reason)
		return reason;
	if (!vacant)
		return DROP_FLOW_TABLE_FULL;
	flow_write(&query, vacant, service_id << 16 | choice->number, packet);
	return LEDGER_NONE;
}

#endif /* TIDEGATE_FLOW_H */
