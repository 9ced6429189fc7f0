//! Serves one request: authority → path → route → filters → forward. It parses no bytes and keeps no connection.

use std::{borrow::Cow, convert::Infallible, rc::Rc};

use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header, request::Parts, response,
};
use http_body::Body as _;
use hyper::{body::Incoming, upgrade::OnUpgrade};
use ingress_common::StatusClass;

use crate::{
    model::{Balance, Blocked, Compression, ErrorPages, Filter, HostId, Texts, Unavailable},
    route::{
        Found, Matched, Route, Subject, Target, UpstreamId, canary,
        filter::{self, Edits, Shown, Verdict},
        template::render,
    },
};

use super::{
    access_log::{Teller, Telling},
    authenticate::{Asking, authenticate},
    authority::Authority,
    body::{Body, RequestBody, Source, TooLarge, discard},
    client::Client,
    conn::Conn,
    error::{self, Answer},
    error_pages,
    external::Cookies,
    forward::{ForwardError, Forwarded, Held, Plan, forward},
    headers::{Head, RequestId, are_trimmed},
    in_flight::InFlight,
    memory::Pressure,
    mirror, path,
    pick::{Choice, UpstreamState, hash},
    session::{self, Session},
    snapshot::Snapshot,
    traces::Trace,
    tunnel::Tunnel,
    upstream, via,
    websocket::{self, Handshake},
};

/// Answers a request of `conn`. Whatever goes wrong is a response; hyper itself answers what it cannot parse.
pub(super) async fn serve(conn: Rc<Conn>, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let snapshot = conn.worker.snapshot();
    let opened = (request.method() == Method::CONNECT).then(|| hyper::upgrade::on(&mut request));
    let (parts, incoming) = request.into_parts();
    let bodiless = parts.method == Method::HEAD;
    // Said of the connection, but true of one request alone: the one that ended with its head. An earlier one with a body may
    // still be served while the next, which is it, waits.
    let asked = conn.is_asked_handshake() && incoming.is_end_stream() && websocket::looks_like_one(&parts);
    let client = match opened {
        Some(opened) if websocket::is_extended_connect(&parts) => Asked::Stream(opened),
        _ if asked => Asked::Connection,
        _ => Asked::Nothing,
    };
    let mut telling = Telling::new(&conn, &snapshot, parts);
    let (parts, teller) = (&telling.request, &mut telling.teller);
    let mut response = match Matching::of(&conn, &snapshot, parts) {
        Ok(matching) => matching.act(&conn, &snapshot, parts, incoming, client, teller).await,
        Err(Refusal { host, answer }) => own(begin(&conn, host, teller.as_ref()), *answer, bodiless),
    };
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if asked && !switched {
        conn.decline();
    }
    // Tells the client before it loses a request to the close; HTTP/2 has GOAWAY for that.
    if parts.version != Version::HTTP_2 && !conn.worker.keeps_alive() && !switched {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    telling.answered(response.status().as_u16());
    Ok(response)
}

/// Begins a request, and its line of the access log if it is to have one.
fn begin(conn: &Rc<Conn>, host: HostId, teller: Option<&Teller>) -> InFlight {
    let mut in_flight = conn.begin(host);
    if let Some(teller) = teller {
        in_flight.tell(teller.line());
    }
    in_flight
}

/// What a request may turn into a tunnel.
enum Asked {
    Nothing,
    /// HTTP/1: the whole connection.
    Connection,
    /// HTTP/2: its stream, once the answer is sent.
    Stream(OnUpgrade),
}

/// A request that is not forwarded because of what it is.
struct Refusal {
    host: HostId,
    /// Boxed, so that the common case does not carry its size.
    answer: Box<Answer>,
}

/// A well-formed request and what the routes say of it.
struct Matching<'r> {
    authority: Authority<'r>,
    /// Normal path and query.
    target: Cow<'r, str>,
    found: Found<'r>,
}

