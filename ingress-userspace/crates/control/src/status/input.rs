//! Input of statuses and events, read on demand from the cluster and its translation, by the leader only. This module
//! decides nothing.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{core::v1::ObjectReference, networking::v1::Ingress};
use tokio::time::Instant;

use super::{
    Kind, ObjectName,
    field_owners::{entries, is_marked},
    handle::Uncounted,
};
use crate::{
    Translation,
    cluster::{Cluster, Stored},
    outcome::{ObjectRef, Origin, Outcome, Reason, Severity},
};
use ingress_model::Rule;

/// A snapshot of all input. It is cheap to make, because every replica makes one after every change.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusInput {
    cluster: Cluster,
    translation: Translation,
    /// The field manager of this controller's entries.
    manager: Arc<str>,
    /// Time at which this process received the first change of it; `None`: not known.
    received: Option<Instant>,
}

/// An Ingress with a status that this controller manages.
#[derive(Clone, Debug)]
pub(super) struct ManagedIngress {
    pub(super) ingress: Arc<Ingress>,
    pub(super) managed_state: ManagedState,
}

/// Role of an Ingress towards this controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagedState {
    InEffect,
    /// The Ingress is not, or no longer, in effect. Its status has entries that are this controller's by field
    /// ownership.
    Left,
}

/// A problem to report as an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) kind: Kind,
    pub(super) name: ObjectName,
    pub(super) uid: Arc<str>,
    /// The name of a [`Reason`], or the reason of a condition.
    pub(super) reason: &'static str,
    pub(super) message: Arc<str>,
}

// === impl StatusInput ===

impl StatusInput {
    pub(super) fn new(cluster: &Cluster, translation: &Translation, manager: &Arc<str>) -> Self {
        let (cluster, translation) = (cluster.clone(), translation.clone());
        Self { cluster, translation, manager: Arc::clone(manager), received: None }
    }

    /// Sets the time at which this process received the first change of this input.
    pub(super) fn received_at(self, received: Option<Instant>) -> Self {
        Self { received, ..self }
    }

