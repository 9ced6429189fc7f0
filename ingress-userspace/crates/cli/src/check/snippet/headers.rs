//! Header fields of requests and responses.

use ingress_model::{HeaderEdits, Template, Variable};

use super::{
    Place,
    convert::{Converter, Done, Value},
};

/// Fields for pods that the proxy sets by itself, with the values that mean the same.
const OWN: [(&str, &[&str]); 9] = [
    ("host", &["$host", "$http_host", "$best_http_host", "$server_name"]),
    ("x-real-ip", &["$remote_addr"]),
    ("x-forwarded-for", &["$proxy_add_x_forwarded_for"]),
    ("x-forwarded-host", &["$host", "$http_host", "$best_http_host", "$server_name"]),
    ("x-forwarded-proto", &["$scheme", "$pass_access_scheme"]),
    ("x-forwarded-scheme", &["$scheme", "$pass_access_scheme"]),
    ("x-forwarded-port", &["$server_port", "$pass_port", "$pass_server_port"]),
    ("x-request-id", &["$req_id", "$request_id"]),
    ("x-scheme", &["$scheme", "$pass_access_scheme"]),
];

/// Fields that are those of the client only if the proxy trusts it, with the values that pass them on.
const OF_CLIENT: [(&str, &str); 5] = [
    ("x-forwarded-for", "$http_x_forwarded_for"),
    ("x-forwarded-host", "$http_x_forwarded_host"),
    ("x-forwarded-port", "$http_x_forwarded_port"),
    ("x-forwarded-proto", "$http_x_forwarded_proto"),
    ("x-real-ip", "$http_x_real_ip"),
];

/// Fields with properties of a client certificate, which `auth-tls-pass-certificate-to-upstream` passes.
const CERTIFICATE: [(&str, &str); 4] = [
    ("ssl-client-cert", "$ssl_client_escaped_cert"),
    ("ssl-client-verify", "$ssl_client_verify"),
    ("ssl-client-subject-dn", "$ssl_client_s_dn"),
    ("ssl-client-issuer-dn", "$ssl_client_i_dn"),
];

/// Variables whose texts differ in details.
const CERTIFICATE_NAMES: [&str; 3] = ["$ssl_client_s_dn", "$ssl_client_i_dn", "$ssl_client_verify"];

// === impl Converter ===

