//! Access control by client address.

use std::{fmt, net::IpAddr};

use crate::Networks;

/// Allowed and denied networks. The deny list takes precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Clients outside of these networks are refused, unless the list is empty.
    pub allow: Networks,
    pub deny: Networks,
}

impl Access {
    /// Returns whether every client is admitted.
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