impl<'r> Matching<'r> {
    fn of(conn: &Conn, snapshot: &'r Snapshot, parts: &'r Parts) -> Result<Self, Refusal> {
        let Parts { method, uri, version, headers, .. } = parts;
        let unattributed = |answer| Refusal { host: HostId::UNATTRIBUTED, answer: Box::new(answer) };
        if *method == Method::CONNECT && !websocket::is_extended_connect(parts) {
            return Err(unattributed(error::connect()));
        }
        let authority =
            Authority::of(*version, uri, headers).map_err(|refused| unattributed(error::authority(refused)))?;
        let host = |answer| {
            let host = snapshot.routes.find(&authority.host, "").host.map_or(HostId::UNATTRIBUTED, |entry| entry.id);
            Refusal { host, answer: Box::new(answer) }
        };
        if *version == Version::HTTP_2 && !are_trimmed(headers) {
            return Err(host(error::field()));
        }
        if !is_chunked_or_absent(parts) {
            return Err(host(error::transfer_encoding()));
        }
        if target_len(uri) > conn.worker.options.target_max {
            return Err(host(error::target_too_long()));
        }
        if headers.contains_key(header::VIA) && via::is_loop(headers) {
            return Err(host(error::loop_detected()));
        }
        // `OPTIONS *` asks about the server as a whole: no rule names it, so it is for the fallback of its host, if any.
        let path = match uri.path() {
            "*" if *method == Method::OPTIONS => Cow::Borrowed("*"),
            path => path::normalise(path).map_err(|refused| host(error::path(refused)))?,
        };
        let found = snapshot.routes.find(&authority.host, &path);
        // To us an escaped slash is none, to many a pod it is: where that leads by another rule, one of the two was meant to be
        // gone round.
        if let Some(other) = path::with_escaped_slashes(&path)
            && !found.matched.is_same(&snapshot.routes.find(&authority.host, &other).matched)
        {
            return Err(host(error::ambiguous_path()));
        }
        let target = target(uri, path);
        Ok(Self { authority, target, found })
    }

    async fn act(
        self,
        conn: &Rc<Conn>,
        snapshot: &Snapshot,
        parts: &Parts,
        incoming: Incoming,
        asked: Asked,
        teller: &mut Option<Teller>,
    ) -> Response<Body> {
        let Self { authority, target, found } = self;
        let host = found.host.map_or(HostId::UNATTRIBUTED, |entry| entry.id);
        let mut in_flight = begin(conn, host, teller.as_ref());
        let bodiless = parts.method == Method::HEAD;
        let client = conn.peer().client(&snapshot.settings.trust, &parts.headers);
        if snapshot.settings.blocked.as_ref().is_some_and(|blocked| is_blocked(blocked, &client, &parts.headers)) {
            return own(in_flight, error::blocked(), bodiless);
        }
        let (filters, forwarding, action) = match found.matched {
            Matched::Nothing if snapshot.generation == 0 => return own(in_flight, error::starting(), bodiless),
            Matched::Nothing => return own(in_flight, error::no_route(), bodiless),
            Matched::Default(action) => (&[][..], &snapshot.forwarding, action),
            Matched::Route(Route { owner, filters, target, forwarding, meter }) => {
                in_flight.measure(meter.as_ref());
                Teller::matched(teller, owner, forwarding.logged);
                (&filters[..], forwarding, target)
            }
        };
        Teller::skip(teller, &target);
        let identity = if conn.secure { conn.shown.identity(snapshot, found.host) } else { Ok(None) };
        let Ok(identity) = identity else { return own(in_flight, error::misdirected(), bodiless) };
        // To filters and endpoints it is the request of HTTP/1.1 that it becomes.
        let connect = parts.method == Method::CONNECT;
        let subject = Subject {
            method: if connect { &Method::GET } else { &parts.method },
            host: &authority.host,
            port: authority.port,
            target: &target,
            headers: &parts.headers,
            secure: client.secure,
            certificate: identity.as_ref().map_or(Shown::Nothing, |identity| identity.shown),
            client: client.address,
            https_port: conn.worker.options.https_port,
        };
        let request_id = RequestId::of(&parts.headers);
        let asking = Asking {
            conn,
            snapshot,
            forwarding,
            version: parts.version,
            authority: &authority,
            client: &client,
            subject: &subject,
            identity: identity.as_deref(),
            request_id: &request_id,
        };
        let traces = snapshot.settings.traces.as_ref().zip(forwarding.trace.as_ref());
        let mut trace =
            traces.map(|(traces, rule)| Trace::begin(traces, rule, &conn.worker.shared.spans, parts.version, &subject));
        in_flight.record(trace.as_mut().and_then(|trace| trace.span.take()));
        let (mut edits, mut cookies) = (Edits::default(), Cookies::default());
        let pages = filter::error_pages(filters);
        let decided = decide(filters, action, &asking, &mut edits, &mut cookies, &mut in_flight).await;
        let admitted = decided.and_then(|id| {
            let handshake = match asked {
                Asked::Nothing => None,
                Asked::Connection | Asked::Stream(_) => websocket::handshake(parts).map_err(error::handshake)?,
            };
            let mut body = RequestBody::new(incoming, forwarding.body_max, in_flight.cell())
                .map_err(|TooLarge| error::body_too_large())?;
            if !edits.leave_fields() {
                body.cut_trailers();
            }
            if let Some(trace) = trace {
                trace.tell(&mut edits);
            }
            if let Some(mirror) = filter::mirror(filters).filter(|_| handshake.is_none()) {
                mirror::start(mirror, &asking, &edits, &mut body);
            }
            let upstream = snapshot.upstream(id).ok_or_else(|| error::forward(&ForwardError::NoEndpoints))?;
            // A session is with the rule's own pods.
            let is_own = pages.is_none_or(|pages| pages.backend != *upstream.key());
            let affinity = forwarding.affinity.as_ref().filter(|_| is_own);
            let session = affinity.and_then(|affinity| Session::of(affinity, action, (id, upstream), &subject));
            Ok(Admitted { upstream, session, edits, handshake, body })
        });
        let mut response = match admitted {
            Ok(admitted) => exchange(&asking, admitted, pages, asked, in_flight, teller).await,
            Err(answer) => own(in_flight, *answer, bodiless),
        };
        cookies.add(&mut response);
        filter::respond(filters, &subject, response.headers_mut());
        // What each stream takes for it is better kept for requests when memory is scarce.
        if let Some(compression) = filter::compression(filters)
            && conn.worker.shared.pressure() < Pressure::Tight
        {
            compress(compression, &subject, &mut response);
        }
        response
    }
}

