//! The request path: accepts connections and forwards each request to a pod. It does not watch configuration; control
//! hands it [`Snapshot`]s. The folders follow a request on its way:
//!
//! ```text
//! server ─▶ downstream ─▶ tls ─▶ http ─▶ request ─▶ auth, limits ─▶ upstream ─▶ pod
//!   │           │                           │
//!   │           └▶ l4 (tcp, udp) ─▶ pod     └▶ observe (counters, access log, traces)
//!   └ worker threads, listening sockets, memory, state shared by all workers
//! ```
//!
//! A [`Server`] has one thread per worker; the threads share nothing but [`Shared`]. A request loads the current
//! snapshot once and keeps it to its end. Requests rejected by hyper itself (malformed bytes) have no host and are not
//! counted by host.
#![forbid(unsafe_code)]

mod alt_svc;
mod auth;
pub mod downstream;
mod http;
pub mod l4;
mod limits;
mod listeners;
mod observe;
mod random;
mod request;
mod server;
mod snapshot;
mod tls;
pub mod upstream;

pub use downstream::refusal::Refusal;
pub use http::authority::{Authority, AuthorityError};
pub use l4::udp::{DatagramStatsView, Dropped};
pub use limits::LimitStats;
pub use limits::violations::{Escalated, Violation, ViolationStats, Violator};
pub use observe::access_log::{Sink, SinkGuard};
pub use observe::durations::{DURATION_BOUNDS, DurationsView};
pub use observe::http3_stats::Http3StatsView;
pub use observe::port_stats::PortStatsView;
pub use observe::stats::StatsView;
pub use observe::traces::SpanOutcome;
pub use server::listen::{ListenError, ListenMode, ListenOptions, WorkerListeners, bind};
pub use server::listen_quic::{QuicListener, RECEIVE_BUFFER, bind_quic};
pub use server::liveness::Liveness;
pub use server::memory::{Memory, Pressure, Usage};
pub use server::options::Options;
pub use server::ports::{keep_datagram_ports_open, keep_stream_ports_open};
pub use server::seccomp::Seccomp;
pub use server::{Drained, Server, StartError};
pub use server::{
    flow_table::FlowTable,
    shared::{Shared, SharedError},
};
pub use snapshot::Snapshot;
pub use tls::TlsError;
pub use tls::certificates::{CertificateProblem, Certificates};
pub use tls::client_certificates::fields_for_pods;
pub use upstream::balance::{CheckResult, Full, UpstreamView};
