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
        "`cookie` keeps a client with the same pod by a cookie, which the first response sets",
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
        "`balanced`: new pods take over their share of clients; `persistent`: a client stays while its pod exists",
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
        "protocol of the pods: `HTTP`, `HTTPS`, `GRPC` or `GRPCS`; without it, `appProtocol` of the port decides. \
         `proxy-ssl-verify` turns on verification of their certificates",
        |value, parsed| {
            parsed.protocol = of_annotation(value).ok_or("`HTTP`, `HTTPS`, `GRPC` or `GRPCS`")?;
            Ok(())
        },
    ),
    key(
        "client-body-buffer-size",
        "largest number of bytes of a body to buffer, with `proxy-request-buffering: \"on\"`; from `1k` to `64m`",
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
        "statuses from 300 to 599, separated by commas. A response of a pod with one of them is replaced by the \
         default backend's answer to `GET /` with the fields `X-Code`, `X-Format`, `X-Original-URI`, `X-Namespace`, \
         `X-Ingress-Name`, `X-Service-Name` and `X-Service-Port`. The status stays; responses of filters, such as \
         refusals, are not replaced",
        |value, parsed| parsed.error_pages.statuses(value),
    ),
    key(
        "default-backend",
        "a Service. Its first port answers for `custom-http-errors`, instead of `--default-backend-service`, and \
         serves the requests of rules without endpoints",
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
        "whether responses of pods stay as they are despite `custom-http-errors`",
        |value, parsed| boolean(value, &mut parsed.error_pages.disabled),
    )
    .default("false"),
    key(
        "load-balance",
        "how pods share requests: `round_robin`, `ewma` (of two pods, the one with the shorter expected response \
         time) or, specific to xdp-ingress, `least_request` (of two, the one with fewer requests)",
        |value, parsed| {
            parsed.forwarding.balance = balance(value)?;
            Ok(())
        },
    )
    .default("round_robin"),
    key("mirror-host", "`Host` of requests to `mirror-target`, instead of the target's own", |value, parsed| {
        parsed.mirror.host(value)
    }),
    key("mirror-request-body", "whether `mirror-target` gets bodies, too", |value, parsed| parsed.mirror.body(value))
        .default("on"),
    key(
        "mirror-target",
        "target for a copy of each request: a URL, with the client's path and query if it has none, or, specific to \
         xdp-ingress, a Service of the Ingress' namespace, as `shadow:80`; a URL may name a Service of another \
         namespace only if a ReferenceGrant there or `--allow-cross-namespace-services` allows it. The answer is \
         dropped, and no request waits or fails because of a copy: a mirror that lags 256 KiB of a body behind is cut \
         off. Copies use HTTP/1.1; WebSockets are not mirrored",
        |value, parsed| parsed.mirror.target(value),
    ),
    key("proxy-body-size", "largest body of a request; larger ones get 413; `0` for any", |value, parsed| {
        limit(value, &mut parsed.forwarding.body_max)
    })
    .default("0"),
    key(
        "proxy-buffer-size",
        "largest head of a response; larger ones become 502; from `1k` to `1m`",
        |value, parsed| {
            let max = usize::try_from(bytes(value)?).unwrap_or(usize::MAX);
            if !(1 << 10..=1 << 20).contains(&max) {
                return Err("from `1k` to `1m`".into());
            }
            parsed.forwarding.response_head_max = max;
            Ok(())
        },
    )
    .default("64k"),
    key("proxy-connect-timeout", "time limit for a connection to a pod, in seconds", |value, parsed| {
        seconds(value, &mut parsed.forwarding.connect_timeout)
    })
    .default("5"),
    key(
        "proxy-next-upstream",
        "conditions for a retry at another pod: `error`, `timeout`, `invalid_header`, `http_500`, `http_502`, \
         `http_503`, `http_504`, `http_403`, `http_404`, `http_429`; `non_idempotent` includes requests that may have \
         had an effect; `off` for never. Only possible before any byte of the body was sent",
        |value, parsed| retry_when(value, &mut parsed.forwarding.retry),
    )
    .default("error"),
    key(
        "proxy-next-upstream-timeout",
        "time after which there is no further retry, in seconds; `0` for no limit",
        |value, parsed| retry_within(value, &mut parsed.forwarding.retry),
    )
    .default("0"),
    key("proxy-next-upstream-tries", "largest number of pods to try in all, up to 10; `0` for 10", |value, parsed| {
        retry_tries(value, &mut parsed.forwarding.retry)
    })
    .default("3"),
    key(
        "proxy-protocol-upstream",
        "begins connections to pods, those of `ssl-passthrough` too, with a header of the PROXY protocol, version \
         `v1` or `v2`. It contains the client's address and the address of the node that the client connected to. \
         Each request then has its own connection. Specific to xdp-ingress",
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
        "longest silence of a pod before and within a response, or of both sides of a WebSocket, in seconds",
        |value, parsed| seconds(value, &mut parsed.forwarding.read_timeout),
    )
    .default("60"),
    key(
        "proxy-request-buffering",
        "`on` buffers the whole body of a request in memory before a pod gets the request. Beyond \
         `client-body-buffer-size` the rest is streamed; less is buffered while memory is scarce. Unset or `off`, \
         bodies are streamed as they arrive; with an explicit `off`, `client-body-min-rate` does not apply",
        |value, parsed| {
            let mut buffers = false;
            switch(value, &mut buffers)?;
            parsed.forwarding.uploads = if buffers { Uploads::Buffered } else { Uploads::StreamedAtAnyRate };
            Ok(())
        },
    ),
    key(
        "proxy-send-timeout",
        "longest time during which a pod accepts no byte of a request, or of a client's side of a WebSocket, in seconds",
        |value, parsed| seconds(value, &mut parsed.forwarding.send_timeout),
    )
    .default("60"),
    key(
        "proxy-ssl-name",
        "name for the verification of pods' certificates and for SNI; without it, the Service's `NAME.NAMESPACE.svc`, \
         or its external name",
        |value, parsed| {
            let name = ServerName::try_from(value.to_owned()).map_err(|_invalid| "a host, as `pod.a.test`")?;
            parsed.upstream_tls.name = Some(name);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "proxy-ssl-secret",
        "a Secret for TLS to pods: `ca.crt` to verify their certificates, `tls.crt` and `tls.key` as client \
         certificate, or all three",
        |value, parsed| secret(value, &mut parsed.upstream_tls.secret),
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "proxy-ssl-server-name",
        "whether handshakes with pods contain a server name (SNI): `on` or `off`",
        |value, parsed| switch(value, &mut parsed.upstream_tls.sends_name),
    )
    .default("off"),
    key(
        "proxy-ssl-verify",
        "whether certificates of pods are verified: `on` or `off`. A pod with an invalid one gets no request",
        |value, parsed| switch(value, &mut parsed.upstream_tls.verify),
    )
    .default("off")
    .or_refuse(),
    key(
        "service-upstream",
        "whether requests go to the Service's own address, so that the cluster chooses the pod",
        |value, parsed| boolean(value, &mut parsed.through_service),
    )
    .default("false"),
    key(
        "session-cookie-change-on-failure",
        "whether a client stays with the second pod after its own pod failed; only for `persistent`",
        |value, parsed| boolean(value, &mut parsed.affinity.follows_failure),
    )
    .default("false"),
    key("session-cookie-domain", "`Domain` of the cookie of `affinity`", |value, parsed| {
        parsed.affinity.cookie.domain = cookie_text(value)?;
        Ok(())
    }),
    key("session-cookie-expires", "the same as `session-cookie-max-age`, which takes precedence", |value, parsed| {
        parsed.cookie_expires = Some(age(value)?);
        Ok(())
    }),
    key(
        "session-cookie-max-age",
        "lifetime of the cookie, in seconds; without it, until the browser closes",
        |value, parsed| {
            parsed.affinity.cookie.max_age = Some(age(value)?);
            Ok(())
        },
    ),
    key("session-cookie-name", "name of the cookie", |value, parsed| {
        let is_token = !value.is_empty() && HeaderName::try_from(value).is_ok();
        parsed.affinity.cookie.name = Some(value).filter(|_| is_token).ok_or("letters, digits and `-_.`")?.into();
        Ok(())
    })
    .default("INGRESSCOOKIE"),
    key(
        "session-cookie-path",
        "`Path` of the cookie; without it, the rule's path, or `/` if that is a regular expression",
        |value, parsed| {
            parsed.affinity.cookie.path = cookie_text(value)?;
            Ok(())
        },
    ),
    key("session-cookie-samesite", "`SameSite` of the cookie: `Strict`, `Lax` or `None`", |value, parsed| {
        parsed.affinity.cookie.same_site = Some(match value {
            "Strict" => SameSite::Strict,
            "Lax" => SameSite::Lax,
            "None" => SameSite::None,
            _ => return Err("`Strict`, `Lax` or `None`".into()),
        });
        Ok(())
    }),
    key(
        "session-cookie-secure",
        "whether the cookie is `Secure`; without it, if the request came over TLS",
        |value, parsed| {
            let mut secure = false;
            boolean(value, &mut secure)?;
            parsed.affinity.cookie.secure = Some(secure);
            Ok(())
        },
    ),
    key(
        "upstream-hash-by",
        "a text with variables, as `$request_uri`; requests with the same text go to the same pod while it exists. It \
         takes precedence over `load-balance`",
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
