/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hashes of flows: multiply and xor-shift rounds, two or four a packet.
 *
 * The hash for tables has a fixed seed, so that all nodes choose alike. The hash for the flow table is keyed with a
 * secret of the node, so that nobody can aim at a bucket; for IPv4 it is a bijection of the address and 32 bits for the ports,
 * so that two flows of a service never share a tag.
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
	/* Clients choose ports in sequence. A product carries upwards only, so the source port has to stand at the bottom. */
	__u64 ports = (__u64)packet->protocol << 32 | (__u64)packet->destination_port << 16 | packet->source_port;
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

/* The first `bits` of 64, in the machine's byte order. */
static __always_inline __u64 prefix_bits(__u32 bits)
{
	return bits < 64 ? ~(~0ULL >> (bits & 63)) : ~0ULL;
}

/*
 * Hash of the client's address as far as a prefix goes and, where `mode` says so, of the service's, with a fixed seed. Ports and
 * protocol do not count. Verified once, and called only for services that ask for it.
 */
__noinline __u64 hash_addresses(const struct packet *packet, __u32 mode, __u32 prefix)
{
	__u64 with_destination, hash;

	if (!packet)
		return 0;
	with_destination = mode == HASH_SOURCE_DESTINATION ? ~0ULL : 0;
	if (packet->family == FAMILY_IPV4) {
		__be32 source = packet->source[0] & bpf_htonl(prefix_bits(prefix) >> 32);

		hash = hash_round(HASH_MULTIPLIER_C,
				  (__u64)source << 32 | (packet->destination[0] & (__u32)with_destination),
				  HASH_MULTIPLIER_A);
	} else {
		const __u64 *source = (const __u64 *)packet->source;
		const __u64 *destination = (const __u64 *)packet->destination;
		__u64 first = bpf_cpu_to_be64(prefix_bits(prefix));
		__u64 second = bpf_cpu_to_be64(prefix > 64 ? prefix_bits(prefix - 64) : 0);

		hash = hash_round(HASH_MULTIPLIER_C, source[0] & first, HASH_MULTIPLIER_A);
		hash = hash_round(hash, source[1] & second, HASH_MULTIPLIER_B);
		hash = hash_round(hash, destination[0] & with_destination, HASH_MULTIPLIER_A);
		hash = hash_round(hash, destination[1] & with_destination, HASH_MULTIPLIER_B);
	}
	hash = hash_round(hash, mode, HASH_MULTIPLIER_B);
	return hash * HASH_MULTIPLIER_A;
}

/*
 * Hash of what all pieces of a datagram have in common. Without the identification: what a host sends in pieces goes one way, like
 * the rest of its flows.
 */
static __always_inline __u64 hash_hosts(const struct packet *packet)
{
	return hash_addresses(packet, HASH_SOURCE_DESTINATION, 128);
}

/*
 * The hash that chooses the slot of a packet. What spreads packets over paths and queues stays the hash of the 5-tuple: a
 * client whose flows all go to one backend still sends many.
 */
static __always_inline __u64 hash_for_table(const struct packet *packet, const struct service *service,
					    __u64 five_tuple)
{
	return service->hash == HASH_FIVE_TUPLE ? five_tuple
						: hash_addresses(packet, service->hash, service->hash_prefix);
}

/*
 * What tells the flows of a client's address apart within a service: the lower 32 bits are in the tag. The protocol is the
 * service's, so it need not be among them; but a client's TCP and UDP flows are to have buckets of their own. A service that
 * keeps ports has many flows of one client port, one for each port that is kept, and 32 bits are just enough for the two:
 * there the protocol stands above them and moves the buckets only.
 */
static __always_inline __u64 flow_ports(__be16 port, const struct packet *packet)
{
	return (__u64)port << 8 | packet->protocol;
}

static __always_inline __u64 flow_ports_keeping(__be16 port, __be16 kept, const struct packet *packet)
{
	return (__u64)packet->protocol << 32 | (__u64)port << 16 | kept;
}

/* Hash of a client's address and of the ports of its flow, keyed with the node's secret. */
static __always_inline __u64 hash_client(const __be32 *address, __u64 ports, const struct packet *packet,
					 const struct node_settings *settings)
{
	__u64 hash;

	if (packet->family == FAMILY_IPV4) {
		hash = hash_round(settings->flow_secret[0], (__u64)address[0] << 32 | (__u32)ports, HASH_MULTIPLIER_A);
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
