//! Locations of a `server-snippet`, in the order in which nginx chooses among them: an exact path, a prefix with `^~`,
//! regular expressions as they stand, and then the longest prefix. The locations of the Ingress' own paths take part.

use ingress_model::{Pattern, RequestRules};
use ipnet::IpNet;

use super::{
    Directive, HostPath,
    access::{AccessRule, Effect, shown},
    condition::{Condition, escape},
    convert::{Converter, Done},
    pattern::{Expression, beginning},
    rules::{Answer, MAX_RULES},
};

/// Directives in a location that have no influence on an answer of nginx itself.
const SILENT: [&str; 4] = ["access_log", "charset", "default_type", "log_not_found"];
/// Maximum number of networks of a location.
const MAX_NETWORKS: usize = 16;

/// A location that answers by itself.
#[derive(Clone, Debug)]
pub(super) struct Location {
    line: usize,
    subject: String,
    modifier: Modifier,
    path: String,
    /// Answers with their conditions; the first one whose conditions hold counts.
    answers: Vec<(Vec<Condition>, Answer)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Modifier {
    Exact,
    /// `^~`: no regular expression is looked at.
    Final,
    Prefix,
    Matches {
        ignores_case: bool,
        expression: Expression,
        pattern: Pattern,
    },
}

// === impl Location ===

impl Location {
    fn is_prefix(&self) -> bool {
        matches!(self.modifier, Modifier::Prefix | Modifier::Final)
    }

    /// Returns the place in nginx' order. `by_length` holds where no regular expression comes between prefixes.
    fn rank(&self, by_length: bool) -> (u8, std::cmp::Reverse<usize>) {
        let length = std::cmp::Reverse(self.path.len());
        match self.modifier {
            Modifier::Exact => (0, std::cmp::Reverse(0)),
            Modifier::Final if !by_length => (1, length),
            Modifier::Matches { .. } => (2, std::cmp::Reverse(0)),
            Modifier::Final | Modifier::Prefix => (3, length),
        }
    }

