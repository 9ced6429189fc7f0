//! The settings that are honoured, as a table: one row per key. It reads values and reports nothing.
//!
//! Keys are ingress-nginx's, and mean here what they mean there.

use std::{num::NonZeroU32, sync::Arc};

use http::{HeaderName, header};

use super::{
    super::{
        annotations::{balance, retry_tries, retry_when, retry_within},
        values::{Read, boolean, limit, networks, number, seconds, status},
    },
    Globals,
};
use crate::{
    control::change::ObjectName,
    model::{LogEscape, LogFormat, PathMatch},
};

/// One key.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// What stands where the key is not set, as it would be written.
    pub(super) default: &'static str,
    /// The same for classes that are taken over from ingress-nginx.
    pub(super) nginx: &'static str,
    /// For people: what it sets, with its unit and limits.
    pub(super) meaning: &'static str,
    /// Sets the value, or tells what to write instead.
    pub(super) apply: fn(&str, &mut Globals) -> Read,
}

/// The format of ingress-nginx.
const UPSTREAM_INFO: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id"#;

/// Sorted by name.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "add-headers",
        default: "",
        nginx: "",
        meaning: "a ConfigMap, as `namespace/name`, whose data are fields that every response gets",
        apply: |value, globals| config_map(value, &mut globals.add_headers),
    },
    Setting {
        name: "client-body-timeout",
        default: "60",
        nginx: "60",
        meaning: "longest pause within a request body, and longest time that a client takes no byte of a response, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.stall_timeout),
    },
    Setting {
        name: "client-header-timeout",
        default: "10",
        nginx: "60",
        meaning: "time for the head of a request from its first byte to its last, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.head_timeout),
    },
    Setting {
        name: "compute-full-forwarded-for",
        default: "false",
        nginx: "false",
        meaning: "whether pods get all addresses of `forwarded-for-header`, and the peer's, with `use-forwarded-headers`; else the client's alone",
        apply: |value, globals| boolean(value, &mut globals.settings.trust.keeps_chain),
    },
    Setting {
        name: "denylist-source-range",
        default: "",
        nginx: "",
        meaning: "networks that get 403 where an Ingress does not say, separated by commas",
        apply: |value, globals| networks(value, &mut globals.asked.access.deny),
    },
    Setting {
        name: "disable-access-log",
        default: "true",
        nginx: "false",
        meaning: "whether no line is written of each request, on standard output",
        apply: |value, globals| boolean(value, &mut globals.log.disabled),
    },
    Setting {
        name: "enable-real-ip",
        default: "false",
        nginx: "false",
        meaning: "whether `forwarded-for-header` of the networks of `proxy-real-ip-cidr` names the client, even without `use-forwarded-headers`",
        apply: |value, globals| boolean(value, &mut globals.settings.trust.address),
    },
    Setting {
        name: "force-ssl-redirect",
        default: "false",
        nginx: "false",
        meaning: "whether hosts without TLS are redirected to it, too",
        apply: |value, globals| boolean(value, &mut globals.asked.force_ssl_redirect),
    },
    Setting {
        name: "forwarded-for-header",
        default: "X-Forwarded-For",
        nginx: "X-Forwarded-For",
        meaning: "the field in which proxies in front of this one note their clients",
        apply: |value, globals| chain_field(value, &mut globals.settings.trust.field),
    },
    Setting {
        name: "global-allowed-response-headers",
        default: "",
        nginx: "",
        meaning: "fields that `custom-headers` of an Ingress may set, separated by commas; all if there are none",
        apply: |value, globals| {
            globals.allowed_headers = header_names(value)?;
            Ok(())
        },
    },
    Setting {
        name: "global-auth-always-set-cookie",
        default: "false",
        nginx: "false",
        meaning: "as annotation `auth-always-set-cookie`, for `global-auth-url`",
        apply: |value, globals| globals.asked.authentication.global.always_set_cookie(value),
    },
    Setting {
        name: "global-auth-cache-duration",
        default: "200 202 401 5m",
        nginx: "200 202 401 5m",
        meaning: "as annotation `auth-cache-duration`",
        apply: |value, globals| globals.asked.authentication.global.cache_duration(value),
    },
    Setting {
        name: "global-auth-cache-key",
        default: "",
        nginx: "",
        meaning: "as annotation `auth-cache-key`",
        apply: |value, globals| globals.asked.authentication.global.cache_key(value),
    },
    Setting {
        name: "global-auth-method",
        default: "GET",
        nginx: "GET",
        meaning: "as annotation `auth-method`",
        apply: |value, globals| globals.asked.authentication.global.method(value),
    },
    Setting {
        name: "global-auth-request-redirect",
        default: "",
        nginx: "",
        meaning: "as annotation `auth-request-redirect`",
        apply: |value, globals| globals.asked.authentication.global.request_redirect(value),
    },
    Setting {
        name: "global-auth-response-headers",
        default: "",
        nginx: "",
        meaning: "as annotation `auth-response-headers`",
        apply: |value, globals| globals.asked.authentication.global.response_headers(value),
    },
    Setting {
        name: "global-auth-signin",
        default: "",
        nginx: "",
        meaning: "as annotation `auth-signin`",
        apply: |value, globals| globals.asked.authentication.global.sign_in(value),
    },
    Setting {
        name: "global-auth-signin-redirect-param",
        default: "rd",
        nginx: "rd",
        meaning: "as annotation `auth-signin-redirect-param`",
        apply: |value, globals| globals.asked.authentication.global.redirect_param(value),
    },
    Setting {
        name: "global-auth-url",
        default: "",
        nginx: "",
        meaning: "as annotation `auth-url`, for rules of Ingresses that have none; where one of `global-auth-…` cannot be read, these answer 503",
        apply: |value, globals| globals.asked.authentication.global.url(value),
    },
    Setting {
        name: "hide-headers",
        default: "",
        nginx: "",
        meaning: "fields of pods that clients do not get, separated by commas",
        apply: |value, globals| {
            globals.hidden_headers = header_names(value)?;
            Ok(())
        },
    },
    Setting {
        name: "hsts",
        default: "false",
        nginx: "true",
        meaning: "whether browsers are told to come over TLS from now on (RFC 6797), by hosts with TLS",
        apply: |value, globals| boolean(value, &mut globals.hsts.enabled),
    },
    Setting {
        name: "hsts-include-subdomains",
        default: "true",
        nginx: "true",
        meaning: "whether that holds for names below the host, too",
        apply: |value, globals| boolean(value, &mut globals.hsts.include_subdomains),
    },
    Setting {
        name: "hsts-max-age",
        default: "31536000",
        nginx: "31536000",
        meaning: "for how long, in seconds",
        apply: |value, globals| {
            number(value, 0..=u64::from(u32::MAX), &mut globals.hsts.max_age)
                .ok_or_else(|| "a number of seconds up to 4294967295".into())
        },
    },
    Setting {
        name: "hsts-preload",
        default: "false",
        nginx: "false",
        meaning: "whether browsers may ship with it",
        apply: |value, globals| boolean(value, &mut globals.hsts.preload),
    },
    Setting {
        name: "http-redirect-code",
        default: "308",
        nginx: "308",
        meaning: "status of redirects to HTTPS: 301, 302, 307 or 308",
        apply: |value, globals| redirect_status(value, &mut globals.redirect_status),
    },
    Setting {
        name: "http2-max-concurrent-streams",
        default: "128",
        nginx: "128",
        meaning: "streams open at one time on one HTTP/2 connection, from 1 to 10000",
        apply: |value, globals| {
            number(value, 1..=10_000, &mut globals.settings.streams_max)
                .ok_or_else(|| "a number from 1 to 10000".into())
        },
    },
    Setting {
        name: "keep-alive",
        default: "75",
        nginx: "75",
        meaning: "how long a connection without a request in flight stays open, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.idle_timeout),
    },
    Setting {
        name: "limit-conn-status-code",
        default: "503",
        nginx: "503",
        meaning: "status of the answer to a request that is one too many at one time, from 400 to 599",
        apply: |value, globals| error_status(value, &mut globals.asked.limits.in_flight_status),
    },
    Setting {
        name: "limit-req-status-code",
        default: "503",
        nginx: "503",
        meaning: "status of the answer to a request that comes too soon, from 400 to 599",
        apply: |value, globals| error_status(value, &mut globals.asked.limits.rate_status),
    },
    Setting {
        name: "load-balance",
        default: "round_robin",
        nginx: "round_robin",
        meaning: "how pods share requests where an Ingress does not say: `round_robin`, `ewma` or `least_request`",
        apply: |value, globals| {
            globals.asked.forwarding.balance = balance(value)?;
            Ok(())
        },
    },
    Setting {
        name: "log-format-escape-json",
        default: "false",
        nginx: "false",
        meaning: "whether values in `log-format-upstream` are escaped as within JSON",
        apply: |value, globals| boolean(value, &mut globals.log.escapes_json),
    },
    Setting {
        name: "log-format-upstream",
        default: "",
        nginx: UPSTREAM_INFO,
        meaning: "the line: a text with variables of nginx, of which those of sizes count bodies alone; JSON with all that is known if there is none",
        apply: |value, globals| {
            LogFormat::parse(value, LogEscape::Default).map_err(|error| format!("a text with variables ({error})"))?;
            value.clone_into(&mut globals.log.format);
            Ok(())
        },
    },
    Setting {
        name: "max-connections",
        default: "65536",
        nginx: "65536",
        meaning: "client connections that each worker has open at one time, more are closed; `0` for any number. Ours alone",
        apply: |value, globals| connections(value, &mut globals.settings.connections_max),
    },
    Setting {
        name: "max-connections-per-client",
        default: "0",
        nginx: "0",
        meaning: "the same for one client, on one node; `0` for any number. Ours alone",
        apply: |value, globals| connections(value, &mut globals.settings.connections_per_client),
    },
    Setting {
        name: "no-auth-locations",
        default: "/.well-known/acme-challenge",
        nginx: "/.well-known/acme-challenge",
        meaning: "paths of rules, separated by commas, that nobody needs to authenticate for, nor for what is below them",
        apply: |value, globals| {
            globals.unauthenticated = prefixes(value)?;
            Ok(())
        },
    },
    Setting {
        name: "no-tls-redirect-locations",
        default: "",
        nginx: "",
        meaning: "paths, separated by commas, that are not redirected to HTTPS, nor what is below them; those of ACME challenges never are",
        apply: |value, globals| {
            globals.redirect_except = prefixes(value)?;
            Ok(())
        },
    },
    Setting {
        name: "proxy-body-size",
        default: "0",
        nginx: "1m",
        meaning: "longest body of a request, else 413, where an Ingress does not say; `0` for any",
        apply: |value, globals| limit(value, &mut globals.asked.forwarding.body_max),
    },
    Setting {
        name: "proxy-connect-timeout",
        default: "5",
        nginx: "5",
        meaning: "time to open a connection to an endpoint, in seconds",
        apply: |value, globals| seconds(value, &mut globals.asked.forwarding.connect_timeout),
    },
    Setting {
        name: "proxy-next-upstream",
        default: "error",
        nginx: "error timeout",
        meaning: "when a request goes to another pod, where an Ingress does not say: as the annotation",
        apply: |value, globals| retry_when(value, &mut globals.asked.forwarding.retry),
    },
    Setting {
        name: "proxy-next-upstream-timeout",
        default: "0",
        nginx: "0",
        meaning: "no other pod after this time, in seconds, where an Ingress does not say; `0` for any",
        apply: |value, globals| retry_within(value, &mut globals.asked.forwarding.retry),
    },
    Setting {
        name: "proxy-next-upstream-tries",
        default: "3",
        nginx: "3",
        meaning: "pods tried in all, where an Ingress does not say, up to 10; `0` for 10",
        apply: |value, globals| retry_tries(value, &mut globals.asked.forwarding.retry),
    },
    Setting {
        name: "proxy-protocol-header-timeout",
        default: "5",
        nginx: "5",
        meaning: "time for the header of the PROXY protocol, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.trust.proxy_protocol_timeout),
    },
    Setting {
        name: "proxy-read-timeout",
        default: "60",
        nginx: "60",
        meaning: "longest silence of an endpoint before and within a response, in seconds",
        apply: |value, globals| seconds(value, &mut globals.asked.forwarding.read_timeout),
    },
    Setting {
        name: "proxy-real-ip-cidr",
        default: "",
        nginx: "0.0.0.0/0",
        meaning: "networks of the proxies in front of this one, separated by commas: what they say of clients is believed, nobody else is",
        apply: |value, globals| networks(value, &mut globals.settings.trust.hops),
    },
    Setting {
        name: "proxy-send-timeout",
        default: "60",
        nginx: "60",
        meaning: "longest time that an endpoint takes no byte of a request, in seconds",
        apply: |value, globals| seconds(value, &mut globals.asked.forwarding.send_timeout),
    },
    Setting {
        name: "proxy-set-headers",
        default: "",
        nginx: "",
        meaning: "a ConfigMap, as `namespace/name`, whose data are fields that every pod gets",
        apply: |value, globals| config_map(value, &mut globals.set_headers),
    },
    Setting {
        name: "retry-non-idempotent",
        default: "false",
        nginx: "false",
        meaning: "whether requests that may have had an effect are sent to another pod, too, where an Ingress does not say",
        apply: |value, globals| boolean(value, &mut globals.asked.forwarding.retry.non_idempotent),
    },
    Setting {
        name: "service-upstream",
        default: "false",
        nginx: "false",
        meaning: "whether requests go to the address of the Service, so that the cluster chooses the pod, where an Ingress does not say",
        apply: |value, globals| boolean(value, &mut globals.asked.through_service),
    },
    Setting {
        name: "skip-access-log-urls",
        default: "",
        nginx: "",
        meaning: "paths of requests that no line is written of, separated by commas",
        apply: |value, globals| {
            let paths = elements(value).map(PathMatch::exact).collect::<Result<Vec<_>, _>>();
            globals.log.skip = paths.map_err(|error| format!("paths, separated by commas ({error})"))?.into();
            Ok(())
        },
    },
    Setting {
        name: "ssl-redirect",
        default: "true",
        nginx: "true",
        meaning: "whether hosts with TLS are redirected to it",
        apply: |value, globals| boolean(value, &mut globals.asked.ssl_redirect),
    },
    Setting {
        name: "upstream-keepalive-connections",
        default: "512",
        nginx: "320",
        meaning: "idle connections kept per endpoint and worker, from 0 to 65535",
        apply: |value, globals| {
            number(value, 0..=65_535, &mut globals.settings.upstream_idle_per_endpoint)
                .ok_or_else(|| "a number from 0 to 65535".into())
        },
    },
    Setting {
        name: "upstream-keepalive-timeout",
        default: "55",
        nginx: "60",
        meaning: "how long an idle connection to an endpoint is kept, in seconds",
        apply: |value, globals| seconds(value, &mut globals.settings.upstream_idle_timeout),
    },
    Setting {
        name: "use-forwarded-headers",
        default: "false",
        nginx: "false",
        meaning: "whether `X-Forwarded-*` of the networks of `proxy-real-ip-cidr` stand: the client, its scheme, port and host",
        apply: |value, globals| boolean(value, &mut globals.settings.trust.forwarded),
    },
    Setting {
        name: "use-http2",
        default: "true",
        nginx: "true",
        meaning: "whether HTTP/2 is offered in TLS handshakes, and spoken with clients that begin with it on port 80",
        apply: |value, globals| boolean(value, &mut globals.settings.http2),
    },
    Setting {
        name: "use-proxy-protocol",
        default: "false",
        nginx: "false",
        meaning: "whether connections begin with a header of the PROXY protocol, version 1 or 2; others are closed, and, where `proxy-real-ip-cidr` is set, those from elsewhere. Of new connections",
        apply: |value, globals| boolean(value, &mut globals.settings.trust.proxy_protocol),
    },
    Setting {
        name: "whitelist-source-range",
        default: "",
        nginx: "",
        meaning: "networks that may come in where an Ingress does not say, separated by commas; all others get 403",
        apply: |value, globals| networks(value, &mut globals.asked.access.allow),
    },
];

