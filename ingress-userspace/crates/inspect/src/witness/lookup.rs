//! The rule that serves a path of a host: the lookup of the request path itself, for many paths of one host.

use std::sync::Arc;

use ingress_model::{
    Host, HostRoutes, RefusedPaths, RequestHead, RouteTable, Rule, request_path,
    route::{Matched, Routes, UpstreamId},
};

use crate::explanation::matching_hosts;

/// The rules of one host.
pub(super) struct Lookup<'t> {
    rules: &'t HostRoutes,
    host: &'t Host,
    /// The same rules; the owner of each ends in its number.
    routes: Routes,
    refused: RefusedPaths,
}

/// The rule for a path.
pub(super) enum Found<'t> {
    Rule(&'t Rule),
    /// The rule for paths without a match.
    Fallback(&'t Rule),
    Nothing,
    /// 400, with the reason.
    Refused(String),
}

// === impl Lookup ===

impl<'t> Lookup<'t> {
    /// Returns the lookup for `host`, or `None` if its TLS connections are passed through.
    pub(super) fn of(table: &'t RouteTable, host: &'t Host) -> Option<Self> {
        static NOTHING: HostRoutes = HostRoutes { rules: Vec::new(), fallback: None, clients: None, passthrough: None };
        let found = matching_hosts(host.as_str()).find_map(|pattern| Some((table.hosts.get(&pattern)?, pattern)));
        let mut numbered = RouteTable::default();
        let mut rules = &NOTHING;
        if let Some((routes, pattern)) = found {
            rules = routes;
            if rules.passthrough.is_some() {
                return None;
            }
            let with_number = |number: usize, rule: &Rule| Rule {
                // The namespace stays at the beginning.
                owner: format!("{}#{number}", rule.owner).into(),
                ..rule.clone()
            };
            let copies = rules.rules.iter().enumerate().map(|(number, rule)| with_number(number, rule)).collect();
            let fallback = rules.fallback.as_ref().map(|rule| Box::new(with_number(rules.rules.len(), rule)));
            let copy = HostRoutes { rules: copies, fallback, clients: None, passthrough: None };
            numbered.hosts.insert(pattern, Arc::new(copy));
        }
        let routes = Routes::compile(None, &numbered, |_| UpstreamId(0), |_| None);
        Some(Self { rules, host, routes, refused: table.settings.refused_paths })
    }

    /// Returns the rule for a request with `path`, as a client sends it.
    pub(super) fn find(&self, path: &str) -> Found<'t> {
        let (path, readings) = match request_path::forms(path) {
            Ok(forms) => forms,
            Err(error) => return Found::Refused(error.to_string()),
        };
        if let Err(error) = request_path::check(&path, self.refused) {
            return Found::Refused(error.to_string());
        }
        let number = self.number(&path);
        if let Some(other) = readings.iter().find(|other| self.number(other) != number) {
            return Found::Refused(format!("pods may read the path as `{other}`, for which another rule holds"));
        }
        let Some(number) = number else { return Found::Nothing };
        match (self.rules.rules.get(number), &self.rules.fallback) {
            (Some(rule), _) => Found::Rule(rule),
            (None, Some(rule)) => Found::Fallback(rule),
            (None, None) => Found::Nothing,
        }
    }

    /// Returns the number of the rule for a canonical path.
    fn number(&self, path: &str) -> Option<usize> {
        match self.routes.find(self.host.as_str(), path, &RequestHead::bare()).matched {
            Matched::Route(route) => route.owner.rsplit('#').next()?.parse().ok(),
            Matched::Default(_) | Matched::Nothing | Matched::Costly => None,
        }
    }
}
