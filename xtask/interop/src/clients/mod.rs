//! The clients, and the cases that each can run.

mod chromium;
mod command;
pub(crate) mod errand;
mod firefox;
mod host;
mod ngtcp2;
mod python;
mod quic_go;
mod visit;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

pub(crate) use self::host::Host;
use self::visit::Visit;
use crate::stage::Stage;

/// Result of each case, with the reason of a failure.
pub(crate) type Results = Vec<(Case, Result<(), String>)>;

/// A client from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    QuicGo,
    Aioquic,
    Qh3,
    /// ngtcp2's own client.
    Ngtcp2,
    /// libcurl with ngtcp2.
    Curl,
    Chromium,
    Firefox,
}

/// Use of HTTP/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Case {
    /// A response of 1 MB.
    Get,
    /// A body of 1 MiB, which comes back.
    Post,
    /// Hundreds of requests at a time.
    Streams,
    /// Trailers of request and response, with a pod of HTTP/2.
    Trailers,
    /// A response that comes before the body of its request, and further requests.
    Early,
    /// A resumed handshake.
    Resumption,
    /// New ports of the client, with other connection IDs.
    Migration,
    /// New ports that the client does not know of, as by NAT.
    Rebinding,
    /// New keys amid the connection.
    Keys,
    /// The cipher ChaCha20-Poly1305.
    Chacha20,
    /// Many connections, one after another.
    Multiconnect,
    /// A server that demands proof of the client's address.
    Retry,
    /// A response of 1 MB over IPv6.
    Ipv6,
}

/// A client that can run here.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) kind: Kind,
    program: PathBuf,
}

impl Kind {
    /// Finds or installs the client.
    ///
    /// # Errors
    /// Fails if it cannot be had here.
    pub(crate) fn prepare(self) -> Result<Client> {
        let program = match self {
            Self::QuicGo => quic_go::program(),
            Self::Aioquic => python::AIOQUIC.packages(),
            Self::Qh3 => python::QH3.packages(),
            Self::Ngtcp2 => ngtcp2::program(),
            Self::Curl => python::CURL.packages(),
            Self::Chromium => chromium::program(),
            Self::Firefox => firefox::program(),
        }?;
        Ok(Client { kind: self, program })
    }

    /// Returns why the client cannot run `case`; `None` if it can.
    pub(crate) fn cannot(self, case: Case) -> Option<&'static str> {
        Some(match (self, case) {
            (Self::Firefox, Case::Retry) => "it starts after half-open connections have ended",
            (Self::Chromium | Self::Firefox, Case::Trailers) => "pages have no trailers",
            (Self::Chromium | Self::Firefox, Case::Resumption | Case::Multiconnect) => {
                "a page cannot open its connection anew"
            }
            (Self::Curl | Self::Ngtcp2, Case::Trailers) => "it sends none by HTTP/3",
            (Self::Curl | Self::Chromium | Self::Firefox, Case::Chacha20) => "its ciphers of TLS 1.3 cannot be chosen",
            (Self::Curl | Self::Chromium | Self::Firefox, Case::Keys) => "it cannot be told to",
            (Self::Curl | Self::Chromium | Self::Firefox, Case::Migration) => "it keeps its socket",
            _ => return None,
        })
    }

    /// Returns the cases that the client can run.
    pub(crate) fn cases(self) -> Vec<Case> {
        Case::value_variants().iter().copied().filter(|case| self.cannot(*case).is_none()).collect()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QuicGo => "quic-go",
            Self::Aioquic => "aioquic",
            Self::Qh3 => "qh3",
            Self::Ngtcp2 => "ngtcp2",
            Self::Curl => "curl",
            Self::Chromium => "chromium",
            Self::Firefox => "firefox",
        })
    }
}

impl Case {
    /// Returns the name of the case at the QUIC Interop Runner, if it has this case.
    pub(crate) fn runner_name(self) -> Option<&'static str> {
        match self {
            Self::Get => Some("handshake"),
            Self::Post => Some("transfer"),
            Self::Streams => Some("http3"),
            Self::Resumption => Some("resumption"),
            Self::Migration => Some("connectionmigration"),
            Self::Rebinding => Some("rebind-port"),
            Self::Keys => Some("keyupdate"),
            Self::Chacha20 => Some("chacha20"),
            Self::Multiconnect => Some("multiconnect"),
            Self::Retry => Some("retry"),
            Self::Ipv6 => Some("ipv6"),
            Self::Trailers | Self::Early => None,
        }
    }
}

impl fmt::Display for Case {
    /// Writes the name of the case, as clients know it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().ok_or(fmt::Error)?.get_name())
    }
}

impl Client {
    /// Runs `cases` against the product at `at`.
    ///
    /// # Errors
    /// Fails if the client cannot be started, or says something else than a result for each case.
    pub(crate) fn run(&self, stage: &Stage, at: SocketAddr, cases: &[Case]) -> Result<Results> {
        let host = Host::web(at);
        let said = match self.kind {
            Kind::QuicGo | Kind::Aioquic | Kind::Qh3 | Kind::Curl => {
                command::said(&mut self.command(cases)?, stage, &host, cases)
            }
            Kind::Ngtcp2 => ngtcp2::said(&self.program, stage, &host, cases),
            Kind::Chromium => chromium::said(&self.program, stage, &Visit::of_cases(host, cases)),
            Kind::Firefox => firefox::said(&self.program, stage, &Visit::of_cases(host, cases)),
        }?;
        command::parse(&said, cases)
    }

    /// Returns the command of a client that has names of cases or tasks as arguments. `cases` are those to come.
    fn command(&self, cases: &[Case]) -> Result<Command> {
        Ok(match self.kind {
            Kind::QuicGo => quic_go::command(&self.program, cases),
            Kind::Aioquic => python::AIOQUIC.command(&self.program),
            Kind::Qh3 => python::QH3.command(&self.program),
            Kind::Curl => python::CURL.command(&self.program),
            Kind::Ngtcp2 | Kind::Chromium | Kind::Firefox => bail!("{} takes no cases as arguments", self.kind),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_clients_or_more_run_each_case_of_the_interop_runner() {
        for case in Case::value_variants().iter().filter(|case| case.runner_name().is_some()) {
            let clients = Kind::value_variants().iter().filter(|kind| kind.cases().contains(case)).count();
            assert!(clients >= 4, "{case}: {clients} clients");
        }
    }

    #[test]
    fn every_client_has_the_basic_cases() {
        for kind in Kind::value_variants() {
            assert!(
                [Case::Get, Case::Post, Case::Streams, Case::Early].iter().all(|case| kind.cases().contains(case)),
                "{kind}"
            );
        }
    }
}
