//! Clients that no host serves: by network, `Referer` or `User-Agent`.

use super::row::{Row, key};
use crate::translate::values::{Read, networks};
use ingress_model::{Blocked, Texts};

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Blocked>] = &[
    key(
        "block-cidrs",
        "networks to block, separated by commas: XDP drops their packets to all ports of the proxy, TCP and UDP. If \
         XDP does not see these packets, or a trusted proxy stands in between, hosts answer 403",
    )
    .reads(|value, blocked| networks(value, &mut blocked.networks)),
    key(
        "block-referers",
        "values of `Referer` that get 403 from every host, separated by commas: the whole value; `~` begins a regular \
         expression that matches a part of it, `~*` one without regard to case",
    )
    .reads(|value, blocked| texts(value, &mut blocked.referers)),
    key(
        "block-user-agents",
        "values of `User-Agent` that get 403 from every host, separated by commas: the whole value; `~` begins a \
         regular expression that matches a part of it, `~*` one without regard to case",
    )
    .reads(|value, blocked| texts(value, &mut blocked.agents)),
];

fn texts(value: &str, field: &mut Texts) -> Read {
    *field = Texts::parse(value).map_err(|error| format!("texts, separated by commas ({error})"))?;
    Ok(())
}