    /// Returns the status, if the location refuses everything.
    fn refused(&self) -> Option<&str> {
        match &*self.answers {
            [(conditions, answer)] if conditions.is_empty() => answer.refused(),
            _ => None,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let texts = |location: &Self| -> Vec<_> {
            location.answers.iter().map(|(conditions, answer)| (conditions.clone(), answer.text.clone())).collect()
        };
        texts(self) == texts(other)
    }

    /// Returns whether a path may belong to both.
    fn may_overlap(&self, other: &Self) -> bool {
        match (&self.modifier, &other.modifier) {
            (Modifier::Exact, Modifier::Exact) => self.path == other.path,
            (Modifier::Exact, Modifier::Final | Modifier::Prefix) => self.path.starts_with(&other.path),
            (Modifier::Exact, Modifier::Matches { .. }) => other.may_match(&self.path),
            (Modifier::Matches { .. }, Modifier::Exact) => self.may_match(&other.path),
            (Modifier::Final | Modifier::Prefix, Modifier::Exact) => other.path.starts_with(&self.path),
            _ => {
                let (a, b) = (self.beginning(), other.beginning());
                a.starts_with(&b) || b.starts_with(&a)
            }
        }
    }

    fn may_match(&self, path: &str) -> bool {
        let Modifier::Matches { pattern, .. } = &self.modifier else { return false };
        pattern.is_beyond(path) || pattern.is_match(path)
    }

    /// Returns the text that all paths of the location begin with, in lower case.
    fn beginning(&self) -> String {
        match &self.modifier {
            Modifier::Matches { expression, .. } => beginning(&expression.is).to_ascii_lowercase(),
            _ => self.path.to_ascii_lowercase(),
        }
    }

    /// Returns the conditions on the path.
    fn conditions(&self) -> Vec<Condition> {
        match &self.modifier {
            Modifier::Exact => vec![Condition::new("path", "=", &self.path)],
            Modifier::Final | Modifier::Prefix => {
                vec![Condition::new("path", "~", &format!("^{}", escape(&self.path)))]
            }
            Modifier::Matches { ignores_case, expression, .. } => {
                Condition::matching("path", *ignores_case, expression)
            }
        }
    }

    /// Returns the entry of `deny-paths` for a location that refuses everything, if it can be written as one.
    fn entry(&self) -> Option<String> {
        let status = match self.refused()? {
            "403" => String::new(),
            status => format!("={status}"),
        };
        let path = match &self.modifier {
            Modifier::Exact => format!("= {}", self.path),
            Modifier::Final | Modifier::Prefix => self.path.clone(),
            Modifier::Matches { expression: Expression { is_not: Some(_), .. }, .. } => return None,
            Modifier::Matches { ignores_case, expression, .. } => {
                format!("~{} {}", if *ignores_case { "*" } else { "" }, expression.is)
            }
        };
        let entry = format!("{path}{status}");
        // A comma or a `=` within the path has a meaning of its own in the list.
        let test = if self.is_prefix() { "^" } else { "" };
        let test = match &self.modifier {
            Modifier::Exact => "=",
            Modifier::Matches { .. } => "~",
            _ => test,
        };
        let text = if let Modifier::Matches { expression, .. } = &self.modifier { &expression.is } else { &self.path };
        let meant = format!("path {test} {text} -> {}", self.refused()?);
        RequestRules::deny_paths(&entry).is_ok_and(|rules| rules.to_string() == meant).then_some(entry)
    }
}

// === impl Converter ===

impl Converter<'_> {
    /// Reads a location that denies or redirects everything.
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
        if self.locations.len() > MAX_RULES {
            return Err(format!("there are more than {MAX_RULES} locations"));
        }
        let matches = |ignores_case| -> Done<_> {
            let expression = Expression::parse(path)?;
            let pattern = Pattern::of_rule(&expression.is, ignores_case).map_err(|error| error.to_string())?;
            Ok(Modifier::Matches { ignores_case, expression, pattern })
        };
        let modifier = match modifier {
            "=" => Modifier::Exact,
            "^~" => Modifier::Final,
            "" => Modifier::Prefix,
            "~" => matches(false)?,
            "~*" => matches(true)?,
            _ => return Err(format!("`{modifier}` is no modifier of a location")),
        };
        // nginx compares paths without escapes, and requests have them here.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte);
        let is_expression = matches!(modifier, Modifier::Matches { .. });
        let is_written = is_expression || (path.starts_with('/') && path.bytes().all(is_plain));
        if path.contains('%') || !is_written {
            return Err(format!("`{path}` has characters that are escapes in requests"));
        }
        let answers = self.answers(path, block)?;
        let (line, subject) = self.position();
        let location = Location { line, subject, modifier, path: path.to_owned(), answers };
        let same = |known: &&Location| known.modifier == location.modifier && known.path == location.path;
        match self.locations.iter().find(same) {
            Some(known) if known.is_same(&location) => return Ok(()),
            Some(_) => return Err("nginx refuses two locations for the same path".to_owned()),
            None => {}
        }
        self.locations.push(location);
        Ok(())
    }

