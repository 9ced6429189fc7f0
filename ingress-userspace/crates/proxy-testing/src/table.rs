//! Builder of route tables.

use std::{net::SocketAddr, sync::Arc};

use ingress_model::{
    Action, Endpoint, Filter, Forwarding, HostPattern, HostRoutes, PathMatch, Protocol, RouteTable, Rule, Settings,
    Upstream, UpstreamKey,
};

/// A table under construction. Each host gets one upstream of its own, at `/`.
#[derive(Clone, Default)]
pub struct Table(pub RouteTable);

impl Table {
    pub fn host(self, host: &str, endpoints: &[SocketAddr]) -> Self {
        self.host_with(host, endpoints, Vec::new())
    }

    /// A host with pods in this namespace, and not in `default`.
    pub fn host_of(self, namespace: &str, host: &str, endpoints: &[SocketAddr]) -> Self {
        self.host_to(UpstreamKey::new(namespace, host, "80"), host, endpoints, Vec::new())
    }

    pub fn host_with(self, host: &str, endpoints: &[SocketAddr], filters: Vec<Filter>) -> Self {
        self.host_to(key(host), host, endpoints, filters)
    }

    fn host_to(mut self, key: UpstreamKey, host: &str, endpoints: &[SocketAddr], filters: Vec<Filter>) -> Self {
        let mut endpoints: Vec<_> = endpoints.iter().map(|&address| Endpoint { address }).collect();
        endpoints.sort();
        self.0.upstreams.insert(key.clone(), Upstream { endpoints, ..Upstream::default() }.into());
        self.rule(host, filters, Action::Forward(key))
    }

    /// Sets the protocol of all pods.
    pub fn speaking(mut self, protocol: Protocol) -> Self {
        for key in self.0.upstreams.clone().keys() {
            Arc::make_mut(self.0.upstreams.get_mut(key).expect("known")).protocol = protocol;
        }
        self
    }

    /// Sets the forwarding of requests for `host`.
    pub fn forwarding(mut self, host: &str, forwarding: Forwarding) -> Self {
        let routes = self.0.hosts.get_mut(&HostPattern::parse(host).expect("valid host")).expect("a known host");
        let forwarding = Arc::new(forwarding);
        Arc::make_mut(routes).rules.iter_mut().for_each(|rule| rule.forwarding = Arc::clone(&forwarding));
        self
    }

    pub fn settings(mut self, settings: Settings) -> Self {
        self.0.settings = settings;
        self
    }

    /// Adds a rule of `host` for `path` and below, before its others.
    pub fn path(mut self, host: &str, path: &str, action: Action) -> Self {
        let path = PathMatch::prefix(path).expect("valid path");
        let rule =
            Rule { path, owner: "p".into(), filters: vec![], action, forwarding: Arc::default(), conditions: None };
        let pattern = HostPattern::parse(host).expect("valid host");
        let mut routes = self.0.hosts.remove(&pattern).unwrap_or_default();
        Arc::make_mut(&mut routes).rules.insert(0, rule);
        self.0.hosts.insert(pattern, routes);
        self
    }

    pub fn rule(mut self, host: &str, filters: Vec<Filter>, action: Action) -> Self {
        let path = PathMatch::prefix("/").expect("valid path");
        let owner = format!("default/{host}").into();
        let rule = Rule { path, owner, filters, action, forwarding: Arc::default(), conditions: None };
        let pattern = HostPattern::parse(host).expect("valid host");
        self.0.hosts.insert(pattern, Arc::new(HostRoutes { rules: vec![rule], ..HostRoutes::default() }));
        self
    }
}

fn key(host: &str) -> UpstreamKey {
    UpstreamKey::new("default", host, "80")
}
