/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The flow table: which backend does a tracked flow use, and whose reply is this?
 *
 * One record serves both directions. A flow is found by a tag of the client's address, port and protocol, which requests
 * carry as their source and replies as their destination; a request must also match the service, a reply the backend.
 * A flow lives in one of two buckets, so that the table can be filled well without ever moving an entry.
 *
 * There are two kinds of tracked services, and their flows are tagged differently:
 *   fixed    one port, and one port at each backend. A client's port has one flow in it. Tag: client address and port, protocol.
 *   keeping  a range of ports, which are kept on the way. A client's port has a flow for each of them, and none may share an
 *            entry with another: each has its own backend, its own age and its own end. Tag: client address and port, kept
 *            port, which requests carry as the destination's and replies as the source's.
 * A request belongs to a service, which is of one kind, and an entry's owner names the service: so an entry with the right
 * tag and owner is the flow's, and for IPv4, where tags are bijections within a kind, no other's. A reply may belong to
 * either kind. Records say which: the backends of keeping services have port 0, and that is what a reply matches by in
 * that kind, as no fixed one can. The kinds meet only where a fixed service's backend has the port that another keeps, on the same
 * host; replies of the two would look the same, so there the conflict rule looks among the flows of both kinds.
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

/*
 * Prepares a search for the flow of a client; `ports` is of flow_ports() or flow_ports_keeping(). Returns 0, or -1 where the maps
 * are not as they must be.
 */
static __always_inline int flow_query_ports(struct flow_query *query, const __be32 *address, __u64 ports,
					    const struct packet *packet)
{
	__u32 only = 0, first, second;

	query->settings = bpf_map_lookup_elem(&node, &only);
	if (!query->settings)
		return -1;
	query->tag = hash_client(address, ports, packet, query->settings);
	query->now = flow_now();
	first = ((query->tag ^ ports) >> 32) & (query->settings->flow_buckets - 1);
	second = (first ^ ((__u32)query->tag | 1)) & (query->settings->flow_buckets - 1);
	query->buckets[0] = bpf_map_lookup_elem(&flows, &first);
	query->buckets[1] = bpf_map_lookup_elem(&flows, &second);
	return query->buckets[0] && query->buckets[1] ? 0 : -1;
}

/* The same for the flow of a client with a service of the fixed kind. */
static __always_inline int flow_query_init(struct flow_query *query, const __be32 *address, __be16 port,
					   const struct packet *packet)
{
	return flow_query_ports(query, address, flow_ports(port, packet), packet);
}

/* The same for the flow that a request belongs to. */
static __always_inline int flow_query_request(struct flow_query *query, const struct service *service,
					      const struct packet *packet)
{
	__u64 ports = service->port ? flow_ports(packet->source_port, packet)
				    : flow_ports_keeping(packet->source_port, packet->destination_port, packet);

	return flow_query_ports(query, packet->source, ports, packet);
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
	/* Only if it is still this flow's: the daemon may have removed it meanwhile, and must not find it back. */
	if (updated.word != word.word)
		__sync_val_compare_and_swap((__u64 *)&flow->owner, word.word, updated.word);
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

/* True where the entry's backend has this address, port and protocol; port 0: where it keeps ports. */
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

/* The service with a live flow of this request's client port whose replies come from the backend, of either kind; or 0. */
static __always_inline __u32 flow_towards(struct packet *packet, const struct backend *backend, int keeping)
{
	/* The port that replies would come from: the packet's own where this request's service keeps it. */
	__be16 port = backend->port ? backend->port : packet->destination_port;
	struct flow_query query;
	__u32 service_id = 0;
	__u64 ports;

	ports = keeping ? flow_ports_keeping(packet->source_port, port, packet)
			: flow_ports(packet->source_port, packet);
	if (flow_query_ports(&query, packet->source, ports, packet))
		return 0;
	if (!flow_find_reply(&query, backend->address, keeping ? 0 : port, packet->protocol, &service_id))
		return 0;
	return service_id;
}

/*
 * True where replies of this request's flow could not be told from those of another service's, were it sent to the backend of
 * `record`. Verified once and called only for new flows.
 */
__noinline int flow_conflicts(struct packet *packet, __u32 service_id, __u32 record)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &record);
	__u32 other;

	if (!packet || !backend)
		return 0;
	/* A packet to port 0 is of a service that keeps ports, and no fixed one has a backend with port 0. */
	if (backend->port || packet->destination_port) {
		other = flow_towards(packet, backend, 0);
		if (other && other != service_id)
			return 1;
	}
	if (!(node_flags() & NODE_PORT_KEEPING_SOURCES))
		return 0;
	other = flow_towards(packet, backend, 1);
	return other && other != service_id;
}

/* The service, of those that keep ports, of whose live flow the packet is a reply, or 0. Notes the packet in the entry. */
__noinline __u32 flow_of_keeping_reply(struct packet *packet)
{
	struct flow_query query;
	__u32 service_id = 0;
	struct flow *flow;

	if (!packet ||
	    flow_query_ports(&query, packet->destination,
			     flow_ports_keeping(packet->destination_port, packet->source_port, packet), packet))
		return 0;
	flow = flow_find_reply(&query, packet->source, 0, packet->protocol, &service_id);
	if (!flow)
		return 0;
	flow_touch(&query, flow, flow_read(flow), packet, 0);
	return service_id;
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

	if (flow_query_request(&query, service, packet))
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
