//! Decides whether a request is allowed, and chooses its upstream.

use std::net::IpAddr;

use http::{HeaderMap, StatusCode, header};

use ingress_model::{
    Blocked, ErrorPages, Filter, Texts, Unavailable, request_path,
    route::{
        RouteTarget, Share, Subject, UpstreamId, canary,
        filter::{self, Edits, Verdict},
    },
};

use crate::{
    auth::{authenticate::authenticate, authz_cache::Cookies},
    http::client_address::RequestClient,
    request::{
        context::RequestContext,
        error::{self, LocalReply},
        error_pages,
        in_flight::InFlight,
        session_affinity,
    },
    snapshot::Snapshot,
    upstream::balance::UpstreamState,
};

/// Returns whether a client is blocked. `moved` is the address that it uses now, if that is not proven.
pub(super) fn is_blocked(
    blocked: &Blocked,
    client: &RequestClient<'_>,
    moved: Option<IpAddr>,
    headers: &HeaderMap,
) -> bool {
    // Every field line is searched, and bytes that are not UTF-8 are replaced first, so that neither a second line nor
    // such a byte hides a match.
    let holds = |texts: &Texts, name| {
        headers.get_all(name).iter().any(|value| texts.hold(&String::from_utf8_lossy(value.as_bytes())))
    };
    blocked.networks.contains(client.address)
        || moved.is_some_and(|moved| blocked.networks.contains(moved))
        || holds(&blocked.agents, header::USER_AGENT)
        || holds(&blocked.referers, header::REFERER)
}

/// Runs the filters in order. Returns the upstream if all of them let the request through and the action is to forward
/// it. `share` is the backend that gets the request if several share the rule by weight.
pub(super) async fn decide<'r>(
    filters: &'r [Filter],
    action: &RouteTarget,
    share: Option<&'r Share>,
    context: &RequestContext<'_>,
    edits: &mut Edits<'r>,
    cookies: &mut Cookies,
    in_flight: &mut InFlight,
) -> Result<UpstreamId, Box<LocalReply>> {
    let RequestContext { conn, snapshot, subject, forwarding, .. } = *context;
    let moved = conn.moved();
    for filter in filters {
        let verdict = match moved {
            None => filter::apply(filter, subject, edits),
            Some(moved) => admit_moved(filter, subject, moved, filter::apply(filter, subject, edits)),
        };
        match verdict {
            Verdict::Continue => {}
            Verdict::Redirect { status, location } => return Err(error::redirect(status, &location).into()),
            Verdict::Unproven(lack) => return Err(error::unproven(lack).into()),
            Verdict::Refuse { status } => return Err(error::by_rule(status).into()),
            Verdict::Respond { status, body } => return Err(error::response_by_rule(status, body).into()),
            Verdict::Deny => return Err(error::denied().into()),
            Verdict::Limit(limit) => {
                in_flight.count(limit, subject.client).map_err(|excess| error::limited(limit, excess))?;
            }
            Verdict::Preflight => return Err(error::preflight().into()),
            // The rule answers with an error even to authenticated clients. Authentication is skipped, so that no
            // service is queried and no password is hashed.
            Verdict::Authenticate(_) if let Some(why) = refusal(action, filters, snapshot) => {
                return Err(error::refused(why).into());
            }
            // Boxed so that requests of other rules do not carry its size.
            Verdict::Authenticate(authentication) => {
                Box::pin(authenticate(authentication, context, edits, cookies)).await?
            }
        }
    }
    if let Some(share) = share {
        edit(share, subject, edits)?;
    }
    if let Some(target) = edits.target.take() {
        edits.target = Some(request_path::rewritten(target).map_err(error::path)?);
    }
    let is_ready = |id| snapshot.upstream(id).is_some_and(|upstream| !upstream.is_empty());
    let wanted = match action {
        RouteTarget::Forward(id) => Ok(*id),
        RouteTarget::Split(branches) => {
            let affinity = forwarding.affinity.as_ref();
            let home = affinity
                .and_then(|affinity| session_affinity::home(affinity, branches, subject, |id| snapshot.upstream(id)));
            Ok(canary::choose(branches, subject, home, fastrand::f64, is_ready))
        }
        RouteTarget::Weighted(_) => share.map_or(Err(Unavailable::InvalidReference), |share| share.target),
        RouteTarget::Refuse(why) => Err(*why),
        RouteTarget::Redirect(redirect) => {
            return Err(error::redirect(redirect.status, &filter::location(redirect, subject)).into());
        }
    };
    match wanted {
        Ok(id) if is_ready(id) => Ok(id),
        Ok(_) | Err(Unavailable::NoService | Unavailable::NoPort) => {
            match (error_page_backend(filters, snapshot), wanted) {
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

/// Returns the verdict for a client whose address has changed without proof: rules about addresses must admit `moved`,
/// too. A client could otherwise send requests with a forged address.
#[cold]
fn admit_moved<'f>(filter: &'f Filter, subject: &Subject<'_>, moved: IpAddr, verdict: Verdict<'f>) -> Verdict<'f> {
    match (filter, verdict) {
        (Filter::Access(access), Verdict::Continue) if !access.admits(moved) => Verdict::Deny,
        (Filter::Authentication(authentication), Verdict::Continue) if !authentication.is_met_by(moved) => {
            Verdict::Authenticate(authentication)
        }
        // What the rules answer to `moved` is of no use: its client may be elsewhere.
        (Filter::RequestRules(_), Verdict::Continue) => {
            match filter::apply(filter, &Subject { client: moved, ..*subject }, &mut Edits::default()) {
                Verdict::Continue => Verdict::Continue,
                _ => Verdict::Deny,
            }
        }
        (_, verdict) => verdict,
    }
}

/// Applies the filters of one backend, which only edit requests.
#[cold]
#[inline(never)]
fn edit<'r>(share: &'r Share, subject: &Subject<'_>, edits: &mut Edits<'r>) -> Result<(), Box<LocalReply>> {
    for filter in &share.filters {
        if filter::apply(filter, subject, edits) != Verdict::Continue {
            return Err(error::refused(Unavailable::Policy).into());
        }
    }
    Ok(())
}

/// Returns the reason why a rule answers every request with an error, or `None` if it does not.
fn refusal(action: &RouteTarget, filters: &[Filter], snapshot: &Snapshot) -> Option<Unavailable> {
    let RouteTarget::Refuse(why) = action else { return None };
    let may_be_replaced = matches!(why, Unavailable::NoService | Unavailable::NoPort);
    (!may_be_replaced || error_page_backend(filters, snapshot).is_none()).then_some(*why)
}

/// Returns the backend of the error pages, if it serves requests to rules without endpoints.
fn error_page_backend<'r>(filters: &'r [Filter], snapshot: &Snapshot) -> Option<(&'r ErrorPages, UpstreamId)> {
    let pages = filter::error_pages(filters).filter(|pages| pages.stands_in)?;
    Some((pages, snapshot.upstream_id(&pages.backend)?))
}