/// A request that its rule lets through, and what goes to an endpoint.
struct Admitted<'r> {
    upstream: &'r UpstreamState,
    session: Option<Session<'r>>,
    edits: Edits<'r>,
    handshake: Option<Handshake>,
    body: RequestBody,
}

/// Runs the filters in order. If all of them let the request through, and the action is to forward it, the upstream.
async fn decide<'r>(
    filters: &'r [Filter],
    action: &Target,
    asking: &Asking<'_>,
    edits: &mut Edits<'r>,
    cookies: &mut Cookies,
    in_flight: &mut InFlight,
) -> Result<UpstreamId, Box<Answer>> {
    let Asking { snapshot, subject, forwarding, .. } = *asking;
    for filter in filters {
        match filter::apply(filter, subject, edits) {
            Verdict::Continue => {}
            Verdict::Redirect { status, location } => return Err(error::redirect(status, &location).into()),
            Verdict::Unproven(lack) => return Err(error::unproven(lack).into()),
            Verdict::Deny => return Err(error::denied().into()),
            Verdict::Limit(limit) => {
                in_flight.count(limit, subject.client).map_err(|excess| error::limited(limit, excess))?;
            }
            Verdict::Preflight => return Err(error::preflight().into()),
            // Boxed, so that requests of other rules do not carry its size.
            Verdict::Authenticate(authentication) => {
                Box::pin(authenticate(authentication, asking, edits, cookies)).await?
            }
        }
    }
    let is_ready = |id| snapshot.upstream(id).is_some_and(|upstream| !upstream.is_empty());
    let wanted = match action {
        Target::Forward(id) => Ok(*id),
        Target::Split(branches) => {
            let affinity = forwarding.affinity.as_ref();
            let home =
                affinity.and_then(|affinity| session::home(affinity, branches, subject, |id| snapshot.upstream(id)));
            Ok(canary::choose(branches, subject, home, fastrand::f64, is_ready))
        }
        Target::Refuse(why) => Err(*why),
        Target::Redirect(redirect) => {
            return Err(error::redirect(redirect.status, &filter::location(redirect, subject)).into());
        }
    };
    match wanted {
        Ok(id) if is_ready(id) => Ok(id),
        Ok(_) | Err(Unavailable::NoService | Unavailable::NoPort) => {
            let stand_in = filter::error_pages(filters).filter(|pages| pages.stands_in);
            match (stand_in.and_then(|pages| Some((pages, snapshot.upstream_id(&pages.backend)?))), wanted) {
                (Some((pages, id)), wanted) => {
                    let upstream = wanted.ok().and_then(|id| snapshot.upstream(id)).map(UpstreamState::key);
                    edits.found.extend(error_pages::fields(pages, StatusCode::SERVICE_UNAVAILABLE, upstream, subject));
                    Ok(id)
                }
                (None, wanted) => wanted.map_err(|why| error::refused(why).into()),
            }
        }
        Err(why) => Err(error::refused(why).into()),
    }
}

