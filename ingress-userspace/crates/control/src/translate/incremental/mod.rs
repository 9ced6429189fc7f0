//! Translates a cluster repeatedly, and each time only the changes. It knows the parts and their order, but not how
//! each is made: [`make`] does.
//!
//! ```text
//! Cluster ──differences──> dependencies ──records──> stale parts ──┐
//!    ▲                                                             │ first to last
//!    └── as it was the last time                                   ▼
//! globals, addresses > upstreams, certificates > Ingresses > hosts > inherited routes ──> Translation
//!                             placement > Gateways > routes > conflicts > hosts of listeners, statuses ──┘
//!                                 a part that comes out the same makes nothing behind it stale
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    Options, Translation,
    budget::Holders,
    checks::Checks,
    claims::Claims,
    compiled_expressions::Cost,
    effects::Effects,
    expressions,
    features::Globals,
    lookup::{Lookup, Memo},
    merge::MergedHost,
    meters::Meters,
    part::{Dependency, Part},
    records::Records,
    shares::{self, ClaimCounts},
};
use crate::{
    change::{ObjectId, ObjectName},
    cluster::Cluster,
    object_status::ObjectStatus,
};
use ingress_model::{HostPattern, RouteTable, Transport, Tree, UpstreamKey};

mod differences;
mod gateways;
mod hostname_conflicts;
mod hosts;
mod listener_hosts;
mod make;
mod table;

use differences::differences;
use gateways::GatewayRecords;

/// Translates successive states of a cluster. Each result is the same as that of [`translate`](super::translate) for
/// this state alone.
pub struct Translator {
    options: Arc<Options>,
    /// The state translated last; `None` before the first time.
    cluster: Option<Cluster>,
    globals: Arc<Globals>,
    pub(super) memo: Memo,
    records: Records,
    served: Tree<ObjectName, ()>,
    statuses: Tree<ObjectId, Arc<ObjectStatus>>,
    /// The status that entered `statuses` last. The next one shares it if it is equal.
    shown_last: Option<Arc<ObjectStatus>>,
    gateways: GatewayRecords,
    effects: Effects,
    /// Claims of the Ingresses that are served.
    claims: HashMap<ObjectName, Arc<Claims>>,
    /// Claims by host, in order of precedence.
    claimants: HashMap<HostPattern, Vec<Arc<Claims>>>,
    pub(super) expressions: Holders<Cost>,
    meters: Meters,
    shares: Holders<ClaimCounts>,
    checks: Checks,
    /// Hosts for challenges only, which are settled together.
    challenge_hosts: BTreeMap<HostPattern, MergedHost>,
    /// Hosts that they may inherit from: those that are not exact.
    ancestors: BTreeMap<HostPattern, MergedHost>,
    /// Number of rules in the table that lead to an upstream, or send requests of their own there.
    uses: HashMap<UpstreamKey, usize>,
    table: RouteTable,
}

/// The work that is still to do.
#[derive(Default)]
struct PendingWork {
    stale: BTreeSet<Part>,
    /// Hosts, other than exact ones, with changed claims.
    less_specific: BTreeSet<HostPattern>,
    /// Upstreams that may have changed in the table, or left it.
    upstreams: BTreeSet<UpstreamKey>,
}

// === impl Translator ===

impl Translator {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let globals = Arc::new(Globals::of(&options.classes));
        let forwarding = Arc::clone(&globals.forwarding);
        let table = RouteTable { settings: globals.settings.clone(), forwarding, ..RouteTable::default() };
        Self {
            globals,
            cluster: None,
            memo: Memo::default(),
            records: Records::default(),
            served: Tree::new(),
            statuses: Tree::new(),
            shown_last: None,
            gateways: GatewayRecords::default(),
            effects: Effects::default(),
            claims: HashMap::new(),
            claimants: HashMap::new(),
            expressions: expressions::holders(),
            meters: Meters::new(&options),
            shares: shares::holders(&options),
            checks: Checks::default(),
            challenge_hosts: BTreeMap::new(),
            ancestors: BTreeMap::new(),
            uses: HashMap::new(),
            table,
            options: Arc::new(options),
        }
    }

    /// Translates `cluster`. The cost grows with the differences from the one before.
    #[must_use]
    pub fn translate(&mut self, cluster: &Cluster) -> Translation {
        let options = Arc::clone(&self.options);
        let mut work = PendingWork { stale: self.stale(cluster), ..PendingWork::default() };
        // The last of all. Its cost depends on the changes that the others have made.
        work.stale.insert(Part::Checks);
        let memo = std::mem::take(&mut self.memo);
        let lookup = Lookup::new(cluster, &options, memo);
        while let Some(part) = work.stale.pop_first() {
            if matches!(part, Part::Host(_)) && !work.less_specific.is_empty() {
                // All Ingresses are read by now.
                work.stale.insert(part);
                self.look_below(&std::mem::take(&mut work.less_specific), &mut work);
                continue;
            }
            self.make(part, cluster, &lookup, &mut work);
            for (part, trace) in lookup.take_made() {
                if let Part::Certificate(name) = &part {
                    lookup.with_memo(|memo| self.certify(name, memo));
                }
                self.records.record(part, trace);
            }
        }
        let mut memo = lookup.into_memo();
        self.tidy(&mut memo);
        (self.memo, self.cluster) = (memo, Some(cluster.clone()));
        Translation {
            table: self.table.clone(),
            outcomes: self.records.outcomes().clone(),
            served: self.served.clone(),
            in_effect: self.in_effect(),
            statuses: self.statuses.clone(),
            external_names: self.records.external_names().clone(),
        }
    }

    /// Returns the parts with changed dependencies.
    fn stale(&self, cluster: &Cluster) -> BTreeSet<Part> {
        let nothing = Cluster::default();
        let known = self.cluster.as_ref().unwrap_or(&nothing);
        let changed = |name: &ObjectName| Part::Ingress(name.clone());
        let mut stale: BTreeSet<Part> =
            known.ingresses.differences(&cluster.ingresses).iter().map(|difference| changed(difference.key)).collect();
        stale.extend(gateways::changed(known, cluster));
        if self.cluster.is_none() {
            stale.extend([Part::Globals, Part::DefaultBackend, Part::FallbackCertificate, Part::TicketKeys]);
            stale.extend([Transport::Tcp, Transport::Udp].map(Part::Streams));
            stale.insert(Part::Placement);
        }
        for dependency in differences(known, cluster, self.options.node.as_deref()) {
            stale.extend(self.records.dependents_of(&dependency).cloned());
        }
        stale
    }

    /// Drops unused entries from `memo`, and unused certificates from the table.
    fn tidy(&mut self, memo: &mut Memo) {
        while let Some(orphan) = self.records.take_orphan() {
            match orphan {
                Dependency::Upstream(key) => {
                    memo.upstreams.remove(&key);
                    self.records.forget(Part::Upstream(key));
                }
                Dependency::Certificate(name) => {
                    memo.certificates.remove(&name);
                    self.certify(&name, memo);
                    self.records.forget(Part::Certificate(name));
                }
                Dependency::Object(_)
                | Dependency::Classes
                | Dependency::Nodes
                | Dependency::SlicesOf(_)
                | Dependency::GrantsOf(_)
                // A lookup in a vicinity depends on it, too.
                | Dependency::ClusterAddresses
                | Dependency::Taken(_)
                | Dependency::OwnAddresses
                | Dependency::Addresses(_)
                | Dependency::Topology
                | Dependency::Hour
                | Dependency::PoliciesOf(_)
                | Dependency::Gateways
                | Dependency::Parent(_) => {}
            }
        }
    }
}
