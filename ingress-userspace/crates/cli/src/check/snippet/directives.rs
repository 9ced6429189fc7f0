//! Conversion of each directive of nginx.

use ingress_model::{UrlRewrite, two_arguments};

use super::{
    Directive, Place,
    condition::Condition,
    convert::{Converter, Done, Value},
};

/// Directives whose effect is that of the proxy anyway, or that tune what does not exist here.
const NEEDLESS: &[(&str, &str)] = &[
    ("aio", "files are not served"),
    ("chunked_transfer_encoding", "bodies are streamed"),
    ("etag", "it is for files, which are not served"),
    ("fastcgi_param", "it is for FastCGI, and rules with `backend-protocol: FCGI` answer 503"),
    ("gzip_comp_level", "levels are settings: `gzip-level`"),
    ("gzip_disable", "a setting decides: `gzip-disable`"),
    ("gzip_http_version", "all versions get compressed responses"),
    ("gzip_min_length", "lengths are settings: `gzip-min-length`"),
    ("gzip_proxied", "requests of proxies get compressed responses, too"),
    ("gzip_types", "types are settings: `gzip-types`"),
    ("gzip_vary", "compressed responses have `Vary`"),
    ("brotli_comp_level", "levels are settings: `brotli-level`"),
    ("brotli_min_length", "lengths are settings: `brotli-min-length`"),
    ("brotli_types", "types are settings: `brotli-types`"),
    ("http2_push_preload", "browsers no longer support server push"),
    ("log_not_found", "files are not served"),
    ("proxy_buffering", "bodies of responses are streamed and never buffered"),
    ("proxy_buffers", "bodies of responses are streamed and never buffered"),
    ("proxy_busy_buffers_size", "bodies of responses are streamed and never buffered"),
    ("proxy_http_version", "pods are reached over HTTP/1.1, or over the protocol of `backend-protocol`"),
    ("proxy_max_temp_file_size", "bodies are never in files"),
    ("proxy_request_buffering", "bodies of requests are streamed"),
    ("proxy_socket_keepalive", "connections stay open while they are useful"),
    ("proxy_ssl_ciphers", "only safe ciphers are offered"),
    ("proxy_ssl_protocols", "only TLS 1.2 and 1.3 are offered"),
    ("proxy_ssl_session_reuse", "sessions are reused"),
    ("sendfile", "files are not served"),
    ("server_tokens", "no version is shown"),
    ("ssl_ciphers", "only safe ciphers are offered"),
    ("ssl_prefer_server_ciphers", "only safe ciphers are offered"),
    ("tcp_nodelay", "it is always on"),
    ("tcp_nopush", "bodies are streamed"),
];

/// Directives that are not converted, with what to do.
const REFUSED: &[(&str, &str)] = &[
    ("access_by_lua", "Lua is not run; use `auth-url` or a pod"),
    ("auth_basic", "set `auth-type: basic` with `auth-secret`"),
    ("auth_basic_user_file", "set `auth-type: basic` with `auth-secret`"),
    ("auth_request", "set `auth-url`"),
    ("body_filter_by_lua", "Lua is not run; let a pod change bodies"),
    ("charset", "let the pod name its charset"),
    ("content_by_lua", "Lua is not run; let a pod answer"),
    ("default_type", "the proxy makes no bodies; let a pod answer"),
    ("header_filter_by_lua", "Lua is not run; use `response-headers`"),
    ("limit_conn", "set `limit-connections`"),
    ("limit_req", "set `limit-rps`"),
    ("modsecurity", "put a web application firewall in front of the services that need one"),
    ("modsecurity_rules", "put a web application firewall in front of the services that need one"),
    ("proxy_cache", "responses are not cached; put a cache in front"),
    ("proxy_pass", "name the Service in a rule of an Ingress"),
    ("proxy_ssl_certificate", "put certificate and key into the Secret of `proxy-ssl-secret`"),
    ("proxy_ssl_certificate_key", "put certificate and key into the Secret of `proxy-ssl-secret`"),
    ("proxy_ssl_trusted_certificate", "put `ca.crt` into the Secret of `proxy-ssl-secret`"),
    ("rewrite_by_lua", "Lua is not run; use `rewrite-target` or `redirect-rules`"),
    ("root", "files are not served; let a pod answer"),
    ("sub_filter", "bodies are not changed; let the pod write them"),
    ("sub_filter_once", "bodies are not changed; let the pod write them"),
    ("sub_filter_types", "bodies are not changed; let the pod write them"),
    ("try_files", "files are not served; let a pod answer"),
];

