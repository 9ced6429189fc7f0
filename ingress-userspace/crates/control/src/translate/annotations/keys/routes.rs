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
        "of a canary, for rules with `affinity`: `sticky` keeps a client where its session began, with the canary or \
         without, whatever the canary's header, cookie and weight say; `legacy` ignores sessions",
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
    key("app-root", "where a request for `/` is redirected to, with 302", |value, parsed| {
        parsed.app_root = Some(location(value)?);
        Ok(())
    })
    .or_refuse(),
    key(
        "canary",
        "whether the Ingress only takes some of the requests from another one's rules for the same host and path, in \
         its namespace. All else, as TLS and other annotations, is that one's",
        |value, parsed| boolean(value, &mut parsed.is_canary),
    )
    .default("false")
    .or_refuse(),
    key("canary-by-cookie", "a cookie with the value `always` or `never`", |value, parsed| {
        parsed.canary.cookie = cookie_text(value)?;
        Ok(())
    }),
    key(
        "canary-by-header",
        "a header field with the value `always` or `never`; it goes before the cookie, and that before the weight",
        |value, parsed| {
            parsed.canary_header = Some(HeaderName::try_from(value).map_err(|_invalid| "the name of a header field")?);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "canary-by-header-pattern",
        "a regular expression that matches a part of that field's value, instead of `always` or `never`. A value does \
         not match if its bytes times the states of the expression are more than 262,144",
        |value, parsed| {
            let pattern = Pattern::within_field(value).map_err(|error| format!("a regular expression ({error})"))?;
            parsed.canary_pattern = (!value.is_empty()).then_some(pattern);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "canary-by-header-value",
        "value of that field that selects the canary, instead of `always` or `never`; it goes before the expression",
        |value, parsed| {
            let value = HeaderValue::from_str(value).map_err(|_invalid| "the value of a header field")?;
            parsed.canary_value = Some(value).filter(|value| !value.is_empty());
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "canary-weight",
        "how many of `canary-weight-total` requests the canary gets, drawn at random",
        |value, parsed| {
            number(value, 0..=1_000_000_000, &mut parsed.canary.weight).ok_or("a number")?;
            Ok(())
        },
    )
    .default("0"),
    key("canary-weight-total", "see `canary-weight`", |value, parsed| {
        number(value, 1..=1_000_000_000, &mut parsed.canary.total).ok_or("a number from 1")?;
        Ok(())
    })
    .default("100"),
    key("force-ssl-redirect", "whether hosts without TLS are redirected to it, too", |value, parsed| {
        boolean(value, &mut parsed.force_ssl_redirect)
    })
    .default("false"),
    key(
        "from-to-www-redirect",
        "whether requests for a host are redirected to it that come for the same name with `www.` before it, or \
         without; the status is `http-redirect-code`. Where a rule of any Ingress names that host, the rule stands",
        |value, parsed| boolean(value, &mut parsed.redirects_www),
    )
    .default("false"),
    key("permanent-redirect", "where all requests are redirected to, instead of to a service", |value, parsed| {
        parsed.permanent_redirect = Some(location(value)?);
        Ok(())
    })
    .or_refuse(),
    key("permanent-redirect-code", "status of `permanent-redirect`", |value, parsed| {
        status(value, &mut parsed.permanent_status)
    })
    .default("301"),
    key(
        "rewrite-target",
        "path that pods get instead of the client's; `$1` … `$9` are groups of the rule's path, which is a regular \
         expression then. The query stays",
        |value, parsed| {
            parsed.rewrite_target = Some(Rewrite::parse(value).map_err(|error| format!("a path ({error})"))?);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "server-alias",
        "further names, separated by commas and without wildcards, of the first host that the rules name; canaries are \
         asked for theirs by themselves. Where a rule of any Ingress names such a host, the rule stands",
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
        "namespaces, separated by commas, whose Ingresses may add paths to its hosts, where `host-sharing` is \
         `granted` and the hosts are this namespace's. Specific to xdp-ingress",
        |value, parsed| {
            parsed.shares_with = namespaces(value)?.into_iter().collect();
            Ok(())
        },
    ),
    key(
        "ssl-passthrough",
        "whether connections over TLS for its hosts are passed on to pods as they are, by the server name alone; paths \
         have no say then. See [streams](streams.md)",
        |value, parsed| boolean(value, &mut parsed.passthrough),
    )
    .default("false")
    .or_refuse(),
    key("ssl-redirect", "whether hosts with TLS are redirected to it", |value, parsed| {
        boolean(value, &mut parsed.ssl_redirect)
    })
    .default("true"),
    key("temporal-redirect", "as `permanent-redirect`, with another status; it goes before that", |value, parsed| {
        parsed.temporal_redirect = Some(location(value)?);
        Ok(())
    })
    .or_refuse(),
    key("temporal-redirect-code", "status of `temporal-redirect`", |value, parsed| {
        status(value, &mut parsed.temporal_status)
    })
    .default("302"),
    key(
        "use-regex",
        "whether paths are regular expressions, matched from the path's begin whatever the case. Of this Ingress \
         alone, and without look-around",
        |value, parsed| boolean(value, &mut parsed.use_regex),
    )
    .default("false")
    .or_refuse(),
];
