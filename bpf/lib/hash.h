/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hashes of flows: multiply and xor-shift rounds, two or four a packet.
 *
 * The hash for tables has a fixed seed, so that all nodes choose alike. The hash for the flow table is keyed with a
 * secret of the node, so that nobody can aim at a bucket; for IPv4 it is a bijection of address, port and protocol, so that
 * two flows never share a tag.
 */
#ifndef TIDEGATE_HASH_H
#define TIDEGATE_HASH_H

#include "packet.h"

/* Odd multipliers: the fractional parts of the golden ratio and of the square roots of 3 and 5. */
#define HASH_MULTIPLIER_A 0x9e3779b97f4a7c15ULL
#define HASH_MULTIPLIER_B 0xbb67ae8584caa73bULL
#define HASH_MULTIPLIER_C 0x3c6ef372fe94f82bULL

static __always_inline __u64 hash_round(__u64 state, __u64 word, __u64 multiplier)
{
	state ^= word;
	state *= multiplier;
	return state ^ (state >> 32);
}

/* Hash of the 5-tuple with a fixed seed. The upper half is the better mixed one. */
static __always_inline __u64 hash_five_tuple(const struct packet *packet)
{
	__u64 ports = (__u64)packet->source_port << 32 | (__u64)packet->destination_port << 16 | packet->protocol;
	__u64 hash;

	if (packet->family == FAMILY_IPV4) {
		hash = hash_round(HASH_MULTIPLIER_C, (__u64)packet->source[0] << 32 | packet->destination[0],
				  HASH_MULTIPLIER_A);
	} else {
		const __u64 *source = (const __u64 *)packet->source;
		const __u64 *destination = (const __u64 *)packet->destination;

		hash = hash_round(HASH_MULTIPLIER_C, source[0], HASH_MULTIPLIER_A);
		hash = hash_round(hash, source[1], HASH_MULTIPLIER_B);
		hash = hash_round(hash, destination[0], HASH_MULTIPLIER_A);
		hash = hash_round(hash, destination[1], HASH_MULTIPLIER_B);
	}
	hash = hash_round(hash, ports, HASH_MULTIPLIER_B);
	return hash * HASH_MULTIPLIER_A;
}

/*
 * The same of what all pieces of a datagram have in common. Without the identification: what a host sends in pieces goes one
 * way, like the rest of its flows.
 */
__noinline __u64 hash_hosts(const struct packet *packet)
{
	const __u64 *source, *destination;
	__u64 hash;

	if (!packet)
		return 0;
	source = (const __u64 *)packet->source;
	destination = (const __u64 *)packet->destination;
	hash = hash_round(HASH_MULTIPLIER_C, source[0], HASH_MULTIPLIER_A);
	hash = hash_round(hash, source[1], HASH_MULTIPLIER_B);
	hash = hash_round(hash, destination[0], HASH_MULTIPLIER_A);
	hash = hash_round(hash, destination[1], HASH_MULTIPLIER_B);
	return hash_round(hash, packet->family, HASH_MULTIPLIER_B) * HASH_MULTIPLIER_A;
}

/* Hash of a client's address, port and protocol, keyed with the node's secret. */
static __always_inline __u64 hash_client(const __be32 *address, __be16 port, const struct packet *packet,
					 const struct node_settings *settings)
{
	__u64 ports = (__u64)port << 8 | packet->protocol;
	__u64 hash;

	if (packet->family == FAMILY_IPV4) {
		hash = hash_round(settings->flow_secret[0], (__u64)address[0] << 32 | ports, HASH_MULTIPLIER_A);
	} else {
		const __u64 *words = (const __u64 *)address;

		hash = hash_round(settings->flow_secret[1], words[0], HASH_MULTIPLIER_A);
		hash = hash_round(hash, words[1], HASH_MULTIPLIER_B);
		hash = hash_round(hash, ports, HASH_MULTIPLIER_A);
	}
	hash = hash_round(hash, settings->flow_secret[1], HASH_MULTIPLIER_B);
	return hash;
}

#endif /* TIDEGATE_HASH_H */