    pub(super) fn received(&self) -> Option<Instant> {
        self.received
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn translation(&self) -> &Translation {
        &self.translation
    }

    /// Returns the field manager of this controller's entries.
    pub(super) fn manager(&self) -> &str {
        &self.manager
    }

    /// Returns the Ingresses in effect, and those not in effect that still have a status of this controller.
    pub(super) fn managed_ingresses(&self) -> impl Iterator<Item = ManagedIngress> {
        self.cluster.ingresses.keys().filter_map(|name| self.managed(name))
    }

    /// Returns the Ingress `name` if it is one of [`StatusInput::managed_ingresses`].
    pub(super) fn managed(&self, name: &ObjectName) -> Option<ManagedIngress> {
        let Self { cluster, translation, manager, received: _ } = self;
        let Stored { object, origin } = cluster.ingresses.get(name)?;
        let managed_state = if translation.in_effect.contains_key(name) {
            ManagedState::InEffect
        } else if is_marked(&object.metadata, manager) && !entries(object).is_empty() {
            ManagedState::Left
        } else {
            return None;
        };
        (*origin == Origin::Api).then(|| ManagedIngress { ingress: Arc::clone(object), managed_state })
    }

    /// Returns the Ingresses with a status or role that may differ from `before`.
    pub(super) fn changed_since(&self, before: &Self) -> BTreeSet<ObjectName> {
        let ingresses = before.cluster.ingresses.differences(&self.cluster.ingresses).into_iter();
        let served = before.translation.in_effect.differences(&self.translation.in_effect).into_iter();
        ingresses.map(|difference| difference.key).chain(served.map(|difference| difference.key)).cloned().collect()
    }

    /// Returns `true` if [`StatusInput::problems`] may differ from `before`. The cost grows with the differences, while
    /// that of `problems` grows with all outcomes.
    pub(super) fn may_have_other_problems(&self, before: &Self) -> bool {
        let Cluster { ingresses, classes, services, secrets, config_maps, .. } = &self.cluster;
        let old = &before.cluster;
        self.translation.outcomes != before.translation.outcomes
            || (ingresses, classes, services) != (&old.ingresses, &old.classes, &old.services)
            || (secrets, config_maps) != (&old.secrets, &old.config_maps)
            || self.may_be_refused_otherwise(before)
    }

    /// Returns the problems of the translation, those that conditions tell, and those of the Ingresses with rules for
    /// hosts that are not counted by themselves.
    pub(super) fn problems(&self, uncounted: &Uncounted) -> BTreeSet<Problem> {
        let Self { cluster, translation, manager: _, received: _ } = self;
        let of_objects = translation.outcomes.keys().filter_map(|outcome| Problem::of(outcome, cluster));
        of_objects.chain(self.uncounted(uncounted)).chain(self.refused()).collect()
    }

    fn uncounted(&self, Uncounted { hosts, capacity }: &Uncounted) -> impl Iterator<Item = Problem> {
        let hosts = hosts.keys().filter_map(|host| Some((host, self.translation.table.hosts.get(host)?)));
        hosts.flat_map(move |(host, routes)| {
            let owners: BTreeSet<_> =
                routes.rules.iter().chain(routes.fallback.as_deref()).map(|Rule { owner, .. }| owner).collect();
            let message = format!(
                "host `{host}` has no counters of its own, because a node has them for {capacity} hosts; its requests count as unattributed, ask the operator for a larger `--host-capacity`, or remove hosts"
            );
            owners.into_iter().filter_map(move |owner| {
                let (namespace, name) = owner.split_once('/')?;
                let name = ObjectName::new(namespace, name);
                let stored = self.cluster.ingresses.get(&name)?;
                let object = name.refer(Kind::Ingress, &stored.origin);
                let outcome = Outcome::new(object, Reason::HostCapacity, message.clone());
                Problem::of(&outcome, &self.cluster)
            })
        })
    }
}

// === impl Problem ===

impl Problem {
    /// Returns `None` for notes, for objects that do not come from the API server, and for kinds without events.
    fn of(outcome: &Outcome, cluster: &Cluster) -> Option<Self> {
        let Outcome { object: ObjectRef { kind, namespace, name, origin }, reason, message, refuses: _ } = outcome;
        if *origin != Origin::Api || outcome.severity() != Severity::Warning {
            return None;
        }
        let name = ObjectName { namespace: Arc::clone(namespace), name: Arc::clone(name) };
        let routes = &cluster.gateway_api;
        let (kind, uid) = match kind.as_ref() {
            "Ingress" => (Kind::Ingress, cluster.ingresses.get(&name)?.object.metadata.uid.as_deref()),
            "HTTPRoute" => (Kind::HttpRoute, routes.http_routes.get(&name)?.object.metadata.uid.as_deref()),
            "GRPCRoute" => (Kind::GrpcRoute, routes.grpc_routes.get(&name)?.object.metadata.uid.as_deref()),
            "TLSRoute" => (Kind::TlsRoute, routes.tls_routes.get(&name)?.object.metadata.uid.as_deref()),
            "TCPRoute" => (Kind::TcpRoute, routes.tcp_routes.get(&name)?.object.metadata.uid.as_deref()),
            "UDPRoute" => (Kind::UdpRoute, routes.udp_routes.get(&name)?.object.metadata.uid.as_deref()),
            "IngressClass" => (Kind::IngressClass, cluster.classes.get(&name)?.object.metadata.uid.as_deref()),
            "Service" => (Kind::Service, cluster.services.get(&name)?.object.uid.as_deref()),
            "Secret" => (Kind::Secret, cluster.secrets.get(&name)?.object.metadata.uid.as_deref()),
            "ConfigMap" => (Kind::ConfigMap, cluster.config_maps.get(&name)?.object.metadata.uid.as_deref()),
            _ => return None,
        };
        let uid = uid?.into();
        Some(Self { kind, name, uid, reason: reason.as_str(), message: message.as_str().into() })
    }