    /// Returns the answers of a location without a pod.
    fn answers(&mut self, path: &str, block: &[Directive]) -> Done<Vec<(Vec<Condition>, Answer)>> {
        let said: Vec<_> = block.iter().filter(|inner| !SILENT.contains(&inner.name.as_str())).collect();
        // `return` comes before `deny`, whatever their order.
        if let Some(inner) = said.iter().find(|inner| inner.name == "return") {
            let is_type = |other: &Directive| {
                let name = other.arguments.first().map(String::as_str).unwrap_or_default();
                other.name == "add_header" && name.eq_ignore_ascii_case("content-type")
            };
            let is_known = |other: &&Directive| {
                matches!(other.name.as_str(), "return" | "deny" | "internal" | "satisfy") || is_type(other)
            };
            return match said.iter().all(is_known) {
                // No client reaches a location that is `internal`, whatever it returns.
                _ if said.iter().any(|other| other.name == "internal") => {
                    Ok(vec![(Vec::new(), Answer::refusal("404"))])
                }
                true => Ok(vec![(Vec::new(), self.returned(&inner.arguments)?)]),
                false => Err("the location has further directives".to_owned()),
            };
        }
        if said.iter().any(|inner| inner.name == "internal") {
            return Ok(vec![(Vec::new(), Answer::refusal("404"))]);
        }
        match &*said {
            [inner] if inner.name == "rewrite" => Ok(vec![self.rewritten(&inner.arguments)?]),
            [_, ..] if said.iter().all(|inner| matches!(inner.name.as_str(), "allow" | "deny" | "stub_status")) => {
                self.admitted(path, &said)
            }
            _ if said.iter().any(|inner| inner.name == "auth_request" || inner.name == "auth_basic") => {
                Err(format!("another authentication for one path needs an Ingress of its own with `path: {path}`"))
            }
            _ => Err(format!("a location of its own needs an Ingress of its own with `path: {path}`")),
        }
    }

    /// Returns the answers of a location with networks and without a pod.
    fn admitted(&mut self, path: &str, said: &[&Directive]) -> Done<Vec<(Vec<Condition>, Answer)>> {
        let rule = |inner: &&Directive| match &*inner.arguments {
            [network] => AccessRule::parse(&inner.name, network),
            _ => Err("`allow` and `deny` have one network".to_owned()),
        };
        let has_status = said.iter().any(|inner| inner.name == "stub_status");
        let lists = said.iter().filter(|inner| inner.name != "stub_status");
        let rules = lists.map(rule).collect::<Done<Vec<_>>>()?;
        let is_loopback = |network: &IpNet| network.addr().is_loopback();
        let client = |operator, network: &IpNet| Condition::new("client", operator, &shown(network));
        let forbidden = Answer::refusal("403");
        // Without a pod, nginx looks for a file, and finds none.
        let missing = Answer {
            text: "404".to_owned(),
            difference: Some("the location has no pod, so clients of its networks get 404, as with nginx"),
        };
        match Effect::of(&rules)? {
            Effect::Only(allowed) if allowed.is_empty() => Ok(vec![(Vec::new(), forbidden)]),
            // Only processes of the node see the status page.
            Effect::Only(allowed) if has_status && allowed.iter().all(is_loopback) => {
                let difference = Some("there is no status page of nginx, so this node gets 403, too");
                Ok(vec![(Vec::new(), Answer { text: "403".to_owned(), difference })])
            }
            _ if has_status => Err("there is no status page of nginx; use the metrics".to_owned()),
            Effect::Only(allowed) if allowed.len() <= MAX_NETWORKS => {
                let outside = allowed.iter().map(|network| client("!=", network)).collect();
                Ok(vec![(outside, forbidden), (Vec::new(), missing)])
            }
            Effect::AllBut { refused, .. } if refused.len() <= MAX_NETWORKS => {
                let inside = refused.iter().map(|network| (vec![client("=", network)], forbidden.clone()));
                Ok(inside.chain([(Vec::new(), missing)]).collect())
            }
            _ => Err(format!(
                "networks for one path need an Ingress of their own with `path: {path}` and `allowlist-source-range`"
            )),
        }
    }

