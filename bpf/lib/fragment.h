/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fragments: all pieces of a datagram go where its first piece goes, though only that one has ports.
 *
 * A datagram is known by source, destination and identification (IPv4: and protocol). Whichever piece comes first decides,
 * and the others follow for as long as hosts wait for them:
 *   - the one with the ports: as for a packet that is whole. What it finds decided for another service gives way, and so
 *     does everything for TCP, where a segment at the wrong backend would end its connection, while a lost one is sent again.
 *   - another one, to an address that has one service of its protocol: for that service, where the source's last fragmented
 *     datagram to it went; without such, by the table: of a service that chooses by addresses alone as ever, else for UDP by both
 *     hosts' addresses.
 *   - another one, where the ports would have to tell: dropped, and counted.
 * A piece without ports never changes what was decided. Whoever forges one with ports must guess the identification, and can
 * then disturb one datagram; with overlapping pieces he could anyway.
 *
 * A datagram whose first piece is for no service is remembered as well, so that the host gets all of it.
 *
 * Nothing here is on the way of whole packets. Each function that is not inlined is verified once, and reads the packet only
 * by what was parsed of it.
 */
#ifndef TIDEGATE_FRAGMENT_H
#define TIDEGATE_FRAGMENT_H

#include "address.h"
#include "flow.h"

/* Ticks after which a datagram is forgotten: 30 seconds, for which hosts wait for missing pieces. */
#define DATAGRAM_LIFETIME 7
/* Ticks within which a first piece that comes again is a duplicate, not the next datagram with the same identification. */
#define DATAGRAM_DUPLICATE 1

/* The first word of struct datagram. */
union datagram_word {
	__u64 word;
	struct {
		__u32 owner;
		__u32 tick;
	} entry;
};

/* Where a piece without ports goes. */
union datagram_verdict {
	__u64 word;
	struct {
		__u32 owner;  /* as in struct datagram */
		__u32 reason; /* where there is none */
	} verdict;
};

static __always_inline __u32 datagram_now(void)
{
	return bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
}

static __always_inline union datagram_word datagram_read(const struct datagram *datagram)
{
	union datagram_word word = {.word = *(const volatile __u64 *)&datagram->owner};

	return word;
}

static __always_inline void datagram_write(struct datagram *datagram, union datagram_word word)
{
	*(volatile __u64 *)&datagram->owner = word.word;
}

/* Ticks since the decision; may be negative, where another CPU's clock went on meanwhile. */
static __always_inline __s32 datagram_age(union datagram_word word, __u32 now)
{
	return now - word.entry.tick;
}

static __always_inline int datagram_is_dead(union datagram_word word, __u32 now)
{
	return datagram_age(word, now) > DATAGRAM_LIFETIME;
}

static __always_inline void datagram_key(const struct packet *packet, struct fragment_key *key)
{
	__builtin_memcpy(key->source, packet->source, sizeof(key->source));
	__builtin_memcpy(key->destination, packet->destination, sizeof(key->destination));
	key->datagram = packet->datagram;
	key->protocol = packet->family == FAMILY_IPV4 ? packet->protocol : 0;
	key->family = packet->family;
	key->of_source = 0;
	key->pad = 0;
}

/* Makes a key of a datagram that of its source's last one. */
static __always_inline void source_key(const struct packet *packet, struct fragment_key *key)
{
	key->datagram = 0;
	key->protocol = packet->protocol;
	key->of_source = 1;
}

/*
 * Remembers a datagram that is not known. Returns 0, or the entry of another CPU that was quicker. An entry that cannot be made
 * is as one that was pushed out at once.
 */
static __always_inline struct datagram *datagram_add(const struct fragment_key *key, union datagram_word word,
						     __u32 ports)
{
	struct datagram datagram = {.owner = word.entry.owner, .tick = word.entry.tick, .ports = ports};

	if (!bpf_map_update_elem(&fragments, key, &datagram, BPF_NOEXIST))
		return 0;
	return bpf_map_lookup_elem(&fragments, key);
}

static __always_inline __u32 ports_of(const struct packet *packet)
{
	return (__u32)packet->destination_port << 16 | packet->source_port;
}

