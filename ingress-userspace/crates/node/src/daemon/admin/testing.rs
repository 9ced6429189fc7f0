//! A source with fixed values, and requests to it.

use std::{
    sync::{Arc, Mutex, mpsc::Receiver},
    time::Duration,
};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use ingress_common::{HostL7, HostNet, NicNet, RawHostId, Traffic};
use ingress_control::{ObjectRef, Origin, Outcome, Reason, Translation};
use ingress_datapath::{ClientLimits, LimitedClient};
use ingress_model::{Action, HostPattern, HostRoutes, PathMatch, Rule, Tree, UpstreamKey, route::MeterView};
use ingress_proxy::{DurationsView, StatsView, UpstreamView};

use super::{
    AdminSource, Answers, Attached, CertificateState, ControlState, DenyState, Http3State, InterfaceCounters, MapFill,
    Reach, StatusState, SynCookiesView, WorkerState, body::AdminBody,
};
use crate::daemon::change_log::{ChangeRecord, ChangedNames};

#[derive(Debug)]
pub(super) struct Fixed {
    /// Health and readiness.
    state: Result<(), String>,
    /// What the list of changes waits for.
    waits: Option<Mutex<Receiver<()>>>,
    /// Hosts with numbers from 1 on. The first one has durations.
    pub(super) hosts: Vec<String>,
    /// Added to paths, texts and names.
    pub(super) text: &'static str,
}

impl Fixed {
    pub(super) fn with(state: Result<(), String>) -> Self {
        Self { state, waits: None, hosts: vec!["web.test".to_owned()], text: "" }
    }

    /// Returns a source whose list of changes comes only after a message.
    pub(super) fn waiting(waits: Receiver<()>) -> Self {
        Self { waits: Some(Mutex::new(waits)), ..Self::with(Ok(())) }
    }
}

impl AdminSource for Fixed {
    fn live(&self) -> Result<(), String> {
        self.state.clone()
    }

    fn ready(&self) -> Result<(), String> {
        self.state.clone()
    }

    fn host_names(&self) -> Tree<Arc<str>, RawHostId> {
        self.hosts.iter().zip(1..).map(|(host, id)| (host.as_str().into(), id)).collect()
    }

    fn host_l7(&self, id: RawHostId) -> HostL7 {
        HostL7 { active: id.into(), ..HostL7::default() }
    }

    fn host_durations(&self, id: RawHostId) -> DurationsView {
        if id == 1 { self.total_durations() } else { DurationsView::default() }
    }

