//! The rule that serves a path of a host: the lookup of the request path itself, for many paths of one host.

use std::{borrow::Cow, sync::Arc};

use ingress_model::{
    Host, HostPattern, HostRoutes, RefusedPaths, RequestHead, RouteTable, Rule,
    request_path::{self, RequestPathError},
    route::{Matched, Routes, UpstreamId},
};

use crate::explanation::matching_hosts;

/// The rules of one host.
pub(crate) struct Lookup<'t> {
    rules: &'t HostRoutes,
    /// The same rules; the owner of each ends in its number.
    routes: Routes,
    refused: RefusedPaths,
}

/// The rule for a path.
#[derive(Clone, Copy)]
pub(crate) enum Found<'t> {
    Rule(&'t Rule),
    /// The rule for paths without a match.
    Fallback(&'t Rule),
    Nothing,
}

/// Why a path is refused with 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefusedPath {
    #[error(transparent)]
    Form(#[from] RequestPathError),
    #[error("pods may read the path as `{0}`, for which another rule holds")]
    Ambiguous(String),
}

// === impl RefusedPath ===

impl RefusedPath {
    /// Returns the reason without any part of the path, so that it is the same for all paths of its kind.
    pub(crate) fn kind(&self) -> Cow<'static, str> {
        match self {
            Self::Form(error) => error.to_string().into(),
            Self::Ambiguous(_) => "pods may read the path as another one, for which another rule holds".into(),
        }
    }
}

// === impl Lookup ===

impl<'t> Lookup<'t> {
    /// Returns the pattern in `table` whose rules serve `host`.
    pub(crate) fn pattern(table: &RouteTable, host: &str) -> Option<HostPattern> {
        matching_hosts(host).find(|pattern| table.hosts.contains_key(pattern))
    }

    /// Returns the lookup for the hosts of `pattern`.
    pub(crate) fn of(table: &'t RouteTable, pattern: Option<&HostPattern>) -> Self {
        static NOTHING: HostRoutes =
            HostRoutes { rules: Vec::new(), fallback: None, clients: None, passthrough: None, refuses_http3: false };
        let mut numbered = RouteTable::default();
        let mut rules = &NOTHING;
        if let Some((routes, pattern)) = pattern.and_then(|pattern| Some((table.hosts.get(pattern)?, pattern))) {
            rules = routes;
            let with_number = |number: usize, rule: &Rule| Rule {
                // The namespace stays at the beginning.
                owner: format!("{}#{number}", rule.owner).into(),
                ..rule.clone()
            };
            let copies = rules.rules.iter().enumerate().map(|(number, rule)| with_number(number, rule)).collect();
            let fallback = rules.fallback.as_ref().map(|rule| Box::new(with_number(rules.rules.len(), rule)));
            let copy = HostRoutes { rules: copies, fallback, ..HostRoutes::default() };
            numbered.hosts.insert(pattern.clone(), Arc::new(copy));
        }
        let routes = Routes::compile(None, &numbered, |_| UpstreamId(0), |_| None);
        Self { rules, routes, refused: table.settings.refused_paths }
    }

    /// Returns whether TLS connections of the hosts are passed through.
    pub(crate) fn passes_tls(&self) -> bool {
        self.rules.passthrough.is_some()
    }

    /// Returns the canonical form of `path`, as a client sends it to `host`, and the rule for it.
    ///
    /// # Errors
    /// Fails if the path is refused with 400, with the reason.
    pub(crate) fn find<'p>(&self, host: &Host, path: &'p str) -> Result<(Cow<'p, str>, Found<'t>), RefusedPath> {
        let (path, readings) = request_path::forms(path)?;
        request_path::check(&path, self.refused)?;
        let number = self.number(host, &path);
        if let Some(other) = readings.iter().find(|other| self.number(host, other) != number) {
            return Err(RefusedPath::Ambiguous(other.clone()));
        }
        Ok((path, self.found(number)))
    }

    /// Returns the rule for `OPTIONS *`, which concerns the server as a whole and has no path.
    pub(crate) fn of_server(&self, host: &Host) -> Found<'t> {
        self.found(self.number(host, "*"))
    }

    fn found(&self, number: Option<usize>) -> Found<'t> {
        let found = number.map(|number| (self.rules.rules.get(number), &self.rules.fallback));
        match found {
            Some((Some(rule), _)) => Found::Rule(rule),
            Some((None, Some(rule))) => Found::Fallback(rule),
            Some((None, None)) | None => Found::Nothing,
        }
    }

    /// Returns the number of the rule for a canonical path.
    fn number(&self, host: &Host, path: &str) -> Option<usize> {
        match self.routes.find(host.as_str(), path, &RequestHead::bare()).matched {
            Matched::Route(route) => route.owner.rsplit('#').next()?.parse().ok(),
            Matched::Default(_) | Matched::Nothing | Matched::Costly => None,
        }
    }
}