/* Remembers that a datagram goes to `owner`, whatever was known of it. */
static __always_inline void datagram_decide(const struct packet *packet, __u32 owner)
{
	union datagram_word word = {.entry = {.owner = owner, .tick = datagram_now()}};
	struct datagram *known;
	struct fragment_key key;

	datagram_key(packet, &key);
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known)
		known = datagram_add(&key, word, ports_of(packet));
	if (!known)
		return;
	known->ports = ports_of(packet);
	datagram_write(known, word);
}

/* Remembers where the source's last datagram went. Most sources that fragment have one flow. */
static __always_inline void remember_source(const struct packet *packet, struct fragment_key *key,
					    union datagram_word word)
{
	struct datagram *known;

	source_key(packet, key);
	known = bpf_map_lookup_elem(&fragments, key);
	if (!known)
		datagram_add(key, word, 0);
	else if (datagram_read(known).word != word.word)
		datagram_write(known, word);
}

/* True where the owner's backend can get packets. */
static __always_inline int owner_serves(__u32 owner)
{
	struct service *service;
	struct choice choice;
	__u32 id = owner >> 16;

	service = bpf_map_lookup_elem(&services, &id);
	return service && !load_backend(service, owner & 0xffff, &choice) && backend_serves(&choice);
}

/* True where a first piece that would go to `own` must follow what was decided before. */
static __always_inline int must_follow(const struct packet *packet, const struct datagram *known,
				       union datagram_word word, __u32 own, __u32 now)
{
	__s32 age = datagram_age(word, now);

	if (packet->protocol != IPPROTO_UDP || word.entry.owner >> 16 != own >> 16)
		return 0;
	if (known->ports ? known->ports != ports_of(packet) || age > DATAGRAM_DUPLICATE : age > DATAGRAM_LIFETIME)
		return 0;
	return owner_serves(word.entry.owner);
}

/*
 * Which backend gets the first piece of a datagram for a service, that would go to `own` were it whole? Remembers the answer.
 * Returns an owner of the same service.
 */
__noinline __u32 follow_datagram(const struct packet *packet, __u32 own)
{
	union datagram_word word = {.entry = {.owner = own}};
	union datagram_word decided;
	struct datagram *known;
	struct fragment_key key;

	if (!packet)
		return own;
	word.entry.tick = datagram_now();
	decided = word;
	datagram_key(packet, &key);
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known)
		known = datagram_add(&key, word, ports_of(packet));
	if (known) {
		union datagram_word found = datagram_read(known);

		if (must_follow(packet, known, found, own, word.entry.tick))
			decided = found;
		known->ports = ports_of(packet);
		if (decided.word != found.word)
			datagram_write(known, decided);
	}
	remember_source(packet, &key, word);
	return decided.entry.owner;
}

/* Remembers that a datagram is a reply of a service, by its first piece. */
__noinline __u32 remember_reply(const struct packet *packet, __u32 service_id)
{
	if (packet)
		datagram_decide(packet, service_id << 16);
	return LEDGER_NONE;
}

/*
 * Sees to it that replies to a datagram that went elsewhere than its tracked flow are recognised. Returns LEDGER_NONE, or the
 * reason to drop the piece.
 */
__noinline __u32 track_aside(const struct packet *packet, __u32 owner)
{
	struct flow *vacant = 0;
	struct service *service;
	struct flow_query query;
	__u32 id = owner >> 16;
	__u32 i;

	service = bpf_map_lookup_elem(&services, &id);
	if (!packet || !service || flow_query_request(&query, service, packet))
		return DROP_INTERNAL;
	for (i = 0; i < 2 * FLOWS_PER_BUCKET; i++) {
		struct flow *flow = &query.buckets[i / FLOWS_PER_BUCKET]->flows[i % FLOWS_PER_BUCKET];
		union flow_word word = flow_read(flow);

		if (flow_has_tag(&query, flow, word) && word.entry.owner == owner) {
			word.entry.tick = query.now;
			*(volatile __u64 *)&flow->owner = word.word;
			return LEDGER_NONE;
		}
		if (!vacant && flow_is_dead(&query, word))
			vacant = flow;
	}
	if (!vacant)
		return DROP_FLOW_TABLE_FULL;
	flow_store(&query, vacant, owner, FLOW_ASIDE);
	return LEDGER_NONE;
}

