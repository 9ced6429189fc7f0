//! Serves one request: authority → path → route → filters → forward. It parses no bytes and keeps no connection.

use std::{convert::Infallible, future::Future, rc::Rc, sync::atomic::Ordering::Relaxed, time::SystemTime};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts};
use hyper::body::Incoming;

use ingress_model::{
    Filter, Forwarding, HostId, Uploads,
    route::{
        FoundRoute, Matched, Route, RouteTarget, Share, Subject, UpstreamId,
        filter::{self, Edits, Shown},
    },
};

use crate::{
    auth::authz_cache::Cookies,
    downstream::{
        conn::{Conn, Serve},
        tunnel::OpenedStream,
    },
    http::{
        request_id::RequestId,
        websocket::{self, Handshake},
    },
    limits::violations::Violation,
    listeners::Http3At,
    observe::{
        access_log::{LogEntry, LogGuard},
        traces::Trace,
    },
    request::{
        client_body::ClientBody,
        context::RequestContext,
        error::LocalReply,
        in_flight::InFlight,
        request_body::{RequestBody, TooLarge},
        response_body::Body,
        session_affinity::AffinitySession,
        unread_body::{REST_MAX, UnreadBody},
    },
    server::{memory::Pressure, worker::Worker},
    snapshot::Snapshot,
    tls::client_certificates::ClientIdentity,
    upstream::subrequest::SubrequestError,
};
use admission::{decide, is_blocked};
use exchange::{Admitted, exchange};
use matching::{Matching, RequestRefusal};
use response::{compress, own};

mod admission;
pub(crate) mod body_copy;
pub(crate) mod buffering;
pub(crate) mod client_body;
pub(crate) mod compress;
pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod error_pages;
mod exchange;
pub(crate) mod in_flight;
mod matching;
pub(crate) mod mirror;
pub(crate) mod request_body;
mod response;
pub(crate) mod response_body;
pub(crate) mod session_affinity;
mod throttle;
pub(crate) mod unread_body;

// Every failure becomes a response; hyper itself answers requests that it cannot parse. Both are always inlined, so that only
// the arguments are written to the future's place. A returned future is copied whole, and has some 3 KB of state that
// nothing has written yet.

impl Serve for Request<Incoming> {
    type Response = Result<Response<Body>, Infallible>;

    #[inline(always)]
    fn serve(mut self, conn: Rc<Conn>) -> impl Future<Output = Self::Response> {
        let opened = (self.method() == Method::CONNECT).then(|| OpenedStream::Http2(hyper::upgrade::on(&mut self)));
        let (parts, incoming) = self.into_parts();
        conn.take_head();
        answer(conn, parts, ClientBody::Hyper(incoming), opened)
    }
}

impl Serve for Request<ingress_quic::RequestBody> {
    type Response = Result<Response<Body>, Infallible>;

    #[inline(always)]
    fn serve(self, conn: Rc<Conn>) -> impl Future<Output = Self::Response> {
        let (parts, body) = self.into_parts();
        let (body, opened) = match parts.method {
            Method::CONNECT => (ingress_quic::RequestBody::default(), Some(OpenedStream::Http3(Box::new(body)))),
            _ => (body, None),
        };
        answer(conn, parts, ClientBody::Http3(body), opened)
    }
}

