//! A route table as stable text, for golden tests and for people.

use std::fmt;

use super::{
    Action, Affinity, Bound, Filter, Forwarding, HostPattern, HostRoutes, Listener, Protocol, Redirect, ResponseRate,
    RouteTable, Rule, Settings, StreamService, Uploads, Upstream,
};

impl fmt::Display for RouteTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            hosts,
            binds,
            listeners,
            default,
            forwarding,
            upstreams,
            certificates: _,
            server_names,
            fallback_certificate,
            ticket_keys,
            streams,
            settings,
        } = self;
        if *settings != Settings::default() {
            writeln!(f, "{settings:?}")?;
        }
        for (pattern, routes) in hosts {
            write_host(f, pattern, routes)?;
        }
        for (bind, Bound { http, tls, stream }) in binds.iter().map(|(bind, bound)| (bind, &**bound)) {
            for (pattern, listener) in http {
                writeln!(f, "bind {bind} http {pattern} -> {listener}")?;
            }
            for (pattern, listener) in tls {
                writeln!(f, "bind {bind} tls {pattern} -> {listener}")?;
            }
            if let Some(listener) = stream {
                writeln!(f, "bind {bind} -> {listener}")?;
            }
        }
        for (name, listener) in listeners {
            let Listener { protocol, hosts, certificates, clients, streams } = &**listener;
            writeln!(f, "listener {name} {protocol}")?;
            for origin in certificates {
                writeln!(f, "  {:<24} {origin}", "(certificate)")?;
            }
            if let Some(clients) = clients {
                writeln!(f, "  {:<24} {clients}", "(client certificates)")?;
            }
            for (pattern, backends) in streams {
                match backends {
                    Some(backends) => writeln!(f, "  {:<24} {pattern} -> {backends}", "(stream)")?,
                    None => writeln!(f, "  {:<24} {pattern} refused", "(stream)")?,
                }
            }
            for (pattern, routes) in hosts {
                write_host(f, pattern, routes)?;
            }
        }
        if let Some(action) = default {
            writeln!(f, "default {action}")?;
        }
        if **forwarding != Forwarding::default() {
            writeln!(f, "forwarding{forwarding}")?;
        }
        for (pattern, origin) in server_names {
            let origin = origin.as_deref().unwrap_or("(none)");
            writeln!(f, "certificate {pattern} <- {origin}")?;
        }
        if let Some(keys) = ticket_keys {
            writeln!(f, "tickets sealed by {}, keys: {}", keys.origin, keys.keys.len())?;
        }
        if let Some(origin) = fallback_certificate {
            writeln!(f, "certificate (fallback) <- {origin}")?;
        }
        for (port, StreamService { upstream, accepts_proxy_protocol, proxy_header }) in streams {
            write!(f, "stream {port} -> {upstream}")?;
            if *accepts_proxy_protocol {
                f.write_str(" accepts-proxy-protocol")?;
            }
            if let Some(version) = proxy_header {
                write!(f, " sends-proxy-protocol={version}")?;
            }
            writeln!(f)?;
        }
        for (key, upstream) in upstreams {
            let Upstream { protocol, tls, health_policy: _, proxy_header, endpoints } = &**upstream;
            let endpoints: Vec<_> = endpoints.iter().map(|e| e.address.to_string()).collect();
            match protocol {
                Protocol::Http1 => write!(f, "upstream {key}")?,
                Protocol::H2c | Protocol::Https | Protocol::H2 => write!(f, "upstream {key} {protocol}")?,
            }
            if let Some(tls) = tls {
                write!(f, " {tls}")?;
            }
            if let Some(version) = proxy_header {
                write!(f, " proxy-protocol={version}")?;
            }
            writeln!(f, " [{}]", endpoints.join(", "))?;
        }
        Ok(())
    }
}

