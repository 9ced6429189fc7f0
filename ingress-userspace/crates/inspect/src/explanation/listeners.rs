//! Which listener of a Gateway serves a URL. The address that a client connects to is not known here: a listener with
//! a rule for the request is the answer, and the addresses at which that holds are said.

use std::{cmp::Reverse, net::IpAddr, sync::Arc};

use http::{HeaderMap, Method, uri::PathAndQuery};
use ingress_model::{
    Bind, Bound, HostPattern, Listener, ListenerName, ListenerProtocol, RequestHead, RouteTable, Rule, Transport, Tree,
};

use super::{CertificateChoice, Explanation, Verdict, canonical, chosen, matching_hosts, reason};
use crate::{certificate::leaf, route::RouteEntry};

/// Maximum number of listeners that the notes name.
const NOTED_MAX: usize = 5;

/// The request of a URL, as far as listeners look at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'r> {
    pub(super) port: u16,
    /// Path and query as the client sends them.
    pub(super) target: Option<&'r PathAndQuery>,
}

/// A listener that takes connections for the host of a request.
#[derive(Clone, Copy, Debug)]
struct Candidate<'t> {
    /// The address of its Gateway; `None` for those of the nodes, which Ingresses have, too.
    address: Option<IpAddr>,
    name: &'t ListenerName,
    listener: &'t Listener,
}

/// Returns the entries of `map` that match `host`, the most specific one first.
fn matching<'t, V: Clone>(map: &'t Tree<HostPattern, V>, host: &str) -> Vec<(&'t HostPattern, &'t V)> {
    let mut found: Vec<_> = map.iter().filter(|(pattern, _)| pattern.matches(host)).collect();
    found.sort_by_key(|(pattern, _)| match pattern {
        HostPattern::Exact(_) => (0, Reverse(0)),
        HostPattern::Wildcard(_) => (1, Reverse(0)),
        HostPattern::Suffix(base) => (2, Reverse(base.as_str().len())),
        HostPattern::Any => (3, Reverse(0)),
    });
    found
}

fn candidates<'t>(table: &'t RouteTable, port: u16, host: &str, is_secure: bool) -> Vec<Candidate<'t>> {
    let at_port = |bind: &Bind| bind.port.transport == Transport::Tcp && bind.port.number == port;
    let candidate = |(bind, bound): (&'t Bind, &'t Arc<Bound>)| {
        let of_host =
            || matching(if is_secure { &bound.tls } else { &bound.http }, host).first().map(|(_, name)| *name);
        let name = bound.stream.as_ref().or_else(of_host)?;
        Some(Candidate { address: bind.address, name, listener: table.listeners.get(name)? })
    };
    table.binds.iter().filter(|(bind, _)| at_port(bind)).filter_map(candidate).collect()
}

// === impl Candidate ===

impl<'t> Candidate<'t> {
    /// Returns the rule for `path`, and the hostname that its route has. A request falls through to less specific ones.
    fn rule(&self, host: &str, path: &str, head: &RequestHead<'_>) -> Option<(&'t HostPattern, &'t Rule)> {
        let takes = |rule: &&Rule| {
            rule.path.matches(path) && rule.conditions.as_ref().is_none_or(|conditions| conditions.hold(head))
        };
        let hosts = matching(&self.listener.hosts, host);
        hosts.into_iter().find_map(|(pattern, routes)| Some((pattern, routes.rules.iter().find(takes)?)))
    }

    fn is_of_requests(&self) -> bool {
        matches!(self.listener.protocol, ListenerProtocol::Http | ListenerProtocol::Https)
    }

    /// Returns the place of the listener in a sentence.
    fn place(&self) -> String {
        match self.address {
            Some(address) => format!("listener `{}` at `{address}`", self.name),
            None => format!("listener `{}`", self.name),
        }
    }

    /// Returns the first certificate that covers `host`, or else the first one.
    fn certificate(&self, table: &RouteTable, host: &str) -> Option<CertificateChoice> {
        let origins = &self.listener.certificates;
        let names = |origin: &str| leaf(table, origin, 0).map(|leaf| leaf.dns_names).unwrap_or_default();
        let covers = |name: &String| HostPattern::parse(name).is_ok_and(|pattern| pattern.matches(host));
        let covering = origins.iter().find_map(|origin| Some((origin, names(origin).into_iter().find(covers)?)));
        let (secret, server_name) = match covering {
            Some((origin, name)) => (origin, Some(name)),
            None => (origins.first()?, None),
        };
        Some(CertificateChoice { is_fallback: server_name.is_none(), server_name, secret: Some(secret.to_string()) })
    }
}

// === impl Explanation ===

