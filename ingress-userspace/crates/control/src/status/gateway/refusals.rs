//! The problems that conditions of the Gateway API tell, for Warning events. This module decides no condition.
//!
//! One flaw often makes several conditions false, such as `Accepted` and `Programmed` of each listener. They have the
//! same message, by which an object has one problem for each cause.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    change::ObjectId,
    cluster::{Store, Stored},
    gateway::GatewayObject,
    object_status::{
        Condition, ConditionStatus, ListenerStatus, ObjectStatus, ParentStatus, SEE_LISTENERS, StatusBody,
    },
    status::input::{Problem, StatusInput},
};

/// A listener has this reason if it is its Gateway that has the problem.
const PENDING: &str = "Pending";

/// A condition, and the name of its listener if it is of one.
type Refusal<'s> = (Option<&'s str>, &'s Condition);

/// Returns the first condition for each cause, by its message.
fn refusals(status: &ObjectStatus) -> BTreeMap<&str, Refusal<'_>> {
    let (own, listeners, parents): (&[_], &[_], &[_]) = match &status.body {
        StatusBody::GatewayClass { conditions, .. } => (conditions, &[], &[]),
        StatusBody::Gateway { conditions, listeners, .. } | StatusBody::ListenerSet { conditions, listeners } => {
            (conditions, listeners, &[])
        }
        StatusBody::Route { parents } | StatusBody::Policy { ancestors: parents } => (&[], &[], parents),
    };
    let of_object = own.iter().map(|condition| (None, condition));
    let of_listeners = listeners.iter().flat_map(|ListenerStatus { name, conditions, .. }| {
        conditions.iter().map(move |condition| (Some(&**name), condition))
    });
    let of_parents =
        parents.iter().flat_map(|ParentStatus { conditions, .. }| conditions.iter().map(|condition| (None, condition)));
    let mut found = BTreeMap::new();
    for refusal in of_object.chain(of_listeners).chain(of_parents).filter(|(_, condition)| is_refusal(condition)) {
        found.entry(&*refusal.1.message).or_insert(refusal);
    }
    found
}

fn is_refusal(condition: &Condition) -> bool {
    let Condition { kind, status, reason, message } = condition;
    let bad = match *kind {
        "Accepted" | "Programmed" | "ResolvedRefs" => ConditionStatus::False,
        "Conflicted" => ConditionStatus::True,
        _ => return false,
    };
    *status == bad && *reason != PENDING && !message.is_empty() && !message.ends_with(SEE_LISTENERS)
}

fn causes(status: Option<&Arc<ObjectStatus>>) -> BTreeMap<&str, Refusal<'_>> {
    status.map(|status| refusals(status)).unwrap_or_default()
}

/// Returns `true` if an object of the same name is another one now.
fn is_replaced<K: GatewayObject + PartialEq>(before: &Store<K>, now: &Store<K>) -> bool {
    fn uid<K: GatewayObject>(stored: Option<&Stored<K>>) -> Option<&str> {
        stored.and_then(|stored| stored.object.metadata().uid.as_deref())
    }
    before.differences(now).into_iter().any(|difference| uid(difference.old) != uid(difference.new))
}

// === impl StatusInput ===

impl StatusInput {
    /// Returns the problems that conditions tell, of objects of the API server.
    pub(in crate::status) fn refused(&self) -> impl Iterator<Item = Problem> {
        self.translation().statuses.iter().flat_map(|(id, status)| {
            let refusals = refusals(status);
            let bearer = if refusals.is_empty() { None } else { self.bearer(id) };
            let uid: Option<Arc<str>> = bearer.map(|bearer| bearer.uid.into());
            let refusals = refusals.into_values();
            refusals.filter_map(move |(listener, condition)| Some(problem(id, uid.clone()?, listener, condition)))
        })
    }

    /// Returns `true` if [`StatusInput::refused`] may differ from `before`. The cost grows with the differences.
    pub(in crate::status) fn may_be_refused_otherwise(&self, before: &Self) -> bool {
        let statuses = before.translation().statuses.differences(&self.translation().statuses);
        let (old, new) = (&before.cluster().gateway_api, &self.cluster().gateway_api);
        statuses.into_iter().any(|difference| causes(difference.old) != causes(difference.new))
            || is_replaced(&old.classes, &new.classes)
            || is_replaced(&old.gateways, &new.gateways)
            || is_replaced(&old.listener_sets, &new.listener_sets)
            || is_replaced(&old.http_routes, &new.http_routes)
            || is_replaced(&old.grpc_routes, &new.grpc_routes)
            || is_replaced(&old.tls_routes, &new.tls_routes)
            || is_replaced(&old.tcp_routes, &new.tcp_routes)
            || is_replaced(&old.udp_routes, &new.udp_routes)
            || is_replaced(&old.backend_tls_policies, &new.backend_tls_policies)
    }
}

