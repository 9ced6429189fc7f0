//! The rules for retries (RFC 9110, section 9.2.2), and for the health of endpoints.
//!
//! The cases for a retry, and their number, unless the rule configures them ([`Retry`]):
//!
//! | failure | next |
//! |---|---|
//! | no connection | another endpoint, at most three in all; the request was not touched |
//! | a reused connection turned out closed | the same endpoint on a new connection, if nothing was sent or the method is idempotent |
//! | a new connection closed before any byte of a response | another endpoint, once, if nothing was sent or the method is idempotent |
//! | no resources of this node for a connection | as for no connection, and the endpoint is not blamed |
//! | an HTTP/2 stream refused by the endpoint, or excluded by its GOAWAY | as for a closed connection; nothing was sent |
//! | a timeout, a malformed response, a stream reset | never: the endpoint may still be processing the request |
//!
//! All cases require that the body is untouched. Where a rule has `same_endpoint`, "another endpoint" may be one that was
//! tried already, once there is no other.

use http::Method;

use super::SubrequestError;
use crate::upstream::{ConnectError, ExchangeError, ExchangeFailure};
use ingress_model::Retry;

/// Returns whether a failure counts against the endpoint.
pub(super) fn is_blamed(error: &SubrequestError) -> bool {
    use ExchangeError::{Aborted, Closed, HeadTooLarge, Io, Malformed, RequestBody, Reset, Starved, Timeout};
    match error {
        SubrequestError::Connect(error) => match **error {
            // This node lacks resources.
            ConnectError::Exhausted { .. } => false,
            ConnectError::Timeout { .. }
            | ConnectError::Refused { .. }
            | ConnectError::Tls { .. }
            | ConnectError::Io { .. } => true,
        },
        SubrequestError::Exchange(error) => match error {
            Closed | Reset | Timeout { .. } | Io(_) => true,
            // A malformed response may be caused by the request rather than by the endpoint.
            Malformed(_) | HeadTooLarge | Aborted => false,
            RequestBody(_) | Starved => false,
        },
        SubrequestError::NoEndpoints
        | SubrequestError::Full(_)
        | SubrequestError::Deadline(_)
        | SubrequestError::TooLong(_)
        | SubrequestError::Body(_) => false,
    }
}

/// Returns whether a request that failed on a reused connection goes to the same endpoint on a new one. An endpoint may
/// close an idle connection at any time, so this does not depend on the errors that `retry` has. A sent request with
/// another method is repeated only where the rule repeats it after such errors on new connections, too.
pub(super) fn is_stale<B>(failure: &ExchangeFailure<B>, method: &Method, retry: &Retry) -> bool {
    let is_repeatable = method.is_idempotent() || (retry.error && retry.non_idempotent);
    failure.unsent.is_some() && is_closed_exchange(&failure.error) && (!failure.written || is_repeatable)
}

/// Returns whether a request that failed on a new connection goes to another endpoint.
pub(super) fn is_repeated(error: &ExchangeError, written: bool, method: &Method, retry: &Retry) -> bool {
    let is_wanted = match error {
        ExchangeError::Timeout { .. } => retry.timeout,
        error => is_closed_exchange(error) && retry.error,
    };
    is_wanted && (!written || is_repeatable(method, retry))
}

/// Returns whether a request with an invalid response goes to another endpoint.
pub(super) fn is_repeated_invalid(error: &SubrequestError, method: &Method, retry: &Retry) -> bool {
    use ExchangeError::{HeadTooLarge, Malformed};
    let is_invalid = matches!(error, SubrequestError::Exchange(Malformed(_) | HeadTooLarge));
    is_invalid && retry.invalid_header && is_repeatable(method, retry)
}

/// Returns whether a request without a response in time goes to another endpoint.
pub(super) fn is_repeated_late(error: &SubrequestError, method: &Method, retry: &Retry) -> bool {
    let is_late = matches!(error, SubrequestError::Exchange(ExchangeError::Timeout { .. }));
    is_late && retry.timeout && is_repeatable(method, retry)
}

/// Returns whether a request may be repeated after it was sent: its method is idempotent (RFC 9110, section 9.2.2), or
/// the rule allows it.
pub(super) fn is_repeatable(method: &Method, retry: &Retry) -> bool {
    method.is_idempotent() || retry.non_idempotent
}

/// Returns whether the connection was closed before any byte of a response. A request is repeated once after that.
pub(super) fn is_closed(error: &SubrequestError) -> bool {
    matches!(error, SubrequestError::Exchange(error) if is_closed_exchange(error))
}

