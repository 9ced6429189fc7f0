//! `Routes::find` against a naive oracle that tries every pattern and every rule in order of precedence.
#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use ingress_model::route::{Matched, Routes, UpstreamId};
use ingress_model::{Action, HostId, HostPattern, HostRoutes, PathMatch, RequestHead, RouteTable, Rule, UpstreamKey};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    hosts: Vec<(Labels, Vec<(bool, Segments)>, bool)>,
    requests: Vec<(Labels, Segments)>,
    raw: Vec<(&'a str, &'a str)>,
}

/// Few labels and segments, so that patterns and requests meet.
#[derive(Arbitrary, Debug)]
struct Labels {
    wildcard: bool,
    labels: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
struct Segments {
    segments: Vec<u8>,
    slash: bool,
}

impl Labels {
    fn name(&self) -> String {
        let label = |byte: &u8| ["a", "b", "ab", "test"][usize::from(byte % 4)];
        self.labels.iter().take(5).map(label).collect::<Vec<_>>().join(".")
    }

    fn pattern(&self) -> Option<HostPattern> {
        let name = self.name();
        HostPattern::parse(&if self.wildcard && !name.is_empty() { format!("*.{name}") } else { name }).ok()
    }
}

impl Segments {
    fn path(&self) -> String {
        let segment = |byte: &u8| ["/a", "/b", "/ab", "/é"][usize::from(byte % 4)];
        let path: String = self.segments.iter().take(8).map(segment).collect();
        if self.slash || path.is_empty() { path + "/" } else { path }
    }
}

fuzz_target!(|input: Input<'_>| {
    let Input { hosts, requests, raw } = input;
    let mut table = RouteTable::default();
    for (labels, paths, fallback) in hosts.iter().take(8) {
        let Some(pattern) = labels.pattern() else { continue };
        let mut matches: Vec<PathMatch> = paths
            .iter()
            .take(12)
            .filter_map(|(exact, segments)| {
                let path = segments.path();
                if *exact { PathMatch::exact(&path).ok() } else { PathMatch::prefix(&path).ok() }
            })
            .collect();
        matches.sort();
        matches.dedup();
        let rules = matches.into_iter().map(|path| rule(&pattern, path)).collect();
        let fallback = PathMatch::prefix("/").ok().filter(|_| *fallback).map(|path| Box::new(rule(&pattern, path)));
        table.hosts.insert(
            pattern,
            Arc::new(HostRoutes { rules, fallback, clients: None, passthrough: None, refuses_http3: false }),
        );
    }
    let routes = Routes::compile(None, &table, |_| UpstreamId(0), |_| Some(HostId(1)));
    let generated = requests.iter().map(|(labels, segments)| (labels.name(), segments.path()));
    let raw = raw.iter().map(|(host, path)| ((*host).to_owned(), format!("/{path}")));
    for (host, path) in generated.chain(raw) {
        let found = match routes.find(&host, &path, &RequestHead::bare()).matched {
            Matched::Route(route) => Some(route.owner.to_string()),
            Matched::Default(_) | Matched::Nothing | Matched::Costly => None,
        };
        assert_eq!(found, oracle(&table, &host, &path), "{host} {path}");
    }
});

fn rule(pattern: &HostPattern, path: PathMatch) -> Rule {
    let owner = format!("{pattern} {path}").into();
    let action = Action::Forward(UpstreamKey::new("default", "service", "80"));
    Rule { path, owner, filters: Vec::new(), action, forwarding: Arc::default(), conditions: None }
}

fn oracle(table: &RouteTable, host: &str, path: &str) -> Option<String> {
    let (_, routes) = table.hosts.iter().find(|(pattern, _)| pattern.matches(host))?;
    let HostRoutes { rules, fallback, clients: _, passthrough: _, refuses_http3: _ } = &**routes;
    let rule = rules.iter().find(|rule| rule.path.matches(path)).or(fallback.as_deref())?;
    Some(rule.owner.to_string())
}
