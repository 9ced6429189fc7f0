//! The request path in process: a real snapshot, listeners on free ports, upstreams that follow a script.

#[path = "proxy/annotations/mod.rs"]
mod annotations;
#[path = "proxy/authorities.rs"]
mod authorities;
#[path = "proxy/bound_ports.rs"]
mod bound_ports;
#[path = "proxy/buffering.rs"]
mod buffering;
#[path = "proxy/counters.rs"]
mod counters;
#[path = "proxy/datagrams.rs"]
mod datagrams;
#[path = "proxy/drain.rs"]
mod drain;
#[path = "proxy/early.rs"]
mod early;
#[path = "proxy/early_matrix.rs"]
mod early_matrix;
#[path = "proxy/frames.rs"]
mod frames;
#[path = "proxy/framing/mod.rs"]
mod framing;
#[path = "proxy/free_ports.rs"]
mod free_ports;
#[path = "proxy/grpc.rs"]
mod grpc;
#[path = "proxy/grpc_interop/mod.rs"]
mod grpc_interop;
#[path = "proxy/h2c.rs"]
mod h2c;
#[path = "proxy/http2.rs"]
mod http2;
#[path = "proxy/https.rs"]
mod https;
#[path = "proxy/load.rs"]
mod load;
#[path = "proxy/messages.rs"]
mod messages;
#[path = "proxy/overload.rs"]
mod overload;
#[path = "proxy/parked.rs"]
mod parked;
#[path = "proxy/piped.rs"]
mod piped;
#[path = "proxy/pki.rs"]
mod pki;
#[path = "proxy/rates.rs"]
mod rates;
#[path = "proxy/requests.rs"]
mod requests;
#[path = "proxy/retry.rs"]
mod retry;
#[path = "proxy/rfc6455.rs"]
mod rfc6455;
#[path = "proxy/rfc9113/mod.rs"]
mod rfc9113;
#[path = "proxy/slow.rs"]
mod slow;
#[path = "proxy/slow_start.rs"]
mod slow_start;
#[path = "proxy/stream.rs"]
mod stream;
#[path = "proxy/support/mod.rs"]
mod support;
#[path = "proxy/swap.rs"]
mod swap;
#[path = "proxy/tcp_services.rs"]
mod tcp_services;
#[path = "proxy/timeouts.rs"]
mod timeouts;
#[path = "proxy/tls.rs"]
mod tls;
#[path = "proxy/uploads.rs"]
mod uploads;
#[path = "proxy/ws.rs"]
mod ws;
#[path = "proxy/ws_http2.rs"]
mod ws_http2;
