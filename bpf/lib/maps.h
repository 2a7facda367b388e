/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every map, with the question it answers. Sizes are the smallest that load; the daemon sets the real ones from its
 * configuration before loading, and adopts pinned ones as they are.
 *
 * Arrays that packets read are made mappable: their elements then begin on a page, so that a 64-byte record is one cache
 * line, and the daemon can store single words in them atomically.
 */
#ifndef TIDEGATE_MAPS_H
#define TIDEGATE_MAPS_H

#include <tidegate/ledger.h>
#include <tidegate/records.h>

/* Which service has this address, port and protocol? Value: service ID. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct endpoint_v4);
	__type(value, __u32);
} services_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct endpoint_v6);
	__type(value, __u32);
} services_v6 SEC(".maps");

/* Which services have ranges of ports at this address and protocol? Asked only where the maps above know nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint_v4);
	__type(value, struct port_ranges);
} ranges_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint_v6);
	__type(value, struct port_ranges);
} ranges_v6 SEC(".maps");

/* What is service n? */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

/* How does a packet get to backend record n? */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* A service's Maglev table. Sizes differ, hence BPF_F_INNER_MAP. */
struct table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot_line);
};

/*
 * A table that no service uses: it stands in element 0 of the outer map. Writing it there waits until no packet can be
 * reading what an earlier write replaced. It is also what carries the type of the elements into the BTF.
 */
struct table no_table SEC(".maps");

/* Which table does service n use? Replacing an element publishes a whole table at once. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct table);
} tables SEC(".maps");

/*
 * Is this the address and port of a backend whose replies are translated? Port 0: of one that keeps the ports of its packets, so
 * that any may be a reply's. Value: 1.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint_v4);
	__type(value, __u32);
} nat_sources_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint_v6);
	__type(value, __u32);
} nat_sources_v6 SEC(".maps");

/* Which backend does a tracked flow use? */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_bucket);
} flows SEC(".maps");

/* Which services does this address have? One entry for each address of a service. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address_key);
	__type(value, struct address_services);
} addresses SEC(".maps");

/* Where do the pieces of this fragmented datagram go? */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct datagram);
} fragments SEC(".maps");

/* How do frames leave for interface n? Absent: by itself, untagged. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct egress);
} egress SEC(".maps");

/* What is looked at before a packet may use service n? Element 0: what is looked at for every service. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct admission);
} admission SEC(".maps");

/* How far has a source used up a limit? */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct source_bucket);
} source_limits SEC(".maps");

/* A list of sources. Each is made with as many elements as it has rules. */
struct source_list_v4 {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct source_key_v4);
	__type(value, struct source_rule);
};

struct source_list_v6 {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct source_key_v6);
	__type(value, struct source_rule);
};

/* Which sources may use service n? Element 0: which may use any. Replacing an element replaces a whole list at once. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct source_list_v4);
} source_lists_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct source_list_v6);
} source_lists_v6 SEC(".maps");

/* Settings and cursors of the node; one element. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node_settings);
} node SEC(".maps");

/* What became of the packets? Element 0: of all packets that xdp_lb saw; element n: of those for service n. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ledger);
} ledger SEC(".maps");

/* The same for the other programs; keys are enum ledger_hook. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LEDGER_HOOKS);
	__type(key, __u32);
	__type(value, struct ledger);
} hook_ledger SEC(".maps");

/* What was sent to backend record n? */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backend_counters);
} backend_counters SEC(".maps");

#endif /* TIDEGATE_MAPS_H */
