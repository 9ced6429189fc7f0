//! Authenticates a client by the methods that its rule requires.

use std::time::SystemTime;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, header};

use ingress_model::{Authentication, Basic, Satisfy, route::filter::Edits};

use crate::{
    auth::{authz_cache::Cookies, ext_authz, passwords::QueueFull},
    http::fields::Field,
    request::{
        context::RequestContext,
        error::{self, LocalReply},
    },
    server::worker::Worker,
};

/// Longest `Authorization` field that is parsed, in bytes. Some hashes take time in proportion to the password.
const CREDENTIALS_MAX: usize = 1024;

/// Admits the request and adds the results to `edits`, or returns the response to send. In both cases `cookies` are set
/// for the client.
pub(crate) async fn authenticate(
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

/// Returns name and password (RFC 7617, section 2), or `None` if there are none or several pairs.
fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let field = Field::of(headers, &header::AUTHORIZATION).once()?;
    let (scheme, encoded) = field.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > CREDENTIALS_MAX {
        return None;
    }
    let decoded = BASE64.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let name = str::from_utf8(&decoded[..colon]).ok()?.to_owned();
    Some((name, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_one_well_formed_credential_is_accepted() {
        let long = format!("Basic {}", "A".repeat(CREDENTIALS_MAX + 1));
        for (fields, expect) in [
            (&["Basic YW5uOnNlY3JldA=="][..], Some(("ann", "secret"))),
            (&["bASIC  YW5uOnNlY3JldA"], Some(("ann", "secret"))),
            (&["Basic YW5uOmE6Yg=="], Some(("ann", "a:b"))),
            (&["Basic YW5uOg=="], Some(("ann", ""))),
            (&["Basic OmE="], Some(("", "a"))),
            (&["Basic YW5u"], None),
            (&["Basic !"], None),
            (&["Basic"], None),
            (&["Bearer YW5uOnNlY3JldA=="], None),
            (&["Basic YW5uOnNlY3JldA==", "Basic YW5uOnNlY3JldA=="], None),
            (&[&long], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(header::AUTHORIZATION, HeaderValue::from_str(field).expect("valid"));
            }
            let expect = expect.map(|(name, password)| (name.to_owned(), password.as_bytes().to_vec()));
            assert_eq!(credentials(&headers), expect, "{fields:?}");
        }
    }
}