/// Directives with the annotation that has their value.
const ANNOTATIONS: &[(&str, &str)] = &[
    ("client_body_buffer_size", "client-body-buffer-size"),
    ("client_max_body_size", "proxy-body-size"),
    ("proxy_buffer_size", "proxy-buffer-size"),
    ("proxy_next_upstream", "proxy-next-upstream"),
    ("proxy_next_upstream_tries", "proxy-next-upstream-tries"),
    ("proxy_ssl_name", "proxy-ssl-name"),
    ("proxy_ssl_server_name", "proxy-ssl-server-name"),
    ("satisfy", "satisfy"),
];

/// Directives with a time, and the annotation that has it in seconds.
const TIMES: &[(&str, &str)] = &[
    ("proxy_connect_timeout", "proxy-connect-timeout"),
    ("proxy_next_upstream_timeout", "proxy-next-upstream-timeout"),
    ("proxy_read_timeout", "proxy-read-timeout"),
    ("proxy_send_timeout", "proxy-send-timeout"),
    ("grpc_read_timeout", "proxy-read-timeout"),
    ("grpc_send_timeout", "proxy-send-timeout"),
    ("grpc_connect_timeout", "proxy-connect-timeout"),
];

/// Directives with the setting that has their value for all hosts.
const SETTINGS: &[(&str, &str)] = &[
    ("client_body_timeout", "client-body-timeout"),
    ("client_header_timeout", "client-header-timeout"),
    ("keepalive_timeout", "keep-alive"),
    ("limit_conn_status", "limit-conn-status-code"),
    ("limit_req_status", "limit-req-status-code"),
];

/// Bytes of a request's head that the setting allows.
const HEAD_SIZES: std::ops::RangeInclusive<u64> = 8 * 1024..=256 * 1024;

// === impl Converter ===

