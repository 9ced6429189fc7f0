//! The settings that are honoured, as a table: one row per key. It reads values and reports nothing.
//!
//! Keys are ingress-nginx's, and mean here what they mean there.

use std::{num::NonZeroU32, sync::Arc};

use http::{HeaderName, header};

use super::{
    super::values::{
        Read, balance, boolean, limit, limit_scope, networks, number, retry_tries, retry_when, retry_within, seconds,
        span, status, text, time,
    },
    Globals,
    traces::AskedTraces,
};
use crate::{
    control::change::ObjectName,
    model::{LogEscape, LogFormat, MediaTypes, PathMatch, StreamRetry, Texts, Versions},
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

/// A row for a key that has no value where it is not set.
const fn setting(name: &'static str, meaning: &'static str, apply: fn(&str, &mut Globals) -> Read) -> Setting {
    Setting { name, default: "", nginx: "", meaning, apply }
}

impl Setting {
    /// For both kinds of classes.
    const fn default(self, default: &'static str) -> Self {
        Self { default, nginx: default, ..self }
    }

    const fn nginx(self, nginx: &'static str) -> Self {
        Self { nginx, ..self }
    }
}

/// The format of ingress-nginx.
const UPSTREAM_INFO: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_upstream_name] \
     [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time \
     $upstream_status $req_id";

/// Sorted by name.
const SETTINGS: &[Setting] = &[
    setting(
        "add-headers",
        "a ConfigMap, as `namespace/name`, whose data are fields that every response gets",
        |value, globals| config_map(value, &mut globals.add_headers),
    ),
    setting("block-cidrs", "networks that get 403 from every host, separated by commas", |value, globals| {
        networks(value, &mut globals.blocked.networks)
    }),
    setting(
        "block-referers",
        "what requests that get 403 from every host say in `Referer`, separated by commas: all of it, behind `~` a \
         regular expression for something in it, behind `~*` one whatever the case",
        |value, globals| texts(value, &mut globals.blocked.referers),
    ),
    setting(
        "block-user-agents",
        "what requests that get 403 from every host say in `User-Agent`, separated by commas: all of it, behind `~` a \
         regular expression for something in it, behind `~*` one whatever the case",
        |value, globals| texts(value, &mut globals.blocked.agents),
    ),
    setting("brotli-level", "how well, from 0 to 11; more is smaller and slower", |value, globals| {
        globals.asked.compression.brotli.level(0..=11, value)
    })
    .default("4"),
    setting("brotli-min-length", "shorter responses stay as they are, in bytes", |value, globals| {
        globals.asked.compression.brotli.min_length(value)
    })
    .default("20"),
    setting(
        "brotli-types",
        "types that are compressed besides `text/html`, separated by spaces; `*` for all",
        |value, globals| globals.asked.compression.brotli.types(value),
    )
    .default(MediaTypes::DEFAULT),
    setting(
        "client-body-timeout",
        "longest pause within a request body, and longest time that a client takes no byte of a response, in seconds",
        |value, globals| seconds(value, &mut globals.settings.stall_timeout),
    )
    .default("60"),
    setting(
        "client-header-timeout",
        "time for the head of a request from its first byte to its last, in seconds",
        |value, globals| seconds(value, &mut globals.settings.head_timeout),
    )
    .default("10")
    .nginx("60"),
    setting(
        "compute-full-forwarded-for",
        "whether pods get all addresses of `forwarded-for-header`, and the peer's, with `use-forwarded-headers`; else \
         the client's alone",
        |value, globals| boolean(value, &mut globals.settings.trust.keeps_chain),
    )
    .default("false"),
    setting(
        "custom-http-errors",
        "statuses of pods' responses that are replaced, where an Ingress does not say: as the annotation",
        |value, globals| globals.asked.error_pages.statuses(value),
    ),
    setting(
        "denylist-source-range",
        "networks that get 403 where an Ingress does not say, separated by commas",
        |value, globals| networks(value, &mut globals.asked.access.deny),
    ),
    setting(
        "disable-access-log",
        "whether no line is written of each request, on standard output",
        |value, globals| boolean(value, &mut globals.log.disabled),
    )
    .default("true")
    .nginx("false"),
    setting("disable-proxy-intercept-errors", "whether none is, where an Ingress does not say", |value, globals| {
        boolean(value, &mut globals.asked.error_pages.disabled)
    })
    .default("false"),
    setting("enable-brotli", "the same with brotli", |value, globals| {
        boolean(value, &mut globals.asked.compression.brotli.enabled)
    })
    .default("false"),
    setting(
        "enable-opentelemetry",
        "whether requests are traced where an Ingress does not say, if `otlp-collector-host` is set",
        |value, globals| boolean(value, &mut globals.asked.traced),
    )
    .default("false"),
    setting(
        "enable-real-ip",
        "whether `forwarded-for-header` of the networks of `proxy-real-ip-cidr` names the client, even without \
         `use-forwarded-headers`",
        |value, globals| boolean(value, &mut globals.settings.trust.address),
    )
    .default("false"),
    setting("enable-zstd", "the same with zstd. Ours alone", |value, globals| {
        boolean(value, &mut globals.asked.compression.zstd.enabled)
    })
    .default("false"),
    setting("force-ssl-redirect", "whether hosts without TLS are redirected to it, too", |value, globals| {
        boolean(value, &mut globals.asked.force_ssl_redirect)
    })
    .default("false"),
    setting(
        "forwarded-for-header",
        "the field in which proxies in front of this one note their clients",
        |value, globals| chain_field(value, &mut globals.settings.trust.field),
    )
    .default("X-Forwarded-For"),
    setting(
        "global-allowed-response-headers",
        "fields that `custom-headers` of an Ingress may set, separated by commas; all if there are none",
        |value, globals| {
            globals.allowed_headers = header_names(value)?;
            Ok(())
        },
    ),
    setting(
        "global-auth-always-set-cookie",
        "as annotation `auth-always-set-cookie`, for `global-auth-url`",
        |value, globals| globals.asked.authentication.global.always_set_cookie(value),
    )
    .default("false"),
    setting("global-auth-cache-duration", "as annotation `auth-cache-duration`", |value, globals| {
        globals.asked.authentication.global.cache_duration(value)
    })
    .default("200 202 401 5m"),
    setting("global-auth-cache-key", "as annotation `auth-cache-key`", |value, globals| {
        globals.asked.authentication.global.cache_key(value)
    }),
    setting("global-auth-method", "as annotation `auth-method`", |value, globals| {
        globals.asked.authentication.global.method(value)
    })
    .default("GET"),
    setting("global-auth-request-redirect", "as annotation `auth-request-redirect`", |value, globals| {
        globals.asked.authentication.global.request_redirect(value)
    }),
    setting("global-auth-response-headers", "as annotation `auth-response-headers`", |value, globals| {
        globals.asked.authentication.global.response_headers(value)
    }),
    setting("global-auth-signin", "as annotation `auth-signin`", |value, globals| {
        globals.asked.authentication.global.sign_in(value)
    }),
    setting("global-auth-signin-redirect-param", "as annotation `auth-signin-redirect-param`", |value, globals| {
        globals.asked.authentication.global.redirect_param(value)
    })
    .default("rd"),
    setting(
        "global-auth-url",
        "as annotation `auth-url`, for rules of Ingresses that have none; where one of `global-auth-…` cannot be read, \
         these answer 503",
        |value, globals| globals.asked.authentication.global.url(value),
    ),
    setting(
        "gzip-disable",
        "clients without gzip: a regular expression for something in `User-Agent`",
        |value, globals| globals.asked.compression.disable_gzip(value),
    ),
    setting("gzip-level", "how well, from 1 to 9; more is smaller and slower", |value, globals| {
        globals.asked.compression.gzip.level(1..=9, value)
    })
    .default("1"),
    setting("gzip-min-length", "shorter responses stay as they are, in bytes", |value, globals| {
        globals.asked.compression.gzip.min_length(value)
    })
    .default("256"),
    setting(
        "gzip-types",
        "types that are compressed besides `text/html`, separated by spaces; `*` for all",
        |value, globals| globals.asked.compression.gzip.types(value),
    )
    .default(MediaTypes::DEFAULT),
    setting("hide-headers", "fields of pods that clients do not get, separated by commas", |value, globals| {
        globals.hidden_headers = header_names(value)?;
        Ok(())
    }),
    setting(
        "hsts",
        "whether browsers are told to come over TLS from now on (RFC 6797), by hosts with TLS",
        |value, globals| boolean(value, &mut globals.hsts.enabled),
    )
    .default("false")
    .nginx("true"),
    setting("hsts-include-subdomains", "whether that holds for names below the host, too", |value, globals| {
        boolean(value, &mut globals.hsts.include_subdomains)
    })
    .default("true"),
    setting("hsts-max-age", "for how long, in seconds", |value, globals| {
        number(value, 0..=u64::from(u32::MAX), &mut globals.hsts.max_age)
            .ok_or_else(|| "a number of seconds up to 4294967295".into())
    })
    .default("31536000"),
    setting("hsts-preload", "whether browsers may ship with it", |value, globals| {
        boolean(value, &mut globals.hsts.preload)
    })
    .default("false"),
    setting("http-redirect-code", "status of redirects to HTTPS: 301, 302, 307 or 308", |value, globals| {
        redirect_status(value, &mut globals.redirect_status)
    })
    .default("308"),
    setting(
        "http2-max-concurrent-streams",
        "streams open at one time on one HTTP/2 connection, from 1 to 10000",
        |value, globals| {
            number(value, 1..=10_000, &mut globals.settings.streams_max)
                .ok_or_else(|| "a number from 1 to 10000".into())
        },
    )
    .default("128"),
    setting(
        "keep-alive",
        "how long a connection without a request in flight stays open, in seconds",
        |value, globals| seconds(value, &mut globals.settings.idle_timeout),
    )
    .default("75"),
    setting(
        "limit-conn-status-code",
        "status of the answer to a request that is one too many at one time, from 400 to 599",
        |value, globals| error_status(value, &mut globals.asked.limits.in_flight_status),
    )
    .default("503"),
    setting(
        "limit-req-status-code",
        "status of the answer to a request that comes too soon, from 400 to 599",
        |value, globals| error_status(value, &mut globals.asked.limits.rate_status),
    )
    .default("503"),
    setting("limit-scope", "as the annotation, where an Ingress does not say. Ours alone", |value, globals| {
        limit_scope(value, &mut globals.asked.limits.of_cluster)
    })
    .default("node"),
    setting(
        "load-balance",
        "how pods share requests where an Ingress does not say: `round_robin`, `ewma` or `least_request`",
        |value, globals| {
            globals.asked.forwarding.balance = balance(value)?;
            Ok(())
        },
    )
    .default("round_robin"),
    setting(
        "log-format-escape-json",
        "whether values in `log-format-upstream` are escaped as within JSON",
        |value, globals| boolean(value, &mut globals.log.escapes_json),
    )
    .default("false"),
    setting(
        "log-format-upstream",
        "the line: a text with variables of nginx, of which those of sizes count bodies alone; JSON with all that is \
         known if there is none",
        |value, globals| {
            LogFormat::parse(value, LogEscape::Default).map_err(|error| format!("a text with variables ({error})"))?;
            value.clone_into(&mut globals.log.format);
            Ok(())
        },
    )
    .nginx(UPSTREAM_INFO),
    setting(
        "max-connections",
        "client connections that each worker has open at one time, more are closed; `0` for any number. Ours alone",
        |value, globals| connections(value, &mut globals.settings.connections_max),
    )
    .default("65536"),
    setting(
        "max-connections-per-client",
        "the same for one client, on one node; `0` for any number. Ours alone",
        |value, globals| connections(value, &mut globals.settings.connections_per_client),
    )
    .default("0"),
    setting(
        "max-udp-sessions",
        "sessions of UDP services that each worker has open at one time, from 1 to 1000000; datagrams of further \
         clients are dropped. Each takes a port of the node (`net.ipv4.ip_local_port_range`). Ours alone",
        |value, globals| {
            let mut count = 0;
            number(value, 1..=1_000_000, &mut count).ok_or("a number from 1 to 1000000")?;
            globals.settings.streams.sessions_max = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
            Ok(())
        },
    )
    .default("4096"),
    setting(
        "no-auth-locations",
        "paths of rules, separated by commas, that nobody needs to authenticate for, nor for what is below them",
        |value, globals| {
            globals.unauthenticated = prefixes(value)?;
            Ok(())
        },
    )
    .default("/.well-known/acme-challenge"),
    setting(
        "no-tls-redirect-locations",
        "paths, separated by commas, that are not redirected to HTTPS, nor what is below them; those of ACME \
         challenges never are",
        |value, globals| {
            globals.redirect_except = prefixes(value)?;
            Ok(())
        },
    ),
    setting(
        "opentelemetry-operation-name",
        "name of spans where an Ingress does not say, a text with variables; without it, the method",
        |value, globals| {
            globals.asked.trace.name = text(value)?;
            Ok(())
        },
    ),
    setting(
        "opentelemetry-trust-incoming-span",
        "whether the trace that a client says its request is part of goes on, where an Ingress does not say",
        |value, globals| boolean(value, &mut globals.asked.trace.trusts),
    )
    .default("true"),
    setting("otel-max-export-batch-size", "spans sent together", |value, globals| {
        AskedTraces::count(value, &mut globals.traces.batch_max)
    })
    .default("512"),
    setting(
        "otel-max-queuesize",
        "spans that wait for the collector; more are dropped and counted",
        |value, globals| AskedTraces::count(value, &mut globals.traces.queue_max),
    )
    .default("2048"),
    setting(
        "otel-sampler",
        "which traces that begin here are recorded: `AlwaysOn`, `AlwaysOff` or `TraceIdRatioBased`",
        |value, globals| globals.traces.sampler(value),
    )
    .default("AlwaysOn"),
    setting(
        "otel-sampler-parent-based",
        "whether a trace that goes on is recorded as its caller says, whatever `otel-sampler`",
        |value, globals| boolean(value, &mut globals.traces.follows_parent),
    )
    .default("true"),
    setting("otel-sampler-ratio", "the share that `TraceIdRatioBased` records, from 0 to 1", |value, globals| {
        globals.traces.ratio(value)
    })
    .default("0.01"),
    setting(
        "otel-schedule-delay-millis",
        "how long spans wait for others to be sent with, in milliseconds",
        |value, globals| globals.traces.delay(value),
    )
    .default("5000"),
    setting("otel-service-name", "`service.name` of all spans", |value, globals| globals.traces.service(value))
        .default("nginx"),
    setting(
        "otlp-collector-host",
        "host or address of a collector that takes OTLP over gRPC, in the clear; without it nothing is traced",
        |value, globals| globals.traces.collector(value),
    ),
    setting("otlp-collector-port", "its port", |value, globals| {
        number(value, 1..=u16::MAX, &mut globals.traces.port).ok_or_else(|| "the number of a port".into())
    })
    .default("4317"),
    setting(
        "proxy-body-size",
        "longest body of a request, else 413, where an Ingress does not say; `0` for any",
        |value, globals| limit(value, &mut globals.asked.forwarding.body_max),
    )
    .default("0")
    .nginx("1m"),
    setting("proxy-connect-timeout", "time to open a connection to an endpoint, in seconds", |value, globals| {
        seconds(value, &mut globals.asked.forwarding.connect_timeout)
    })
    .default("5"),
    setting(
        "proxy-next-upstream",
        "when a request goes to another pod, where an Ingress does not say: as the annotation",
        |value, globals| retry_when(value, &mut globals.asked.forwarding.retry),
    )
    .default("error")
    .nginx("error timeout"),
    setting(
        "proxy-next-upstream-timeout",
        "no other pod after this time, in seconds, where an Ingress does not say; `0` for any",
        |value, globals| retry_within(value, &mut globals.asked.forwarding.retry),
    )
    .default("0"),
    setting(
        "proxy-next-upstream-tries",
        "pods tried in all, where an Ingress does not say, up to 10; `0` for 10",
        |value, globals| retry_tries(value, &mut globals.asked.forwarding.retry),
    )
    .default("3"),
    setting(
        "proxy-protocol-header-timeout",
        "time for the header of the PROXY protocol, in seconds",
        |value, globals| seconds(value, &mut globals.settings.trust.proxy_protocol_timeout),
    )
    .default("5"),
    setting(
        "proxy-read-timeout",
        "longest silence of an endpoint before and within a response, in seconds",
        |value, globals| seconds(value, &mut globals.asked.forwarding.read_timeout),
    )
    .default("60"),
    setting(
        "proxy-real-ip-cidr",
        "networks of the proxies in front of this one, separated by commas: what they say of clients is believed, \
         nobody else is",
        |value, globals| networks(value, &mut globals.settings.trust.hops),
    )
    .nginx("0.0.0.0/0"),
    setting(
        "proxy-send-timeout",
        "longest time that an endpoint takes no byte of a request, in seconds",
        |value, globals| seconds(value, &mut globals.asked.forwarding.send_timeout),
    )
    .default("60"),
    setting(
        "proxy-set-headers",
        "a ConfigMap, as `namespace/name`, whose data are fields that every pod gets",
        |value, globals| config_map(value, &mut globals.set_headers),
    ),
    setting(
        "proxy-stream-next-upstream",
        "whether another pod is tried where no connection to one can be opened, for TCP services",
        |value, globals| boolean(value, &mut globals.settings.streams.retry.enabled),
    )
    .default("true"),
    setting(
        "proxy-stream-next-upstream-timeout",
        "no other pod after this time, as `30s` or `10m`; `0` for any",
        |value, globals| {
            globals.settings.streams.retry.within = Some(time(value)?).filter(|within| !within.is_zero());
            Ok(())
        },
    )
    .default("600s"),
    setting("proxy-stream-next-upstream-tries", "pods tried in all, up to 10; `0` for 10", |value, globals| {
        let mut tries = 0;
        number(value, 0..=1000, &mut tries).ok_or("a number up to 10")?;
        globals.settings.streams.retry.tries =
            if tries == 0 { StreamRetry::TRIES_MAX } else { tries.min(StreamRetry::TRIES_MAX) };
        Ok(())
    })
    .default("3"),
    setting(
        "proxy-stream-responses",
        "datagrams with which pods of UDP services answer each of a client's; a session that has had all its answers \
         is kept for a second alone",
        |value, globals| {
            number(value, 0..=1_000_000, &mut globals.settings.streams.responses)
                .ok_or_else(|| "a number up to 1000000".into())
        },
    )
    .default("1"),
    setting(
        "proxy-stream-timeout",
        "how long connections of TCP services, and sessions of UDP services, stay open while nothing comes either way, \
         as `30s` or `10m`",
        |value, globals| {
            globals.settings.streams.timeout =
                Some(time(value)?).filter(|time| !time.is_zero()).ok_or("a time from `1s` to `7d`")?;
            Ok(())
        },
    )
    .default("600s"),
    setting(
        "retry-non-idempotent",
        "whether requests that may have had an effect are sent to another pod, too, where an Ingress does not say",
        |value, globals| boolean(value, &mut globals.asked.forwarding.retry.non_idempotent),
    )
    .default("false"),
    setting(
        "service-upstream",
        "whether requests go to the address of the Service, so that the cluster chooses the pod, where an Ingress does \
         not say",
        |value, globals| boolean(value, &mut globals.asked.through_service),
    )
    .default("false"),
    setting(
        "skip-access-log-urls",
        "paths of requests that no line is written of, separated by commas",
        |value, globals| {
            let paths = elements(value).map(PathMatch::exact).collect::<Result<Vec<_>, _>>();
            globals.log.skip = paths.map_err(|error| format!("paths, separated by commas ({error})"))?.into();
            Ok(())
        },
    ),
    setting(
        "ssl-protocols",
        "versions of TLS: `TLSv1.2`, `TLSv1.3` or both; older ones are not safe, and not there. Of new connections, as \
         the other settings of TLS",
        |value, globals| versions(value, &mut globals.settings.handshakes.versions),
    )
    .default("TLSv1.2 TLSv1.3"),
    setting("ssl-redirect", "whether hosts with TLS are redirected to it", |value, globals| {
        boolean(value, &mut globals.asked.ssl_redirect)
    })
    .default("true"),
    setting(
        "ssl-reject-handshake",
        "whether handshakes end with the alert `unrecognized_name` where no rule and no certificate names the host, or \
         the client says none; else the fallback certificate is shown",
        |value, globals| boolean(value, &mut globals.settings.handshakes.rejects_unknown_names),
    )
    .default("false"),
    setting(
        "ssl-session-tickets",
        "whether clients get tickets to resume their sessions with; nothing of a session is kept here, so that without \
         them all handshakes are full ones",
        |value, globals| boolean(value, &mut globals.settings.handshakes.tickets),
    )
    .default("true"),
    setting(
        "ssl-session-timeout",
        "how long a ticket is good for, up to a day (`10m`, `12h`); no longer than 12 h with keys of the process \
         alone, see `--tls-ticket-secret`",
        |value, globals| span(value, &mut globals.settings.handshakes.session_timeout),
    )
    .default("12h")
    .nginx("10m"),
    setting(
        "upstream-keepalive-connections",
        "idle connections kept per endpoint and worker, from 0 to 65535",
        |value, globals| {
            number(value, 0..=65_535, &mut globals.settings.upstream_idle_per_endpoint)
                .ok_or_else(|| "a number from 0 to 65535".into())
        },
    )
    .default("512")
    .nginx("320"),
    setting(
        "upstream-keepalive-timeout",
        "how long an idle connection to an endpoint is kept, in seconds",
        |value, globals| seconds(value, &mut globals.settings.upstream_idle_timeout),
    )
    .default("55")
    .nginx("60"),
    setting(
        "use-forwarded-headers",
        "whether `X-Forwarded-*` of the networks of `proxy-real-ip-cidr` stand: the client, its scheme, port and host",
        |value, globals| boolean(value, &mut globals.settings.trust.forwarded),
    )
    .default("false"),
    setting(
        "use-gzip",
        "whether responses are compressed with gzip for clients that take it, where an Ingress does not say",
        |value, globals| boolean(value, &mut globals.asked.compression.gzip.enabled),
    )
    .default("false"),
    setting(
        "use-http2",
        "whether HTTP/2 is offered in TLS handshakes, and spoken with clients that begin with it on port 80",
        |value, globals| boolean(value, &mut globals.settings.http2),
    )
    .default("true"),
    setting(
        "use-proxy-protocol",
        "whether connections begin with a header of the PROXY protocol, version 1 or 2; others are closed, and, where \
         `proxy-real-ip-cidr` is set, those from elsewhere. Of new connections",
        |value, globals| boolean(value, &mut globals.settings.trust.proxy_protocol),
    )
    .default("false"),
    setting(
        "whitelist-source-range",
        "networks that may come in where an Ingress does not say, separated by commas; all others get 403",
        |value, globals| networks(value, &mut globals.asked.access.allow),
    ),
    setting("zstd-level", "how well, from 1 to 12; more is smaller and slower. Ours alone", |value, globals| {
        globals.asked.compression.zstd.level(1..=12, value)
    })
    .default("3"),
    setting("zstd-min-length", "shorter responses stay as they are, in bytes. Ours alone", |value, globals| {
        globals.asked.compression.zstd.min_length(value)
    })
    .default("256"),
    setting(
        "zstd-types",
        "types that are compressed besides `text/html`, separated by spaces; `*` for all. Ours alone",
        |value, globals| globals.asked.compression.zstd.types(value),
    )
    .default(MediaTypes::DEFAULT),
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

/// Versions of TLS, as nginx writes them.
fn versions(value: &str, field: &mut Versions) -> Read {
    let (mut tls12, mut tls13) = (false, false);
    for version in value.split_whitespace() {
        match version {
            "TLSv1.2" => tls12 = true,
            "TLSv1.3" => tls13 = true,
            _ => return Err(VERSIONS.into()),
        }
    }
    *field = match (tls12, tls13) {
        (true, true) => Versions::Tls12And13,
        (true, false) => Versions::Tls12,
        (false, true) => Versions::Tls13,
        (false, false) => return Err(VERSIONS.into()),
    };
    Ok(())
}

const VERSIONS: &str = "`TLSv1.2`, `TLSv1.3` or both, as older versions are not safe and not implemented";

fn error_status(value: &str, field: &mut u16) -> Read {
    number(value, 400..=599, field).ok_or_else(|| "a number from 400 to 599".into())
}

fn connections(value: &str, field: &mut Option<NonZeroU32>) -> Read {
    let mut count = 0;
    number(value, 0..=10_000_000, &mut count).ok_or("a number up to 10000000")?;
    *field = NonZeroU32::new(count);
    Ok(())
}

fn texts(value: &str, field: &mut Texts) -> Read {
    *field = Texts::parse(value).map_err(|error| format!("texts, separated by commas ({error})"))?;
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
                "TLSv1.2 TLSv1.3" => "TLSv1.3",
                "503" => "429",
                "round_robin" => "ewma",
                "node" => "cluster",
                "error" => "off",
                MediaTypes::DEFAULT => "text/css",
                "1" | "3" | "4" => "5",
                "X-Forwarded-For" => "X-Client",
                "AlwaysOn" => "AlwaysOff",
                "0.01" => "0.5",
                "" => match *name {
                    "add-headers" | "proxy-set-headers" => "a/b",
                    "custom-http-errors" => "404,503",
                    "gzip-disable" => "MSIE",
                    "global-auth-cache-key" => "$http_x",
                    "global-auth-request-redirect" | "global-auth-signin" | "global-auth-url" => "https://$host/x",
                    "no-tls-redirect-locations" => "/a, /b",
                    "log-format-upstream" | "opentelemetry-operation-name" => "$host",
                    "otlp-collector-host" => "collector.otel",
                    "skip-access-log-urls" => "/a",
                    "block-cidrs" | "denylist-source-range" | "proxy-real-ip-cidr" | "whitelist-source-range" => {
                        "10.0.0.0/8"
                    }
                    _ => "X-A, X-B",
                },
                _ => "42",
            };
            let mut globals = Globals::of(&Classes::default());
            assert_eq!(apply(value, &mut globals), Ok(()), "{name}");
            assert_ne!(globals, Globals::of(&Classes::default()), "{name}");
        }
    }

    /// Those that take nearly any text.
    const TEXTS: [&str; 3] = ["block-referers", "block-user-agents", "gzip-disable"];

    #[test]
    fn values_without_a_meaning_change_nothing() {
        for Setting { name, apply, .. } in SETTINGS {
            let values = if TEXTS.contains(name) {
                ["~(", "~*a(", "~[", "~*)"]
            } else {
                ["no $pe", "-1$?", "9999999999999$9999999:", "5t$\u{e9}"]
            };
            for value in values {
                let mut globals = Globals::of(&Classes::default());
                assert!(apply(value, &mut globals).is_err(), "{name} {value}");
                assert_eq!(globals, Globals::of(&Classes::default()), "{name} {value}");
            }
        }
    }
}
