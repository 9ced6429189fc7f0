//! The loads of the benchmark, and the goal of each relative to nginx.

use std::fmt;

use clap::ValueEnum;

use super::goal::{Figure, Goal, Limit};

/// Kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Case {
    /// HTTP/1.1, 64 connections kept alive, 1 KiB responses
    H1,
    /// Like h1, with the access log of each peer on
    H1log,
    /// HTTP/1.1, a new connection for each request
    H1close,
    /// Like h1, over TLS
    Https,
    /// A full TLS handshake for each request, ECDSA with P-256
    Tlsfull,
    /// Like tlsfull, RSA with 2048 bits
    TlsfullRsa,
    /// A resumed TLS handshake for each request, with the ticket of the previous one
    Tlsresume,
    /// HTTP/2 over TLS, 16 connections × 32 streams
    H2,
    /// 64 KiB responses, 32 connections
    Body64k,
    /// 10 MiB responses, 8 connections
    Body10m,
    /// Like body64k, over TLS
    Https64k,
    /// Request bodies of 64 KiB, 32 connections
    Post64k,
    /// Request bodies of 10 MiB, 8 connections
    Post10m,
    /// HTTP/3, 16 connections × 32 streams
    H3,
    /// HTTP/3, a new connection and a full handshake for each request, ECDSA with P-256
    H3close,
    /// Like h3close, with the ticket of the previous connection
    H3resume,
    /// HTTP/3, 64 KiB responses, 32 connections
    H364k,
    /// HTTP/3, 10 MiB responses, 8 connections
    H310m,
    /// HTTP/3, request bodies of 64 KiB, 32 connections
    H3post64k,
}

// === impl Case ===

impl Case {
    /// Cases that are also measured with two workers.
    pub(super) const WITH_TWO_WORKERS: [Self; 3] = [Self::H1, Self::Https, Self::H2];

    /// Returns `true` if peers log every request.
    pub(super) fn has_access_log(self) -> bool {
        self == Self::H1log
    }

    /// Returns `true` if the requests come by HTTP/3.
    pub(super) fn is_http3(self) -> bool {
        matches!(self, Self::H3 | Self::H3close | Self::H3resume | Self::H364k | Self::H310m | Self::H3post64k)
    }

    /// Returns the case of TCP with the same load, beside which a case of HTTP/3 is measured.
    pub(super) fn by_tcp(self) -> Option<Self> {
        match self {
            Self::H3 => Some(Self::H2),
            Self::H3close => Some(Self::Tlsfull),
            Self::H3resume => Some(Self::Tlsresume),
            Self::H364k => Some(Self::Https64k),
            _ => None,
        }
    }

    /// Returns the goals relative to nginx: with one worker on its own CPU, or with two workers on any CPU.
    pub(super) fn goals(self, workers: u32) -> Vec<Goal> {
        let cpu = match (self, workers) {
            (Self::H1, 1) => 0.85,
            (Self::H1close, 1) => 0.95,
            (Self::Https, 1 | 2) => 0.75,
            (Self::Tlsfull | Self::Https64k, 1) => 0.5,
            (Self::TlsfullRsa | Self::H2, 1) => 0.72,
            (Self::Tlsresume, 1) => 0.6,
            (Self::Body64k, 1) => 0.82,
            (Self::Body10m, 1) => 0.4,
            (Self::Post64k | Self::H364k, 1) | (Self::H2, 2) => 0.8,
            (Self::H3, 1) => 0.75,
            (Self::H3close, 1) => 0.6,
            (Self::H310m, 1) => 0.85,
            (Self::H1, 2) => 0.88,
            _ => return Vec::new(),
        };
        let mut goals = vec![Goal::cpu(cpu)];
        if self == Self::Body10m {
            goals.push(Goal { of: Figure::Rate, limit: Limit::AtLeast(0.95) });
        }
        goals
    }
}

impl fmt::Display for Case {
    /// Writes the name of the case on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().ok_or(fmt::Error)?;
        f.write_str(value.get_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_goal_except_h1log_post10m_h3resume_and_h3post64k() {
        for case in Case::value_variants() {
            let has_none = matches!(case, Case::H1log | Case::Post10m | Case::H3resume | Case::H3post64k);
            assert_eq!(case.goals(1).is_empty(), has_none, "{case}");
            assert_eq!(case.goals(2).is_empty(), !Case::WITH_TWO_WORKERS.contains(case), "{case}");
            assert!(case.goals(3).is_empty(), "{case}");
        }
    }
}
