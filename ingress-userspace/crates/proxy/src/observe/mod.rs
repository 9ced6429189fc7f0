//! Numbers and records about requests: counters, durations, the access log, and traces.

pub(crate) mod access_log;
pub(crate) mod counters;
pub(crate) mod durations;
pub(crate) mod http3_stats;
pub(crate) mod port_stats;
pub(crate) mod stats;
pub(crate) mod traces;
