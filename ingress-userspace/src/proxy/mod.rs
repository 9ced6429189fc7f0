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

mod accept;
mod access_log;
mod authenticate;
mod authority;
mod backlog;
mod body;
mod certificates;
mod check;
mod client;
mod client_certificates;
mod clients;
mod clock;
mod compress;
mod conn;
mod counters;
mod datagrams;
mod durations;
mod error;
mod error_pages;
mod external;
mod fields;
mod forward;
mod forwarded;
mod frames;
mod gather;
mod headers;
mod in_flight;
mod intake;
mod kept;
mod limit;
mod listen;
mod load;
mod md5_crypt;
mod memory;
mod mirror;
mod offence;
mod offers;
mod open;
mod options;
mod outbox;
mod pace;
mod park;
mod passwords;
mod path;
mod pick;
mod pipe;
mod piped;
mod ports;
mod progress;
pub mod proxy_protocol;
mod pulse;
mod refusal;
mod relief;
mod remembered;
mod request_id;
mod rest;
mod scan;
mod serve;
mod server;
mod session;
mod shared;
mod slow_start;
mod snapshot;
mod speak;
pub mod stream;
mod syscalls;
mod tickets;
mod tls;
mod tokens;
mod traces;
mod tunnel;
mod turns;
pub mod upstream;
mod via;
mod warm;
mod websocket;
mod wire;
mod worker;

pub use access_log::{Sink, SinkGuard};
pub use authority::{Authority, AuthorityError};
pub use certificates::{CertificateProblem, Certificates};
pub use client_certificates::fields_for_pods;
pub use datagrams::{DatagramStatsView, Dropped};
pub use durations::{DURATION_BOUNDS, DurationsView};
pub use limit::LimitStats;
pub use listen::{ListenError, ListenMode, ListenOptions, WorkerListeners, bind};
pub use memory::{Memory, Pressure, Usage};
pub use offence::{Escalated, Offence, OffenceStats, Offender};
pub use options::Options;
pub use path::{PathError, normalise};
pub use pick::{CheckResult, Full, UpstreamView};
pub use ports::{PortStatsView, keep_datagram_ports_open, keep_stream_ports_open};
pub use pulse::Pulse;
pub use refusal::Refusal;
pub use server::{Drained, Server, StartError};
pub use shared::{FlowTable, Shared, SharedError, StatsView};
pub use snapshot::Snapshot;
pub use syscalls::Seccomp;
pub use tls::TlsError;
pub use traces::SpanFate;
