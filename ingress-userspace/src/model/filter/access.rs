//! Who may come in, by address.

use std::{fmt, net::IpAddr};

use crate::model::Networks;

/// Lists of networks. An address that both name stays out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// If not empty, whoever is not in it is refused.
    pub allow: Networks,
    pub deny: Networks,
}

impl Access {
    /// Whether it keeps nobody out.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let Self { allow, deny } = self;
        (allow.is_empty() || allow.is_everybody()) && deny.is_empty()
    }

    #[must_use]
    pub fn admits(&self, client: IpAddr) -> bool {
        let Self { allow, deny } = self;
        !deny.contains(client) && (allow.is_empty() || allow.contains(client))
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { allow, deny } = self;
        let lists = [("allow", allow), ("deny", deny)].into_iter().filter(|(_, networks)| !networks.is_empty());
        for (n, (name, networks)) in lists.enumerate() {
            write!(f, "{}{name} {networks}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
