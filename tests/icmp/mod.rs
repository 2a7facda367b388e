//! ICMP errors about the flows of services, and what the load balancer answers itself: frame by frame against a plain model,
//! and end to end with real sockets.

mod answers;
mod attack;
mod end_to_end;
mod errors;
mod node;
mod wire;
