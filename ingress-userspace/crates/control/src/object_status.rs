//! Statuses that a translation derives for objects of the Gateway API, as data. They are compared and written
//! elsewhere.

use std::{fmt, net::IpAddr, sync::Arc};

use crate::gateway::{Group, ReferentKind};

/// End of messages that only repeat what conditions of listeners say. Others say more, so these become no event.
pub(crate) const SEE_LISTENERS: &str = "see their conditions";

/// The status that an object should show, for one generation of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStatus {
    /// `metadata.generation` of the object; every condition carries it as `observedGeneration`.
    pub generation: i64,
    pub body: StatusBody,
}

/// The content of a status, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusBody {
    GatewayClass {
        conditions: Vec<Condition>,
        /// Names of features, sorted.
        supported_features: Vec<&'static str>,
    },
    Gateway {
        conditions: Vec<Condition>,
        listeners: Vec<ListenerStatus>,
        /// Addresses of the pool. Without a pool they are empty: the Gateway then shows those that Ingresses show, which
        /// the writer of statuses knows.
        addresses: Vec<GatewayAddress>,
        /// Number of ListenerSets that are attached; `None` if the Gateway allows none.
        attached_listener_sets: Option<u32>,
    },
    ListenerSet {
        conditions: Vec<Condition>,
        listeners: Vec<ListenerStatus>,
    },
    /// Any kind of route: one entry for each reference to a parent of this controller, in the order of the references.
    Route {
        parents: Vec<ParentStatus>,
    },
    /// A policy: one entry for each Gateway of this controller that it affects, sorted.
    Policy {
        ancestors: Vec<ParentStatus>,
    },
}

/// A condition (KEP-1623). The time of the last transition belongs to the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub status: ConditionStatus,
    pub reason: &'static str,
    /// For people: lower case, values in backticks, the remedy after a `;`.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerStatus {
    pub name: Arc<str>,
    /// Kinds of routes that may attach, of the group `gateway.networking.k8s.io`.
    pub supported_kinds: Vec<&'static str>,
    /// Number of routes with `Accepted` for this listener.
    pub attached_routes: u32,
    pub conditions: Vec<Condition>,
}

/// An address of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GatewayAddress {
    Ip(IpAddr),
    Name(Arc<str>),
}

/// Status of a route or policy for one parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentStatus {
    pub parent: ParentReference,
    pub conditions: Vec<Condition>,
}

/// A reference to a parent, with the fields that identify an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParentReference {
    pub group: Group,
    pub kind: ReferentKind,
    /// `None` if the route leaves it out; its own namespace is meant then.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
    pub section_name: Option<Arc<str>>,
    pub port: Option<u16>,
}

// === impl Condition ===

impl Condition {
    /// Returns a condition that is true without anything to add.
    #[must_use]
    pub fn met(kind: &'static str, reason: &'static str) -> Self {
        Self { kind, status: ConditionStatus::True, reason, message: String::new() }
    }

    /// Returns a condition that is false.
    #[must_use]
    pub fn unmet(kind: &'static str, reason: &'static str, message: String) -> Self {
        Self { kind, status: ConditionStatus::False, reason, message }
    }
}

// === impl ConditionStatus ===

impl ConditionStatus {
    /// Returns the status in Kubernetes notation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
        }
    }
}

/// Formats a status in lines, for golden tests and for people.
impl fmt::Display for ObjectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, body } = self;
        writeln!(f, "  generation {generation}")?;
        match body {
            StatusBody::GatewayClass { conditions, supported_features } => {
                write_conditions(f, "  ", conditions)?;
                writeln!(f, "  features {}", supported_features.len())
            }
            StatusBody::Gateway { conditions, listeners, addresses, attached_listener_sets } => {
                write_conditions(f, "  ", conditions)?;
                for address in addresses {
                    writeln!(f, "  address {address}")?;
                }
                if let Some(count) = attached_listener_sets {
                    writeln!(f, "  listener sets {count}")?;
                }
                write_listeners(f, listeners)
            }
            StatusBody::ListenerSet { conditions, listeners } => {
                write_conditions(f, "  ", conditions)?;
                write_listeners(f, listeners)
            }
            StatusBody::Route { parents } => write_parents(f, "parent", parents),
            StatusBody::Policy { ancestors } => write_parents(f, "ancestor", ancestors),
        }
    }
}

fn write_listeners(f: &mut fmt::Formatter<'_>, listeners: &[ListenerStatus]) -> fmt::Result {
    for ListenerStatus { name, supported_kinds, attached_routes, conditions } in listeners {
        writeln!(f, "  listener {name} [{}] routes {attached_routes}", supported_kinds.join(", "))?;
        write_conditions(f, "    ", conditions)?;
    }
    Ok(())
}

fn write_parents(f: &mut fmt::Formatter<'_>, word: &str, parents: &[ParentStatus]) -> fmt::Result {
    for ParentStatus { parent, conditions } in parents {
        writeln!(f, "  {word} {parent}")?;
        write_conditions(f, "    ", conditions)?;
    }
    Ok(())
}

fn write_conditions(f: &mut fmt::Formatter<'_>, indent: &str, conditions: &[Condition]) -> fmt::Result {
    for Condition { kind, status, reason, message } in conditions {
        write!(f, "{indent}{kind}={} {reason}", status.as_str())?;
        if !message.is_empty() {
            write!(f, ": {message}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Formats the reference, such as `Gateway n/g section=http port=80`.
impl fmt::Display for ParentReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group: _, kind, namespace, name, section_name, port } = self;
        write!(f, "{kind} ")?;
        if let Some(namespace) = namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(name)?;
        if let Some(section) = section_name {
            write!(f, " section={section}")?;
        }
        if let Some(port) = port {
            write!(f, " port={port}")?;
        }
        Ok(())
    }
}

impl fmt::Display for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}
