/* SPDX-License-Identifier: GPL-2.0-only */
/* What is known of an address that services have, whatever the port. */
#ifndef TIDEGATE_ADDRESS_H
#define TIDEGATE_ADDRESS_H

#include "maps.h"
#include "packet.h"

/* The services of the packet's destination, or 0 where it is no service's address. */
static __always_inline struct address_services *find_address(const struct packet *packet)
{
	struct address_key key = {.family = packet->family};

	__builtin_memcpy(key.address, packet->destination, sizeof(key.address));
	return bpf_map_lookup_elem(&addresses, &key);
}

/*
 * ID of the one service that the packet's destination has for its protocol; 0 where there is none, SERVICES_SEVERAL where its
 * ports would have to tell.
 */
static __always_inline __u32 find_only_service(const struct packet *packet)
{
	struct address_services *found = find_address(packet);

	if (!found)
		return 0;
	if (packet->protocol == IPPROTO_TCP)
		return found->tcp;
	return packet->protocol == IPPROTO_UDP ? found->udp : 0;
}

/* What becomes of a packet that is about to be passed for `reason`, where packets for no service are to be dropped. */
__noinline __u32 judge_unserved(const struct packet *packet, __u32 reason)
{
	if (!packet || !find_address(packet))
		return reason;
	switch (reason) {
	case PASS_NO_SERVICE:
	case PASS_NOT_A_REPLY:
		return DROP_UNSERVED;
	case PASS_FRAGMENT:
		return packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP ? DROP_UNSERVED : reason;
	default:
		return reason;
	}
}

#endif /* TIDEGATE_ADDRESS_H */
