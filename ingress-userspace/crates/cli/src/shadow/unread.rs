//! Ingresses whose rules are refused only because an object that they name was not read. Their lines decide nothing: here,
//! where the object is, the rules are served.

use std::collections::HashMap;

use ingress_control::{Reason, translate::Translation};
use ingress_inspect::{Replayed, ReplayedAnswer};
use ingress_model::{Action, RouteTable, Unavailable};

/// Ingresses with refused rules, by `namespace/name`; each with the object that is missing, or `None` if another problem
/// refuses them.
pub(super) struct Unread<'t> {
    table: &'t RouteTable,
    refused: HashMap<String, Option<&'static str>>,
}

// === impl Unread ===

impl<'t> Unread<'t> {
    pub(super) fn of(translation: &'t Translation, is_directory: bool) -> Self {
        let mut refused = HashMap::new();
        for outcome in translation.outcomes.keys().filter(|outcome| outcome.refuses) {
            let missing = match outcome.reason {
                Reason::SecretNotFound => Some("the rule needs a Secret, and no Secret is read"),
                Reason::ConfigMapNotFound if is_directory => {
                    Some("the rule needs a ConfigMap, which is not in the directory")
                }
                _ => None,
            };
            let owner = format!("{}/{}", outcome.object.namespace, outcome.object.name);
            let known = refused.entry(owner).or_insert(missing);
            if missing.is_none() {
                *known = None;
            }
        }
        Self { table: &translation.table, refused }
    }

    /// Returns why the refusal says little; `None` if the rule is refused for another reason, or not at all.
    pub(super) fn reason(&self, replayed: &Replayed<'_>) -> Option<&'static str> {
        let rule = replayed.rule?;
        let is_by_policy = matches!(replayed.answer, ReplayedAnswer::Refused(..))
            && rule.action == Action::Refuse(Unavailable::Policy);
        match self.refused.get(&*rule.owner) {
            _ if !is_by_policy => None,
            Some(missing) => *missing,
            // Demands on the certificates of clients hold for the whole host, whichever Ingress makes them.
            None => {
                let routes = self.table.hosts.get(replayed.host.as_ref()?)?;
                let others = routes.rules.iter().chain(routes.fallback.as_deref());
                others.filter_map(|other| *self.refused.get(&*other.owner)?).next()
            }
        }
    }
}
