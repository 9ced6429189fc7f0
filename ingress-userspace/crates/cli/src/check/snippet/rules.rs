//! Answers of the snippet itself: `return`, `rewrite`, and locations that deny or redirect.

use ingress_model::RequestRules;

use super::{
    Directive, Place,
    condition::Condition,
    convert::{Converter, Done},
};

/// Directives in a location that have no influence on an answer of nginx itself.
const SILENT: [&str; 3] = ["access_log", "log_not_found", "satisfy"];

// === impl Converter ===

impl Converter<'_> {
    /// Converts `return`.
    pub(super) fn answer(&mut self, arguments: &[String], conditions: &[Condition]) -> Done {
        if self.place == Place::Auth {
            return Err("exemptions from `auth-url` need an Ingress of their own, without `auth-url`".to_owned());
        }
        let (status, target) = match arguments {
            [url] if url.contains("://") || url.starts_with(['$', '/']) => ("302", Some(url)),
            [status] => (status.as_str(), None),
            [status, target] => (status.as_str(), Some(target)),
            _ => return Err("`return` has a status and a URL".to_owned()),
        };
        match (status, target) {
            ("301" | "302" | "303" | "307" | "308", Some(url)) => {
                let url = self.expand(url)?;
                self.rule(conditions, &format!("{status} {url}"))
            }
            ("444", None) => {
                self.differ("nginx closes the connection, here the answer is 403");
                self.rule(conditions, "403")
            }
            (status, None) if is_error(status) => self.rule(conditions, status),
            (status, Some(_)) if is_error(status) => {
                self.differ("the body is another text");
                self.rule(conditions, status)
            }
            _ => Err("the proxy makes no bodies; let a pod answer".to_owned()),
        }
    }

    /// Converts `rewrite`, as far as it redirects.
    pub(super) fn rewrite(&mut self, arguments: &[String], conditions: &[Condition]) -> Done {
        let (pattern, target, flag) = match arguments {
            [pattern, target] => (pattern, target, ""),
            [pattern, target, flag] => (pattern, target, flag.as_str()),
            _ => return Err("`rewrite` has an expression and a target".to_owned()),
        };
        let is_url = ["http://", "https://", "$scheme"].iter().any(|start| target.starts_with(start));
        let status = match flag {
            "permanent" => "301",
            "redirect" => "302",
            _ if is_url => "302",
            _ => {
                return Err(format!(
                    "it changes the path; write it into `path`, as `{pattern}`, with `rewrite-target: {target}`"
                ));
            }
        };
        let target = self.expand(target)?;
        let target = match target.strip_suffix('?') {
            Some(target) => target.to_owned(),
            None if target.contains('?') => {
                self.differ("the query of the request is not appended");
                target
            }
            None if target.contains("$request_uri") || target.contains("${request_uri}") => target,
            None => format!("{target}$is_args$args"),
        };
        let mut all = conditions.to_vec();
        all.push(Condition::on_path("~", pattern)?);
        self.rule(&all, &format!("{status} {target}"))
    }

    /// Adds a rule of `redirect-rules`.
    fn rule(&mut self, conditions: &[Condition], answer: &str) -> Done {
        let conditions: Vec<_> = conditions.iter().map(Condition::text).collect();
        let line = format!("{} -> {answer}", conditions.join(" and "));
        let line = line.trim_start().to_owned();
        RequestRules::redirects(&line).map_err(|error| error.to_string())?;
        self.redirects.push(line);
        Ok(())
    }

    /// Converts a location that denies or redirects everything.
    pub(super) fn location(&mut self, arguments: &[String], block: &[Directive]) -> Done {
        let (modifier, path) = match arguments {
            // The modifier may stand directly before the path.
            [path] => {
                let start = ["^~", "~*", "~", "="].into_iter().find(|modifier| path.starts_with(modifier));
                let modifier = start.unwrap_or_default();
                (modifier, &path[modifier.len()..])
            }
            [modifier, path] => (modifier.as_str(), path.as_str()),
            _ => return Err("`location` has a path".to_owned()),
        };
        let said: Vec<_> = block.iter().filter(|inner| !SILENT.contains(&inner.name.as_str())).collect();
        // `return` comes before `deny`, whatever their order.
        if let Some(inner) = said.iter().find(|inner| inner.name == "return") {
            let others = said.iter().all(|other| matches!(other.name.as_str(), "return" | "deny" | "internal"));
            if !others {
                return Err("the location has further directives".to_owned());
            }
            return match &*inner.arguments {
                [status] if is_error(status) => self.deny(modifier, path, status),
                [status] if status == "444" => {
                    self.differ("nginx closes the connection, here the answer is 403");
                    self.deny(modifier, path, "403")
                }
                [status, _] if is_error(status) => {
                    self.differ("the body is another text");
                    self.deny(modifier, path, status)
                }
                arguments => self.answer(arguments, &[Condition::on_path(modifier, path)?]),
            };
        }
        match &*said {
            [inner] if inner.name == "deny" && inner.arguments == ["all"] => self.deny(modifier, path, "403"),
            [inner] if inner.name == "internal" => self.deny(modifier, path, "404"),
            [inner] if inner.name == "rewrite" => {
                self.rewrite(&inner.arguments, &[Condition::on_path(modifier, path)?])
            }
            _ if said.iter().any(|inner| inner.name == "allow") => Err(format!(
                "networks for one path need an Ingress of their own with `path: {path}` and \
                             `allowlist-source-range`"
            )),
            _ if said.iter().any(|inner| inner.name == "auth_request" || inner.name == "auth_basic") => {
                Err(format!("another authentication for one path needs an Ingress of its own with `path: {path}`"))
            }
            _ => Err(format!("a location of its own needs an Ingress of its own with `path: {path}`")),
        }
    }

    /// Adds an entry of `deny-paths`.
    fn deny(&mut self, modifier: &str, path: &str, status: &str) -> Done {
        let status = if status == "403" { String::new() } else { format!("={status}") };
        // A look-ahead right behind a dot exempts a name, which is an entry by itself.
        if modifier.starts_with('~')
            && let Some((before, rest)) = path.split_once("(?!")
            && let Some((name, after)) = rest.split_once(')')
            && matches!(before, "/\\." | "^/\\." | "\\.")
            && matches!(after, "" | ".*" | ".*$")
            && name.trim_end_matches("\\/").chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        {
            let name = name.trim_end_matches("\\/");
            return self.entry(format!("!/.{name}\n{modifier} {before}{status}"));
        }
        let path = if modifier == "^~" || modifier.is_empty() { path.to_owned() } else { format!("{modifier} {path}") };
        self.entry(format!("{path}{status}"))
    }

    fn entry(&mut self, text: String) -> Done {
        RequestRules::deny_paths(&text).map_err(|error| error.to_string())?;
        let lines = text.lines().map(str::to_owned);
        if !text.starts_with('!') {
            self.denied.extend(lines);
        } else if self.exempting.is_empty() || lines.clone().eq(self.exempting.iter().cloned()) {
            // Behind all others, which the exemption must not weaken.
            self.exempting = lines.collect();
            self.differ("the exemption holds at the start of the path");
        } else {
            return Err("there are other exemptions already".to_owned());
        }
        Ok(())
    }
}

fn is_error(status: &str) -> bool {
    status != "444" && status.len() == 3 && status.parse::<u16>().is_ok_and(|status| (400..600).contains(&status))
}