/// Serves a request in parts. They are arguments of a function that is no `async fn`, so that the future holds them in
/// their final place: an `async fn` would move its arguments once more.
#[inline(always)]
fn answer(
    conn: Rc<Conn>,
    mut parts: Parts,
    body: ClientBody,
    opened: Option<OpenedStream>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> {
    #[cfg(test)]
    panic_on_demand(&parts.headers);
    let incoming = UnreadBody::new(&conn, body);
    async move {
        let snapshot = conn.worker.snapshot();
        let bodiless = parts.method == Method::HEAD;
        // The flag belongs to the connection but is true for a single request: the one that ended with its head. An
        // earlier request with a body may still be served while the handshake waits behind it.
        let asked = conn.is_asked_handshake() && incoming.is_end_stream() && websocket::looks_like_one(&parts);
        let tunnel = match opened {
            Some(opened) if websocket::is_extended_connect(&parts) => TunnelRequest::Stream(opened),
            _ if asked => TunnelRequest::Connection,
            _ => TunnelRequest::Nothing,
        };
        let mut log_guard = LogGuard::new(&conn, &snapshot, &mut parts);
        let (parts, log_entry) = (&*log_guard.request, &mut log_guard.log_entry);
        let client = conn.peer().client(&snapshot.settings.trust, &parts.headers);
        if let Some(log_entry) = log_entry {
            log_entry.identify(&client);
        }
        let mut response = match Matching::of(&conn, &snapshot, parts, &client) {
            Ok(ref matching) => matching.act(&conn, &snapshot, parts, incoming, tunnel, log_entry).await,
            Err(RequestRefusal { host, answer }) => {
                drop(incoming);
                own(begin(&conn, host, log_entry.as_deref()), *answer, bodiless)
            }
        };
        // Only the proxy's own responses have extensions.
        if let Some(violation) = response.extensions_mut().remove::<Violation>() {
            conn.offend(violation);
        }
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if asked && !switched {
            conn.decline();
        }
        // Announces the close to the client, which would otherwise lose a pipelined request. HTTP/2 and HTTP/3
        // have GOAWAY for that.
        if parts.version < Version::HTTP_2
            && !switched
            && (!conn.worker.keeps_alive() || leaves_too_much(&conn, parts, &response))
        {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            // The rest of the body, if it still comes, is read while the connection lingers.
            drop(conn.take_unread_bodies());
        }
        log_guard.answered(response.status().as_u16());
        Ok(response)
    }
}

/// Returns whether more of the request's body is outstanding than can be read before the next request.
fn leaves_too_much(conn: &Conn, request: &Parts, response: &Response<Body>) -> bool {
    response.body().unsent() > REST_MAX
        || conn.left().is_some_and(|left| left.ends(&request.headers, response.headers()))
}

/// Begins a request, and attaches its line of the access log, if any.
fn begin(conn: &Rc<Conn>, host: HostId, log_entry: Option<&LogEntry>) -> InFlight {
    let mut in_flight = conn.begin(host);
    if let Some(log_entry) = log_entry {
        in_flight.attach(log_entry.line());
    }
    in_flight
}

/// Returns whether the body consists of gRPC messages, which both sides may send at any time.
fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The tunnel that a request may open.
enum TunnelRequest {
    Nothing,
    /// HTTP/1: the whole connection becomes the tunnel.
    Connection,
    /// HTTP/2 and HTTP/3: the stream becomes the tunnel, once the response is sent.
    Stream(OpenedStream),
}

/// Returns the answer to a request with a path that is too expensive to match, and logs a warning once for each host.
fn costly(conn: &Conn, found: &FoundRoute<'_>) -> LocalReply {
    conn.worker.shared.stats.costly_paths.fetch_add(1, Relaxed);
    if let Some(entry) = found.host.filter(|entry| entry.is_untold()) {
        tracing::warn!(
            host = %entry.pattern,
            "a request was answered 414, because its path takes more work with the regular expressions of this host than a request may; write expressions with fewer repetitions of alternatives, or prefixes"
        );
    }
    error::costly_path()
}

/// The rule that a request matches.
#[derive(Clone, Copy)]
struct Rule<'r> {
    /// Namespace and name of its Ingress; empty for the default backend.
    owner: &'r str,
    filters: &'r [Filter],
    forwarding: &'r Forwarding,
    action: &'r RouteTarget,
    /// The backend that gets the request, if several share the rule by weight.
    share: Option<&'r Share>,
}

