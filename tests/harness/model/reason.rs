//! What became of a packet: the numbers and names of the ledger's reasons.

use std::fmt;

macro_rules! reasons {
    ($($variant:ident = $number:literal $name:literal),+ $(,)?) => {
        /// A reason of the ledger. Its number is the index of its counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Reason {
            $($variant = $number),+
        }

        impl Reason {
            /// Every reason, in the order of the numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name in the contract between C and Rust.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

reasons! {
    ForwardTx = 1 "FORWARD_TX",
    ForwardRedirect = 2 "FORWARD_REDIRECT",
    ForwardHandoff = 3 "FORWARD_HANDOFF",
    ForwardLocal = 4 "FORWARD_LOCAL",
    ForwardReplyTx = 5 "FORWARD_REPLY_TX",
    ForwardReplyRedirect = 6 "FORWARD_REPLY_REDIRECT",
    ForwardReplyHandoff = 7 "FORWARD_REPLY_HANDOFF",
    ForwardDecapsulated = 8 "FORWARD_DECAPSULATED",
    ForwardEchoReply = 12 "FORWARD_ECHO_REPLY",
    PassNotIp = 16 "PASS_NOT_IP",
    PassNotTcpUdp = 17 "PASS_NOT_TCP_UDP",
    PassFragment = 18 "PASS_FRAGMENT",
    PassMalformed = 19 "PASS_MALFORMED",
    PassNoService = 20 "PASS_NO_SERVICE",
    PassNotAReply = 21 "PASS_NOT_A_REPLY",
    PassNotTunnelled = 22 "PASS_NOT_TUNNELLED",
    PassOuterNotLocal = 23 "PASS_OUTER_NOT_LOCAL",
    PassExtensionHeader = 24 "PASS_EXTENSION_HEADER",
    PassNoBackend = 25 "PASS_NO_BACKEND",
    PassIcmpUnknownFlow = 26 "PASS_ICMP_UNKNOWN_FLOW",
    PassOuterChecksum = 27 "PASS_OUTER_CHECKSUM",
    DropBadLength = 32 "DROP_BAD_LENGTH",
    DropNoBackend = 33 "DROP_NO_BACKEND",
    DropBackendDown = 34 "DROP_BACKEND_DOWN",
    DropUnresolved = 35 "DROP_UNRESOLVED",
    DropTooBig = 36 "DROP_TOO_BIG",
    DropTtlExpired = 37 "DROP_TTL_EXPIRED",
    DropFlowTableFull = 38 "DROP_FLOW_TABLE_FULL",
    DropFlowConflict = 39 "DROP_FLOW_CONFLICT",
    DropReplyNoRoute = 40 "DROP_REPLY_NO_ROUTE",
    DropForwardingDisabled = 41 "DROP_FORWARDING_DISABLED",
    DropInternal = 42 "DROP_INTERNAL",
    DropInnerMalformed = 43 "DROP_INNER_MALFORMED",
    DropInnerNotLocal = 44 "DROP_INNER_NOT_LOCAL",
    DropEcnConflict = 45 "DROP_ECN_CONFLICT",
    DropNoBackendAnswered = 48 "DROP_NO_BACKEND_ANSWERED",
    DropTooBigAnswered = 49 "DROP_TOO_BIG_ANSWERED",
    DropTtlExpiredAnswered = 50 "DROP_TTL_EXPIRED_ANSWERED",
    DropFragmentUnknown = 54 "DROP_FRAGMENT_UNKNOWN",
    DropFragmentShort = 55 "DROP_FRAGMENT_SHORT",
    DropUnserved = 56 "DROP_UNSERVED",
    DropEcho = 57 "DROP_ECHO",
    DropBlocked = 60 "DROP_BLOCKED",
    DropSourceRefused = 61 "DROP_SOURCE_REFUSED",
    DropRateLimit = 62 "DROP_RATE_LIMIT",
    DropBogon = 63 "DROP_BOGON",
}

impl Reason {
    /// The number in the contract between C and Rust.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The packet was sent on.
    pub const fn is_forwarded(self) -> bool {
        self.number() < 16
    }

    /// The packet was dropped.
    pub const fn is_dropped(self) -> bool {
        self.number() >= 32
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