/// Forwards a request, and makes what comes of that the client's response.
async fn exchange(
    asking: &Asking<'_>,
    admitted: Admitted<'_>,
    pages: Option<&ErrorPages>,
    asked: Asked,
    mut in_flight: InFlight,
    teller: &mut Option<Teller>,
) -> Response<Body> {
    let Asking { conn, snapshot, forwarding, version, authority, client, subject, identity, request_id } = *asking;
    let Admitted { upstream, session, edits, handshake, mut body } = admitted;
    let bodiless = *subject.method == Method::HEAD;
    // Whoever makes the pages is not asked for others.
    let pages = pages.filter(|pages| pages.backend != *upstream.key());
    body.tell(teller.as_mut().map(|teller| teller.forwarded(request_id, upstream.key())));
    let head = Head {
        version,
        subject,
        authority,
        edits: &edits,
        client,
        identity: identity.map(|identity| identity.fields.as_bytes()),
        request_id,
        handshake: handshake.as_ref(),
    };
    let choice = choice(&forwarding.balance, session.as_ref(), upstream, subject);
    let plan = Plan { choice, retry: &forwarding.retry };
    match forward(&conn.worker, snapshot.limits(forwarding), upstream, plan, &head, body).await {
        Ok((forwarded, mut served)) => {
            in_flight.hold(std::mem::take(&mut served.held));
            if let Some(teller) = teller {
                teller.answered(served.endpoint.address(), forwarded.status());
            }
            let cookie = session.and_then(|session| session.set(upstream, &served, subject));
            let mut response = match forwarded {
                Forwarded::Response(response)
                    if matches!(asked, Asked::Stream(_)) && response.status().is_success() =>
                {
                    own(in_flight, error::not_switched(), bodiless)
                }
                Forwarded::Response(response) => {
                    match pages.filter(|pages| pages.replace(response.status().as_u16())) {
                        None => relay(response, bodiless, in_flight),
                        // Boxed, so that other requests do not carry its size.
                        Some(pages) => Box::pin(replace(response, pages, upstream, asking, &edits, in_flight)).await,
                    }
                }
                Forwarded::Switched(response) => switch(conn, asked, response, in_flight),
            };
            if let Some(cookie) = cookie {
                response.headers_mut().append(header::SET_COOKIE, cookie);
            }
            response
        }
        Err(failed) => {
            let answer = error::forward(&failed);
            let status = answer.status();
            // Whoever sent half a request waits for an answer and no page.
            let pages = pages.filter(|pages| status.is_server_error() && pages.replace(status.as_u16()));
            let page = match pages {
                Some(pages) => {
                    let body = RequestBody::none(in_flight.cell());
                    Box::pin(error_pages::page(pages, status, upstream.key(), asking, &edits, body)).await
                }
                None => None,
            };
            match page {
                Some((page, held)) => {
                    in_flight.hold(held);
                    relay(page, bodiless, in_flight)
                }
                None => own(in_flight, answer, bodiless),
            }
        }
    }
}

/// The page that stands in for a pod's response, or an answer of our own if it cannot be had. Of what the pod said, the status
/// stays, and how to authenticate if that is what it asks for.
async fn replace(
    response: Response<Source>,
    pages: &ErrorPages,
    upstream: &UpstreamState,
    asking: &Asking<'_>,
    edits: &Edits<'_>,
    mut in_flight: InFlight,
) -> Response<Body> {
    let (response::Parts { status, mut headers, .. }, rest) = response.into_parts();
    discard(rest).await;
    // The pod is done with it, however long the client reads the page.
    in_flight.hold(Held::default());
    let bodiless = *asking.subject.method == Method::HEAD;
    let body = RequestBody::none(in_flight.cell());
    let mut response = match error_pages::page(pages, status, upstream.key(), asking, edits, body).await {
        Some((page, held)) => {
            in_flight.hold(held);
            relay(page, bodiless, in_flight)
        }
        None => own(in_flight, error::without_page(status), bodiless),
    };
    response.headers_mut().remove(header::WWW_AUTHENTICATE);
    if status == StatusCode::UNAUTHORIZED
        && let header::Entry::Occupied(challenges) = headers.entry(header::WWW_AUTHENTICATE)
    {
        let (_, challenges) = challenges.remove_entry_mult();
        for challenge in challenges {
            response.headers_mut().append(header::WWW_AUTHENTICATE, challenge);
        }
    }
    response
}

