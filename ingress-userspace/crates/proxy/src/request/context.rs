//! The context of a request with a known rule, for authentication, error pages and mirrors.

use std::rc::Rc;

use http::Version;

use ingress_model::{
    Forwarding, Retry,
    route::{Subject, filter::Edits},
};

use crate::{
    downstream::conn::Conn,
    http::{
        authority::Authority, client_address::RequestClient, fields::Fields, headers::ForwardedHead,
        request_id::RequestId,
    },
    snapshot::Snapshot,
    tls::client_certificates::ClientIdentity,
    upstream::{
        ExchangeLimits,
        balance::{Choice, UpstreamState},
        subrequest::Plan,
    },
};

/// A request with a known rule, and its context.
pub(crate) struct RequestContext<'r> {
    pub(crate) conn: &'r Rc<Conn>,
    pub(crate) snapshot: &'r Snapshot,
    pub(crate) forwarding: &'r Forwarding,
    /// The Ingress of the rule, as `namespace/name`.
    pub(crate) owner: &'r str,
    pub(crate) version: Version,
    pub(crate) authority: &'r Authority<'r>,
    pub(crate) client: &'r RequestClient<'r>,
    pub(crate) subject: &'r Subject<'r>,
    /// The fields in its header map that the proxy uses.
    pub(crate) fields: &'r Fields<'r>,
    /// The identity in the client's certificate, if the host requests one.
    pub(crate) identity: Option<&'r ClientIdentity>,
    /// The id that all requests sent on behalf of this one share.
    pub(crate) request_id: &'r RequestId,
}

impl RequestContext<'_> {
    /// Returns the head for a pod, never as a WebSocket handshake. `subject` is the request itself, or replaces it and
    /// has the same fields.
    pub(crate) fn head<'h>(&'h self, subject: &'h Subject<'h>, edits: &'h Edits<'h>) -> ForwardedHead<'h> {
        let Self {
            conn: _,
            snapshot,
            forwarding: _,
            owner: _,
            version,
            authority,
            client,
            subject: _,
            fields,
            identity,
            request_id,
        } = *self;
        let identity = identity.map(|identity| identity.fields.as_bytes());
        let underscores = snapshot.settings.underscores;
        ForwardedHead {
            version,
            subject,
            fields,
            authority,
            edits,
            client,
            identity,
            request_id,
            handshake: None,
            underscores,
        }
    }

    /// Returns the policies for a request to `upstream` that provides the client's response.
    pub(crate) fn plan<'p>(&self, upstream: &UpstreamState, choice: Choice, retry: &'p Retry) -> Plan<'p> {
        let limits = ExchangeLimits { copies_fields: self.conn.is_http2(), ..self.snapshot.limits(self.forwarding) };
        let header = |version| Box::new(self.conn.proxy_header(version, self.client.address));
        let is_timed = self.conn.worker.options.times_upstreams;
        let proxy_header = upstream.proxy_header().map(header);
        Plan { choice, retry, limits, proxy_header, is_judged: true, is_timed, try_timeout: None }
    }
}
