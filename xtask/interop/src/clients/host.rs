//! The server, as a client is told of it: a name, and where to find it.

use std::fmt;
use std::net::SocketAddr;

use crate::stage::NAME;

/// A name of the server with the address at which the client finds it: that of the product, or the beginning of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(super) name: String,
    pub(super) at: SocketAddr,
}

impl Host {
    /// Returns the host that all cases ask but those on paths with faults.
    pub(crate) fn web(at: SocketAddr) -> Self {
        Self { name: NAME.to_owned(), at }
    }

    /// Returns a host below that one for each of `ports`, at which a path of a case begins.
    pub(crate) fn on_path(case: &str, ports: &[SocketAddr]) -> Vec<Self> {
        let of = |name: String, at: &SocketAddr| Self { name, at: *at };
        match ports {
            [at] => vec![of(format!("{case}.{NAME}"), at)],
            _ => (0..).zip(ports).map(|(number, at)| of(format!("{case}-{number}.{NAME}"), at)).collect(),
        }
    }
}

impl fmt::Display for Host {
    /// Writes the name with its port, as in URLs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.at.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_a_name() {
        let hosts = |ports: &[u16]| -> Vec<String> {
            let at: Vec<SocketAddr> = ports.iter().map(|port| ([127, 0, 0, 1], *port).into()).collect();
            Host::on_path("handshakeloss", &at).iter().map(Host::to_string).collect()
        };
        assert_eq!(hosts(&[7, 8]), ["handshakeloss-0.web.test:7", "handshakeloss-1.web.test:8"]);
        assert_eq!(hosts(&[7]), ["handshakeloss.web.test:7"]);
    }
}
