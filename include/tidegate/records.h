/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Records that C and Rust share through maps. Rust uses the types generated from this object's BTF; their sizes and
 * offsets are asserted in src/datapath/records.rs. A change of layout needs a new LAYOUT_VERSION.
 *
 * Byte order: addresses, ports and MACs as on the wire; everything else, ranges of ports included, as on the machine.
 * An IPv4 address stands in the first word, the other three are zero.
 */
#ifndef TIDEGATE_RECORDS_H
#define TIDEGATE_RECORDS_H

enum layout {
	LAYOUT_MAGIC = 0x74696465, /* "tide" */
	LAYOUT_VERSION = 1,
};

enum address_family {
	FAMILY_IPV4 = 4,
	FAMILY_IPV6 = 6,
};

/* How packets are sent to a backend. 0 is never valid. */
enum forward_mode {
	MODE_NAT = 1,
	MODE_DSR = 2,
	MODE_IPIP = 3,
	MODE_GRE = 4,
	MODE_GUE = 5,
};

/* What of a packet decides which slot of its service's table it gets. */
enum hash_mode {
	HASH_FIVE_TUPLE = 0,
	HASH_SOURCE = 1,	     /* the client's address, as far as the prefix goes */
	HASH_SOURCE_DESTINATION = 2, /* the same and the service's address */
};

/* What becomes of packets while the service has no usable backend. */
enum no_backend_action {
	NO_BACKEND_DROP = 0,
	NO_BACKEND_REJECT = 1, /* answered with a TCP reset or an ICMP error */
	NO_BACKEND_PASS = 2,   /* given to the kernel */
};

/* State of a backend within its service. */
enum backend_state {
	BACKEND_UNUSED = 0, /* not a member; its number may still be named by a flow */
	BACKEND_UP = 1,
	BACKEND_DRAINING = 2, /* keeps its flows, takes no new ones */
	BACKEND_DOWN = 3,
};

enum backend_flags {
	BACKEND_RESOLVED = 1 << 0,    /* interface and MAC addresses are valid */
	BACKEND_LOCAL = 1 << 1,	      /* the backend is this node */
	BACKEND_IPV6 = 1 << 2,	      /* its address is IPv6 */
	BACKEND_SERVICE_TAG = 1 << 3, /* the outer VLAN tag is one of 802.1ad, not of 802.1Q */
};

/*
 * Keys of the service look-ups and of the NAT sources: an address, a port and a protocol. Port 0 stands for the address as a
 * whole: among the ranges always, among the NAT sources where a backend keeps the ports of its packets.
 */
