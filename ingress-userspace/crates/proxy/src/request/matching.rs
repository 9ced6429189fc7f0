//! Rejects requests that servers could parse differently, and matches the others against the routes.

use std::borrow::Cow;

use http::{Method, Uri, Version, request::Parts};

use ingress_model::route::{FoundRoute, Matched, Routes, Work};
use ingress_model::{HostId, RefusedPaths, RequestHead, request_path};

use crate::{
    downstream::conn::Conn,
    http::{
        authority::Authority,
        client_address::RequestClient,
        fields::{Field, Fields},
        headers::are_sound,
        via, websocket,
    },
    request::error::{self, LocalReply},
    snapshot::Snapshot,
};

/// A request that is refused for its own properties, before any rule applies.
pub(super) struct RequestRefusal {
    pub(super) host: HostId,
    /// Boxed so that the common case does not carry its size.
    pub(super) answer: Box<LocalReply>,
}

/// A well-formed request and the result of its route lookup.
pub(super) struct Matching<'r> {
    pub(super) authority: Authority<'r>,
    pub(super) fields: Fields<'r>,
    /// Whether the routes are those of a Gateway's listener.
    pub(super) is_of_listener: bool,
    /// Normalized path, and query.
    pub(super) target: Cow<'r, str>,
    pub(super) client: &'r RequestClient<'r>,
    pub(super) found: FoundRoute<'r>,
}

impl<'r> Matching<'r> {
    pub(super) fn of(
        conn: &Conn,
        snapshot: &'r Snapshot,
        parts: &'r Parts,
        client: &'r RequestClient<'r>,
    ) -> Result<Self, RequestRefusal> {
        let Parts { method, uri, version, headers, .. } = parts;
        let unattributed = |answer| RequestRefusal { host: HostId::UNATTRIBUTED, answer: Box::new(answer) };
        if *method == Method::CONNECT && !websocket::is_extended_connect(parts) {
            return Err(unattributed(error::connect()));
        }
        let fields = Fields::of(headers);
        let authority =
            Authority::of(*version, uri, fields.host).map_err(|refused| unattributed(error::authority(refused)))?;
        // A listener refuses the host only after all checks of the message: their answers close the connection.
        let (routes, next, is_of_listener, refusal) = match choose(conn, snapshot, &authority) {
            ChosenRoutes::OfIngresses => (&snapshot.routes, None, false, None),
            ChosenRoutes::OfListener { routes, next } => (routes, next, true, None),
            ChosenRoutes::Nothing => (&snapshot.routes, None, true, Some(error::no_route as fn() -> LocalReply)),
            ChosenRoutes::Misdirected => (&snapshot.routes, None, true, Some(error::misdirected as fn() -> LocalReply)),
        };
        let host = |answer| {
            let entry = if refusal.is_some() { None } else { routes.host(authority.host()) };
            let host = entry.map_or(HostId::UNATTRIBUTED, |entry| entry.id);
            RequestRefusal { host, answer: Box::new(answer) }
        };
        // `ingress-http3` refuses such fields by itself.
        if *version == Version::HTTP_2 && !are_sound(headers) {
            return Err(host(error::field()));
        }
        if !is_chunked_or_absent(fields.transfer_encoding) {
            return Err(host(error::transfer_encoding()));
        }
        if *method == Method::TRACE {
            return Err(host(error::trace()));
        }
        if target_len(uri) > conn.worker.options.target_max {
            return Err(host(error::target_too_long()));
        }
        if via::is_loop(&fields) {
            return Err(host(error::loop_detected()));
        }
        if let Some(refusal) = refusal {
            return Err(unattributed(refusal()));
        }
        // `OPTIONS *` concerns the server as a whole. No rule can match it, so it goes to the default backend of its
        // host, if any.
        let refused = |refused| host(error::path(refused));
        let (path, others) = match uri.path() {
            "*" if *method == Method::OPTIONS => (Cow::Borrowed("*"), Vec::new()),
            path => request_path::forms(path).map_err(refused)?,
        };
        if snapshot.settings.refused_paths != RefusedPaths::default() {
            request_path::check(&path, snapshot.settings.refused_paths).map_err(refused)?;
        }
        let mut work = Work::of_request();
        let method = if *method == Method::CONNECT { &Method::GET } else { method };
        let head = RequestHead { method, headers, target: uri.path_and_query() };
        let first = routes.find_within(authority.host(), &path, &head, &mut work);
        let followed = |first: FoundRoute<'r>, path: &str, work: &mut Work| match (first.matched, next) {
            (Matched::Nothing, Some(next)) => next.find_within(authority.host(), path, &head, work),
            _ => first,
        };
        let found = if next.is_some() { followed(first, &path, &mut work) } else { first };
        let is_of_listener = is_of_listener && (next.is_none() || !matches!(first.matched, Matched::Nothing));
        // The proxy does not treat an escaped slash as a slash, but many pods do. If the path with real slashes matches
        // another rule, the request probably tries to bypass one of the two.
        let mut is_other = |path: &String| {
            let first = routes.find_within(authority.host(), path, &head, &mut work);
            !found.matched.is_same(&followed(first, path, &mut work).matched)
        };
        if !others.is_empty() && others.iter().any(&mut is_other) {
            return Err(host(error::ambiguous_path()));
        }
        let target = target(uri, path);
        Ok(Self { authority, fields, is_of_listener, target, client, found })
    }
}

