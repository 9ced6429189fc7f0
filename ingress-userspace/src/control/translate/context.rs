//! What one translation looks up, notes and says. Objects are reached through the accessors here and no other way, so
//! that everything that was looked up is known afterwards.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Secret},
    networking::v1::IngressClass,
};

use super::{
    Options,
    address::Machinery,
    destination::{self, Destination, Gathered},
    expressions,
    records::Part,
    secret::{self, Content},
    settings::Globals,
    topology::Place,
};
use crate::{
    control::{
        change::{Kind, ObjectId, ObjectName},
        cluster::{Cluster, Store, Stored},
        outcome::{ObjectRef, Outcome, Reason},
        service::Service,
        slice::Slice,
    },
    model::UpstreamKey,
};

/// Something that was looked up, whether it was there or not. What was made of it is out of date when it changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Dependency {
    /// One object, by its name.
    Object(ObjectId),
    /// Every IngressClass.
    Classes,
    /// Every node.
    Nodes,
    /// The EndpointSlices of a service.
    SlicesOf(ObjectName),
    /// The addresses of an external name. Whoever has looked for them wants them resolved.
    Addresses(Arc<str>),
    /// Where this process runs.
    Place,
    /// Which hour it is.
    Hour,
    /// The addresses of nodes and of the API server.
    Machinery,
    /// What an upstream speaks and what is wrong with it; its endpoints are no part of it.
    Upstream(UpstreamKey),
    /// Whom the certificate of a Secret is for and what is wrong with it; its chain and key are no part of it.
    Certificate(ObjectName),
}

/// What a part of a translation is made from, and what there is to say about it.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) reads: BTreeSet<Dependency>,
    pub(super) outcomes: Vec<Outcome>,
}

/// What is made once for all parts that ask for it, and kept from one translation to the next.
#[derive(Default)]
pub(super) struct Memo {
    pub(super) machinery: Option<Arc<Machinery>>,
    pub(super) upstreams: HashMap<UpstreamKey, (Destination, Arc<Gathered>)>,
    /// By the Secret that holds them.
    pub(super) certificates: HashMap<ObjectName, Arc<Content>>,
    pub(super) expressions: expressions::Known,
}

/// What all parts of one translation share.
pub(super) struct Context<'c> {
    cluster: &'c Cluster,
    /// They hold for all Ingresses alike, so nobody notes that they were read; the same is true of `globals`.
    pub(super) options: &'c Options,
    pub(super) globals: Globals,
    place: Place<'c>,
    pub(super) memo: Memo,
    /// What was made for the memo, and from what.
    made: Vec<(Part, Trace)>,
    trace: Trace,
}

// === impl Context ===

impl<'c> Context<'c> {
    pub(super) fn new(cluster: &'c Cluster, options: &'c Options, globals: Globals, memo: Memo) -> Self {
        let place = Place::of(options, cluster);
        Self { cluster, options, globals, place, memo, made: Vec::new(), trace: Trace::default() }
    }

    /// Says something about `object`.
    pub(super) fn report(&mut self, object: &ObjectRef, reason: Reason, message: String) {
        self.trace.outcomes.push(Outcome { object: object.clone(), reason, message });
    }

