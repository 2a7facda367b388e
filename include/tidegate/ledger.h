/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What became of a packet: the enumerated contract between the programs, the daemon, the API, the metrics and the manual.
 *
 * Every packet that a program sees is counted under exactly one reason, so that seen = forwarded + passed + dropped.
 * A number, once released, keeps its meaning; a retired one stays reserved. With a new reason change also:
 * src/datapath/ledger.rs (its name) and docs/reference/ledger.md (its meaning and remedy); a test compares the three.
 */
#ifndef TIDEGATE_LEDGER_H
#define TIDEGATE_LEDGER_H

enum ledger_reason {
	LEDGER_NONE = 0, /* not decided yet; never counted */

	/* Sent on. */
	FORWARD_TX = 1,		    /* to a backend, out of the interface it came in by */
	FORWARD_REDIRECT = 2,	    /* to a backend, out of another interface */
	FORWARD_HANDOFF = 3,	    /* to a backend, next hop left to the kernel's routing and neighbour tables */
	FORWARD_LOCAL = 4,	    /* to a backend on this node: passed up */
	FORWARD_REPLY_TX = 5,	    /* reply of a backend to its client, out of the interface it came in by */
	FORWARD_REPLY_REDIRECT = 6, /* reply of a backend to its client, out of another interface */
	FORWARD_REPLY_HANDOFF = 7,  /* reply of a backend to its client, next hop left to the kernel */
	FORWARD_DECAPSULATED = 8,   /* outer header taken off, passed up */
	FORWARD_ECHO_REPLY = 12,    /* echo request to a service address, answered from here */

	/* Given to the kernel untouched. */
	PASS_NOT_IP = 16,	    /* neither IPv4 nor IPv6, behind up to two VLAN tags: ARP, ... */
	PASS_NOT_TCP_UDP = 17,	    /* IP with another payload */
	PASS_FRAGMENT = 18,	    /* a piece without ports, of a datagram that is for no service */
	PASS_MALFORMED = 19,	    /* too short, or a header that contradicts itself; the kernel drops and counts it */
	PASS_NO_SERVICE = 20,	    /* no service has this address, port and protocol */
	PASS_NOT_A_REPLY = 21,	    /* from a NAT backend, but of no flow that was translated */
	PASS_NOT_TUNNELLED = 22,    /* not IP in IP, GRE or GUE */
	PASS_OUTER_NOT_LOCAL = 23,  /* tunnelled, to an address that is not this host's */
	PASS_EXTENSION_HEADER = 24, /* IPv6 extension headers: too many, too deep, or with a way-point */
	PASS_NO_BACKEND = 25,	    /* the service has no usable backend and asks that its packets be passed then */
	PASS_ICMP_UNKNOWN_FLOW = 26, /* ICMP error that quotes a packet of a NAT service, but of no tracked flow */
	PASS_OUTER_CHECKSUM = 27,    /* tunnelled, but a checksum of the outer headers is wrong */

	/* Dropped. */
	DROP_BAD_LENGTH = 32,	       /* for a service, but its lengths exceed the frame or contradict each other */
	DROP_NO_BACKEND = 33,	       /* the service has no usable backend */
	DROP_BACKEND_DOWN = 34,	       /* its backend went down and the table without it is being published */
	DROP_UNRESOLVED = 35,	       /* no route to the backend, or no way to hand the packet to the kernel */
	DROP_TOO_BIG = 36,	       /* larger than the MTU towards the backend, outer header included */
	DROP_TTL_EXPIRED = 37,	       /* TTL or hop limit used up */
	DROP_FLOW_TABLE_FULL = 38,     /* no room for a flow that must be tracked */
	DROP_FLOW_CONFLICT = 39,       /* the client's port is in use through another service on every backend tried */
	DROP_REPLY_NO_ROUTE = 40,      /* no route to the client, or one of type blackhole, unreachable or prohibit */
	DROP_FORWARDING_DISABLED = 41, /* the interface may not forward: net.ipv4.conf.<interface>.forwarding */
	DROP_INTERNAL = 42,	       /* a map or helper failed in a way that should be impossible */
	DROP_INNER_MALFORMED = 43,     /* tunnelled, but what is inside is not a sound IP packet */
	DROP_INNER_NOT_LOCAL = 44,     /* tunnelled to this host, but the inner destination is not its own */
	DROP_ECN_CONFLICT = 45,	       /* tunnelled, met congestion, and its transport cannot be told (RFC 6040) */
	DROP_NO_BACKEND_ANSWERED = 48, /* the same as without "answered", and the sender was told so */
	DROP_TOO_BIG_ANSWERED = 49,
	DROP_TTL_EXPIRED_ANSWERED = 50,
	DROP_FRAGMENT_UNKNOWN = 54, /* a piece without ports that came first, for one of several services, or of TCP */
	DROP_FRAGMENT_SHORT = 55,   /* a piece that has a part of the TCP or UDP header, but not all of it */
	DROP_UNSERVED = 56,	    /* for a service address, but for no service: `unserved-port: drop` */
	DROP_ECHO = 57,		    /* echo request to a service address: `echo: drop`, or too many to answer */
	DROP_BLOCKED = 60,	    /* for a service, but the node's lists of source prefixes refuse its source */
	DROP_SOURCE_REFUSED = 61,   /* for a service that does not serve its source */
	DROP_RATE_LIMIT = 62,	    /* above a limit of the service */
	DROP_BOGON = 63,	    /* for a service, with a source or flags that no packet can have */

	LEDGER_REASONS = 64,
};

/* Ranges of the three classes, for sums. */
enum ledger_class {
	LEDGER_FIRST_FORWARDED = 1,
	LEDGER_FIRST_PASSED = 16,
	LEDGER_FIRST_DROPPED = 32,
};

/* Counters of one CPU. */
struct ledger {
	__u64 seen;		       /* packets that entered */
	__u64 bytes;		       /* bytes of those from the IP header on; 0 for what is not IP */
	__u64 packets[LEDGER_REASONS]; /* packets by what became of them */
};

/* Indexes of the map hook_ledger: programs whose packets are not xdp_lb's. */
enum ledger_hook {
	LEDGER_HOOK_TC_NAT = 0,
	LEDGER_HOOK_TC_HANDOFF = 1,
	LEDGER_HOOKS = 2,
};

#endif /* TIDEGATE_LEDGER_H */
