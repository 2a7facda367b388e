/* SPDX-License-Identifier: GPL-2.0-only */
/* Which backend does the service's table give to a packet? */
#ifndef TIDEGATE_CHOOSE_H
#define TIDEGATE_CHOOSE_H

#include "hash.h"
#include "service.h"

/* A backend, with the part of its record that may change read once. */
struct choice {
	struct backend *backend;
	__u32 record;
	__u32 number;
	__u32 interface;
	__u16 mtu;
	__u8 state;
	__u8 flags;
};

/* Fills `choice` for backend `number` of the service. Returns 0, or -1 where it has no such record. */
static __always_inline int load_backend(const struct service *service, __u32 number, struct choice *choice)
{
	union {
		__u64 word;
		struct backend_link link;
	} link;

	choice->number = number;
	choice->record = backend_record(service, number);
	if (!choice->record)
		return -1;
	choice->backend = bpf_map_lookup_elem(&backends, &choice->record);
	if (!choice->backend)
		return -1;
	link.word = *(const volatile __u64 *)&choice->backend->link;
	choice->interface = link.link.interface;
	choice->mtu = link.link.mtu;
	choice->state = link.link.state;
	choice->flags = link.link.flags;
	return 0;
}

/* True where flows that the backend has may go on. */
static __always_inline int backend_serves(const struct choice *choice)
{
	return choice->state == BACKEND_UP || choice->state == BACKEND_DRAINING;
}

/* The slot of the service's table for a hash; both its numbers are read by one load. */
static __always_inline struct slot find_slot(__u32 service_id, const struct service *service, __u64 hash)
{
	__u32 index = ((hash >> 32) * service->slots) >> 32;
	__u32 line_index = index / SLOTS_PER_LINE;
	union {
		__u32 word;
		struct slot slot;
	} slot = {};
	struct slot_line *line;
	void *table;

	table = bpf_map_lookup_elem(&tables, &service_id);
	if (!table)
		return slot.slot;
	line = bpf_map_lookup_elem(table, &line_index);
	if (line)
		slot.word = *(const volatile __u32 *)&line->slots[index % SLOTS_PER_LINE];
	return slot.slot;
}

/*
 * Chooses the backend of a packet by the table alone. Returns LEDGER_NONE with `choice` filled, or the reason to drop it.
 * Between the verdict that a backend is down and the publication of a table without it, its packets are dropped: another
 * choice would be undone by that publication a few milliseconds later, and clients retry.
 */
static __always_inline __u32 choose_by_table(__u32 service_id, const struct service *service, __u64 hash,
					     struct choice *choice)
{
	struct slot slot = find_slot(service_id, service, hash);

	if (!slot.current)
		return DROP_NO_BACKEND;
	if (load_backend(service, slot.current, choice))
		return DROP_INTERNAL;
	if (!backend_serves(choice))
		return DROP_BACKEND_DOWN;
	return LEDGER_NONE;
}

#endif /* TIDEGATE_CHOOSE_H */
