//! Authenticates a client by the methods that its rule requires.

use std::time::SystemTime;

use http::HeaderMap;

use ingress_model::{
    Authentication, Basic, Satisfy,
    route::{
        basic::credentials,
        filter::{self, Edits},
    },
};

use crate::{
    auth::{authz_cache::Cookies, ext_authz, passwords::QueueFull},
    request::{
        context::RequestContext,
        error::{self, LocalReply},
    },
    server::worker::Worker,
};

/// Admits the request and adds the results to `edits`, or returns the response to send. In both cases `cookies` are set
/// for the client.
pub(crate) async fn authenticate(
    authentication: &Authentication,
    context: &RequestContext<'_>,
    edits: &mut Edits<'_>,
    cookies: &mut Cookies,
) -> Result<(), LocalReply> {
    let admitted = judge(authentication, context, edits, cookies).await;
    // Some methods admit a client without a question to the service, whose fields pods trust all the same. The service
    // itself gets the client's own.
    edits.found.extend(authentication.claimed());
    admitted
}

/// Decides by the methods in turn.
async fn judge(
    authentication: &Authentication,
    context: &RequestContext<'_>,
    edits: &mut Edits<'_>,
    cookies: &mut Cookies,
) -> Result<(), LocalReply> {
    let Authentication { basic, token, ext_authz, satisfy } = authentication;
    let mut refused = match basic {
        None => None,
        Some(basic) => match (verify(basic, &context.conn.worker, context.subject.headers).await, satisfy) {
            (Ok(()), Satisfy::Any(_)) => return Ok(()),
            (Ok(()), Satisfy::All) => None,
            (Err(answer), Satisfy::All) => return Err(answer),
            (Err(answer), Satisfy::Any(_)) => Some(answer),
        },
    };
    if let Some(token) = token {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let worker = &context.conn.worker;
        let judged = worker.shared.tokens.judge(token, context.subject.headers, now, context.snapshot, worker).await;
        match (judged, satisfy) {
            (Ok(found), _) => {
                edits.found.extend(found);
                if matches!(satisfy, Satisfy::Any(_)) {
                    return Ok(());
                }
            }
            (Err(why), Satisfy::All) => return Err(error::no_token(why)),
            (Err(why), Satisfy::Any(_)) => refused = refused.or_else(|| Some(error::no_token(why))),
        }
    }
    let Some(ext_authz) = ext_authz else { return refused.map_or(Ok(()), Err) };
    if filter::exempts(&ext_authz.exempt, context.subject) {
        return Ok(());
    }
    match ext_authz::ask(ext_authz, context, &edits.found, cookies).await {
        Ok(found) => {
            edits.found.extend(found);
            Ok(())
        }
        // If one method is enough and all failed, the client gets the response that it can act on: the sign-in page if
        // there is one, and otherwise the challenge for a password or token.
        Err(answer) => Err(refused.filter(|_| ext_authz.sign_in.is_none()).unwrap_or(answer)),
    }
}

async fn verify(basic: &Basic, worker: &Worker, headers: &HeaderMap) -> Result<(), LocalReply> {
    let challenge = &basic.challenge;
    let Some((name, password)) = credentials(headers) else { return Err(error::unauthorized(challenge)) };
    match worker.shared.passwords.verify(basic, &name, &password).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(error::wrong_password(challenge)),
        Err(QueueFull) => Err(error::busy()),
    }
}