struct endpoint_v4 {
	__be32 address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

struct endpoint_v6 {
	__be32 address[4];
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

enum table_shape {
	SLOTS_PER_LINE = 16,
	FLOWS_PER_BUCKET = 4,
	RANGES_PER_ADDRESS = 8,
};

/* Ports of an address that lead to a service. Service 0: none. */
struct port_range {
	__u16 first;
	__u16 last; /* included */
	__u32 service;
};

/* All ranges of an address and protocol: one cache line. Narrower ones come first, so that the first that fits counts. */
struct port_ranges {
	struct port_range ranges[RANGES_PER_ADDRESS];
};

/*
 * A service, by its ID. Written whole before a key leads to it. Later only `backends_base` and `backends_limit`
 * change, together, by one 8-byte store, and `on_no_backend`, by one of the word that it is in.
 */
struct service {
	__be32 address[4];
	__u32 backends_base;  /* its backend n is record backends_base + n; n = 0 is never valid */
	__u32 backends_limit; /* records it owns; n is below this */
	__u32 slots;	      /* slots of its table, a prime; fixed for life */
	__be16 port;	      /* 0: a range, whose ports are kept on the way to the backends and back */
	__u16 endpoint_sum;   /* one's complement sum of address and port, for incremental checksums */
	__u8 protocol;
	__u8 family;	    /* enum address_family */
	__u8 mode;	    /* enum forward_mode */
	__u8 on_no_backend; /* enum no_backend_action */
	__u8 hash;	    /* enum hash_mode */
	__u8 hash_prefix;   /* bits of the client's address that count; 0 for HASH_FIVE_TUPLE */
	__u8 pad[2];
	__u16 first_port; /* of the range; both are `port` where there is none */
	__u16 last_port;
	__u32 reserved_word;
	__u64 reserved[2];
};

/* The part of a backend that changes while packets use it: read and written as one 8-byte word. */
struct backend_link {
	__u32 interface; /* index of the interface towards it; 0: no route known */
	__u16 mtu;	 /* of the path towards it, from the IP header on */
	__u8 state;	 /* enum backend_state */
	__u8 flags;	 /* enum backend_flags */
};

/* A backend of a service: one cache line with all that forwarding needs. */
struct backend {
	struct backend_link link;
	__be32 address[4];
	__be32 source[4]; /* outer source address of an encapsulation, or the prefix of it */
	__u8 destination_mac[6];
	__u8 source_mac[6];
	__be16 port;	    /* 0: the packet keeps its port */
	__u16 endpoint_sum; /* one's complement sum of address and port */
	__u16 outer_sum;    /* the same of an outer IPv4 header with length, TOS, id and flags zero */
	__be16 tags[2];	    /* VLAN tags towards it, the outer one first: priority and ID; 0: none */
	__u8 mode;	    /* enum forward_mode */
	__u8 protocol;
};

/* One entry of a service's table: numbers of backends within the service. 0 is never valid. */
struct slot {
	__u16 current;	/* where new flows go */
	__u16 previous; /* = current: settled. Other states are reserved for moved slots. */
};

/* An element of a table: one cache line of slots. */
struct slot_line {
	struct slot slots[SLOTS_PER_LINE];
};

enum flow_kind {
	FLOW_HALF_OPEN = 1,   /* TCP, only a SYN seen */
	FLOW_ESTABLISHED = 2, /* TCP */
	FLOW_CLOSING = 3,     /* TCP, FIN or RST seen */
	FLOW_DATAGRAM = 4,    /* UDP */
	FLOW_ASIDE = 5,	      /* UDP, for replies only: a fragmented datagram went elsewhere than its flow */
	FLOW_KINDS = 8,	      /* room for more; a power of two, to mask with */
};

/*
 * A tracked flow of a client. `check` is the flow's tag xor a spread of `owner`: an entry of which only half was
 * written by one CPU and half by another matches nobody, so a race costs a miss, never a wrong backend.
 * All zero: free.
 */
struct flow {
	__u64 check;
	__u32 owner; /* service ID << 16 | number of the backend within it */
	__u16 tick;  /* of the last packet, see struct node_settings */
	__u8 kind;   /* enum flow_kind */
	__u8 pad;
};

/* One cache line of the flow table. */
struct flow_bucket {
	struct flow flows[FLOWS_PER_BUCKET];
};

/* What a look-up need not be made for. Set before there is such a thing, cleared when there is none any more. */
enum node_flags {
	NODE_PORT_RANGES = 1 << 0,	    /* some service has a range of ports */
	NODE_PORT_KEEPING_SOURCES = 1 << 1, /* and translates addresses: some NAT source has port 0 */
};

/* Settings and cursors of the node that outlive the daemon. */
struct node_settings {
	__u32 magic;			 /* LAYOUT_MAGIC */
	__u32 version;			 /* LAYOUT_VERSION */
	__u64 flow_secret[2];		 /* keys the tags of the flow table */
	__u32 flow_buckets;		 /* a power of two */
	__u32 last_service_id;		 /* the ID given out last; freed ones are reused in turn */
	__u16 flow_lifetime[FLOW_KINDS]; /* ticks without a packet after which a flow is dead, by kind */
	__be32 outer_spread_v6[4]; /* bits of outer source addresses that differ by flow; the others are the prefix */
	__be32 outer_spread_v4;
	__be16 gue_port;
	__u8 flags;    /* enum node_flags */
	__u8 policies; /* enum address_policy */
};

/* A tick is 2^TICK_SHIFT nanoseconds of CLOCK_MONOTONIC_COARSE: about 4.3 seconds, wrapping in 78 hours. */
enum flow_time {
	TICK_SHIFT = 32,
};

/* What is looked at before a packet may use a service. */
enum admission_checks {
	CHECK_SOURCES_V4 = 1 << 0, /* there is a list of IPv4 sources */
	CHECK_SOURCES_V6 = 1 << 1, /* there is a list of IPv6 sources */
	CHECK_LIMITS = 1 << 2,	   /* there are limits */
	CHECK_BOGONS = 1 << 3,	   /* of the node only: drop what cannot be sound */
	CHECK_SERVICES = 1 << 4,   /* of the node only: some service has checks of its own */
};

/* The limits of a service. */
enum limit_kind {
	LIMIT_PACKETS = 0,
	LIMIT_NEW_FLOWS = 1,
	LIMIT_SOURCE_PACKETS = 2, /* these two for each source */
	LIMIT_SOURCE_NEW_FLOWS = 3,
	LIMIT_KINDS = 4,
	LIMIT_OF_SOURCE = 2, /* from here on */
};

enum limit_time {
	LIMIT_TIME_SHIFT = 6, /* intervals and arrivals are in 2^-6 nanoseconds */
};

/*
 * Who may use a service; element 0: any. The first line is written by the daemon, `checks` last, the second by packets, unless the
 * limits change.
 *
 * A limit is a bucket of `burst` tokens that gains one each `interval`. All that is kept of it is the time at which it will be full
 * again, so that one compare-and-swap takes a token, on whatever CPU (GCRA, ITU-T I.371).
 */
struct admission {
	__u32 checks;	      /* enum admission_checks */
	__u32 source_buckets; /* element 0: lines of the map source_limits, a power of two */
	__u8 prefix_v4;	      /* bits of a source address that make a source */
	__u8 prefix_v6;
	__u8 pad[6];
	__u64 interval[LIMIT_KINDS]; /* 0: no limit */
	__u32 burst[LIMIT_KINDS];
	__u64 arrival[LIMIT_OF_SOURCE];
	__u64 reserved[6];
};

/* One limit of one source. Where `arrival` is past, the bucket is full: forgetting it then loses nothing. */
struct source_limit {
	__u64 tag; /* keyed hash of service, limit and source; 0: never used */
	__u64 arrival;
};

enum source_limit_shape {
	SOURCES_PER_BUCKET = 4,
};

/* One cache line of them. */
struct source_bucket {
	struct source_limit sources[SOURCES_PER_BUCKET];
};

/* Keys of lists of sources: the beginning of an address. */
struct source_key_v4 {
	__u32 length; /* bits that count */
	__be32 address;
};

struct source_key_v6 {
	__u32 length;
	__be32 address[4];
};

enum source_verdict {
	SOURCE_ALLOWED = 1,
	SOURCE_REFUSED = 2,
};

/* What a list says of the addresses with a prefix. Each list has a rule of length 0, so that each address meets one. */
struct source_rule {
	__u8 verdict;	/* enum source_verdict */
	__u8 digest[7]; /* in the rule of length 0: of the whole list */
};

/* What is done with packets for a service address that are for no service: without any of these, they are passed. */
enum address_policy {
	ADDRESS_UNSERVED_DROP = 1 << 0, /* TCP and UDP */
	ADDRESS_ECHO_ANSWER = 1 << 1,	/* ICMP echo requests */
	ADDRESS_ECHO_DROP = 1 << 2,
};

/* Key of what is known of an address that services have. */
struct address_key {
	__be32 address[4];
	__u32 family; /* enum address_family */
};

/* The services of an address: the ID of the only one of each protocol, 0: none, SERVICES_SEVERAL. */
struct address_services {
	__u32 tcp;
	__u32 udp;
};

enum service_ids {
	SERVICES_SEVERAL = 1 << 16, /* above every ID */
};

/*
 * Key of a fragmented datagram; with `of_source`, of what was last chosen for datagrams from that source to that destination
 * (`datagram` is 0 then).
 */
struct fragment_key {
	__be32 source[4];
	__be32 destination[4];
	__u32 datagram; /* identification, as it lies in the header */
	__u8 protocol;	/* of a datagram over IPv6: 0, as its pieces need not agree on it (RFC 8200) */
	__u8 family;	/* enum address_family */
	__u8 of_source;
	__u8 pad;
};

/* Where the pieces of a datagram go. `owner` and `tick` are read and written as one 8-byte word. */
struct datagram {
	__u32 owner; /* service ID << 16 | number of the backend; number 0: a reply of that service; 0: left to the host */
	__u32 tick;  /* when it was chosen, see TICK_SHIFT; does not wrap */
	__u32 ports; /* of the first piece, as they lie in the header; 0: not seen yet */
	__u32 pad;
};

/* How frames leave for an interface that is not a device itself. */
struct egress {
	__u32 device;	  /* index of the device below; 0: only the kernel can send by the interface */
	__be16 tags[2];	  /* VLAN tags on that device, the outer one first: priority and ID; 0: none */
	__u8 service_tag; /* 1: the outer tag is one of 802.1ad, not of 802.1Q */
	__u8 pad[3];
};

/* Packets sent to one backend, of one CPU. */
struct backend_counters {
	__u64 packets;
	__u64 bytes; /* from the IP header on, as they arrived */
};

#endif /* TIDEGATE_RECORDS_H */
