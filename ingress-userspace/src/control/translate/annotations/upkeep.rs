//! Reads the health policy that an Ingress asks for. It does not apply it.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use crate::model::{Caps, Check, Ejection, Question, Upkeep};

/// Values as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::control::translate) struct AskedUpkeep {
    pub(super) ejection: Ejection,
    pub(super) caps: Caps,
    pub(super) slow_start: Option<Duration>,
    pub(super) check: AskedCheck,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AskedCheck {
    pub(super) kind: Kind,
    /// A path alone is enough to enable checks.
    pub(super) path: Option<Box<str>>,
    pub(super) host: Option<Box<str>>,
    pub(super) statuses: Box<[(u16, u16)]>,
    /// Name of the gRPC service.
    pub(super) service: Box<str>,
    pub(super) port: Option<u16>,
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    pub(super) healthy: NonZeroU32,
    pub(super) unhealthy: NonZeroU32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// HTTP if there is a path, else none.
    #[default]
    ByPath,
    None,
    Http,
    Grpc,
    Connect,
}

impl Default for AskedCheck {
    fn default() -> Self {
        Self {
            kind: Kind::ByPath,
            path: None,
            host: None,
            statuses: [Question::STATUSES].into(),
            service: Box::default(),
            port: None,
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            healthy: NonZeroU32::MIN.saturating_add(1),
            unhealthy: NonZeroU32::MIN.saturating_add(2),
        }
    }
}

// === impl AskedUpkeep ===

impl AskedUpkeep {
    /// Returns the policy; `None` if it is the default.
    pub(super) fn made(self) -> Option<Arc<Upkeep>> {
        let Self { ejection, mut caps, slow_start, check } = self;
        // Without a cap no request waits. Values without an effect are reset, so that they do not change the key.
        if caps.connections.is_none() {
            caps.pending = 0;
        }
        let upkeep = Upkeep { ejection, check: check.made().map(Arc::new), caps, slow_start };
        (upkeep != Upkeep::default()).then(|| Arc::new(upkeep))
    }
}

impl AskedCheck {
    fn made(self) -> Option<Check> {
        let Self { kind, path, host, statuses, service, port, interval, timeout, healthy, unhealthy } = self;
        let question = match (kind, path) {
            (Kind::None, _) | (Kind::ByPath, None) => return None,
            (Kind::ByPath | Kind::Http, path) => {
                Question::Http { path: path.unwrap_or_else(|| "/".into()), host, statuses }
            }
            (Kind::Grpc, _) => Question::Grpc { service },
            (Kind::Connect, _) => Question::Connect,
        };
        Some(Check { question, port, interval, timeout, healthy, unhealthy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_wait_means_nothing_where_nothing_is_capped() {
        let asked = |connections, pending| {
            let caps = Caps { connections: NonZeroU32::new(connections), pending, ..Caps::default() };
            AskedUpkeep { caps, ..AskedUpkeep::default() }.made().map(|upkeep| upkeep.to_string())
        };
        assert_eq!(asked(0, 5), None);
        assert_eq!(asked(3, 5).as_deref(), Some("connections=3+5"));
    }
}
