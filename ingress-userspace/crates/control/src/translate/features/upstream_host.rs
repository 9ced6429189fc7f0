//! `Host` in requests for pods.

use http::{HeaderValue, uri::Authority};

use super::row::{Row, key};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<Option<HeaderValue>>] =
    &[key("upstream-vhost", "`Host` for pods, instead of the client's")
        .differs("a host without variables")
        .or_refuse()
        .reads(|value, parsed| {
            let authority: Authority = value.parse().map_err(|_invalid| "a host, as `a.test` or `a.test:8080`")?;
            if authority.as_str().contains('@') {
                return Err("a host, without a user".into());
            }
            *parsed = HeaderValue::from_str(authority.as_str()).ok();
            Ok(())
        })];
