//! Walks over the directives of a snippet, and collects what becomes of them.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use ingress_model::{HeaderEdits, RequestRules};

use super::{
    Conversion, Directive, Facts, Place, Remark,
    access::AccessRule,
    condition::{Condition, Flag},
    locations::Location,
    parse::parse,
    rules::Rewrites,
};

/// Result of one directive: done, or the reason why it is not converted.
pub(super) type Done<T = ()> = Result<T, String>;

/// State of the conversion of one Ingress, while its snippets are read.
pub(super) struct Converter<'f> {
    pub(super) facts: &'f Facts,
    pub(super) place: Place,
    line: usize,
    subject: String,
    pub(super) conversion: Conversion,
    pub(super) requests: Vec<String>,
    pub(super) responses: Vec<String>,
    pub(super) denied: Vec<String>,
    pub(super) redirects: Vec<String>,
    pub(super) passed: Vec<String>,
    /// Lines of `auth-skip-rules`.
    pub(super) exempt: Vec<String>,
    /// Rules for networks, in order, and the place of the last one.
    pub(super) rules: Vec<AccessRule>,
    rules_at: (Place, usize, String),
    /// Locations that answer by themselves.
    pub(super) locations: Vec<Location>,
    /// Whether a snippet has `set_real_ip_from` for the place.
    pub(super) trusts_proxies: bool,
    /// Names of the directives of the location.
    pub(super) own: BTreeSet<String>,
    pub(super) rewrites: Rewrites,
    /// Whether the current `rewrite` has the flag `break`.
    pub(super) ends_rewriting: bool,
    /// Bytes that variables have expanded to.
    pub(super) expanded: Cell<usize>,
    pub(super) codings: Vec<&'static str>,
    /// Values of variables that `set` and `auth_request_set` made.
    pub(super) variables: BTreeMap<String, Value>,
}

/// Value of a variable of the snippet.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    /// A field of the response from `auth-url`.
    OfAuth(String),
    Flag(Flag),
}

/// Converts the snippets of one Ingress, each with its place.
#[must_use]
pub fn convert<'t>(snippets: impl IntoIterator<Item = (Place, &'t str)>, facts: &Facts) -> Conversion {
    let mut converter = Converter::new(facts);
    let mut snippets: Vec<_> = snippets.into_iter().map(|(place, text)| (place, parse(text))).collect();
    snippets.sort_by_key(|(place, _)| match place {
        Place::Server => 0,
        Place::Location => 1,
        Place::Auth => 2,
    });
    for (_, directives) in snippets.iter().filter(|(place, _)| *place == Place::Location) {
        converter.remember(directives.as_deref().unwrap_or_default());
    }
    for (place, directives) in snippets {
        converter.place = place;
        match directives {
            Ok(directives) => converter.snippet(directives),
            Err(error) => {
                converter.stand_at(error.line, "text");
                converter.leave(format!("it cannot be parsed: {}", error.reason));
            }
        }
    }
    converter.finish()
}

// === impl Converter ===

impl<'f> Converter<'f> {
    fn new(facts: &'f Facts) -> Self {
        Self {
            facts,
            place: Place::Location,
            line: 1,
            subject: String::new(),
            conversion: Conversion::default(),
            requests: Vec::new(),
            responses: Vec::new(),
            denied: Vec::new(),
            redirects: Vec::new(),
            passed: Vec::new(),
            exempt: Vec::new(),
            rules: Vec::new(),
            rules_at: (Place::Location, 1, String::new()),
            locations: Vec::new(),
            trusts_proxies: false,
            own: BTreeSet::new(),
            rewrites: Rewrites::No,
            ends_rewriting: false,
            expanded: Cell::new(0),
            codings: Vec::new(),
            variables: BTreeMap::new(),
        }
    }

    /// Converts a snippet in the order in which nginx runs it, whatever the order of its text: the module rewrite, the
    /// choice of a location, and then all else.
    fn snippet(&mut self, directives: Vec<Directive>) {
        // A location without networks takes those of its server, which is converted before it.
        self.trusts_proxies |= directives.iter().any(|directive| directive.name == "set_real_ip_from");
        let (first, others): (Vec<_>, Vec<_>) = directives
            .into_iter()
            .partition(|directive| matches!(&*directive.name, "set" | "if" | "return" | "rewrite" | "break"));
        let (locations, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|directive| directive.name == "location");
        let (sources, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|directive| directive.name == "auth_request_set");
        // No client reaches a location that is `internal`: nginx answers 404 before it runs the module rewrite there.
        let is_internal = |other: &Directive| other.name == "internal" && other.arguments.is_empty();
        if self.place == Place::Location && others.iter().any(is_internal) {
            let (variables, unreached): (Vec<_>, Vec<_>) = first.into_iter().partition(|first| first.name == "set");
            self.all(&variables, &[]);
            for directive in &unreached {
                self.stand_at(directive.line, &subject(directive));
                let remark = self.remark("no client reaches a location that is `internal`".to_owned());
                self.conversion.dropped.push(remark);
            }
        } else {
            self.all(&first, &[]);
        }
        self.all(&locations, &[]);
        self.finish_locations();
        self.all(&sources, &[]);
        self.all(&others, &[]);
    }

