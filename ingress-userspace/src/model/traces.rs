//! Which requests are traced, and who is told (OpenTelemetry). It tells nobody.

use std::time::Duration;

use super::Template;

/// How traces are collected, for all hosts alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// Host name or address of a collector that takes OTLP over gRPC in the clear.
    pub collector: Box<str>,
    /// Default 4317.
    pub port: u16,
    /// What this service is called in traces. Default `nginx`, which dashboards of ingress-nginx look for.
    pub service: Box<str>,
    /// Default [`Sampler::Always`].
    pub sampler: Sampler,
    /// Whether what a caller that is trusted has decided goes before the sampler. Default true.
    pub follows_parent: bool,
    /// Spans that wait for the collector at one time; more are dropped. Default 2048.
    pub queue_max: usize,
    /// How long spans wait for others to be sent with. Default 5 s.
    pub delay: Duration,
    /// Spans sent together. Default 512.
    pub batch_max: usize,
}

/// Which traces that begin here are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampler {
    #[default]
    Always,
    Never,
    /// So many of a million, by the id of the trace, so that whoever has the same ratio decides alike.
    Ratio(u32),
}

/// How the requests of one rule are traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRule {
    /// Whether the trace that a client says its request is part of goes on. Default true.
    pub trusts: bool,
    /// Name of spans; without it, the method.
    pub name: Option<Template>,
}

/// The part of an id that is random for certain: its last seven bytes (W3C Trace Context 2, 2.2.2).
const RANDOM: u128 = (1 << 56) - 1;

// === impl Sampler ===

impl Sampler {
    pub const MILLION: u32 = 1_000_000;

    /// Whether the trace with `id` is recorded.
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