fn problem(id: &ObjectId, uid: Arc<str>, listener: Option<&str>, condition: &Condition) -> Problem {
    let Condition { reason, message, .. } = condition;
    let message = match listener {
        Some(listener) => format!("listener `{listener}`: {message}").into(),
        None => message.as_str().into(),
    };
    let ObjectId { kind, name } = id;
    Problem { kind: *kind, name: name.clone(), uid, reason, message }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        change::{Change, Kind},
        cluster::Cluster,
        outcome::Origin,
        source::manifests::parse,
        status::handle::Uncounted,
        translate::{Options, Translator},
    };

    const API: &str = "apiVersion: gateway.networking.k8s.io/v1";

    /// Returns a Gateway with two listeners and one Secret for both, and a route that attaches to both.
    fn objects(gateway_uid: &str, secret: &str, service: &str) -> String {
        let listener = |name: &str| {
            format!(
                "{{name: {name}, port: 443, protocol: HTTPS, hostname: {name}.test, tls: {{certificateRefs: [{{name: {secret}}}]}}}}"
            )
        };
        format!(
            "{API}\nkind: GatewayClass\nmetadata: {{name: xdp, uid: c}}\nspec: {{controllerName: xdp-ingress.io/gateway-controller}}\n---\n\
             {API}\nkind: Gateway\nmetadata: {{name: web, namespace: n, uid: {gateway_uid}}}\n\
             spec: {{gatewayClassName: xdp, listeners: [{}, {}, {{name: p, port: 80, protocol: HTTP}}]}}\n---\n\
             {API}\nkind: HTTPRoute\nmetadata: {{name: r, namespace: n, uid: r}}\n\
             spec: {{parentRefs: [{{name: web, sectionName: a}}, {{name: web, sectionName: b}}], rules: [{{backendRefs: [{{name: {service}, port: 80}}]}}]}}\n---\n\
             apiVersion: v1\nkind: Service\nmetadata: {{name: s, namespace: n, uid: s}}\nspec: {{ports: [{{port: 80}}]}}\n",
            listener("a"),
            listener("b")
        )
    }

    #[test]
    fn each_cause_is_one_problem_of_its_object() {
        let mut cluster = Cluster::default();
        let mut translator = Translator::new(Options::default());
        let mut before = StatusInput::default();
        let mut look = |text: &str| {
            for object in parse(&Path::new("in.yaml").into(), text).objects {
                cluster.apply(Change::Apply { object, origin: Origin::Api });
            }
            let now = StatusInput::new(&cluster, &translator.translate(&cluster), &Arc::from("manager"));
            let may_differ = now.may_be_refused_otherwise(&before);
            let found: Vec<_> = now
                .problems(&Uncounted::default())
                .into_iter()
                .filter(|problem| problem.kind != Kind::Service)
                .map(|problem| {
                    format!("{} {} {}: {}", problem.kind.as_str(), problem.uid, problem.reason, problem.message)
                })
                .collect();
            before = now;
            (may_differ, found)
        };
        let (may_differ, found) = look(&objects("g", "missing", "missing"));
        assert!(may_differ && found.len() == 2, "{found:#?}");
        assert!(found[0].starts_with("Gateway g InvalidCertificateRef: listener `a`: "), "{found:#?}");
        assert!(found[1].starts_with("HTTPRoute r BackendNotFound: "), "{found:#?}");
        let (may_differ, again) = look(&objects("g", "missing", "missing"));
        assert_eq!((may_differ, &again), (false, &found), "nothing changed");
        let (may_differ, found) = look(&objects("later", "missing", "s"));
        assert!(may_differ && found.len() == 1 && found[0].starts_with("Gateway later "), "{found:#?}");
        // Conditions of the Gateway that follow from those of its listeners are no causes of their own.
        let refused = objects("alone", "missing", "s").replace(", {name: p, port: 80, protocol: HTTP}", "");
        let (_, found) = look(&refused);
        assert!(found.len() == 1 && found[0].contains("InvalidCertificateRef: listener `a`: "), "{found:#?}");
    }

    #[test]
    fn conditions_that_tell_no_problem_are_left_out() {
        let condition =
            |kind, status, reason, message: &str| Condition { kind, status, reason, message: message.into() };
        for (condition, expect) in [
            (condition("Accepted", ConditionStatus::False, "Invalid", "a"), true),
            (condition("Accepted", ConditionStatus::True, "Accepted", "a"), false),
            (condition("Programmed", ConditionStatus::False, PENDING, "see the Gateway"), false),
            (condition("Programmed", ConditionStatus::False, "Invalid", ""), false),
            (condition("Conflicted", ConditionStatus::False, "NoConflicts", "a"), false),
            (condition("Conflicted", ConditionStatus::True, "HostnameConflict", "a"), true),
            (condition("Accepted", ConditionStatus::False, "ListenersNotValid", "none; see their conditions"), false),
            (condition("AttachedListenerSets", ConditionStatus::False, "NoListenerSets", "a"), false),
        ] {
            assert_eq!(is_refusal(&condition), expect, "{condition:?}");
        }
    }
}