    /// Converts directives that have an effect while `conditions` hold.
    pub(super) fn all(&mut self, directives: &[Directive], conditions: &[Condition]) {
        for directive in directives {
            (self.line, self.subject) = (directive.line, subject(directive));
            if let Err(reason) = self.directive(directive, conditions) {
                (self.line, self.subject) = (directive.line, subject(directive));
                self.leave(reason);
            }
        }
    }

    /// Returns line and subject of the current directive.
    pub(super) fn position(&self) -> (usize, String) {
        (self.line, self.subject.clone())
    }

    /// Makes this the current directive.
    pub(super) fn stand_at(&mut self, line: usize, subject: &str) {
        (self.line, self.subject) = (line, subject.to_owned());
    }

    /// Remembers the current directive as the last one of the rules for networks.
    pub(super) fn remember_line(&mut self) {
        self.rules_at = (self.place, self.line, self.subject.clone());
    }

    /// Makes the last rule for networks the current directive.
    pub(super) fn recall_line(&mut self) {
        (self.place, self.line, self.subject) = self.rules_at.clone();
    }

    /// Names the current directive as not converted.
    pub(super) fn leave(&mut self, text: String) {
        let remark = self.remark(text);
        self.conversion.rest.push(remark);
    }

    /// Names the current directive as one that needs no counterpart.
    pub(super) fn drop(&mut self, reason: &str) -> Done {
        let remark = self.remark(reason.to_owned());
        self.conversion.dropped.push(remark);
        Ok(())
    }

    /// Names a difference of what the current directive has become.
    pub(super) fn differ(&mut self, text: &str) {
        let remark = self.remark(text.to_owned());
        self.conversion.differences.push(remark);
    }

    fn remark(&self, text: String) -> Remark {
        Remark { place: self.place, line: self.line, subject: self.subject.clone(), text }
    }

    /// Sets an annotation with one value.
    pub(super) fn set(&mut self, key: &str, value: impl Into<String>) -> Done {
        insert(&mut self.conversion.annotations, key, value.into())
    }

    /// Sets a setting, which holds for all hosts.
    pub(super) fn setting(&mut self, key: &str, value: impl Into<String>) -> Done {
        insert(&mut self.conversion.settings, key, value.into())?;
        self.differ("the setting holds for all hosts");
        Ok(())
    }

    /// Makes annotations of the collected lists.
    fn finish(mut self) -> Conversion {
        self.finish_access();
        let has_lists = ["allowlist-source-range", "denylist-source-range"];
        if !self.redirects.is_empty() && has_lists.iter().any(|key| self.conversion.annotations.contains_key(*key)) {
            self.differ("clients of other networks are refused before a redirect");
        }
        // nginx adds fields after all other changes, whatever the order of directives.
        self.responses.sort_by_key(|line| line.starts_with('+'));
        let lists = [
            ("request-headers", std::mem::take(&mut self.requests), "\n"),
            ("response-headers", std::mem::take(&mut self.responses), "\n"),
            ("deny-paths", std::mem::take(&mut self.denied), "\n"),
            ("redirect-rules", std::mem::take(&mut self.redirects), "\n"),
            ("auth-response-headers", std::mem::take(&mut self.passed), ", "),
            ("auth-skip-rules", std::mem::take(&mut self.exempt), "\n"),
        ];
        for (key, mut lines, separator) in lists {
            let mut seen = BTreeSet::new();
            lines.retain(|line| seen.insert(line.clone()));
            if lines.is_empty() {
                continue;
            }
            let value = lines.join(separator);
            // The lines are valid by themselves, but a list has bounds.
            let bound = match key {
                "deny-paths" => RequestRules::deny_paths(&value).err().map(|error| error.to_string()),
                "auth-skip-rules" => RequestRules::exemptions(&value).err().map(|error| error.to_string()),
                "redirect-rules" => RequestRules::redirects(&value).err().map(|error| error.to_string()),
                "request-headers" | "response-headers" => {
                    HeaderEdits::parse(&value).err().map(|error| error.to_string())
                }
                _ => None,
            };
            self.subject = key.to_owned();
            match bound {
                Some(reason) => self.leave(reason),
                None => {
                    self.conversion.annotations.insert(key.to_owned(), value);
                }
            }
        }
        if !self.codings.is_empty() {
            let value = self.codings.join(", ");
            self.conversion.annotations.insert("compression".to_owned(), value);
        }
        self.conversion
    }
}

fn insert(map: &mut BTreeMap<String, String>, key: &str, value: String) -> Done {
    match map.get(key) {
        Some(other) if *other != value => Err(format!("`{key}` has the value `{other}` already")),
        _ => {
            map.insert(key.to_owned(), value);
            Ok(())
        }
    }
}

/// Returns a directive in short.
fn subject(Directive { name, arguments, .. }: &Directive) -> String {
    const MAX_CHARS: usize = 48;
    let text = [std::slice::from_ref(name), arguments].concat().join(" ");
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