impl Matching<'_> {
    async fn act(
        &self,
        conn: &Rc<Conn>,
        snapshot: &Snapshot,
        parts: &Parts,
        incoming: UnreadBody,
        asked: TunnelRequest,
        log_entry: &mut Option<Box<LogEntry>>,
    ) -> Response<Body> {
        let Self { authority, fields, is_of_listener, target, client, found } = self;
        let host = found.host.map_or(HostId::UNATTRIBUTED, |entry| entry.id);
        let mut in_flight = begin(conn, host, log_entry.as_deref());
        let bodiless = parts.method == Method::HEAD;
        let rule = match self.rule(conn, snapshot, parts) {
            Ok(rule) => rule,
            Err(answer) => return own(in_flight, *answer, bodiless),
        };
        let Rule { owner, filters, forwarding, action, share } = rule;
        if let Matched::Route(Route { owner, meter, .. }) = found.matched {
            in_flight.measure(meter.as_ref());
            LogEntry::matched(log_entry, owner, forwarding.logged);
        }
        LogEntry::skip(log_entry, target);
        let asks = conn.secure && !is_of_listener;
        let identity = if asks { conn.shown.identity(&snapshot.routes, found.host) } else { Ok(None) };
        let Ok(identity) = identity else { return own(in_flight, error::misdirected(), bodiless) };
        if parts.version == Version::HTTP_3 && !snapshot.serves_http3(found.host) {
            return own(in_flight, error::misdirected(), bodiless);
        }
        let subject = self.subject(conn, parts, identity.as_deref());
        let request_id = RequestId::of(fields.request_id);
        let context = RequestContext {
            conn,
            snapshot,
            forwarding,
            owner,
            version: parts.version,
            authority,
            client,
            subject: &subject,
            fields,
            identity: identity.as_deref(),
            request_id: &request_id,
        };
        let traces = snapshot.settings.traces.as_ref().zip(forwarding.trace.as_ref());
        let mut trace =
            traces.map(|(traces, rule)| Trace::begin(traces, rule, &conn.worker.shared.spans, parts.version, &subject));
        in_flight.record(trace.as_mut().and_then(|trace| trace.span.take()));
        let (mut edits, mut cookies) = (Edits::default(), Cookies::default());
        let decided = decide(filters, action, share, &context, &mut edits, &mut cookies, &mut in_flight).await;
        let mut admitted = decided.and_then(|id| {
            let handshake = asked.handshake(parts)?;
            let body = upload(&context, incoming, &edits, &in_flight)?;
            if let Some(trace) = trace {
                trace.attach(&mut edits);
            }
            admit(&context, rule, id, handshake, body, &edits, log_entry)
        });
        let pages = filter::error_pages(filters);
        let mut response = match admitted {
            Ok(ref mut admitted) => exchange(&context, admitted, &edits, pages, asked, in_flight, log_entry).await,
            Err(answer) => own(in_flight, *answer, bodiless),
        };
        cookies.add(&mut response);
        finish(&context, filters, share, &mut response);
        if conn.secure && parts.version < Version::HTTP_3 && conn.worker.http3.is_told() {
            self.advertise(conn, snapshot, &mut response);
        }
        response
    }

    /// Tells a client of HTTP/1 or HTTP/2 that the host is served by HTTP/3, too, or is not any more. Replaces what the
    /// pod says.
    #[inline(never)]
    fn advertise(&self, conn: &Conn, snapshot: &Snapshot, response: &mut Response<Body>) {
        let Some(host) = self.found.host else { return };
        let Worker { http3, shared, .. } = &*conn.worker;
        let (serves, withdrawn) = match snapshot.listeners.http3_at(conn.local(), http3.port(), self.authority.host()) {
            Http3At::Nowhere => return,
            Http3At::Ingresses | Http3At::Listener { takes: true, .. } => {
                let withdrawn = snapshot.withdrawn.since(&host.pattern, host.takes_http3());
                (snapshot.serves_http3(Some(host)), withdrawn)
            }
            Http3At::Listener { name, takes: false } => (false, snapshot.withdrawn.of_listener(name)),
        };
        if let Some(alt_svc) = http3.value(shared, serves, withdrawn) {
            response.headers_mut().insert(header::ALT_SVC, alt_svc);
        }
    }

    /// Returns the rule, or the answer to a client that is blocked or a request that matches no rule.
    #[inline]
    fn rule<'r>(&'r self, conn: &Conn, snapshot: &'r Snapshot, parts: &Parts) -> Result<Rule<'r>, Box<LocalReply>> {
        let Self { client, found, .. } = self;
        let blocked = snapshot.settings.blocked.as_ref();
        if blocked.is_some_and(|blocked| is_blocked(blocked, client, conn.moved(), &parts.headers)) {
            return Err(error::blocked().into());
        }
        match found.matched {
            Matched::Nothing if snapshot.generation == 0 => Err(error::starting().into()),
            Matched::Nothing => Err(error::no_route().into()),
            Matched::Costly => Err(costly(conn, found).into()),
            Matched::Default(action) => {
                Ok(Rule { owner: "", filters: &[], forwarding: &snapshot.forwarding, action, share: None })
            }
            Matched::Route(Route { owner, filters, target: action, forwarding, .. }) => {
                let share = match action {
                    RouteTarget::Weighted(shares) => {
                        let affinity = forwarding.affinity.as_ref();
                        let upstream = |id| snapshot.upstream(id);
                        let home = affinity
                            .and_then(|affinity| session_affinity::share(affinity, shares, &parts.headers, upstream));
                        home.or_else(|| shares.choose())
                    }
                    _ => None,
                };
                Ok(Rule { owner, filters, forwarding, action, share })
            }
        }
    }

    /// Returns the request as filters and endpoints see it: an extended CONNECT is the HTTP/1.1 request that it becomes.
    fn subject<'r>(&'r self, conn: &Conn, parts: &'r Parts, identity: Option<&'r ClientIdentity>) -> Subject<'r> {
        let Self { authority, target, client, .. } = self;
        Subject {
            method: if parts.method == Method::CONNECT { &Method::GET } else { &parts.method },
            host: authority.host(),
            port: authority.port,
            target,
            headers: &parts.headers,
            secure: client.secure,
            certificate: identity.map_or(Shown::Nothing, |identity| identity.shown),
            certificate_fields: identity.map_or("", |identity| &identity.fields),
            client: client.address,
            https_port: conn.worker.options.https_port,
            listener_port: client.port,
            clock: || SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
        }
    }
}