/// The routes for a request, by the address and port it came to and by its host.
enum ChosenRoutes<'s> {
    OfIngresses,
    OfListener {
        routes: &'s Routes,
        /// Routes for requests that match no rule of the listener: those of Ingresses, if both share the address.
        next: Option<&'s Routes>,
    },
    /// No listener at this address takes the host.
    Nothing,
    /// The host belongs to another listener than the server name of the handshake (RFC 9110, section 15.5.20).
    Misdirected,
}

/// Chooses the routes for `host`. A request never leaves the listener that its handshake was made for: certificates and
/// client certificates are properties of listeners.
fn choose<'s>(conn: &Conn, snapshot: &'s Snapshot, authority: &Authority<'_>) -> ChosenRoutes<'s> {
    if snapshot.listeners.is_empty() {
        return ChosenRoutes::OfIngresses;
    }
    choose_listener(conn, snapshot, authority.host())
}

/// Apart, so that nodes without Gateways have no call.
#[inline(never)]
fn choose_listener<'s>(conn: &Conn, snapshot: &'s Snapshot, host: &str) -> ChosenRoutes<'s> {
    let listeners = &snapshot.listeners;
    let Some(bound) = listeners.at(conn.local()) else {
        // The connection is older than the Gateway's address.
        return if listeners.refuses(conn.local()) { ChosenRoutes::Nothing } else { ChosenRoutes::OfIngresses };
    };
    let is_of_ingress = || bound.shares_with_ingresses() && snapshot.routes.host(host).is_some();
    let name = bound.of_host(host, conn.secure);
    if conn.secure && name != bound.of_server_name(conn.shown.server_name()) {
        return if name.is_some() || is_of_ingress() { ChosenRoutes::Misdirected } else { ChosenRoutes::Nothing };
    }
    match name.and_then(|name| listeners.get(name)) {
        Some(listener) if conn.is_http3() && !listener.takes_http3() => ChosenRoutes::Misdirected,
        // The connection is older than the listener's policy.
        Some(listener) if conn.secure && listener.clients.as_ref() != conn.shown.enforced() => {
            ChosenRoutes::Misdirected
        }
        Some(listener) => {
            let next = bound.shares_with_ingresses().then_some(&snapshot.routes);
            ChosenRoutes::OfListener { routes: &listener.routes, next }
        }
        None if bound.shares_with_ingresses() => ChosenRoutes::OfIngresses,
        None => ChosenRoutes::Nothing,
    }
}

/// Returns whether the transfer coding is one that every server parses alike; hyper accepts further codings before
/// `chunked`.
fn is_chunked_or_absent(codings: Field<'_>) -> bool {
    match codings {
        Field::Absent => true,
        Field::Once(coding) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        Field::Repeated => false,
    }
}

fn target_len(uri: &Uri) -> usize {
    uri.path_and_query().map_or(0, |target| target.as_str().len())
}

/// Returns path and query as forwarded, borrowed where the path was normalized already.
fn target<'r>(uri: &'r Uri, path: Cow<'r, str>) -> Cow<'r, str> {
    match (path, uri.path_and_query()) {
        // An absolute-form target without a path has an empty path, which stands for `/`.
        (Cow::Borrowed(path), Some(target)) if target.as_str().starts_with(path) => Cow::Borrowed(target.as_str()),
        (path, _) => match uri.query() {
            Some(query) => Cow::Owned(format!("{path}?{query}")),
            None => path,
        },
    }
}