impl Converter<'_> {
    /// Converts one directive, which has an effect while `conditions` hold.
    pub(super) fn directive(&mut self, directive: &Directive, conditions: &[Condition]) -> Done {
        let Directive { line: _, name, arguments, block } = directive;
        match (name.as_str(), block) {
            ("if", Some(block)) => {
                let all = self.both(conditions, self.conditions(arguments)?)?;
                if self.place != Place::Auth && self.is_preflight(&all, block) {
                    return self.preflight(block);
                }
                self.all(block, &all);
                return Ok(());
            }
            ("location", Some(block)) if conditions.is_empty() && self.place == Place::Server => {
                return self.location(arguments, block);
            }
            ("set", None) => return self.set_variable(arguments, conditions),
            ("return", None) => return self.answer(arguments, conditions),
            ("rewrite", None) => return self.rewrite(arguments, conditions),
            ("break", None) if !conditions.is_empty() => return Err("later directives do not know of it".to_owned()),
            _ => {}
        }
        if self.place == Place::Server
            && let Some(reason) = self.overridden(name)
        {
            return self.drop(&reason);
        }
        let stem = name.trim_end_matches("_block").trim_end_matches("_file");
        if let Some((_, instead)) = REFUSED.iter().find(|(refused, _)| *refused == stem || refused == name) {
            return Err((*instead).to_owned());
        }
        if let Some((_, reason)) = NEEDLESS.iter().find(|(needless, _)| needless == name) {
            return self.drop(reason);
        }
        if block.is_some() {
            return Err("blocks of this kind are not known".to_owned());
        }
        if self.place == Place::Auth && matches!(name.as_str(), "add_header" | "more_set_headers") {
            return self.drop("only nginx itself gets the response of `auth-url`");
        }
        if !conditions.is_empty() {
            return Err("it depends on a condition, and only redirects and refusals may".to_owned());
        }
        match (self.place, name.as_str(), &**arguments) {
            (Place::Auth, "proxy_read_timeout", [time]) => {
                return self.set("auth-timeout", seconds(time)?.max(1).to_string());
            }
            (Place::Auth, "access_log", [off]) if off == "off" => {
                return self.drop("questions have no line in the log");
            }
            _ => {}
        }
        if self.place == Place::Auth && !matches!(name.as_str(), "proxy_set_header" | "grpc_set_header") {
            return Err("it holds for the requests to `auth-url`, of which only fields can be changed".to_owned());
        }
        self.plain(name, arguments)
    }

    /// Converts a directive without a block, outside of conditions.
    fn plain(&mut self, name: &str, arguments: &[String]) -> Done {
        let find = |table: &'static [(&'static str, &'static str)]| {
            table.iter().find(|(directive, _)| *directive == name).map(|(_, key)| *key)
        };
        if let Some(key) = find(ANNOTATIONS) {
            let value = self.fixed(&arguments.join(" "))?;
            return self.set(key, value);
        }
        if let Some(key) = find(TIMES) {
            let value = seconds(arguments.first().map(String::as_str).unwrap_or_default())?;
            return self.set(key, value.max(1).to_string());
        }
        if let Some(key) = find(SETTINGS) {
            let value = arguments.first().map(String::as_str).unwrap_or_default();
            let value = if name.ends_with("timeout") { seconds(value)?.to_string() } else { value.to_owned() };
            return self.setting(key, value);
        }
        match (name, arguments) {
            ("grpc_set_header", [..]) if self.place == Place::Location && self.facts.speaks_grpc == Some(false) => {
                self.drop("pods that speak no gRPC do not get it")
            }
            ("proxy_set_header", [..]) if self.place == Place::Location && self.facts.speaks_grpc == Some(true) => {
                self.drop("pods that speak gRPC do not get it")
            }
            ("proxy_set_header" | "grpc_set_header", [field, value]) => self.request_field(field, value),
            ("proxy_pass_header", [field]) => {
                let lower = field.to_ascii_lowercase();
                let is_hidden = lower.starts_with("x-accel-") || matches!(lower.as_str(), "date" | "server" | "x-pad");
                if is_hidden {
                    Err(format!("field `{field}` of pods is the proxy's own"))
                } else {
                    self.drop("fields of pods pass")
                }
            }
            ("error_page", arguments) => self.error_page(arguments),
            ("underscores_in_headers", [switch]) if switch == "on" || switch == "off" => {
                self.setting("enable-underscores-in-headers", if switch == "on" { "true" } else { "false" })
            }
            ("more_set_input_headers", fields) => self.more_fields(fields, true),
            ("more_clear_input_headers", fields) => self.removed_fields(fields, true),
            ("more_set_headers", fields) => self.more_fields(fields, false),
            ("more_clear_headers" | "proxy_hide_header", fields) => self.removed_fields(fields, false),
            ("add_header", arguments) => self.added_field(arguments),
            ("expires", arguments) => self.expires(arguments),
            ("auth_request_set", [variable, value]) => {
                let field = value.strip_prefix("$upstream_http_").ok_or("only fields of the answer are passed on")?;
                let variable = variable.trim_start_matches('$').to_owned();
                self.variables.insert(variable, Value::OfAuth(field.replace('_', "-")));
                Ok(())
            }
            ("internal", []) if self.place == Place::Location => {
                self.refuse_all("404");
                Ok(())
            }
            ("allow" | "deny", [network]) => self.access(name, network),
            ("gzip", [switch]) => self.coding("gzip", switch),
            ("brotli", [switch]) => self.coding("br", switch),
            ("access_log", [off]) if off == "off" => self.set("enable-access-log", "false"),
            ("proxy_redirect", [value]) if value == "off" || value == "default" => self.drop("it is the default"),
            ("proxy_ssl_verify", [switch]) if switch == "off" => self.drop("it is the default"),
            ("proxy_ssl_verify", [switch]) if switch == "on" => {
                Err("set `proxy-ssl-verify: \"on\"` with the authorities in the Secret of `proxy-ssl-secret`"
                    .to_owned())
            }
            ("proxy_redirect", [from, to]) if self.place == Place::Location => {
                UrlRewrite::new(from, to).map_err(|error| error.to_string())?;
                let is_url = ["http://", "https://", "/", "$"].iter().any(|start| to.starts_with(start));
                if !is_url || !to.bytes().all(|b| b.is_ascii_graphic() && b != b'"') {
                    return Err("`proxy-redirect-to` takes a URL or a path".to_owned());
                }
                self.set("proxy-redirect-from", from.as_str())?;
                self.set("proxy-redirect-to", to.as_str())
            }
            ("proxy_cookie_path", [from, to]) if self.place == Place::Location => {
                UrlRewrite::new(from, to).map_err(|error| error.to_string())?;
                self.set("proxy-cookie-path", arguments_of(from, to)?)
            }
            ("proxy_cookie_domain", [from, to]) if self.place == Place::Location => {
                UrlRewrite::of_domain(from, to).map_err(|error| error.to_string())?;
                self.set("proxy-cookie-domain", arguments_of(from, to)?)
            }
            ("proxy_cookie_path" | "proxy_cookie_domain" | "proxy_cookie_flags", _) => {
                Err("cookies of pods are passed as they are; let the pod set their attributes".to_owned())
            }
            ("large_client_header_buffers", [number, size]) => {
                head_of(number, size)?;
                self.setting("large-client-header-buffers", format!("{number} {size}"))
            }
            ("mirror", [off]) if off == "off" => self.drop("it is the default"),
            ("mirror", [path]) if self.place == Place::Location => self.mirror(path),
            ("mirror_request_body", [switch]) if matches!(switch.as_str(), "on" | "off") => {
                self.set("mirror-request-body", switch.as_str())
            }
            ("proxy_intercept_errors", _) => Err("set `custom-http-errors` with `default-backend`".to_owned()),
            ("set_real_ip_from", [network]) => {
                let network = super::access::shown(&super::access::network_of(network)?);
                let key = "proxy-real-ip-cidr";
                let known = self.conversion.settings.remove(key).map(|known| known + ", ").unwrap_or_default();
                self.setting(key, known + &network)
            }
            ("real_ip_recursive", [switch]) if switch == "on" => {
                self.drop("all trusted proxies in the list are skipped")
            }
            ("real_ip_header", [_]) if !self.trusts_proxies => {
                Err("without `set_real_ip_from`, nginx trusts no peer; the networks may be those of the ConfigMap"
                    .to_owned())
            }
            ("real_ip_header", [field]) if field == "proxy_protocol" => self.setting("use-proxy-protocol", "true"),
            ("real_ip_header", [field]) => {
                self.setting("forwarded-for-header", field.as_str())?;
                // `use-forwarded-headers` would trust further fields, such as the host.
                self.setting("enable-real-ip", "true")
            }
            _ => Err("this directive is not known to the converter".to_owned()),
        }
    }

    /// Converts `mirror`, whose copies go through the locations of the host: here all of them lead to one Service.
    fn mirror(&mut self, path: &str) -> Done {
        let is_path = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~".contains(&b));
        let is_only = matches!(&*self.facts.paths, [only] if only.is_own && !only.is_exact && only.path == "/");
        match (&self.facts.service, self.facts.only_host()) {
            (Some((service, port)), Some(host)) if is_path && is_only => {
                let namespace = &self.facts.namespace;
                let url = format!("http://{service}.{namespace}.svc.cluster.local:{port}{path}$is_args$args");
                let host = host.to_owned();
                self.set("mirror-host", host)?;
                self.set("mirror-target", url)
            }
            _ => Err("set `mirror-target`".to_owned()),
        }
    }

    /// Converts `error_page`, which concerns the errors of nginx itself.
    fn error_page(&mut self, arguments: &[String]) -> Done {
        let is_status = |text: &&String| text.bytes().all(|byte| byte.is_ascii_digit());
        let statuses: Vec<_> = arguments.iter().take_while(is_status).map(String::as_str).collect();
        let intercepts = self.own.contains("proxy_intercept_errors") || self.facts.has("custom-http-errors");
        if statuses == ["401"] && !intercepts && !self.facts.authenticates() {
            return self.drop("only nginx' own authentication has this status, and the Ingress has none");
        }
        Err("set `custom-http-errors` with `default-backend`".to_owned())
    }

    fn coding(&mut self, coding: &'static str, switch: &str) -> Done {
        match switch {
            "on" if self.codings != ["off"] => {
                // The better one comes first.
                if coding == "br" {
                    self.codings.insert(0, coding)
                } else {
                    self.codings.push(coding)
                }
                Ok(())
            }
            "off" if self.codings.is_empty() => {
                self.codings.push("off");
                Ok(())
            }
            _ => Err("codings are turned on and off".to_owned()),
        }
    }
}