    pub(super) fn service(&mut self, name: &ObjectName) -> Option<&'c Stored<Service>> {
        self.note(Kind::Service, name);
        self.cluster.services.get(name)
    }

    /// The EndpointSlices of `service`, in order of their names.
    pub(super) fn slices_of(
        &mut self,
        service: &ObjectName,
    ) -> impl Iterator<Item = (&'c ObjectName, &'c Stored<Slice>)> + use<'c> {
        self.trace.reads.insert(Dependency::SlicesOf(service.clone()));
        self.cluster.slices_of(service)
    }

    pub(super) fn secret(&mut self, name: &ObjectName) -> Option<&'c Stored<Secret>> {
        self.note(Kind::Secret, name);
        self.cluster.secrets.get(name)
    }

    pub(super) fn config_map(&mut self, name: &ObjectName) -> Option<&'c Stored<ConfigMap>> {
        self.note(Kind::ConfigMap, name);
        self.cluster.config_maps.get(name)
    }

    pub(super) fn class(&mut self, name: &str) -> Option<&'c Stored<IngressClass>> {
        let name = ObjectName::new("", name);
        self.note(Kind::IngressClass, &name);
        self.cluster.classes.get(&name)
    }

    /// Every IngressClass. To look for one by its name depends on less.
    pub(super) fn classes(&mut self) -> &'c Store<IngressClass> {
        self.trace.reads.insert(Dependency::Classes);
        &self.cluster.classes
    }

    /// The addresses of `name`, a DNS name in canonical form: `None` until it is resolved, which to ask for them brings
    /// about.
    pub(super) fn addresses(&mut self, name: &Arc<str>) -> Option<&'c [IpAddr]> {
        self.trace.reads.insert(Dependency::Addresses(Arc::clone(name)));
        self.cluster.resolved.get(name).map(Vec::as_slice)
    }

    /// Where this process runs.
    pub(super) fn place(&mut self) -> Place<'c> {
        self.trace.reads.insert(Dependency::Place);
        self.place
    }

    /// The time since 1970, in whole hours: what is out of date is told by the hour.
    pub(super) fn hour(&mut self) -> Duration {
        self.trace.reads.insert(Dependency::Hour);
        self.cluster.hour
    }

    pub(super) fn nodes(&mut self) -> &'c Store<Node> {
        self.trace.reads.insert(Dependency::Nodes);
        &self.cluster.nodes
    }

    /// How many nodes are ready; 1 if that is not known.
    pub(super) fn ready_nodes(&mut self) -> u32 {
        let is_ready = |stored: &&Stored<Node>| {
            let mut conditions = stored.object.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        u32::try_from(self.nodes().values().filter(is_ready).count()).unwrap_or(u32::MAX).max(1)
    }

    pub(super) fn machinery(&mut self) -> Arc<Machinery> {
        self.trace.reads.insert(Dependency::Machinery);
        if let Some(known) = &self.memo.machinery {
            return Arc::clone(known);
        }
        let (machinery, trace) = self.traced(Machinery::of);
        let machinery = Arc::new(machinery);
        self.made.push((Part::Machinery, trace));
        self.memo.machinery = Some(Arc::clone(&machinery));
        machinery
    }

    /// The upstream of `destination`, and its key. The endpoints must not be looked at, as nobody notes that.
    pub(super) fn upstream(&mut self, destination: &Destination) -> (UpstreamKey, Arc<Gathered>) {
        let key = destination.key();
        self.trace.reads.insert(Dependency::Upstream(key.clone()));
        if let Some((_, known)) = self.memo.upstreams.get(&key) {
            return (key, Arc::clone(known));
        }
        let (gathered, trace) = self.traced(|context| destination::gather(destination, context));
        let gathered = Arc::new(gathered);
        self.made.push((Part::Upstream(key.clone()), trace));
        self.memo.upstreams.insert(key.clone(), (destination.clone(), Arc::clone(&gathered)));
        (key, gathered)
    }

    /// What the Secret `name` holds for TLS with clients. Chain and key must not be looked at, as nobody notes that.
    pub(super) fn certificate(&mut self, name: &ObjectName) -> Arc<Content> {
        self.trace.reads.insert(Dependency::Certificate(name.clone()));
        if let Some(known) = self.memo.certificates.get(name) {
            return Arc::clone(known);
        }
        let (held, trace) = self.traced(|context| secret::hold(name, context));
        let held = Arc::new(held);
        self.made.push((Part::Certificate(name.clone()), trace));
        self.memo.certificates.insert(name.clone(), Arc::clone(&held));
        held
    }

    /// What was made for the memo since this was asked, each with its trace.
    pub(super) fn take_made(&mut self) -> Vec<(Part, Trace)> {
        std::mem::take(&mut self.made)
    }

    /// Runs `make`, and returns apart from all else what it looked up and said.
    pub(super) fn traced<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> (T, Trace) {
        let outer = std::mem::take(&mut self.trace);
        let made = make(self);
        (made, std::mem::replace(&mut self.trace, outer))
    }

    fn note(&mut self, kind: Kind, name: &ObjectName) {
        self.trace.reads.insert(Dependency::Object(ObjectId { kind, name: name.clone() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_up_is_known_whether_it_was_there_or_not() {
        let (cluster, options) = (Cluster::default(), Options::default());
        let globals = Globals::of(&options.classes);
        let mut context = Context::new(&cluster, &options, globals, Memo::default());
        let name = ObjectName::new("n", "a");
        let object =
            |kind, namespace: &str| Dependency::Object(ObjectId { kind, name: ObjectName::new(namespace, "a") });
        let ((), outer) = context.traced(|context| {
            assert!(context.service(&name).is_none());
            let ((), inner) = context.traced(|context| {
                assert!(context.secret(&name).is_none());
                assert!(context.config_map(&name).is_none());
                assert!(context.class("a").is_none());
                assert!(context.classes().is_empty());
                assert!(context.nodes().is_empty());
                assert_eq!(context.slices_of(&name).count(), 0);
                assert!(context.addresses(&"a.test".into()).is_none());
                context.place();
                context.hour();
                context.machinery();
            });
            let expect = [
                object(Kind::IngressClass, ""),
                object(Kind::Secret, "n"),
                object(Kind::ConfigMap, "n"),
                Dependency::Classes,
                Dependency::Nodes,
                Dependency::SlicesOf(name.clone()),
                Dependency::Addresses("a.test".into()),
                Dependency::Place,
                Dependency::Hour,
                Dependency::Machinery,
            ];
            assert_eq!(inner.reads, expect.into());
            context.report(&name.refer(Kind::Service, &crate::control::Origin::Api), Reason::TooLarge, String::new());
        });
        assert_eq!((outer.reads, outer.outcomes.len()), ([object(Kind::Service, "n")].into(), 1));
        context.take_made();
        let (_, host) = context.traced(|context| context.certificate(&name));
        assert_eq!(host.reads, [Dependency::Certificate(name.clone())].into(), "not the Secret");
        let made: Vec<_> = context.take_made().into_iter().map(|(part, trace)| (part, trace.reads)).collect();
        assert_eq!(made, [(Part::Certificate(name), BTreeSet::from([object(Kind::Secret, "n")]))]);
    }
}
