//! Serves one request: authority → path → route → filters → forward. It parses no bytes and keeps no connection.

use std::{convert::Infallible, future::Future, rc::Rc};

use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts};
use hyper::{body::Incoming, upgrade::OnUpgrade};

use crate::{
    model::HostId,
    route::{
        Matched, Route, Subject,
        filter::{self, Edits, Shown},
    },
};

use super::{
    access_log::{Teller, Telling},
    authenticate::Asking,
    body::{Body, RequestBody, TooLarge},
    conn::Conn,
    error,
    external::Cookies,
    forward::ForwardError,
    in_flight::InFlight,
    memory::Pressure,
    mirror,
    offence::Offence,
    request_id::RequestId,
    rest::{REST_MAX, Unread},
    session::Session,
    snapshot::Snapshot,
    traces::Trace,
    websocket,
};

mod admission;
mod exchange;
mod matching;
mod response;

use admission::{decide, is_blocked};
use exchange::{Admitted, exchange};
use matching::{Matching, Refusal};
use response::{compress, own};

/// Answers a request of `conn`. Whatever goes wrong is a response; hyper itself answers what it cannot parse.
pub(super) fn serve(
    conn: Rc<Conn>,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> {
    let opened = (request.method() == Method::CONNECT).then(|| hyper::upgrade::on(&mut request));
    // Taken apart before there is a future, which then has the parts where they stay: an `async fn` would move what it
    // is given once more.
    let (mut parts, incoming) = request.into_parts();
    conn.take_head();
    #[cfg(test)]
    crate::panics::provoke(&parts.headers);
    let incoming = Unread::new(&conn, incoming);
    async move {
        let snapshot = conn.worker.snapshot();
        let bodiless = parts.method == Method::HEAD;
        // Said of the connection, but true of one request alone: the one that ended with its head. An earlier one with
        // a body may still be served while the next, which is it, waits.
        let asked = conn.is_asked_handshake() && incoming.is_end_stream() && websocket::looks_like_one(&parts);
        let client = match opened {
            Some(opened) if websocket::is_extended_connect(&parts) => Asked::Stream(opened),
            _ if asked => Asked::Connection,
            _ => Asked::Nothing,
        };
        let mut telling = Telling::new(&conn, &snapshot, &mut parts);
        let (parts, teller) = (&*telling.request, &mut telling.teller);
        let mut response = match Matching::of(&conn, &snapshot, parts) {
            Ok(ref matching) => matching.act(&conn, &snapshot, parts, incoming, client, teller).await,
            Err(Refusal { host, answer }) => {
                drop(incoming);
                own(begin(&conn, host, teller.as_deref()), *answer, bodiless)
            }
        };
        // Only answers of our own have extensions.
        if let Some(offence) = response.extensions_mut().remove::<Offence>() {
            conn.offend(offence);
        }
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if asked && !switched {
            conn.decline();
        }
        // Tells the client before it loses a request to the close; HTTP/2 has GOAWAY for that.
        if parts.version != Version::HTTP_2
            && !switched
            && (!conn.worker.keeps_alive() || leaves_too_much(&conn, parts, &response))
        {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            // It is read, if it still comes, while the connection lingers.
            drop(conn.take_rests());
        }
        telling.answered(response.status().as_u16());
        Ok(response)
    }
}

/// Whether what is still to come of the request's body is more than can be waited for before the next request.
fn leaves_too_much(conn: &Conn, request: &Parts, response: &Response<Body>) -> bool {
    response.body().unsent() > REST_MAX
        || conn.left().is_some_and(|left| left.ends(&request.headers, response.headers()))
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

impl Matching<'_> {
    async fn act(
        &self,
        conn: &Rc<Conn>,
        snapshot: &Snapshot,
        parts: &Parts,
        incoming: Unread,
        asked: Asked,
        teller: &mut Option<Box<Teller>>,
    ) -> Response<Body> {
        let Self { authority, fields, target, found } = self;
        let host = found.host.map_or(HostId::UNATTRIBUTED, |entry| entry.id);
        let mut in_flight = begin(conn, host, teller.as_deref());
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
        Teller::skip(teller, target);
        let identity = if conn.secure { conn.shown.identity(snapshot, found.host) } else { Ok(None) };
        let Ok(identity) = identity else { return own(in_flight, error::misdirected(), bodiless) };
        // To filters and endpoints it is the request of HTTP/1.1 that it becomes.
        let connect = parts.method == Method::CONNECT;
        let subject = Subject {
            method: if connect { &Method::GET } else { &parts.method },
            host: authority.host(),
            port: authority.port,
            target,
            headers: &parts.headers,
            secure: client.secure,
            certificate: identity.as_ref().map_or(Shown::Nothing, |identity| identity.shown),
            client: client.address,
            https_port: conn.worker.options.https_port,
        };
        let request_id = RequestId::of(fields.request_id);
        let asking = Asking {
            conn,
            snapshot,
            forwarding,
            version: parts.version,
            authority,
            client: &client,
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
        let pages = filter::error_pages(filters);
        let decided = decide(filters, action, &asking, &mut edits, &mut cookies, &mut in_flight).await;
        let mut admitted = decided.and_then(|id| {
            let handshake = match asked {
                Asked::Nothing => None,
                Asked::Connection | Asked::Stream(_) => websocket::handshake(parts).map_err(error::handshake)?,
            };
            let mut body = RequestBody::new(incoming, forwarding.body_max, &in_flight)
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
            body.tell(teller.as_mut().map(|teller| teller.forwarded(&request_id, upstream.key())));
            // A session is with the rule's own pods.
            let is_own = pages.is_none_or(|pages| pages.backend != *upstream.key());
            let affinity = forwarding.affinity.as_ref().filter(|_| is_own);
            let session = affinity.and_then(|affinity| Session::of(affinity, action, (id, upstream), &subject));
            Ok(Admitted { upstream, session, handshake, body: Some(body) })
        });
        let mut response = match admitted {
            Ok(ref mut admitted) => exchange(&asking, admitted, &edits, pages, asked, in_flight, teller).await,
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
