//! Numbers and records about requests: counters, durations, the access log, and traces.

pub(crate) mod access_log;
pub(crate) mod counters;
pub(crate) mod durations;
pub(crate) mod traces;