impl Explanation {
    /// Explains the request by a listener of a Gateway. Returns `false` if no listener has a rule for it: the Ingresses
    /// are asked then.
    pub(super) fn ask_listeners(&mut self, table: &RouteTable, request: Request<'_>) -> bool {
        let is_secure = self.scheme == "https";
        let found = candidates(table, request.port, &self.host, is_secure);
        let (method, headers) = (Method::GET, HeaderMap::new());
        let head = RequestHead { method: &method, headers: &headers, target: request.target };
        let mut others = Vec::new();
        let mut answering = None;
        for candidate in found {
            let takes = !candidate.is_of_requests()
                || match canonical(table, |path| self.rule_at(table, candidate, path, &head), &self.path) {
                    Ok(path) => candidate.rule(&self.host, &path, &head).is_some(),
                    // Its rules decide whether the path is ambiguous.
                    Err(_) => !matching(&candidate.listener.hosts, &self.host).is_empty(),
                };
            match answering {
                None if takes => answering = Some(candidate),
                _ => others.push((candidate, takes)),
            }
        }
        for (other, takes) in others.iter().take(NOTED_MAX) {
            let what = if *takes { "also has a route for the request" } else { "has no route for the request" };
            let then = match (takes, other.address) {
                (false, None) => ", which goes on to the Ingresses",
                (false, Some(_)) => ": it gets 404 there",
                (true, _) => "",
            };
            self.notes.push(format!("At the same port, {} {what}{then}.", other.place()));
        }
        if others.len() > NOTED_MAX {
            self.notes.push(format!("{} more listeners have the host.", others.len() - NOTED_MAX));
        }
        let Some(candidate) = answering else { return false };
        if let Some(address) = candidate.address {
            self.notes.push(format!("This holds for connections to `{address}`, the address of the Gateway."));
        }
        if candidate.is_of_requests() {
            self.by_rule(table, candidate, &head);
        } else {
            self.by_bytes(table, candidate);
        }
        true
    }

    /// Returns the rule for `path` at the address of `candidate`, with those of Ingresses if they share it.
    fn rule_at<'t>(
        &self,
        table: &'t RouteTable,
        candidate: Candidate<'t>,
        path: &str,
        head: &RequestHead<'_>,
    ) -> Option<&'t Rule> {
        let of_ingresses = || {
            let routes = matching_hosts(&self.host).find_map(|pattern| table.hosts.get(&pattern));
            routes.filter(|_| candidate.address.is_none()).and_then(|routes| chosen(routes, path))
        };
        candidate.rule(&self.host, path, head).map(|(_, rule)| rule).or_else(of_ingresses)
    }

    fn by_rule(&mut self, table: &RouteTable, candidate: Candidate<'_>, head: &RequestHead<'_>) {
        let Candidate { address: _, name, listener } = candidate;
        self.certificate = if self.scheme == "https" { candidate.certificate(table, &self.host) } else { None };
        if let Some(clients) = listener.clients.as_ref().filter(|_| self.scheme == "https") {
            self.notes.push(format!("Handshakes request a client certificate: {clients}."));
        }
        let hosts = matching(&listener.hosts, &self.host);
        self.hosts = hosts.iter().map(|(pattern, _)| pattern.to_string()).collect();
        match canonical(table, |path| self.rule_at(table, candidate, path, head), &self.path) {
            Ok(path) => self.path = path,
            Err(reason) => return self.refuse_path(&reason),
        }
        let Some((pattern, rule)) = candidate.rule(&self.host, &self.path, head) else { return };
        let others = hosts.iter().flat_map(|(_, routes)| &routes.rules).filter(|other| !std::ptr::eq(*other, rule));
        for other in others {
            let holds = other.conditions.as_ref().is_none_or(|conditions| conditions.hold(head));
            let reason = if other.path.matches(&self.path) && !holds {
                "its conditions do not hold for GET with this query and without fields".to_owned()
            } else {
                reason(other, &self.path)
            };
            self.consider(other, reason);
        }
        // The chosen host comes first.
        let chosen = pattern.to_string();
        self.hosts.sort_by_key(|host| *host != chosen);
        let document = RouteEntry::new(table, Some(name), pattern, rule, false).document();
        self.apply(&document, rule, &format!("Route `{}` of {}", rule.owner, candidate.place()));
        self.route = Some(document);
    }

    /// Explains a connection whose bytes a listener relays.
    fn by_bytes(&mut self, table: &RouteTable, candidate: Candidate<'_>) {
        let is_terminated = candidate.listener.protocol == ListenerProtocol::TlsTerminate;
        self.certificate = if is_terminated { candidate.certificate(table, &self.host) } else { None };
        let streams = matching(&candidate.listener.streams, &self.host);
        self.hosts = streams.iter().map(|(pattern, _)| pattern.to_string()).collect();
        let from = candidate.place();
        let backends = streams.first().and_then(|(_, backends)| backends.as_ref());
        (self.verdict, self.summary) = match backends {
            None => (Verdict::Refused, format!("The connection is closed, because {from} has no route with backends.")),
            Some(backends) => {
                let targets = backends.as_slice().iter().filter_map(|backend| backend.target.as_ref().ok());
                let names: Vec<_> = targets.map(|key| format!("`{key}`")).collect();
                let verdict = if is_terminated { Verdict::Forwarded } else { Verdict::Passthrough };
                (verdict, format!("The bytes of the connection go through {from} to {}.", names.join(" or ")))
            }
        };
    }
}