/// Returns both arguments as an annotation has them.
fn arguments_of(from: &str, to: &str) -> Done<String> {
    let quoted = |text: &str| {
        let is_word = !text.is_empty() && !text.contains([';', '"', '\'', '\\']) && !text.contains(char::is_whitespace);
        if is_word { text.to_owned() } else { format!("\"{}\"", text.replace('"', "\\\"")) }
    };
    let both = format!("{} {}", quoted(from), quoted(to));
    let is_same = two_arguments(&both).is_ok_and(|(first, second)| first == from && second == to);
    if is_same { Ok(both) } else { Err("its arguments cannot be written as an annotation".to_owned()) }
}

/// Returns the bytes of a request's head, which is the product of a number and a size of nginx.
fn head_of(number: &str, size: &str) -> Done<u64> {
    let (digits, unit) = match size.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&size[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&size[..at], 1 << 20),
        _ => (size, 1),
    };
    let parse = |digits: &str| {
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| is_number)
    };
    let product =
        parse(number).zip(parse(digits)).and_then(|(number, size)| number.checked_mul(size)?.checked_mul(unit));
    let fits = product.filter(|product| HEAD_SIZES.contains(product));
    fits.ok_or_else(|| "the product of number and size must be from 8k to 256k".to_owned())
}

/// Returns a time of nginx in seconds, rounded up: a number, or a sequence of numbers with units.
pub(super) fn seconds(text: &str) -> Done<u64> {
    let invalid = || format!("`{text}` is no time");
    let (mut total, mut rest) = (0_u64, text);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().map_err(|_digits| invalid())?;
        rest = &rest[digits..];
        let unit = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let milliseconds = match &rest[..unit] {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            "M" => 2_592_000_000,
            "y" => 31_536_000_000,
            _ => return Err(invalid()),
        };
        rest = rest[unit..].trim_start();
        total = number.checked_mul(milliseconds).and_then(|time| total.checked_add(time)).ok_or_else(invalid)?;
    }
    if text.is_empty() { Err(invalid()) } else { Ok(total.div_ceil(1_000)) }
}
