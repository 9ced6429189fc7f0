//! A route table as stable text: what golden tests compare and people read.

use std::fmt;

use super::{Action, Filter, Protocol, RouteTable, Rule, Settings, Upstream};

impl fmt::Display for RouteTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, default, upstreams, certificates, fallback_certificate, settings } = self;
        if *settings != Settings::default() {
            writeln!(f, "{settings:?}")?;
        }
        for (pattern, routes) in hosts {
            writeln!(f, "host {pattern}")?;
            for rule in &routes.rules {
                writeln!(f, "  {:<24} {rule}", rule.path.to_string())?;
            }
            if let Some(rule) = &routes.fallback {
                writeln!(f, "  {:<24} {rule}", "(fallback)")?;
            }
        }
        if let Some(action) = default {
            writeln!(f, "default {action}")?;
        }
        for (pattern, certificate) in certificates {
            let origin = certificate.as_ref().map_or("(none)", |certificate| &certificate.origin);
            writeln!(f, "certificate {pattern} <- {origin}")?;
        }
        if let Some(certificate) = fallback_certificate {
            writeln!(f, "certificate (fallback) <- {}", certificate.origin)?;
        }
        for (key, Upstream { protocol, endpoints }) in upstreams {
            let endpoints: Vec<_> = endpoints.iter().map(|e| e.address.to_string()).collect();
            match protocol {
                Protocol::Http1 => write!(f, "upstream {key}")?,
                Protocol::H2c | Protocol::Https => write!(f, "upstream {key} {protocol}")?,
            }
            writeln!(f, " [{}]", endpoints.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for filter in &self.filters {
            match filter {
                Filter::RedirectHttps { status, except } => {
                    write!(f, "redirect-https({status}")?;
                    except.iter().try_for_each(|path| write!(f, ", not {path}"))?;
                    write!(f, ") ")?;
                }
            }
        }
        write!(f, "{}  # {}", self.action, self.owner)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(key) => write!(f, "-> {key}"),
            Self::Refuse(why) => write!(f, "-> refuse: {why}"),
        }
    }
}