fn is_closed_exchange(error: &ExchangeError) -> bool {
    matches!(error, ExchangeError::Closed | ExchangeError::Reset | ExchangeError::Io(_))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::upstream::{
        Malformed, TimeoutPhase,
        balance::{Choice, Full, Picked, Tried, UpstreamState},
    };
    use ingress_model::{Endpoint, Upstream, UpstreamKey};

    const TIMEOUT: ExchangeError = ExchangeError::Timeout { what: TimeoutPhase::Head };

    fn exchange_errors() -> [ExchangeError; 9] {
        [
            ExchangeError::Closed,
            ExchangeError::Reset,
            ExchangeError::Io(io::ErrorKind::Other.into()),
            TIMEOUT,
            ExchangeError::Malformed(Malformed::StatusLine),
            ExchangeError::HeadTooLarge,
            ExchangeError::Aborted,
            ExchangeError::RequestBody("cut".into()),
            ExchangeError::Starved,
        ]
    }

    #[test]
    fn closed_connections_and_timeouts_count_against_the_endpoint() {
        let blamed = exchange_errors().map(|error| is_blamed(&SubrequestError::Exchange(error)));
        assert_eq!(blamed, [true, true, true, true, false, false, false, false, false]);
        let others = [
            SubrequestError::NoEndpoints,
            SubrequestError::Full(Full::Requests),
            SubrequestError::Deadline(std::time::Duration::ZERO),
            SubrequestError::TooLong(1),
            SubrequestError::Body("cut".into()),
        ];
        assert!(!others.iter().any(is_blamed));
    }

    #[test]
    fn resources_that_this_node_lacks_do_not_count_against_the_endpoint() {
        let address = ([10, 0, 0, 1], 80).into();
        let other = ([10, 0, 0, 2], 80).into();
        for (code, blamed) in [
            (libc::EMFILE, false),
            (libc::ENFILE, false),
            (libc::EADDRNOTAVAIL, false),
            (libc::EAGAIN, false),
            (libc::ENOBUFS, false),
            (libc::ENOMEM, false),
            (libc::ECONNREFUSED, true),
            (libc::ETIMEDOUT, true),
            (libc::EHOSTUNREACH, true),
        ] {
            let endpoints = [address, other].map(|address| Endpoint { address }).into();
            let state = UpstreamState::carry(
                &UpstreamKey::new("default", "web", "80"),
                &Upstream { endpoints, ..Upstream::default() },
                None,
                None,
            );
            let picked = state.pick(Choice::Next, || 0, &mut Tried::up_to(3)).expect("an endpoint");
            let error = ConnectError::new(address, io::Error::from_raw_os_error(code));
            let failed = SubrequestError::Connect(Box::new(error));
            assert_eq!(is_blamed(&failed), blamed, "{code}");
            if is_blamed(&failed) {
                picked.failed(0);
            }
            let next: Vec<_> = (0..2)
                .filter_map(|_| state.pick(Choice::Next, || 1, &mut Tried::up_to(3)))
                .map(Picked::address)
                .collect();
            assert_eq!(next.contains(&address), !blamed, "{code}");
            assert_eq!(crate::request::error::forward(&failed).status() == 503, !blamed, "{code}");
        }
    }

    #[test]
    fn a_request_goes_to_another_endpoint_where_the_rule_and_its_method_allow_it() {
        let default = Retry::DEFAULT;
        let never = Retry { error: false, ..default.clone() };
        let after_timeouts = Retry { error: false, timeout: true, ..default.clone() };
        let any_method = Retry { non_idempotent: true, ..default.clone() };
        for (retry, written, method, closed, timeout) in [
            (&default, true, Method::GET, true, false),
            (&default, true, Method::PUT, true, false),
            (&default, true, Method::POST, false, false),
            (&default, false, Method::POST, true, false),
            (&never, false, Method::GET, false, false),
            (&after_timeouts, true, Method::GET, false, true),
            (&after_timeouts, true, Method::POST, false, false),
            (&any_method, true, Method::POST, true, false),
        ] {
            let expect = [closed, closed, closed, timeout, false, false, false, false, false];
            let repeated = exchange_errors().map(|error| is_repeated(&error, written, &method, retry));
            assert_eq!(repeated, expect, "{retry:?} {written} {method}");
        }
    }

    #[test]
    fn a_closed_idle_connection_is_replaced_whatever_the_rule_says_of_errors() {
        let default = Retry::DEFAULT;
        let never = Retry { error: false, timeout: true, ..default.clone() };
        let any_method = Retry { non_idempotent: true, ..default.clone() };
        // `proxy-next-upstream: "off"` with `retry-non-idempotent: "true"` for all rules.
        let off = Retry { error: false, ..any_method.clone() };
        for (retry, written, method, closed) in [
            (&default, true, Method::GET, true),
            (&default, true, Method::POST, false),
            (&default, false, Method::POST, true),
            (&never, true, Method::GET, true),
            (&any_method, true, Method::POST, true),
            (&off, true, Method::POST, false),
            (&off, true, Method::GET, true),
        ] {
            let expect = [closed, closed, closed, false, false, false, false, false, false];
            for unsent in [Some(()), None] {
                let stale = exchange_errors()
                    .map(|error| is_stale(&ExchangeFailure { error, unsent, reused: true, written }, &method, retry));
                assert_eq!(stale, expect.map(|expect| expect && unsent.is_some()), "{retry:?} {written} {method}");
            }
        }
    }

    #[test]
    fn late_responses_are_repeated_only_where_the_rule_says_so() {
        let default = Retry::DEFAULT;
        let repeats = Retry { timeout: true, ..default.clone() };
        for (retry, method, expect) in
            [(&default, Method::GET, false), (&repeats, Method::GET, true), (&repeats, Method::POST, false)]
        {
            let errors = exchange_errors().map(SubrequestError::Exchange);
            let repeated = errors.map(|error| is_repeated_late(&error, &method, retry));
            assert_eq!(repeated, [false, false, false, expect, false, false, false, false, false], "{method}");
        }
    }

    #[test]
    fn invalid_responses_are_repeated_only_where_the_rule_says_so() {
        let default = Retry::DEFAULT;
        let repeats = Retry { invalid_header: true, ..default.clone() };
        for (retry, method, expect) in
            [(&default, Method::GET, false), (&repeats, Method::GET, true), (&repeats, Method::POST, false)]
        {
            let errors = exchange_errors().map(SubrequestError::Exchange);
            let repeated = errors.map(|error| is_repeated_invalid(&error, &method, retry));
            assert_eq!(repeated, [false, false, false, false, expect, expect, false, false, false], "{method}");
        }
    }
}
