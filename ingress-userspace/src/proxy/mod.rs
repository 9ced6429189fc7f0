//! The request path: accepts connections and brings each request to a pod. It watches no configuration; it is handed
//! [`Snapshot`]s.
//!
//! ```text
//! listen ─▶ accept ─▶ open (tls) ─▶ park ─▶ wire (scan, frames) ─▶ speak (hyper) ─▶ serve ─┐
//!               ┌──────────────────────────────────────────────────────────────────────────┘
//!               └▶ authority ─▶ path ─▶ route ─▶ filter ─▶ forward ─▶ pick ─▶ upstream ─▶ pod
//!                                                             │
//!                             client ◀── body ◀── error / headers
//! ```
//!
//! Streams leave that way at `accept` or `open` (`stream`), and UDP services have one of their own (`datagrams`). Where
//! ports of either are bound, `ports` opens and closes them.
//!
//! A [`Server`] has one thread per worker; all that the threads share is [`Shared`]. A request loads the current
//! snapshot once and keeps it to its end. Requests that hyper itself refuses (bytes that are no request) name no host
//! and are not counted by host.

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
mod snapshot;
mod speak;
pub mod stream;
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
pub use tls::TlsError;
pub use traces::SpanFate;