fn write_host(f: &mut fmt::Formatter<'_>, pattern: &HostPattern, routes: &HostRoutes) -> fmt::Result {
    let HostRoutes { rules, fallback, clients, passthrough, refuses_http3 } = routes;
    writeln!(f, "host {pattern}")?;
    for rule in rules {
        writeln!(f, "  {:<24} {rule}", rule.path.to_string())?;
    }
    if let Some(clients) = clients {
        writeln!(f, "  {:<24} {clients}", "(client certificates)")?;
    }
    if let Some(passthrough) = passthrough {
        writeln!(f, "  {:<24} {passthrough}", "(passthrough)")?;
    }
    if *refuses_http3 {
        writeln!(f, "  {:<24} refused", "(http/3)")?;
    }
    if let Some(rule) = fallback {
        writeln!(f, "  {:<24} {rule}", "(fallback)")?;
    }
    Ok(())
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path: _, conditions, owner, filters, action, forwarding } = self;
        if let Some(conditions) = conditions {
            write!(f, "if({conditions}) ")?;
        }
        for filter in filters {
            write!(f, "{filter} ")?;
        }
        write!(f, "{action}{forwarding}  # {owner}")
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(key) => write!(f, "-> {key}"),
            Self::Refuse(why) => write!(f, "-> refuse: {why}"),
            Self::Redirect(redirect) => {
                let Redirect { status, location } = &**redirect;
                write!(f, "-> redirect({status}) {location}")
            }
            Self::Split(split) => write!(f, "-> {split}"),
            Self::Weighted(backends) => write!(f, "-> {backends}"),
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RedirectHttps { status, except } => {
                write!(f, "redirect-https({status}")?;
                except.iter().try_for_each(|path| write!(f, ", not {path}"))?;
                f.write_str(")")
            }
            Self::ClientCertificate(_) => f.write_str("client-certificate"),
            Self::Access(access) => write!(f, "access({access})"),
            Self::RequestRules(rules) => write!(f, "request-rules({rules})"),
            Self::Limit(limit) => write!(f, "limit({limit})"),
            Self::Cors(cors) => write!(f, "cors({})", cors.origins),
            Self::Authentication(authentication) => write!(f, "{authentication}"),
            Self::Rewrite(rewrite) => write!(f, "rewrite({rewrite})"),
            Self::UpstreamHost(host) => write!(f, "host({host})"),
            Self::RequestHeaders(edits) => write!(f, "request-headers({edits})"),
            Self::Mirror(mirror) => write!(f, "mirror({mirror})"),
            Self::ErrorPages(pages) => write!(f, "error-pages({pages})"),
            Self::ResponseHeaders(edits) => write!(f, "response-headers({edits})"),
            Self::Compression(compression) => write!(f, "compression({compression})"),
            Self::StrictTransportSecurity(value) => write!(f, "hsts({})", String::from_utf8_lossy(value.as_bytes())),
        }
    }
}

/// Shows the settings that differ from the defaults.
impl fmt::Display for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connect_timeout,
            read_timeout,
            send_timeout,
            request_timeout,
            backend_request_timeout,
            body_max,
            uploads,
            body_buffer,
            response_head_max,
            response_rate,
            balance,
            affinity,
            retry,
            logged,
            metered,
            trace,
            url_rewrites,
        } = self;
        let default = Self::default();
        for (name, value, default) in [
            ("connect-timeout", connect_timeout, default.connect_timeout),
            ("read-timeout", read_timeout, default.read_timeout),
            ("send-timeout", send_timeout, default.send_timeout),
        ] {
            if *value != default {
                write!(f, " {name}={value:?}")?;
            }
        }
        for (name, value) in
            [("request-timeout", request_timeout), ("backend-request-timeout", backend_request_timeout)]
        {
            if let Some(value) = value {
                write!(f, " {name}={value:?}")?;
            }
        }
        if let Some(max) = body_max {
            write!(f, " body-max={max}")?;
        }
        match uploads {
            Uploads::Streamed => {}
            Uploads::StreamedAtAnyRate => f.write_str(" uploads-at-any-rate")?,
            Uploads::Buffered => write!(f, " uploads-buffered={body_buffer}")?,
        }
        if *response_head_max != default.response_head_max {
            write!(f, " response-head-max={response_head_max}")?;
        }
        if let Some(ResponseRate { bytes_per_second, after }) = response_rate {
            write!(f, " response-rate={bytes_per_second}/s after {after}")?;
        }
        if *balance != default.balance {
            write!(f, " balance={balance}")?;
        }
        if let Some(Affinity { mode, cookie, follows_failure: _ }) = affinity {
            write!(f, " affinity={}({mode:?})", cookie.name)?;
        }
        if *retry != default.retry {
            write!(f, " {retry:?}")?;
        }
        if !logged {
            f.write_str(" not-logged")?;
        }
        if *metered {
            f.write_str(" metered")?;
        }
        if trace.is_some() {
            f.write_str(" traced")?;
        }
        if let Some(rewrites) = url_rewrites {
            write!(f, " {rewrites}")?;
        }
        Ok(())
    }
}