pub(super) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

pub(super) fn apply_nginx_defaults(globals: &mut Globals) {
    for Setting { default, nginx, apply, .. } in SETTINGS {
        if nginx != default {
            // A default that could not be read would leave ours; the table's test reads each.
            apply(nginx, globals).unwrap_or_default();
        }
    }
}

/// A redirect to HTTPS keeps the method or changes it, but is never a mere reference.
fn redirect_status(value: &str, field: &mut u16) -> Read {
    if value == "303" { None } else { status(value, field).ok() }.ok_or_else(|| "301, 302, 307 or 308".into())
}

fn error_status(value: &str, field: &mut u16) -> Read {
    number(value, 400..=599, field).ok_or_else(|| "a number from 400 to 599".into())
}

fn connections(value: &str, field: &mut Option<NonZeroU32>) -> Read {
    let mut count = 0;
    number(value, 0..=10_000_000, &mut count).ok_or("a number up to 10000000")?;
    *field = NonZeroU32::new(count);
    Ok(())
}

fn prefixes(value: &str) -> Read<Arc<[PathMatch]>> {
    let paths = elements(value).map(PathMatch::prefix).collect::<Result<Vec<_>, _>>();
    paths.map(Into::into).map_err(|_invalid| "paths, separated by commas".into())
}

