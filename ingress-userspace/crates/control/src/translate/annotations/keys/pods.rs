//! Choice of the pod for a request, the protocol with it, and timeouts.

use http::HeaderName;
use rustls_pki_types::ServerName;

use super::super::super::values::{
    Read, balance, boolean, bytes, cookie_text, limit, number, retry_tries, retry_when, retry_within, seconds, secret,
    switch,
};
use crate::{
    change::Kind,
    translate::{
        annotations::row::{Key, key},
        backend_protocol::of_annotation,
    },
};
use ingress_model::{AffinityMode, ProxyVersion, SameSite, Template, Uploads};

/// Sorted by name.
pub(super) const KEYS: &[Key] = &[
    key(
        "affinity",
        "`cookie` keeps a client with a pod by a cookie, which is set with the first response",
        |value, parsed| match value {
            "cookie" => {
                parsed.has_affinity = true;
                Ok(())
            }
            _ => Err("`cookie`".into()),
        },
    ),
    key(
        "affinity-mode",
        "`balanced`: new pods take over their share of clients; `persistent`: a client stays for as long as its pod is \
         there",
        |value, parsed| {
            parsed.affinity.mode = match value {
                "balanced" => AffinityMode::Balanced,
                "persistent" => AffinityMode::Persistent,
                _ => return Err("`balanced` or `persistent`".into()),
            };
            Ok(())
        },
    )
    .default("balanced"),
    key(
        "backend-protocol",
        "protocol of the pods: `HTTP`, `HTTPS`, `GRPC` or `GRPCS`; without it, `appProtocol` of the port decides. Their \
         certificates are verified if `proxy-ssl-verify` says so",
        |value, parsed| {
            parsed.protocol = of_annotation(value).ok_or("`HTTP`, `HTTPS`, `GRPC` or `GRPCS`")?;
            Ok(())
        },
    ),
    key(
        "client-body-buffer-size",
        "bytes of a body that are kept at most, with `proxy-request-buffering: \"on\"`; from `1k` to `64m`",
        |value, parsed| {
            let max = usize::try_from(bytes(value)?).unwrap_or(usize::MAX);
            if !(1 << 10..=64 << 20).contains(&max) {
                return Err("from `1k` to `64m`".into());
            }
            parsed.forwarding.body_buffer = max;
            Ok(())
        },
    )
    .default("1m"),
    key(
        "custom-http-errors",
        "statuses, from 300 to 599 and separated by commas; responses of pods with one of these are replaced by what \
         the default backend answers to `GET /` with fields `X-Code`, `X-Format`, `X-Original-URI`, `X-Namespace`, \
         `X-Ingress-Name`, `X-Service-Name` and `X-Service-Port`. The status stays; what the filters of a rule refuse \
         is not replaced",
        |value, parsed| parsed.error_pages.statuses(value),
    ),
    key(
        "default-backend",
        "a Service, whose first port makes the pages of `custom-http-errors` instead of `--default-backend-service`, \
         and gets the requests of rules whose own has no endpoints",
        |value, parsed| {
            if value.is_empty() {
                return Err("the name of a Service".into());
            }
            parsed.error_pages.backend = Some(value.to_owned());
            Ok(())
        },
    ),
    key(
        "disable-proxy-intercept-errors",
        "whether responses of pods stay as they are, whatever `custom-http-errors` says",
        |value, parsed| boolean(value, &mut parsed.error_pages.disabled),
    )
    .default("false"),
    key(
        "load-balance",
        "how pods share requests: `round_robin`, `ewma` (the one of two that is expected to answer sooner) or, \
         specific to xdp-ingress, `least_request` (the less busy of two)",
        |value, parsed| {
            parsed.forwarding.balance = balance(value)?;
            Ok(())
        },
    )
    .default("round_robin"),
    key("mirror-host", "`Host` of requests to `mirror-target`, instead of its own", |value, parsed| {
        parsed.mirror.host(value)
    }),
    key("mirror-request-body", "whether `mirror-target` gets the body, too", |value, parsed| parsed.mirror.body(value))
        .default("on"),
    key(
        "mirror-target",
        "where each request is sent a second time: a URL, with the client's path and query if it has none, or, \
         specific to xdp-ingress, a Service of the Ingress' namespace, as `shadow:80`; a URL may name a Service of \
         another namespace only if a ReferenceGrant there or `--allow-cross-namespace-services` allows it. The \
         answer is dropped, and no request waits or fails for it: a mirror that is 256 KiB of a body behind is cut \
         off. HTTP/1.1 is spoken, and WebSockets are not mirrored",
        |value, parsed| parsed.mirror.target(value),
    ),
    key("proxy-body-size", "longest body of a request, else 413; `0` for any", |value, parsed| {
        limit(value, &mut parsed.forwarding.body_max)
    })
    .default("0"),
    key("proxy-buffer-size", "longest head of a response, else 502; from `1k` to `1m`", |value, parsed| {
        let max = usize::try_from(bytes(value)?).unwrap_or(usize::MAX);
        if !(1 << 10..=1 << 20).contains(&max) {
            return Err("from `1k` to `1m`".into());
        }
        parsed.forwarding.response_head_max = max;
        Ok(())
    })
    .default("64k"),
    key("proxy-connect-timeout", "time to open a connection to a pod, in seconds", |value, parsed| {
        seconds(value, &mut parsed.forwarding.connect_timeout)
    })
    .default("5"),
    key(
        "proxy-next-upstream",
        "when a request goes to another pod: `error`, `timeout`, `invalid_header`, `http_500`, `http_502`, `http_503`, \
         `http_504`, `http_403`, `http_404`, `http_429`, with `non_idempotent` also those that may have had an effect; \
         `off` for never. Only while nothing of its body has been sent",
        |value, parsed| retry_when(value, &mut parsed.forwarding.retry),
    )
    .default("error"),
    key("proxy-next-upstream-timeout", "no other pod after this time, in seconds; `0` for any", |value, parsed| {
        retry_within(value, &mut parsed.forwarding.retry)
    })
    .default("0"),
    key("proxy-next-upstream-tries", "pods tried in all, up to 10; `0` for 10", |value, parsed| {
        retry_tries(value, &mut parsed.forwarding.retry)
    })
    .default("3"),
    key(
        "proxy-protocol-upstream",
        "version of the PROXY protocol, `v1` or `v2`, with whose header connections to pods begin, also those of \
         `ssl-passthrough`: it tells the client's address, and that of the node which the client came to. Each \
         request has a connection of its own then. Specific to xdp-ingress",
        |value, parsed| {
            parsed.proxy_header = Some(match value {
                "v1" => ProxyVersion::V1,
                "v2" => ProxyVersion::V2,
                _ => return Err("`v1` or `v2`".into()),
            });
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "proxy-read-timeout",
        "longest silence of a pod before and within a response, and of both sides of a WebSocket, in seconds",
        |value, parsed| seconds(value, &mut parsed.forwarding.read_timeout),
    )
    .default("60"),
    key(
        "proxy-request-buffering",
        "`on` keeps the body of a request in memory until it is there, and asks a pod only then, or once there is more of \
         it than `client-body-buffer-size`, which is streamed; less is kept while memory is scarce. Unset, and with \
         `off`, bodies are streamed as they come; `off` says that this is meant, and `client-body-min-rate` does not \
         hold",
        |value, parsed| {
            let mut buffers = false;
            switch(value, &mut buffers)?;
            parsed.forwarding.uploads = if buffers { Uploads::Buffered } else { Uploads::StreamedAtAnyRate };
            Ok(())
        },
    ),
    key(
        "proxy-send-timeout",
        "longest time that a pod takes no byte of a request, or of what a client sends in a WebSocket, in seconds",
        |value, parsed| seconds(value, &mut parsed.forwarding.send_timeout),
    )
    .default("60"),
    key(
        "proxy-ssl-name",
        "name that certificates of pods must have, and that is sent as server name; without it, that of the service, \
         `NAME.NAMESPACE.svc`, or its external name",
        |value, parsed| {
            let name = ServerName::try_from(value.to_owned()).map_err(|_invalid| "a host, as `pod.a.test`")?;
            parsed.upstream_tls.name = Some(name);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "proxy-ssl-secret",
        "a Secret for TLS with pods: `ca.crt` to verify their certificates with, `tls.crt` and `tls.key` to show to \
         them, or all three",
        |value, parsed| secret(value, &mut parsed.upstream_tls.secret),
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key("proxy-ssl-server-name", "whether pods are sent a server name: `on` or `off`", |value, parsed| {
        switch(value, &mut parsed.upstream_tls.sends_name)
    })
    .default("off"),
    key(
        "proxy-ssl-verify",
        "whether certificates of pods are verified, `on` or `off`. A pod that shows another gets no request",
        |value, parsed| switch(value, &mut parsed.upstream_tls.verify),
    )
    .default("off")
    .or_refuse(),
    key(
        "service-upstream",
        "whether requests go to the address of the Service, so that the cluster chooses the pod",
        |value, parsed| boolean(value, &mut parsed.through_service),
    )
    .default("false"),
    key(
        "session-cookie-change-on-failure",
        "whether a client stays with the pod that it was sent to because its own failed; for `persistent` alone",
        |value, parsed| boolean(value, &mut parsed.affinity.follows_failure),
    )
    .default("false"),
    key("session-cookie-domain", "`Domain` of the cookie of `affinity`", |value, parsed| {
        parsed.affinity.cookie.domain = cookie_text(value)?;
        Ok(())
    }),
    key("session-cookie-expires", "the same as `session-cookie-max-age`, which goes before it", |value, parsed| {
        parsed.cookie_expires = Some(age(value)?);
        Ok(())
    }),
    key(
        "session-cookie-max-age",
        "how long the cookie lasts, in seconds; without it, as long as the browser runs",
        |value, parsed| {
            parsed.affinity.cookie.max_age = Some(age(value)?);
            Ok(())
        },
    ),
    key("session-cookie-name", "its name", |value, parsed| {
        let is_token = !value.is_empty() && HeaderName::try_from(value).is_ok();
        parsed.affinity.cookie.name = Some(value).filter(|_| is_token).ok_or("letters, digits and `-_.`")?.into();
        Ok(())
    })
    .default("INGRESSCOOKIE"),
    key(
        "session-cookie-path",
        "its `Path`; without it, that of the rule, or `/` where that is a regular expression",
        |value, parsed| {
            parsed.affinity.cookie.path = cookie_text(value)?;
            Ok(())
        },
    ),
    key("session-cookie-samesite", "its `SameSite`: `Strict`, `Lax` or `None`", |value, parsed| {
        parsed.affinity.cookie.same_site = Some(match value {
            "Strict" => SameSite::Strict,
            "Lax" => SameSite::Lax,
            "None" => SameSite::None,
            _ => return Err("`Strict`, `Lax` or `None`".into()),
        });
        Ok(())
    }),
    key("session-cookie-secure", "whether it is for TLS alone; without it, as the request came", |value, parsed| {
        let mut secure = false;
        boolean(value, &mut secure)?;
        parsed.affinity.cookie.secure = Some(secure);
        Ok(())
    }),
    key(
        "upstream-hash-by",
        "text with variables, as `$request_uri`; requests with the same text go to the same pod, as long as it is \
         there. It goes before `load-balance`",
        |value, parsed| {
            let template = Template::parse(value).map_err(|error| format!("a text with variables ({error})"))?;
            parsed.hash_by = (!value.is_empty()).then_some(template);
            Ok(())
        },
    ),
];

fn age(value: &str) -> Read<u64> {
    let mut seconds = 0;
    number(value, 0..=u64::from(u32::MAX), &mut seconds).ok_or("a number of seconds up to 4294967295")?;
    Ok(seconds)
}