fn is_blocked(blocked: &Blocked, client: &Client<'_>, headers: &HeaderMap) -> bool {
    // Neither a second field nor a byte that is no text hides what is looked for.
    let holds = |texts: &Texts, name| {
        headers.get_all(name).iter().any(|value| texts.hold(&String::from_utf8_lossy(value.as_bytes())))
    };
    blocked.networks.contains(client.address)
        || holds(&blocked.agents, header::USER_AGENT)
        || holds(&blocked.referers, header::REFERER)
}

/// How the endpoint is chosen.
fn choice(balance: &Balance, session: Option<&Session<'_>>, upstream: &UpstreamState, subject: &Subject<'_>) -> Choice {
    let choice = match balance {
        Balance::RoundRobin => Choice::Next,
        Balance::LeastRequest => Choice::LeastRequest,
        Balance::Ewma => Choice::Ewma,
        Balance::Hash(template) => Choice::Hash(hash(render(template, subject, None).as_bytes())),
    };
    session.map_or(choice, |session| session.choice(upstream, choice))
}

/// Has the response compressed, if it may be and the client takes it.
fn compress(compression: &Compression, subject: &Subject<'_>, response: &mut Response<Body>) {
    let has_body = !response.body().is_end_stream() || *subject.method == Method::HEAD;
    if !has_body || !response.body().is_of_pod() {
        return;
    }
    let stated = response.headers().get(header::CONTENT_LENGTH);
    let stated = stated.and_then(|length| length.to_str().ok()?.parse().ok());
    // The end of an answer to HEAD says nothing of the body that GET would get.
    let known = || response.body().size_hint().exact().filter(|_| *subject.method != Method::HEAD);
    let (status, length) = (response.status(), stated.or_else(known));
    if let Some(offer) = filter::compress(compression, subject, status, length, response.headers_mut()) {
        response.body_mut().compress(offer);
    }
}

/// Makes an upstream's response one of ours. What concerns the upstream's connection is gone from its head already.
fn relay(response: Response<Source>, bodiless: bool, mut in_flight: InFlight) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    in_flight.answered(parts.status);
    parts.headers.entry(header::SERVER).or_insert(error::SERVER);
    // hyper speaks the client's version; that of the upstream ends here.
    parts.version = Version::HTTP_11;
    let status = parts.status;
    let bodiless = bodiless || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    let body = Body::upstream(body, StatusClass::of(status.as_u16()), bodiless, in_flight);
    Response::from_parts(parts, body)
}

/// Accepts a WebSocket handshake as the endpoint did; the rest is the tunnel's.
fn switch(
    conn: &Rc<Conn>,
    asked: Asked,
    response: Response<upstream::Tunnel>,
    mut in_flight: InFlight,
) -> Response<Body> {
    let (mut parts, endpoint) = response.into_parts();
    in_flight.answered(parts.status);
    parts.headers.entry(header::SERVER).or_insert(error::SERVER);
    let body = Body::switched(in_flight.cell());
    let tunnel = Tunnel::new(endpoint, in_flight);
    match asked {
        Asked::Stream(opened) => {
            parts.status = StatusCode::OK;
            parts.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
            // The worker's `LocalSet` owns it; it ends with the stream, which ends with the connection.
            tokio::task::spawn_local(tunnel.run_stream(Rc::clone(conn), tokio::task::id(), opened));
        }
        Asked::Connection | Asked::Nothing => {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            conn.switch(tunnel);
        }
    }
    Response::from_parts(parts, body)
}

fn own(mut in_flight: InFlight, answer: Answer, bodiless: bool) -> Response<Body> {
    in_flight.answered(answer.status());
    let class = StatusClass::of(answer.status().as_u16());
    answer.map(|text| Body::own(text, class, bodiless, in_flight))
}

/// Whether the framing is one that every server reads alike: hyper accepts more than one coding before `chunked`.
fn is_chunked_or_absent(parts: &Parts) -> bool {
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

fn target_len(uri: &Uri) -> usize {
    uri.path_and_query().map_or(0, |target| target.as_str().len())
}

/// Path and query as forwarded; borrowed where the path was normal already.
fn target<'r>(uri: &'r Uri, path: Cow<'r, str>) -> Cow<'r, str> {
    match (path, uri.path_and_query()) {
        // An absolute form without a path has an empty one, which stands for `/`.
        (Cow::Borrowed(path), Some(target)) if target.as_str().starts_with(path) => Cow::Borrowed(target.as_str()),
        (path, _) => match uri.query() {
            Some(query) => Cow::Owned(format!("{path}?{query}")),
            None => path,
        },
    }
}