    fn total_durations(&self) -> DurationsView {
        DurationsView { buckets: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], sum: Duration::from_millis(30_001) }
    }

    fn host_net(&self, id: RawHostId) -> HostNet {
        HostNet { rx_packets: u64::from(id) * 10, ..HostNet::default() }
    }

    fn all_host_net(&self) -> Vec<HostNet> {
        (0..=self.hosts.len()).map(|id| self.host_net(u32::try_from(id).expect("few"))).collect()
    }

    fn totals(&self) -> Vec<(&'static str, Traffic)> {
        vec![("denied", Traffic { packets: 1234, bytes: 56_780 })]
    }

    fn denied(&self) -> Option<DenyState> {
        let rules = vec![("192.0.2.0/24".to_owned(), Traffic { packets: 3, bytes: 180 })];
        Some(DenyState { rules, left_out: 2, denials: vec![("operator", 1), ("escalation", 4)] })
    }

    fn interfaces(&self) -> Vec<InterfaceCounters> {
        vec![InterfaceCounters {
            name: format!("eth0{}", self.text),
            receives: Attached { how: "native", is_there: true },
            transmits: Attached { how: "failed", is_there: false },
            net: NicNet { rx_packets: 1, rx_bytes: 60, tx_packets: 2, tx_bytes: 120 },
        }]
    }

    fn meters(&self) -> Vec<MeterView> {
        vec![MeterView {
            host: "web.test".into(),
            path: "/app".into(),
            owner: "default/web".into(),
            requests: [1, 0, 0, 2, 0],
            took: Duration::from_millis(2500),
        }]
    }

    fn upstreams(&self) -> Vec<UpstreamView> {
        vec![UpstreamView {
            key: UpstreamKey::new("default", "web", "80"),
            healthy: 2,
            ejected: 1,
            unhealthy: 0,
            ejections: 3,
            retries: 4,
            refused: [0, 0, 0, 5],
            checks: [6, 7, 0],
            latency: Some(DurationsView {
                buckets: [0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                sum: Duration::from_millis(24),
            }),
        }]
    }

    fn upstream(&self, key: &str) -> Option<UpstreamView> {
        self.upstreams().into_iter().find(|upstream| upstream.key.as_str() == key)
    }

    fn control(&self) -> ControlState {
        ControlState { age: Some(Duration::from_secs(2)), ..ControlState::default() }
    }

    fn status(&self) -> Option<StatusState> {
        Some(StatusState::default())
    }

    fn proxy(&self) -> StatsView {
        StatsView::default()
    }

    fn http3(&self) -> Option<Http3State> {
        Some(Http3State { is_ready: false, workers: 1, receive_drops: 5 })
    }

    fn syn_cookies(&self) -> Option<SynCookiesView> {
        Some(SynCookiesView { state: "ready", is_flood: true, rate: 60_000, threshold: 5000 })
    }

    fn refused_gateway_datagrams(&self) -> Vec<(&'static str, u64)> {
        vec![("bad_mac", 3)]
    }

    fn translation(&self) -> Translation {
        let mut translation = Translation::default();
        let rule = Rule {
            path: PathMatch::prefix(&format!("/app{}", self.text)).expect("a path"),
            owner: format!("default/web{}", self.text).into(),
            filters: Vec::new(),
            action: Action::Forward(UpstreamKey::new("default", "web", "80")),
            forwarding: Arc::default(),
            conditions: None,
        };
        let routes = HostRoutes { rules: vec![rule], ..HostRoutes::default() };
        for host in ["web.test", "other.test"] {
            translation.table.hosts.insert(HostPattern::parse(host).expect("a host"), Arc::new(routes.clone()));
        }
        translation
    }

    fn problems(&self) -> Tree<Arc<Outcome>, i64> {
        let mut problems = Tree::new();
        for (name, reason) in [("web", Reason::ServiceNotFound), ("other", Reason::UnknownKind)] {
            let (kind, namespace, name) = ("Ingress".into(), "default".into(), format!("{name}{}", self.text).into());
            let object = ObjectRef { kind, namespace, name, origin: Origin::Api };
            let message = format!("service `a/b{}` does not exist; create it", self.text);
            let outcome = Outcome::new(object, reason, message);
            problems.insert(Arc::new(outcome), 1_795_687_200);
        }
        problems
    }

    fn changes(&self) -> Vec<ChangeRecord> {
        if let Some(waits) = &self.waits {
            let waits = waits.lock().expect("no panic");
            waits.recv_timeout(Duration::from_secs(10)).expect("a message while the answer is made");
        }
        let took = Duration::from_micros(2500);
        let hosts = ChangedNames::of([format!("web.test{}", self.text)].iter());
        vec![ChangeRecord { generation: 7, at: 1_795_687_200, took, hosts, ..ChangeRecord::default() }]
    }

    fn workers(&self) -> Vec<WorkerState> {
        vec![WorkerState {
            name: format!("worker-0{}", self.text),
            silence: Duration::from_millis(250),
            connections: Some(3),
        }]
    }

    fn limited_clients(&self) -> Option<(ClientLimits, Vec<LimitedClient>)> {
        let client = "192.0.2.7/32".parse().expect("a network");
        let ago = Duration::from_secs(1);
        let limits = ClientLimits { syns: None, packets: None, is_dry_run: false };
        Some((limits, vec![LimitedClient { client, syns: 3, packets: 4, ago }]))
    }

    fn worker_connections(&self) -> Vec<(usize, usize)> {
        vec![(0, 7), (1, 9)]
    }

    fn certificates(&self) -> CertificateState {
        let ends = vec![("shop/tls".into(), Duration::from_secs(1_900_000_000))];
        CertificateState { ends, names_on_fallback: 3 }
    }

    fn fills(&self) -> Vec<MapFill> {
        vec![MapFill { map: "deny4", entries: 9, capacity: 100_000 }]
    }
}

/// Returns status and body of the answer on the socket.
pub(super) fn ask(answers: &Answers, method: Method, path: &str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).body(()).expect("a valid request");
    collect(answers.answer(&request, Reach::Socket))
}

/// Returns status and body of an answer that is complete.
pub(super) fn collect(response: Response<AdminBody>) -> (u16, String) {
    let status = response.status().as_u16();
    // The test may be within a runtime.
    let body = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(response.into_body().collect()).expect("a complete body").to_bytes()
    });
    let data = body.join().expect("no panic");
    (status, String::from_utf8(data.to_vec()).expect("text"))
}