impl TunnelRequest {
    /// Returns the handshake for the endpoint, if the request is one.
    fn handshake(&self, parts: &Parts) -> Result<Option<Handshake>, Box<LocalReply>> {
        match self {
            Self::Nothing => Ok(None),
            Self::Connection | Self::Stream(_) => Ok(websocket::handshake(parts).map_err(error::handshake)?),
        }
    }
}

/// Returns the body of a request, bounded by its rule.
#[inline]
fn upload(
    context: &RequestContext<'_>,
    incoming: UnreadBody,
    edits: &Edits<'_>,
    in_flight: &InFlight,
) -> Result<RequestBody, Box<LocalReply>> {
    let RequestContext { snapshot, forwarding, subject, .. } = *context;
    let mut body =
        RequestBody::new(incoming, forwarding.body_max, in_flight).map_err(|TooLarge| error::body_too_large())?;
    body.hurry(|| {
        let is_hurried = forwarding.uploads != Uploads::StreamedAtAnyRate && !is_grpc(subject.headers);
        snapshot.settings.body_min_rate.filter(|_| is_hurried)
    });
    if !edits.leave_fields() {
        body.cut_trailers();
    }
    Ok(body)
}

/// Prepares an admitted request for its upstream, and starts its mirrors.
#[inline]
fn admit<'r>(
    context: &RequestContext<'r>,
    rule: Rule<'r>,
    id: UpstreamId,
    handshake: Option<Handshake>,
    mut body: RequestBody,
    edits: &Edits<'_>,
    log_entry: &mut Option<Box<LogEntry>>,
) -> Result<Admitted<'r>, Box<LocalReply>> {
    let RequestContext { conn, snapshot, subject, request_id, .. } = *context;
    let Rule { filters, forwarding, action, share, .. } = rule;
    if handshake.is_none() {
        start_mirrors(filters, context, edits, &mut body);
        if let Some(share) = share {
            start_mirrors(&share.filters, context, edits, &mut body);
        }
    }
    let no_endpoints = || error::forward(&SubrequestError::NoEndpoints);
    let mut upstream = snapshot.upstream(id).ok_or_else(no_endpoints)?;
    // Sessions apply only to the rule's own pods.
    let is_own = filter::error_pages(filters).is_none_or(|pages| pages.backend != *upstream.key());
    let affinity = forwarding.affinity.as_ref().filter(|_| is_own);
    let session = affinity.and_then(|affinity| AffinitySession::of(affinity, action, (id, upstream), subject));
    // The scheme of the connection, not that of a proxy before it.
    if let RouteTarget::Split(branches) = action {
        upstream = snapshot.upstream(branches.reached(id, conn.secure)).ok_or_else(no_endpoints)?;
    }
    body.attach(log_entry.as_mut().map(|log_entry| log_entry.forwarded(request_id, upstream.key())));
    Ok(Admitted { upstream, session, handshake, body: Some(body) })
}

fn start_mirrors(filters: &[Filter], context: &RequestContext<'_>, edits: &Edits<'_>, body: &mut RequestBody) {
    for mirror in filter::mirrors(filters).filter(|mirror| mirror.takes_next()) {
        mirror::start(mirror, context, edits, body);
    }
}

/// Applies the filters of a rule, and of the backend that `share` names, to its response.
fn finish(context: &RequestContext<'_>, filters: &[Filter], share: Option<&Share>, response: &mut Response<Body>) {
    let RequestContext { conn, subject, .. } = *context;
    if let Some(share) = share {
        filter::respond(&share.filters, subject, response.headers_mut());
    }
    filter::respond(filters, subject, response.headers_mut());
    // Compression needs memory for each stream, so it is disabled when memory is scarce.
    if let Some(compression) = filter::compression(filters)
        && conn.worker.shared.pressure() < Pressure::Tight
    {
        compress(compression, subject, response);
    }
}

/// Panics if a request of a test asks for it.
#[cfg(test)]
fn panic_on_demand(headers: &HeaderMap) {
    if headers.contains_key("x-provoke-panic") {
        panic!("provoked");
    }
}
