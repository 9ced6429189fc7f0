//! Walks over the directives of a snippet, and collects what becomes of them.

use std::collections::BTreeMap;

use ingress_model::{HeaderEdits, RequestRules};

use super::{
    Conversion, Directive, Facts, Place, Remark,
    condition::{Condition, Flag},
    parse::parse,
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
    /// Entries behind those, with an exemption.
    pub(super) exempting: Vec<String>,
    pub(super) redirects: Vec<String>,
    pub(super) passed: Vec<String>,
    pub(super) allowed: Vec<String>,
    pub(super) refused: Vec<String>,
    /// Whether `deny all` stands alone.
    pub(super) denies_all: bool,
    /// Whether `deny all` stands behind the networks that are allowed.
    pub(super) denies_others: bool,
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
    for (place, text) in snippets {
        converter.place = place;
        match parse(text) {
            Ok(directives) => {
                let (early, late): (Vec<_>, Vec<_>) = directives.into_iter().partition(is_early);
                converter.all(&early, &[]);
                converter.all(&late, &[]);
            }
            Err(error) => {
                (converter.line, converter.subject) = (error.line, "text".to_owned());
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
            exempting: Vec::new(),
            redirects: Vec::new(),
            passed: Vec::new(),
            allowed: Vec::new(),
            refused: Vec::new(),
            denies_all: false,
            denies_others: false,
            codings: Vec::new(),
            variables: BTreeMap::new(),
        }
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

    /// Names the current directive as not converted.
    fn leave(&mut self, text: String) {
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
        if !self.allowed.is_empty() && !self.denies_others {
            self.allowed.clear();
            self.subject = "allow".to_owned();
            self.leave("no `deny all` follows, so nginx refuses no client by it".to_owned());
        }
        if self.denies_all && self.conversion.annotations.get("satisfy").is_some_and(|value| value == "any") {
            self.redirects.retain(|rule| rule != "-> 403");
            self.subject = "deny all".to_owned();
            self.leave("with `satisfy any`, clients with a password pass; set `allowlist-source-range`".to_owned());
        }
        // nginx adds fields after all other changes, whatever the order of directives.
        self.responses.sort_by_key(|line| line.starts_with('+'));
        self.denied.append(&mut self.exempting);
        let lists = [
            ("request-headers", std::mem::take(&mut self.requests), "\n"),
            ("response-headers", std::mem::take(&mut self.responses), "\n"),
            ("deny-paths", std::mem::take(&mut self.denied), "\n"),
            ("redirect-rules", std::mem::take(&mut self.redirects), "\n"),
            ("auth-response-headers", std::mem::take(&mut self.passed), ", "),
            ("allowlist-source-range", std::mem::take(&mut self.allowed), ", "),
            ("denylist-source-range", std::mem::take(&mut self.refused), ", "),
        ];
        for (key, mut lines, separator) in lists {
            let mut seen = std::collections::BTreeSet::new();
            lines.retain(|line| seen.insert(line.clone()));
            if lines.is_empty() {
                continue;
            }
            let value = lines.join(separator);
            // The lines are valid by themselves, but a list has bounds.
            let bound = match key {
                "deny-paths" => RequestRules::deny_paths(&value).err().map(|error| error.to_string()),
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

/// Returns whether nginx runs the directive before all others, whatever their order: those of the module rewrite, and
/// the choice of a location.
fn is_early(directive: &Directive) -> bool {
    matches!(&*directive.name, "set" | "if" | "return" | "rewrite" | "break" | "location")
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
