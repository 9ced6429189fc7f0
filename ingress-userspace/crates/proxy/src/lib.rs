//! The request path: accepts connections and forwards each request to a pod. It does not watch configuration; control
//! hands it [`Snapshot`]s.
//!
//! ```text
//! listen ─▶ accept ─▶ open (tls) ─▶ park ─▶ wire (scan, frames) ─▶ speak (hyper) ─▶ serve ─┐
//!               ┌──────────────────────────────────────────────────────────────────────────┘
//!               └▶ authority ─▶ path ─▶ route ─▶ filter ─▶ forward ─▶ pick ─▶ upstream ─▶ pod
//!                                                             │
//!                             client ◀── body ◀── error / headers
//! ```
//!
//! TCP stream services branch off at `accept` or `open` (`stream`); UDP services have a path of their own
//! (`datagrams`). With bound ports, `ports` opens and closes the sockets of both.
//!
//! A [`Server`] has one thread per worker; the threads share nothing but [`Shared`]. A request loads the current
//! snapshot once and keeps it to its end. Requests rejected by hyper itself (malformed bytes) have no host and are not
//! counted by host.
#![forbid(unsafe_code)]

mod accept;
mod access_log;
mod authenticate;
mod authority;
mod backlog;
mod balance;
mod body;
mod certificates;
mod client;
mod client_certificates;
mod client_table;
mod clock;
mod compress;
mod conn;
mod counters;
mod datagrams;
mod durations;
mod error;
mod error_pages;
mod ext_authz;
mod fair_queue;
mod fields;
mod forward;
mod forwarded;
mod frames;
mod headers;
mod health_check;
mod hmac_cache;
mod http_server;
mod in_flight;
mod limit;
mod listen;
mod liveness;
mod load;
mod md5_crypt;
mod memory;
mod mirror;
mod open;
mod options;
mod pace;
mod park;
mod passwords;
mod path;
mod pipe;
mod ports;
mod progress;
pub mod proxy_protocol;
mod random;
mod refusal;
mod relief;
mod request_buffer;
mod request_id;
mod response_splice;
mod scan;
mod serve;
mod server;
mod session;
mod shared;
mod slow_start;
mod snapshot;
mod stalled_frames;
pub mod stream;
mod syscalls;
mod tickets;
mod tls;
mod tokens;
mod traces;
mod tunnel;
mod unread_body;
mod upload_splice;
pub mod upstream;
mod vectored_write;
mod via;
mod violations;
mod warm;
mod websocket;
mod wire;
mod worker;
mod write_coalescer;

pub use access_log::{Sink, SinkGuard};
pub use authority::{Authority, AuthorityError};
pub use balance::{CheckResult, Full, UpstreamView};
pub use certificates::{CertificateProblem, Certificates};
pub use client_certificates::fields_for_pods;
pub use datagrams::{DatagramStatsView, Dropped};
pub use durations::{DURATION_BOUNDS, DurationsView};
pub use limit::LimitStats;
pub use listen::{ListenError, ListenMode, ListenOptions, WorkerListeners, bind};
pub use liveness::Liveness;
pub use memory::{Memory, Pressure, Usage};
pub use options::Options;
pub use path::{PathError, normalise};
pub use ports::{PortStatsView, keep_datagram_ports_open, keep_stream_ports_open};
pub use refusal::Refusal;
pub use server::{Drained, Server, StartError};
pub use shared::{FlowTable, Shared, SharedError, StatsView};
pub use snapshot::Snapshot;
pub use syscalls::Seccomp;
pub use tls::TlsError;
pub use traces::SpanOutcome;
pub use violations::{Escalated, Violation, ViolationStats, Violator};