    pub(super) fn regarding(&self) -> ObjectReference {
        let Self { kind, name: ObjectName { namespace, name }, uid, reason: _, message: _ } = self;
        let version = match kind {
            Kind::Ingress | Kind::IngressClass => "networking.k8s.io/v1",
            Kind::EndpointSlice => "discovery.k8s.io/v1",
            Kind::Service | Kind::Secret | Kind::ConfigMap | Kind::Node | Kind::Namespace => "v1",
            Kind::ReferenceGrant
            | Kind::GatewayClass
            | Kind::Gateway
            | Kind::ListenerSet
            | Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute
            | Kind::UdpRoute
            | Kind::BackendTlsPolicy => "gateway.networking.k8s.io/v1",
        };
        ObjectReference {
            api_version: Some(version.into()),
            kind: Some(kind.as_str().into()),
            name: Some(name.as_ref().into()),
            namespace: (!namespace.is_empty()).then(|| namespace.as_ref().into()),
            uid: Some(uid.as_ref().into()),
            ..ObjectReference::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::{api::networking::v1::IngressStatus, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry};

    use super::*;
    use crate::{
        change::{Change, Object, ObjectId},
        source::manifests::parse,
        translate,
    };

    /// Returns an Ingress of `namespace` that was created in `year`.
    fn ingress(namespace: &str, year: u16, annotations: &str, spec: &str) -> String {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: web, namespace: {namespace}, uid: {namespace}, \
             creationTimestamp: '{year}-01-01T00:00:00Z', annotations: {{{annotations}}}}}\n\
             spec: {{ingressClassName: xdp, {spec}}}\n"
        )
    }

    #[test]
    fn an_ingress_shows_no_address_until_one_of_its_claims_is_in_effect() {
        const BACKEND: &str = "backend: {service: {name: web, port: {number: 80}}}";
        let shown = serde_json::json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        let shown: IngressStatus = serde_json::from_value(shown).expect("a status");
        let all = format!("defaultBackend: {}", &BACKEND["backend: ".len()..]);
        let path = |host: &str, path: &str| {
            format!("{{host: {host}, http: {{paths: [{{path: {path}, pathType: Exact, {BACKEND}}}]}}}}")
        };
        let rules = |rules: &[String]| format!("rules: [{}]", rules.join(", "));
        let a = rules(&[path("a.test", "/")]);
        let tls = "tls: [{hosts: [a.test]}]";
        let canary = "xdp-ingress.io/canary: 'true'";
        for (older, annotations, spec, expect) in [
            (&all, "", all.clone(), ManagedState::Left),
            (&a, "", a.clone(), ManagedState::Left),
            (&a, "", rules(&[path("a.test", "/x")]), ManagedState::InEffect),
            (&a, "", rules(&[path("a.test", "/"), path("b.test", "/")]), ManagedState::InEffect),
            // The host's owner decides on TLS, and TLS for a host without rules has no effect.
            (&a, "", tls.to_owned(), ManagedState::Left),
            (&all, "", tls.to_owned(), ManagedState::Left),
            (&a, "xdp-ingress.io/server-alias: c.test", a.clone(), ManagedState::InEffect),
            (&a, "xdp-ingress.io/from-to-www-redirect: 'true'", a.clone(), ManagedState::InEffect),
            (&a, canary, a.clone(), ManagedState::Left),
        ] {
            let mut cluster = Cluster::default();
            let options = translate::Options::for_manifests();
            let mut translator = translate::Translator::new(options.clone());
            let mut managed_state = |cluster: &Cluster| {
                let translation = translator.translate(cluster);
                assert!(translation == translate::translate(cluster, &options), "fresh equals incremental");
                let input = StatusInput::new(cluster, &translation, &Arc::from("manager"));
                input.managed(&ObjectName::new("evil", "web")).map(|managed| managed.managed_state)
            };
            let apply = |cluster: &mut Cluster, text: &str| -> ObjectId {
                let mut object = parse(&Path::new("object.yaml").into(), text).objects.remove(0);
                if let Object::Ingress(ingress) = &mut object {
                    let ingress = Arc::make_mut(ingress);
                    let mark = ManagedFieldsEntry { manager: Some("manager".into()), ..ManagedFieldsEntry::default() };
                    ingress.metadata.managed_fields = Some(vec![mark]);
                    ingress.status = Some(shown.clone());
                }
                let id = object.id();
                cluster.apply(Change::Apply { object, origin: Origin::Api });
                id
            };
            let is_alone = annotations != canary && spec != tls;
            let alone = Some(if is_alone { ManagedState::InEffect } else { ManagedState::Left });
            apply(&mut cluster, &ingress("evil", 2027, annotations, &spec));
            assert_eq!(managed_state(&cluster), alone, "{annotations} {spec}");
            let victim = apply(&mut cluster, &ingress("victim", 2026, "", older));
            assert_eq!(managed_state(&cluster), Some(expect), "{annotations} {spec}");
            cluster.apply(Change::Remove(victim));
            assert_eq!(managed_state(&cluster), alone, "{annotations} {spec}");
        }
    }

