//! Destinations of requests: redirects, rewrites, canaries.

use std::collections::BTreeSet;

use http::{HeaderName, HeaderValue};

use super::super::super::values::{boolean, cookie_text, location, namespaces, number, status};
use crate::translate::annotations::row::{Key, key};
use ingress_model::{CanarySessions, Host, Pattern, Rewrite};

/// Sorted by name.
pub(super) const KEYS: &[Key] = &[
    key(
        "affinity-canary-behavior",
        "for a canary of rules with `affinity`: `sticky` keeps clients where their sessions began, with the canary or \
         without it, and ignores the canary's header, cookie and weight; `legacy` ignores sessions",
        |value, parsed| {
            parsed.canary.sessions = match value {
                "sticky" => CanarySessions::Kept,
                "legacy" => CanarySessions::Ignored,
                _ => return Err("`sticky` or `legacy`".into()),
            };
            Ok(())
        },
    )
    .default("sticky"),
    key("app-root", "redirects requests for `/` to this path or URL, with 302", |value, parsed| {
        parsed.app_root = Some(location(value)?);
        Ok(())
    })
    .or_refuse(),
    key(
        "canary",
        "whether the Ingress takes only a part of the requests for another Ingress's rules with the same host and \
         path, in its namespace. TLS and the other annotations come from that Ingress",
        |value, parsed| boolean(value, &mut parsed.is_canary),
    )
    .default("false")
    .or_refuse(),
    key("canary-by-cookie", "a cookie that selects the canary (`always`) or avoids it (`never`)", |value, parsed| {
        parsed.canary.cookie = cookie_text(value)?;
        Ok(())
    }),
    key(
        "canary-by-header",
        "a header field that selects the canary (`always`) or avoids it (`never`); the header takes precedence over \
         the cookie, and the cookie over the weight",
        |value, parsed| {
            parsed.canary_header = Some(HeaderName::try_from(value).map_err(|_invalid| "the name of a header field")?);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "canary-by-header-pattern",
        "a regular expression that selects the canary if it matches a part of that field's value, instead of `always` \
         or `never`. A value does not match if its bytes times the states of the expression exceed 262,144",
        |value, parsed| {
            let pattern = Pattern::within_field(value).map_err(|error| format!("a regular expression ({error})"))?;
            parsed.canary_pattern = (!value.is_empty()).then_some(pattern);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "canary-by-header-value",
        "value of that field that selects the canary, instead of `always` or `never`; it takes precedence over the \
         expression",
        |value, parsed| {
            let value = HeaderValue::from_str(value).map_err(|_invalid| "the value of a header field")?;
            parsed.canary_value = Some(value).filter(|value| !value.is_empty());
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "canary-weight",
        "number of requests, of each `canary-weight-total`, that go to the canary at random",
        |value, parsed| {
            number(value, 0..=1_000_000_000, &mut parsed.canary.weight).ok_or("a number")?;
            Ok(())
        },
    )
    .default("0"),
    key("canary-weight-total", "total of the weights, see `canary-weight`", |value, parsed| {
        number(value, 1..=1_000_000_000, &mut parsed.canary.total).ok_or("a number from 1")?;
        Ok(())
    })
    .default("100"),
    key(
        "force-ssl-redirect",
        "whether requests over plain HTTP are redirected to HTTPS for hosts without TLS, too",
        |value, parsed| boolean(value, &mut parsed.force_ssl_redirect),
    )
    .default("false"),
    key(
        "from-to-www-redirect",
        "whether requests for the name with `www.` (or, if the host begins with it, without) are redirected to the \
         host; the status is `http-redirect-code`. If a rule of any Ingress names that other host, the rule applies",
        |value, parsed| boolean(value, &mut parsed.redirects_www),
    )
    .default("false"),
    key(
        "permanent-redirect",
        "redirects all requests to this location, instead of forwarding them",
        |value, parsed| {
            parsed.permanent_redirect = Some(location(value)?);
            Ok(())
        },
    )
    .or_refuse(),
    key("permanent-redirect-code", "status of `permanent-redirect`", |value, parsed| {
        status(value, &mut parsed.permanent_status)
    })
    .default("301"),
    key(
        "rewrite-target",
        "path for pods, instead of the client's; the rule's path is then a regular expression, and `$1` … `$9` are \
         its groups. The query stays",
        |value, parsed| {
            parsed.rewrite_target = Some(Rewrite::parse(value).map_err(|error| format!("a path ({error})"))?);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "server-alias",
        "further names for the first host of the rules, separated by commas, without wildcards; a canary needs its \
         own. If a rule of any Ingress names such a host, the rule applies",
        |value, parsed| {
            let names = value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Host::parse);
            let names = names.collect::<Result<BTreeSet<_>, _>>();
            let names = names.map_err(|error| format!("host names, separated by commas ({error})"))?;
            parsed.aliases = names.into_iter().collect();
            Ok(())
        },
    ),
    key(
        "share-hosts-with",
        "namespaces, separated by commas, that may add paths to the hosts of this Ingress, if `host-sharing` is \
         `granted` and the hosts belong to this namespace. Specific to xdp-ingress",
        |value, parsed| {
            parsed.shares_with = namespaces(value)?.into_iter().collect();
            Ok(())
        },
    ),
    key(
        "ssl-passthrough",
        "whether TLS connections for the hosts go to the pods unterminated, by server name; paths then have no \
         effect. See [streams](streams.md)",
        |value, parsed| boolean(value, &mut parsed.passthrough),
    )
    .default("false")
    .or_refuse(),
    key(
        "ssl-redirect",
        "whether requests over plain HTTP are redirected to HTTPS, for hosts with TLS",
        |value, parsed| boolean(value, &mut parsed.ssl_redirect),
    )
    .default("true"),
    key(
        "temporal-redirect",
        "the same as `permanent-redirect`, with another status; it takes precedence",
        |value, parsed| {
            parsed.temporal_redirect = Some(location(value)?);
            Ok(())
        },
    )
    .or_refuse(),
    key("temporal-redirect-code", "status of `temporal-redirect`", |value, parsed| {
        status(value, &mut parsed.temporal_status)
    })
    .default("302"),
    key(
        "use-regex",
        "whether paths are regular expressions, matched from the start of the path and without regard to case. \
         Applies only to this Ingress; look-around is not supported",
        |value, parsed| boolean(value, &mut parsed.use_regex),
    )
    .default("false")
    .or_refuse(),
];
