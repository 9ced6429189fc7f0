//! Goals of measurements: a limit for a figure relative to that of the reference.

use std::{fmt, time::Duration};

use super::report::{Row, Times};

/// A figure that is measured for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Requests per second.
    Rate,
    /// Microseconds of CPU per request.
    Cpu,
    /// Microseconds of CPU in the kernel per request.
    Kernel,
    /// Median time of a request in microseconds. Only loads with a schedule have this figure and the following ones.
    P50,
    P99,
    P999,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
}

/// A limit for the ratio of a figure to that of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Goal {
    pub(super) of: Figure,
    pub(super) limit: Limit,
}

// === impl Figure ===

impl Figure {
    /// Returns the figure in a row; NaN if it was not measured.
    pub(super) fn in_row(self, row: &Row) -> f64 {
        let time =
            |of: fn(&Times) -> Duration| row.times.as_ref().map_or(f64::NAN, |times| of(times).as_secs_f64() * 1e6);
        match self {
            Self::Rate => row.requests as f64 / row.seconds,
            Self::Cpu => row.cpu.all * 1e6 / row.requests as f64,
            Self::Kernel => row.cpu.kernel * 1e6 / row.requests as f64,
            Self::P50 => time(|times| times.p50),
            Self::P99 => time(|times| times.p99),
            Self::P999 => time(|times| times.p999),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "req/s",
            Self::Cpu => "CPU",
            Self::Kernel => "CPU in the kernel",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
        })
    }
}

// === impl Limit ===

impl Limit {
    pub(super) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::Below(most) => value < most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "≤ {most:.2}"),
            Self::Below(most) => write!(f, "< {most:.2}"),
            Self::AtLeast(least) => write!(f, "≥ {least:.2}"),
        }
    }
}

// === impl Goal ===

impl Goal {
    /// Returns a goal for CPU per request.
    pub(super) const fn cpu(most: f64) -> Self {
        Self { of: Figure::Cpu, limit: Limit::AtMost(most) }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, limit } = self;
        write!(f, "{of} {limit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::CpuTime;

    #[test]
    fn figures_are_per_request_or_nan() {
        let cpu = CpuTime { all: 0.1, kernel: 0.08 };
        let mut row = Row { requests: 4000, errors: 0, seconds: 2.0, cpu, times: None };
        assert!((Figure::Rate.in_row(&row) - 2000.0).abs() < 1e-9);
        assert!((Figure::Cpu.in_row(&row) - 25.0).abs() < 1e-9);
        assert!((Figure::Kernel.in_row(&row) - 20.0).abs() < 1e-9);
        assert!(Figure::P99.in_row(&row).is_nan());
        row.times = Some(Times::of((1..=1000).map(Duration::from_micros).collect()));
        for (figure, expect) in [(Figure::P50, 500.0), (Figure::P99, 990.0), (Figure::P999, 999.0)] {
            assert!((figure.in_row(&row) - expect).abs() < 1e-6, "{figure}");
        }
    }

    #[test]
    fn a_missing_figure_meets_no_goal() {
        for limit in [Limit::AtMost(1.0), Limit::Below(1.0), Limit::AtLeast(1.0)] {
            assert!(!limit.holds(f64::NAN), "{limit}");
        }
        assert!(Limit::AtMost(1.0).holds(1.0) && Limit::AtLeast(1.0).holds(1.0) && !Limit::Below(1.0).holds(1.0));
        assert_eq!(Goal::cpu(0.85).to_string(), "CPU ≤ 0.85");
    }
}
