/* SPDX-License-Identifier: GPL-2.0-only */
/* The ledger: each packet is counted once when it is seen and once under what became of it. */
#ifndef TIDEGATE_ACCOUNT_H
#define TIDEGATE_ACCOUNT_H

#include "maps.h"

static __always_inline void account_block(struct ledger *block, __u32 bytes, __u32 reason)
{
	if (!block)
		return;
	block->seen++;
	block->bytes += bytes;
	if (reason < LEDGER_REASONS)
		block->packets[reason]++;
}

/* Bytes to count of a packet that says it has `ip_length` and is found to have `found`: a lie must not inflate the sums. */
static __always_inline __u32 counted_bytes(__u32 ip_length, __u32 found)
{
	return ip_length < found ? ip_length : found;
}

/* Counts one packet of xdp_lb, for the node and, where `service` is not 0, for its service. */
static __always_inline void account(__u32 service, __u32 bytes, __u32 reason)
{
	__u32 whole_node = 0;

	account_block(bpf_map_lookup_elem(&ledger, &whole_node), bytes, reason);
	if (service)
		account_block(bpf_map_lookup_elem(&ledger, &service), bytes, reason);
}

/* Counts one packet of another program. */
static __always_inline void account_hook(__u32 hook, __u32 bytes, __u32 reason)
{
	account_block(bpf_map_lookup_elem(&hook_ledger, &hook), bytes, reason);
}

static __always_inline void account_backend(__u32 record, __u32 bytes)
{
	struct backend_counters *counters = bpf_map_lookup_elem(&backend_counters, &record);

	if (counters) {
		counters->packets++;
		counters->bytes += bytes;
	}
}

#endif /* TIDEGATE_ACCOUNT_H */
