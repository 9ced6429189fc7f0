//! Listeners of Gateways and ListenerSets.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::{Group, ListenerTls, ReferentKind, open_enum::open_enum};

/// A port with a protocol, and mostly a host name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Listener {
    pub name: Box<str>,
    /// A name, or `*.` and a name. `None`: any.
    pub hostname: Option<Box<str>>,
    pub port: u16,
    pub protocol: Protocol,
    pub tls: Option<ListenerTls>,
    pub allowed_routes: AllowedRoutes,
}

open_enum! {
    /// Protocol of a listener.
    pub enum Protocol {
        #[default]
        Http = "HTTP",
        Https = "HTTPS",
        Tls = "TLS",
        Tcp = "TCP",
        Udp = "UDP",
    }
}

/// Routes that may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllowedRoutes {
    pub namespaces: RouteNamespaces,
    /// Empty: the kinds that fit the protocol.
    pub kinds: Box<[RouteKind]>,
}

/// Namespaces of routes that may attach. By default, that of the listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteNamespaces {
    pub from: NamespacesFrom,
    /// Labels of the namespaces, with [`NamespacesFrom::Selector`].
    pub selector: Option<LabelSelector>,
}

open_enum! {
    /// Namespaces that are allowed.
    pub enum NamespacesFrom {
        All = "All",
        Selector = "Selector",
        #[default]
        Same = "Same",
        None = "None",
    }
}

/// A kind of routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteKind {
    pub group: Group,
    pub kind: ReferentKind,
}

// === impl RouteNamespaces ===

impl Default for RouteNamespaces {
    fn default() -> Self {
        Self { from: NamespacesFrom::Same, selector: None }
    }
}

// === impl RouteKind ===

impl Default for RouteKind {
    fn default() -> Self {
        Self { group: Group::Gateway, kind: ReferentKind::HttpRoute }
    }
}