    /// Writes the locations that were read, so that the first entry that fits a path is nginx' choice.
    pub(super) fn finish_locations(&mut self) {
        let mut all = std::mem::take(&mut self.locations);
        let by_length = !all.iter().any(|location| matches!(location.modifier, Modifier::Matches { .. }))
            && !self.facts.has_expressions;
        let reasons: Vec<_> = all.iter().map(|location| self.hidden(location, &all, by_length)).collect();
        if reasons.iter().any(Option::is_some) {
            for (location, reason) in all.iter().zip(reasons) {
                let Some(reason) = reason else { continue };
                self.stand_at(location.line, &location.subject);
                self.leave(reason);
            }
            return;
        }
        all.sort_by_key(|location| location.rank(by_length));
        let entries: Vec<_> = all.iter().map(Location::entry).collect();
        // Entries of `deny-paths` come before all rules.
        let is_first = |at: usize| {
            let mut before = all[..at].iter().zip(&entries);
            entries[at].is_none()
                || before
                    .all(|(other, entry)| entry.is_some() || !other.may_overlap(&all[at]) || other.is_same(&all[at]))
        };
        let is_listed = self.redirects.is_empty() && (0..all.len()).all(is_first);
        for (location, entry) in all.iter().zip(entries) {
            self.stand_at(location.line, &location.subject);
            let done = match entry.filter(|_| is_listed) {
                Some(entry) => {
                    self.denied.push(entry);
                    let differences = location.answers.iter().filter_map(|(_, answer)| answer.difference);
                    differences.for_each(|difference| self.differ(difference));
                    Ok(())
                }
                None => self.rules_of(location),
            };
            if let Err(reason) = done {
                self.leave(reason);
            }
        }
    }

    fn rules_of(&mut self, location: &Location) -> Done {
        let path = location.conditions();
        location.answers.iter().try_for_each(|(conditions, answer)| {
            // The last expression has the groups.
            let all = self.both(&path, conditions.clone())?;
            self.rule(&all, answer)
        })
    }

    /// Returns why the location has no place in an order, or is not what nginx takes.
    fn hidden(&self, location: &Location, all: &[Location], by_length: bool) -> Option<String> {
        let inner = |other: &&Location| {
            other.modifier == Modifier::Prefix
                && other.path.len() > location.path.len()
                && other.path.starts_with(&location.path)
        };
        if location.modifier == Modifier::Final
            && !by_length
            && let Some(inner) = all.iter().find(inner).filter(|inner| !inner.is_same(location))
        {
            return Some(format!("within it, `location {}` lets regular expressions decide", inner.path));
        }
        let taken = |path: &HostPath| -> Option<String> {
            let HostPath { path, is_exact, is_own: _ } = path;
            match location.modifier {
                _ if self.facts.has_expressions => (location.modifier == Modifier::Prefix)
                    .then(|| "nginx takes the paths of the host before it, which are regular expressions".to_owned()),
                Modifier::Exact => None,
                Modifier::Final | Modifier::Prefix => (path != "/" || location.path == "/")
                    .then_some(())
                    .filter(|()| path.starts_with(&location.path))
                    .map(|()| format!("nginx takes path `{path}` of an Ingress, which lies within it")),
                Modifier::Matches { .. } => (*is_exact || path != "/")
                    .then_some(())
                    .filter(|()| location.may_match(path))
                    .map(|()| format!("nginx takes exactly `{path}`, a path of an Ingress, before it")),
            }
        };
        self.facts.paths.iter().find_map(taken).or_else(|| self.unreached(location))
    }

    /// Returns why an answer never comes: the path of the location leads to no rule of the Ingress here.
    fn unreached(&self, location: &Location) -> Option<String> {
        let mut own = self.facts.paths.iter().filter(|path| path.is_own).peekable();
        if own.peek().is_none() || self.facts.has_expressions || location.refused().is_some() {
            return None;
        }
        let start = location.beginning();
        let leads = |HostPath { path, is_exact, .. }: &HostPath| {
            let path = path.to_ascii_lowercase();
            if *is_exact {
                location.modifier == Modifier::Exact && start == path
            } else {
                start
                    .strip_prefix(path.trim_end_matches('/'))
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        };
        (!own.any(leads)).then(|| format!("no path of the Ingress leads to `{}`; add one", location.path))
    }
}
