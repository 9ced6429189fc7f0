//! Time-outs and retries of a rule.

use std::{sync::Arc, time::Duration};

use super::report::Flaw;
use crate::{
    gateway::{
        GatewayDuration,
        route::{Retry, Timeouts},
    },
    translate::text::shorten,
};
use ingress_model::Forwarding;

/// Silence that a rule without a deadline accepts, because it says so.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Maximum number of repetitions. The specification has no limit.
const MAX_ATTEMPTS: u32 = 100;

/// Returns the forwarding policy of a rule: the default one with its own time-outs and retries.
///
/// # Errors
/// The flaw of a value that is not valid.
pub(super) fn read(
    Timeouts { request, backend_request }: &Timeouts,
    retry: Option<&Retry>,
    default: &Arc<Forwarding>,
) -> Result<Arc<Forwarding>, Flaw> {
    if request.is_none() && backend_request.is_none() && retry.is_none() {
        return Ok(Arc::clone(default));
    }
    let mut forwarding = Forwarding::clone(default);
    let (request, backend_request) = (deadline(request.as_ref())?, deadline(backend_request.as_ref())?);
    // A deadline alone decides how long an endpoint may be silent.
    for deadline in [request, backend_request].into_iter().flatten() {
        let silence = if deadline.is_zero() { UNLIMITED } else { deadline };
        forwarding.read_timeout = forwarding.read_timeout.max(silence);
        forwarding.send_timeout = forwarding.send_timeout.max(silence);
    }
    forwarding.request_timeout = request.filter(|deadline| !deadline.is_zero());
    forwarding.backend_request_timeout = backend_request.filter(|deadline| !deadline.is_zero());
    if let Some(retry) = retry {
        forwarding.retry = read_retry(retry)?;
    }
    Ok(Arc::new(forwarding))
}

fn deadline(written: Option<&GatewayDuration>) -> Result<Option<Duration>, Flaw> {
    let Some(written) = written else { return Ok(None) };
    let message = || format!("`{}` is no duration; write it like `10s` or `1m30s`", shorten(&written.0));
    written.parse().map(Some).ok_or_else(|| Flaw::unsupported(message()))
}

fn read_retry(Retry { codes, attempts, backoff }: &Retry) -> Result<ingress_model::Retry, Flaw> {
    if let Some(code) = codes.iter().find(|code| !(400..600).contains(*code)) {
        let message = format!("status `{code}` is no reason to repeat a request; name those from 400 to 599");
        return Err(Flaw::unsupported(message));
    }
    let attempts = usize::try_from(*attempts.min(&MAX_ATTEMPTS)).unwrap_or_default();
    Ok(ingress_model::Retry {
        timeout: true,
        statuses: codes.to_vec(),
        // The author of the route asks for repetitions, whatever the method.
        non_idempotent: true,
        tries: 1 + attempts,
        same_endpoint: true,
        backoff: deadline(backoff.as_ref())?.filter(|pause| !pause.is_zero()),
        ..ingress_model::Retry::DEFAULT
    })
}