impl Converter<'_> {
    /// Converts `proxy_set_header`, or a field of `more_set_input_headers`.
    pub(super) fn request_field(&mut self, name: &str, value: &str) -> Done {
        let lower = name.to_ascii_lowercase();
        if matches!(lower.as_str(), "upgrade" | "connection") {
            return self.drop("WebSocket and connections are the proxy's own work");
        }
        if self.place == Place::Auth {
            return self.auth_field(name, value);
        }
        let plain = value.replace(['{', '}'], "");
        if CERTIFICATE_NAMES.iter().any(|name| plain.contains(name)) {
            self.differ("attributes that are rare, and reasons after `FAILED:`, have other names");
        }
        if OWN.iter().any(|(own, values)| *own == lower && values.contains(&plain.as_str())) {
            return self.drop("the proxy sets this field by itself");
        }
        if OF_CLIENT.contains(&(lower.as_str(), plain.as_str())) {
            self.differ(
                "the client's value passes only with the setting `use-forwarded-headers`, from `proxy-real-ip-cidr`",
            );
            return Ok(());
        }
        if CERTIFICATE.contains(&(lower.as_str(), plain.as_str())) {
            return self.set("auth-tls-pass-certificate-to-upstream", "true");
        }
        if let Some(field) = self.of_auth(value) {
            if field.eq_ignore_ascii_case(name) {
                self.passed.push(name.to_owned());
                return Ok(());
            }
            // The list has the grammar of fields, and `=` is a part of no name.
            checked(format!("-{name}"))?;
            checked(format!("-{field}"))?;
            self.passed.push(format!("{field}={name}"));
            return Ok(());
        }
        if lower == "host" {
            let value = self.expand(value)?;
            let template = Template::parse(&value).map_err(|error| format!("`Host` is `{value}`: {error}"))?;
            if template.variables().any(|variable| matches!(variable, Variable::Group(_))) {
                return Err(format!("`Host` is made of a group: `{value}`"));
            }
            return self.set("upstream-vhost", value);
        }
        let value = self.expand(value)?;
        let line = if value.trim().is_empty() { format!("-{name}") } else { format!("{name}: {value}") };
        self.requests.push(checked(line)?);
        Ok(())
    }

    fn auth_field(&mut self, name: &str, value: &str) -> Done {
        let value = self.expand(value)?;
        HeaderEdits::setting([(name, value.as_str())]).map_err(|error| error.to_string())?;
        self.conversion.auth_fields.insert(name.to_owned(), value);
        Ok(())
    }

    /// Converts `add_header`.
    pub(super) fn added_field(&mut self, arguments: &[String]) -> Done {
        let (name, value) = match arguments {
            [name, value] => (name, value),
            [name, value, always] if always == "always" => (name, value),
            _ => return Err("`add_header` has a name and a value".to_owned()),
        };
        if value.is_empty() {
            return self.drop("nginx adds no field without a value");
        }
        if let Some(field) = self.of_auth(value) {
            return if field.eq_ignore_ascii_case("set-cookie") && name.eq_ignore_ascii_case("set-cookie") {
                self.set("auth-always-set-cookie", "true")
            } else {
                Err(format!("field `{field}` of the answer from `auth-url` is not passed to clients"))
            };
        }
        let line = format!("+{name}: {}", self.expand(value)?);
        self.responses.push(checked(line)?);
        if arguments.len() == 2 {
            self.differ("errors get the field, too, as with `always`");
        }
        Ok(())
    }

    /// Converts `more_set_headers` and `more_set_input_headers`: `Name: value` each, where no value removes.
    pub(super) fn more_fields(&mut self, arguments: &[String], is_request: bool) -> Done {
        if let Some(option) = arguments.iter().find(|argument| argument.starts_with('-')) {
            return Err(format!("option `{option}` is not available"));
        }
        for argument in arguments {
            let (name, value) = argument.split_once(':').unwrap_or((argument, ""));
            let (name, value) = (name.trim(), value.trim());
            if is_request {
                self.request_field(name, value)?;
                continue;
            }
            let value = self.expand(value)?;
            let line = if value.is_empty() { format!("-{name}") } else { format!("{name}: {value}") };
            self.responses.push(checked(line)?);
        }
        Ok(())
    }

    /// Converts `more_clear_headers`, `more_clear_input_headers` and `proxy_hide_header`.
    pub(super) fn removed_fields(&mut self, arguments: &[String], is_request: bool) -> Done {
        for name in arguments {
            if name.contains('*') || name.starts_with('-') {
                return Err(format!("`{name}` is no name of one field"));
            }
            let line = checked(format!("-{}", name.trim_end_matches(':')))?;
            if is_request { self.requests.push(line) } else { self.responses.push(line) }
        }
        Ok(())
    }

    /// Converts `expires`.
    pub(super) fn expires(&mut self, arguments: &[String]) -> Done {
        let value = match arguments {
            [time] => match time.as_str() {
                "off" => return self.drop("it is the default"),
                "max" => "max-age=315360000".to_owned(),
                "epoch" | "-1" => "no-cache".to_owned(),
                time => format!("max-age={}", super::directives::seconds(time)?),
            },
            _ => return Err("only a time is understood".to_owned()),
        };
        self.responses.push(format!("Cache-Control: {value}"));
        self.differ("errors get the field, too, and there is no `Expires`");
        Ok(())
    }

    /// Returns the field of the answer from `auth-url` that a variable stands for.
    fn of_auth(&self, value: &str) -> Option<String> {
        let name = value.strip_prefix('$')?;
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        match self.variables.get(name)? {
            Value::OfAuth(field) => Some(field.clone()),
            Value::Text(_) | Value::Flag(_) => None,
        }
    }
}

/// Returns a line of `request-headers` or `response-headers` if it is valid.
fn checked(line: String) -> Done<String> {
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    HeaderEdits::parse(&line).map_err(|error| error.to_string())?;
    Ok(line)
}
