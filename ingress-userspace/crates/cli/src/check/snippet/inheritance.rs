//! Directives of a server that have no effect, because each location of ingress-nginx has its own.
//!
//! nginx joins no two levels: a location with a directive takes nothing of that name from its server. Exceptions are
//! the module rewrite, which runs on each level, and `more_set_headers` with its kin, which joins them.

use super::{Directive, convert::Converter};

/// Directives that ingress-nginx writes into each location, whatever the annotations.
const EVERYWHERE: [&str; 20] = [
    "client_max_body_size",
    "grpc_set_header",
    "port_in_redirect",
    "proxy_buffer_size",
    "proxy_buffering",
    "proxy_buffers",
    "proxy_connect_timeout",
    "proxy_cookie_domain",
    "proxy_cookie_path",
    "proxy_http_version",
    "proxy_max_temp_file_size",
    "proxy_next_upstream",
    "proxy_next_upstream_timeout",
    "proxy_next_upstream_tries",
    "proxy_pass",
    "proxy_read_timeout",
    "proxy_redirect",
    "proxy_request_buffering",
    "proxy_send_timeout",
    "proxy_set_header",
];

/// Annotations, or settings of the same name, for which it writes further directives.
const BY_ANNOTATION: [(&str, &[&str]); 9] = [
    ("allowlist-source-range", &["allow"]),
    ("auth-signin", &["error_page"]),
    ("auth-url", &["add_header", "auth_request", "auth_request_set"]),
    ("client-body-buffer-size", &["client_body_buffer_size"]),
    ("custom-http-errors", &["error_page", "proxy_intercept_errors"]),
    ("denylist-source-range", &["allow"]),
    ("proxy-ssl-secret", &["proxy_ssl_name", "proxy_ssl_server_name", "proxy_ssl_verify"]),
    ("satisfy", &["satisfy"]),
    ("whitelist-source-range", &["allow"]),
];

/// Returns the name under which nginx keeps a directive.
fn kept(name: &str) -> &str {
    match name {
        "deny" => "allow",
        other => other,
    }
}

/// Returns whether levels are joined, or the directive has an effect by itself.
fn is_joined(name: &str) -> bool {
    name.starts_with("more_") || matches!(name, "set" | "if" | "return" | "rewrite" | "break" | "location")
}

// === impl Converter ===

impl Converter<'_> {
    /// Remembers the directives of the location.
    pub(super) fn remember(&mut self, directives: &[Directive]) {
        self.own.extend(
            directives
                .iter()
                .filter(|directive| !is_joined(&directive.name))
                .map(|directive| kept(&directive.name).to_owned()),
        );
    }

    /// Returns why a directive of the server has no effect, if it has none.
    pub(super) fn overridden(&self, name: &str) -> Option<String> {
        let name = kept(name);
        if EVERYWHERE.contains(&name) {
            return Some(
                "ingress-nginx writes one into each location, so that nginx never takes that of the server".to_owned(),
            );
        }
        if self.own.contains(name) {
            return Some("nginx takes that of the `configuration-snippet` instead".to_owned());
        }
        let annotation = BY_ANNOTATION.iter().find(|(key, names)| names.contains(&name) && self.facts.has(key));
        annotation.map(|(key, _)| format!("nginx takes that of the annotation `{key}` instead"))
    }
}
