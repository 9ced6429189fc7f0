//! Tracing configuration (OpenTelemetry): which requests are traced, and where traces go. Nothing is exported here.

use std::time::Duration;

use super::Template;

/// Trace settings of all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// Host name or address of a collector that accepts OTLP over gRPC in the clear.
    pub collector: Box<str>,
    /// Port of the collector. Default 4317.
    pub port: u16,
    /// Service name in traces. Default `nginx`, as dashboards for ingress-nginx expect.
    pub service: Box<str>,
    /// Sampling policy. Default [`Sampler::Always`].
    pub sampler: Sampler,
    /// Whether the decision of a trusted caller overrides the sampler. Default true.
    pub follows_parent: bool,
    /// Maximum number of queued spans; further ones are dropped. Default 2048.
    pub queue_max: usize,
    /// Maximum time that spans wait to be sent in a batch. Default 5 s.
    pub delay: Duration,
    /// Maximum number of spans per batch. Default 512.
    pub batch_max: usize,
}

/// Sampling of traces that begin here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampler {
    #[default]
    Always,
    Never,
    /// Ratio in millionths, decided by the trace id, so that systems with the same ratio agree.
    Ratio(u32),
}

/// Tracing of the requests of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRule {
    /// Whether a trace from a client's request is continued. Default true.
    pub trusts: bool,
    /// Name of spans; the method if absent.
    pub name: Option<Template>,
}

/// The part of an id that is guaranteed to be random: its last seven bytes (W3C Trace Context 2, 2.2.2).
const RANDOM: u128 = (1 << 56) - 1;

// === impl Sampler ===

impl Sampler {
    pub const MILLION: u32 = 1_000_000;

    /// Returns whether the trace with `id` is recorded.
    #[must_use]
    pub fn samples(self, id: u128) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Ratio(ratio) => (id & RANDOM) * u128::from(Self::MILLION) < u128::from(ratio) << 56,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_shares_of_ids() {
        let ids = (0..10_000).map(|n: u128| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        for (ratio, expect) in [(0, 0..=0), (10_000, 70..=130), (500_000, 4800..=5200), (1_000_000, 10_000..=10_000)] {
            let count = ids.clone().filter(|id| Sampler::Ratio(ratio).samples(*id)).count();
            assert!(expect.contains(&count), "{ratio}: {count}");
        }
        assert!(Sampler::Always.samples(1) && !Sampler::Never.samples(1));
    }
}
