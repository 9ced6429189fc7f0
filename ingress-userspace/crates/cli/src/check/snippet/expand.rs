//! Variables in texts of a snippet. Those of the snippet and of the Ingress are replaced, within bounds.

use ingress_model::Template;

use super::convert::{Converter, Done, Value};

/// Maximum length of a text in bytes, with the values of variables.
const MAX_TEXT: usize = 16 * 1024;
/// Maximum number of bytes that the values of variables come to, in all texts of an Ingress.
const MAX_ALL: usize = 4 << 20;

// === impl Converter ===

impl Converter<'_> {
    /// Returns a text with the variables that are available here; those of the snippet and of the Ingress are replaced.
    pub(super) fn expand(&self, text: &str) -> Done<String> {
        let mut expanded = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            expanded += before;
            let (name, after) = match after.strip_prefix('{') {
                Some(braced) => braced.split_once('}').ok_or("`${` is not closed")?,
                None => {
                    let is_digit = after.starts_with(|c: char| c.is_ascii_digit());
                    let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
                    after.split_at(if is_digit { 1 } else { end })
                }
            };
            let value = self.value(name)?;
            // Braces are needed only before a character that could be a part of the name.
            let is_followed = after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            if !is_followed && value == format!("${{{name}}}") {
                expanded += &format!("${name}");
            } else {
                expanded += &value;
            }
            let spent = self.expanded.get() + value.len();
            self.expanded.set(spent);
            if expanded.len() > MAX_TEXT {
                return Err(format!("its variables expand to more than {MAX_TEXT} bytes"));
            }
            if spent > MAX_ALL {
                return Err(format!("the variables of the Ingress expand to more than {MAX_ALL} bytes"));
            }
            rest = after;
        }
        Ok(expanded + rest)
    }

    /// Returns a text that is the same for all requests.
    pub(super) fn fixed(&self, text: &str) -> Done<String> {
        let text = self.expand(text)?;
        let text = match (self.facts.only_host(), text.as_str()) {
            (Some(host), "$host") => host.to_owned(),
            _ => text,
        };
        if text.contains('$') { Err("its value has variables".to_owned()) } else { Ok(text) }
    }

    fn value(&self, name: &str) -> Done<String> {
        let Some(known) = self.variables.get(name) else {
            let constant = match (name, &self.facts.service) {
                ("namespace", _) => Some(self.facts.namespace.clone()),
                ("ingress_name", _) => Some(self.facts.name.clone()),
                ("service_name", Some((service, _))) => Some(service.clone()),
                ("service_port", Some((_, port))) => Some(port.clone()),
                _ => None,
            };
            return match (constant, name) {
                (Some(constant), _) => Ok(constant),
                (None, "server_name") => self.server_name(),
                (None, "") => Err("a `$` begins no variable".to_owned()),
                (None, name) => {
                    let text = format!("${{{name}}}");
                    Template::parse(&text).map_err(|error| error.to_string())?;
                    Ok(if name.len() == 1 { format!("${name}") } else { text })
                }
            };
        };
        match known {
            Value::Text(text) => Ok(text.clone()),
            Value::Flag(flag) if flag.steps.is_empty() => Ok(flag.base.clone()),
            Value::Flag(_) => Err(format!("`${name}` depends on conditions")),
            Value::OfAuth(field) => Err(format!("`${name}`, field `{field}` of `auth-url`, stands within a text")),
        }
    }

    /// Returns the text for `$server_name`: the host of the rule, whatever name a client asks for.
    fn server_name(&self) -> Done<String> {
        if let Some(host) = self.facts.only_host() {
            return Ok(host.to_owned());
        }
        let is_plain = self.facts.hosts.iter().all(|host| !host.is_empty() && !host.starts_with('*'));
        if is_plain && !self.facts.has("server-alias") {
            Ok("$host".to_owned())
        } else {
            Err("`$server_name` is the host of the rule, and requests have other hosts, too".to_owned())
        }
    }
}