/* The owner that a piece without ports of an unknown datagram gets, by the address that it is for; or the reason. */
static __always_inline union datagram_verdict choose_by_address(const struct packet *packet, struct fragment_key *key,
								__u32 now)
{
	union datagram_verdict chosen = {.verdict = {.reason = PASS_FRAGMENT}};
	__u32 service_id = find_only_service(packet);
	union datagram_word last;
	struct datagram *known;
	struct service *service;
	struct choice choice;

	if (!service_id)
		return chosen;
	chosen.verdict.reason = DROP_FRAGMENT_UNKNOWN;
	if (service_id == SERVICES_SEVERAL)
		return chosen;
	chosen.verdict.owner = service_id << 16;
	source_key(packet, key);
	known = bpf_map_lookup_elem(&fragments, key);
	if (known) {
		last = datagram_read(known);
		if (!datagram_is_dead(last, now) && last.entry.owner >> 16 == service_id &&
		    owner_serves(last.entry.owner)) {
			chosen.verdict.owner = last.entry.owner;
			chosen.verdict.reason = LEDGER_NONE;
			return chosen;
		}
	}
	service = bpf_map_lookup_elem(&services, &service_id);
	if (!service || (packet->protocol != IPPROTO_UDP && service->hash == HASH_FIVE_TUPLE))
		return chosen;
	chosen.verdict.reason =
		choose_by_table(service_id, service, hash_for_table(packet, service, hash_hosts(packet)), &choice);
	if (!chosen.verdict.reason)
		chosen.verdict.owner |= choice.number;
	return chosen;
}

/* Remembers what was decided by a piece without ports, unless another piece was quicker: then that one decides. */
static __always_inline __u32 settle(const struct packet *packet, struct fragment_key *key, __u32 owner, __u32 now)
{
	union datagram_word word = {.entry = {.owner = owner, .tick = now}};
	union datagram_word found;
	struct datagram *known;

	datagram_key(packet, key);
	known = datagram_add(key, word, 0);
	if (!known)
		return owner;
	found = datagram_read(known);
	if (!datagram_is_dead(found, now))
		return found.entry.owner;
	/* Of an earlier datagram with this identification. */
	known->ports = 0;
	if (__sync_val_compare_and_swap((__u64 *)&known->owner, found.word, word.word) == found.word)
		return owner;
	return datagram_read(known).entry.owner;
}

/* Where does a piece without ports go? union datagram_verdict. */
__noinline __u64 find_datagram(const struct packet *packet)
{
	union datagram_verdict verdict = {.verdict = {.reason = PASS_FRAGMENT}};
	__u32 now = datagram_now();
	struct datagram *known;
	struct fragment_key key;

	if (!packet)
		return verdict.word;
	datagram_key(packet, &key);
	known = bpf_map_lookup_elem(&fragments, &key);
	if (known) {
		union datagram_word found = datagram_read(known);

		if (!datagram_is_dead(found, now)) {
			verdict.verdict.owner = found.entry.owner;
			verdict.verdict.reason = found.entry.owner ? LEDGER_NONE : PASS_FRAGMENT;
			return verdict.word;
		}
	}
	verdict = choose_by_address(packet, &key, now);
	/* A lying length is dropped by whoever reads the verdict, and must not decide anything. */
	if (!verdict.verdict.reason && packet_lengths_agree(packet))
		verdict.verdict.owner = settle(packet, &key, verdict.verdict.owner, now);
	return verdict.word;
}

/* The service of whose reply this is a piece without ports, or 0. */
__noinline __u32 find_reply_datagram(const struct packet *packet)
{
	struct datagram *known;
	struct fragment_key key;
	union datagram_word found;

	if (!packet)
		return 0;
	datagram_key(packet, &key);
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known)
		return 0;
	found = datagram_read(known);
	return datagram_is_dead(found, datagram_now()) || found.entry.owner & 0xffff ? 0 : found.entry.owner >> 16;
}

/* A first piece that is about to be passed for `reason`: remembers to pass the rest of its datagram too. */
__noinline __u32 pass_datagram(const struct packet *packet, __u32 reason)
{
	if (!packet || !find_address(packet))
		return reason;
	if (reason == PASS_MALFORMED)
		return DROP_FRAGMENT_SHORT;
	if (reason == PASS_NO_SERVICE || reason == PASS_NOT_A_REPLY)
		datagram_decide(packet, 0);
	return reason;
}

/* True where a piece without ports has bytes of the TCP header, which belongs into the first one (RFC 1858, RFC 3128). */
static __always_inline int overlaps_header(const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP && packet->fragment_offset < sizeof(struct tcphdr);
}

#endif /* TIDEGATE_FRAGMENT_H */