fn header_names(value: &str) -> Read<Vec<HeaderName>> {
    let names = elements(value).map(HeaderName::try_from).collect::<Result<_, _>>();
    names.map_err(|_invalid| "names of header fields, separated by commas".into())
}

/// A list of addresses; `Forwarded` has its own syntax, which is not read.
fn chain_field(value: &str, field: &mut HeaderName) -> Read {
    let name = HeaderName::try_from(value).ok().filter(|name| *name != header::FORWARDED && *name != header::HOST);
    *field = name.ok_or("the name of a field that holds addresses, as `X-Forwarded-For`")?;
    Ok(())
}

fn elements(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|element| !element.is_empty())
}

/// A ConfigMap of another object's name, in any namespace: the operator names it.
fn config_map(value: &str, field: &mut Option<ObjectName>) -> Read {
    *field = match value.split_once('/') {
        _ if value.is_empty() => None,
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Some(ObjectName::new(namespace, name)),
        _ => return Err("a ConfigMap, as `namespace/name`".into()),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Classes;

    #[test]
    fn defaults_of_the_table_are_those_of_the_model() {
        let defaults = Globals::of(&Classes::default());
        for Setting { name, default, nginx, apply, .. } in SETTINGS {
            let mut globals = defaults.clone();
            assert_eq!(apply(default, &mut globals), Ok(()), "{name}");
            assert_eq!(globals, defaults, "{name}");
            assert_eq!(apply(nginx, &mut globals), Ok(()), "{name}");
        }
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.name));
    }

    /// `UPDATE_EXPECT=1` rewrites the page.
    #[test]
    fn the_page_of_settings_lists_the_table() {
        let mut page = "# Settings for all hosts\n\n\
            Keys of the ConfigMap that `--configmap` names, and of the one that `spec.parameters` of our oldest IngressClass\n\
            names (`kind: ConfigMap`, `scope: Namespace`), which goes before it key by key. Other keys of ingress-nginx are\n\
            accepted, and each that asks for something is reported. The second default holds for `--controller-class\n\
            k8s.io/ingress-nginx`.\n\n\
            | key | default | with ingress-nginx's class | meaning |\n|---|---|---|---|\n"
            .to_owned();
        for Setting { name, default, nginx, meaning, apply: _ } in SETTINGS {
            let quote = |value: &str| if value.is_empty() { "none".to_owned() } else { format!("`{value}`") };
            page += &format!("| `{name}` | {} | {} | {meaning} |\n", quote(default), quote(nginx));
        }
        expect_test::expect_file!["../../../../../docs/settings.md"].assert_eq(&page);
    }

    #[test]
    fn every_setting_changes_something() {
        for Setting { name, default, apply, .. } in SETTINGS {
            let value = match *default {
                "true" => "false",
                "false" => "true",
                "308" => "302",
                "GET" => "POST",
                "rd" => "back",
                "200 202 401 5m" => "200 1m",
                "/.well-known/acme-challenge" => "/a",
                "503" => "429",
                "round_robin" => "ewma",
                "error" => "off",
                "X-Forwarded-For" => "X-Client",
                "" => match *name {
                    "add-headers" | "proxy-set-headers" => "a/b",
                    "global-auth-cache-key" => "$http_x",
                    "global-auth-request-redirect" | "global-auth-signin" | "global-auth-url" => "https://$host/x",
                    "no-tls-redirect-locations" => "/a, /b",
                    "log-format-upstream" => "$host",
                    "skip-access-log-urls" => "/a",
                    "denylist-source-range" | "proxy-real-ip-cidr" | "whitelist-source-range" => "10.0.0.0/8",
                    _ => "X-A, X-B",
                },
                _ => "42",
            };
            let mut globals = Globals::of(&Classes::default());
            assert_eq!(apply(value, &mut globals), Ok(()), "{name}");
            assert_ne!(globals, Globals::of(&Classes::default()), "{name}");
        }
    }

    #[test]
    fn values_without_a_meaning_change_nothing() {
        for Setting { name, apply, .. } in SETTINGS {
            for value in ["no $pe", "-1$?", "9999999999999$9999999:", "5t$\u{e9}"] {
                let mut globals = Globals::of(&Classes::default());
                assert!(apply(value, &mut globals).is_err(), "{name} {value}");
                assert_eq!(globals, Globals::of(&Classes::default()), "{name} {value}");
            }
        }
    }
}
