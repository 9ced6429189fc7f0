//! Documents about a configuration, for people and programs: its routes, its problems, its certificates, and the reason
//! why a URL is served as it is.
//!
//! ```text
//!               ┌─ route ─────────> RouteDocument
//! Translation ──┼─ explanation ───> Explanation (of one URL)
//!               ├─ problem ───────> ProblemDocument
//!               ├─ certificate ───> CertificateDocument
//!               ├─ witness ───────> Comparison (with ingress-nginx)
//!               └─ replay ────────> Replayed (the answer to a request of a log)
//! ```
//!
//! The API of a node and the commands share these documents. They are pure functions of a translation, without IO and
//! without a clock. No document has private keys, passwords, values of header fields, or queries of URLs
//! (`redaction.rs`).
#![forbid(unsafe_code)]

pub mod certificate;
pub mod explanation;
mod lookup;
pub mod problem;
mod redaction;
pub mod replay;
pub mod route;
mod timestamp;
pub mod witness;

pub use certificate::{CertificateDocument, CertificateEntry, LeafDocument, certificate_entries, certificates, leaf};
pub use explanation::{CertificateChoice, Considered, ExplainError, Explanation, Verdict, certificate_choice, explain};
pub use problem::{ProblemDocument, ProblemObject};
pub use redaction::without_queries;
pub use replay::{LoggedRequest, Replay, Replayed, ReplayedAnswer, path_and_query};
pub use route::{ActionDocument, BackendDocument, PathKind, RouteDocument, RouteEntry, RouteFilter, routes, routes_of};
pub use timestamp::timestamp;
pub use witness::{Comparison, UnknownHost, Witness, witnesses};