    /// Events about slices are not written, so the Service carries the report.
    #[test]
    fn refused_endpoints_are_reported_on_their_service() {
        let objects = "apiVersion: v1\nkind: Service\nmetadata: {name: web, uid: s}\nspec: {ports: [{port: 80}]}\n---\n\
            apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nports: [{port: 80}]\n\
            metadata: {name: web-1, uid: e, labels: {kubernetes.io/service-name: web}}\n\
            endpoints: [{addresses: [192.0.2.1]}, {addresses: [127.0.0.1]}, {addresses: [169.254.169.254]}]\n---\n\
            apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web, uid: i}\n\
            spec: {ingressClassName: xdp, defaultBackend: {service: {name: web, port: {number: 80}}}}\n";
        let mut cluster = Cluster::default();
        for object in parse(&Path::new("object.yaml").into(), objects).objects {
            cluster.apply(Change::Apply { object, origin: Origin::Api });
        }
        let translation = translate::translate(&cluster, &translate::Options::for_manifests());
        let problems = StatusInput::new(&cluster, &translation, &Arc::from("manager")).problems(&Uncounted::default());
        let reported: Vec<_> = problems.iter().map(|problem| (problem.kind, &*problem.uid, problem.reason)).collect();
        assert_eq!(reported, [(Kind::Service, "s", Reason::EndpointRefused.as_str())]);
        let message = problems.iter().map(|problem| &*problem.message).collect::<String>();
        for part in ["EndpointSlice `web-1`", "`127.0.0.1`, a loopback address", "1 more", "`--allow-endpoints-in`"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    #[test]
    fn problems_of_routes_of_all_kinds_are_reported() {
        let kinds = [Kind::HttpRoute, Kind::GrpcRoute, Kind::TlsRoute, Kind::TcpRoute, Kind::UdpRoute];
        let (mut cluster, mut translation) = (Cluster::default(), Translation::default());
        for kind in kinds {
            let text = format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: r, namespace: n, uid: of-{kind}}}\n\
                 spec: {{parentRefs: [{{name: g}}], rules: [{{}}]}}\n",
                kind = kind.as_str()
            );
            for object in parse(&Path::new("object.yaml").into(), &text).objects {
                cluster.apply(Change::Apply { object, origin: Origin::Api });
            }
            let object = ObjectName::new("n", "r").refer(kind, &Origin::Api);
            let outcome = Outcome::new(object, Reason::RouteConflict, String::new());
            translation.outcomes.insert(Arc::new(outcome), ());
        }
        let problems = StatusInput::new(&cluster, &translation, &Arc::from("manager")).problems(&Uncounted::default());
        let uids: BTreeSet<_> = problems.iter().map(|problem| (problem.kind, problem.uid.to_string())).collect();
        assert_eq!(uids, kinds.map(|kind| (kind, format!("of-{}", kind.as_str()))).into());
    }

    #[test]
    fn problems_are_recomputed_only_after_relevant_changes() {
        let ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web, uid: UID}\n\
            spec: {ingressClassName: xdp, defaultBackend: {service: {name: web, port: {number: 80}}}}\n";
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, uid: s}\nspec: {ports: [{port: 80}]}\n";
        let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nports: [{port: 80}]\n\
            metadata: {name: web, labels: {kubernetes.io/service-name: web}}\n\
            endpoints: [{addresses: [10.0.0.PART]}]\n";
        let mut cluster = Cluster::default();
        let mut translator = translate::Translator::new(translate::Options::for_manifests());
        let mut before = StatusInput::default();
        for (text, may_be_others, problems) in [
            (ingress.replace("UID", "a"), true, 1),
            (ingress.replace("UID", "b"), true, 1),
            (service.to_owned(), true, 1),
            (slice.replace("PART", "1"), true, 0),
            (slice.replace("PART", "2"), false, 0),
        ] {
            let parsed = parse(&Path::new("object.yaml").into(), &text);
            for object in parsed.objects {
                cluster.apply(Change::Apply { object, origin: Origin::Api });
            }
            let input = StatusInput::new(&cluster, &translator.translate(&cluster), &Arc::from("manager"));
            let found = (input.may_have_other_problems(&before), input.problems(&Uncounted::default()).len());
            assert_eq!(found, (may_be_others, problems), "{text}");
            before = input;
        }
    }
}
