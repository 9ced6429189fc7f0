//! Rules that answer requests before they reach a pod: denied paths, and redirects with conditions. They are parsed here and
//! applied by [`crate::route::filter`].

use std::fmt;

use http::HeaderName;
use ipnet::IpNet;

use crate::{Pattern, PatternError, Redirect, Template, Variable, path};

/// Rules in order; the first one whose conditions hold answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRules {
    rules: Box<[RequestRule]>,
    cost: ExpressionCost,
}

/// An answer, and the conditions for it. Without conditions, every request gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRule {
    pub conditions: Box<[RequestCondition]>,
    pub answer: Answer,
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No later rule of the list answers.
    Pass,
    /// This status, 400 to 599.
    Refuse(u16),
    /// This status, 200 to 299, with a plain text.
    Respond {
        status: u16,
        body: Box<str>,
    },
    Redirect(Redirect),
    /// No later rule of the list answers, and pods get this path and query instead of the client's.
    Rewrite(Template),
}

/// A condition on one text of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCondition {
    pub subject: RequestSubject,
    pub test: TextTest,
    pub is_negated: bool,
}

/// A text of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestSubject {
    /// The path, in normal form.
    Path,
    /// Each line of a field; without one, the empty text.
    Header(HeaderName),
    Variable(Variable),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextTest {
    /// The whole text is this one.
    Is(Box<str>),
    /// The text begins with this one.
    Begins(Box<str>),
    /// The expression matches anywhere in the text.
    Matches(Pattern),
    /// The client's address is in the network.
    Within(IpNet),
}

/// Cost of the regular expressions of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpressionCost {
    pub count: usize,
    /// Memory of their automata.
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRuleError {
    #[error(
        "`{0}` is no path in normal form: write `/path`, `= /path`, `~ expression` or `~* expression`, without `//` and `..`"
    )]
    Path(String),
    #[error("`{0}` has no `->` before its answer")]
    NoAnswer(String),
    #[error("`{0}` is no condition: write `SUBJECT OPERATOR VALUE`, joined by `and`")]
    Condition(String),
    #[error(
        "`{0}` is no subject: write host, path, query, uri, scheme, method, client, header:NAME, cookie:NAME or arg:NAME"
    )]
    Subject(String),
    #[error("`{0}` is no operator: write =, !=, ~, ~*, !~ or !~*")]
    Operator(String),
    #[error("`{0}` is no network: write an address, or a network as `10.0.0.0/8`")]
    Network(String),
    #[error(
        "`{0}` is no answer: write a status and a URL, a status from 200 to 299 or 400 to 599, or `rewrite` and a path"
    )]
    Answer(String),
    #[error("`{0}` has a condition on something else than path, uri or method")]
    Exemption(String),
    #[error("`{0}` names a group, but no expression of its rule must match")]
    Group(String),
    #[error("a quotation mark is not closed in `{0}`")]
    Quote(String),
    #[error("there are more than {MAX_RULES} rules: let a pod decide, or divide the Ingress")]
    TooMany,
    #[error("there are more than {MAX_EXPRESSIONS} regular expressions: join texts with `|`, or let a pod decide")]
    TooManyExpressions,
    #[error(
        "there are more than {MAX_CONDITIONS} conditions in the list: join texts to one expression with `|`, or let a pod decide"
    )]
    TooManyConditions,
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

/// Maximum number of rules of a list.
const MAX_RULES: usize = 64;
/// Maximum number of regular expressions of a list.
const MAX_EXPRESSIONS: usize = 32;
/// Maximum number of conditions of a list. Each one reads a text of the request, and some all forms of it.
const MAX_CONDITIONS: usize = 256;

/// Maximum length of the text of an answer in bytes.
const MAX_BODY: usize = 4096;

/// Answer to denied paths without a status.
const FORBIDDEN: u16 = 403;

/// Collects rules within their bounds.
#[derive(Default)]
struct Builder {
    rules: Vec<RequestRule>,
    /// Number of conditions.
    conditions: usize,
    cost: ExpressionCost,
}

// === impl RequestRules ===

impl RequestRules {
    /// Parses denied paths, separated by commas or lines: `/path` and all that begins with it, `= /path` alone,
    /// `~ expression`, or `~* expression` without regard to case; `=404` at the end is the status. `!` in front exempts
    /// paths from later entries.
    ///
    /// # Errors
    /// Fails if an entry is not of this form, or bounds are exceeded.
    pub fn deny_paths(text: &str) -> Result<Self, RequestRuleError> {
        let mut builder = Builder::default();
        for entry in entries(text) {
            let (is_exempt, path) = entry.strip_prefix('!').map_or((false, entry), |path| (true, path.trim_start()));
            let (path, status) = match path.rsplit_once('=') {
                Some((path, status)) if !is_exempt && !path.trim().is_empty() && is_status(status) => {
                    (path.trim_end(), refusal(status).ok_or_else(|| RequestRuleError::Answer(status.to_owned()))?)
                }
                _ => (path, FORBIDDEN),
            };
            let invalid = || RequestRuleError::Path(entry.to_owned());
            // Requests have their paths in normal form, so a path in another one would deny nothing.
            let absolute = |path: &str| {
                let path = path::decode_unreserved(path.trim());
                let is_odd = ["//", "/./", "/../"].iter().any(|part| path.contains(part)) || path.ends_with("/..");
                (path.starts_with('/') && !is_odd).then(|| Box::<str>::from(&*path))
            };
            let test = if let Some(pattern) = path.strip_prefix("~*") {
                builder.matches(pattern.trim(), true)?
            } else if let Some(pattern) = path.strip_prefix('~') {
                builder.matches(pattern.trim(), false)?
            } else if let Some(path) = path.strip_prefix('=') {
                TextTest::Is(absolute(path).ok_or_else(invalid)?)
            } else {
                TextTest::Begins(absolute(path).ok_or_else(invalid)?)
            };
            let condition = RequestCondition { subject: RequestSubject::Path, test, is_negated: false };
            builder.push(vec![condition], if is_exempt { Answer::Pass } else { Answer::Refuse(status) })?;
        }
        Ok(builder.build())
    }

    /// Parses rules, one per line: `CONDITION [and CONDITION]… -> [STATUS] URL`, `… -> STATUS` to refuse or to answer,
    /// or `… -> rewrite PATH`. A line that begins with `#` is a comment.
    ///
    /// # Errors
    /// Fails if a line is not of this form, or bounds are exceeded.
    pub fn redirects(text: &str) -> Result<Self, RequestRuleError> {
        let mut builder = Builder::default();
        for line in lines(text) {
            let words = words(line)?;
            let at = words.iter().position(|word| word == "->");
            let at = at.ok_or_else(|| RequestRuleError::NoAnswer(line.to_owned()))?;
            let conditions = if at > 0 { builder.conditions(&words[..at])? } else { Vec::new() };
            let answer = answer(&words[at + 1..], &conditions)?;
            builder.push(conditions, answer)?;
        }
        Ok(builder.build())
    }

    /// Parses conditions, one set per line: `CONDITION [and CONDITION]…` on `path`, `uri` or `method`. Requests that meet
    /// a line are exempt. A line that begins with `#` is a comment.
    ///
    /// # Errors
    /// Fails if a line is not of this form, or bounds are exceeded.
    pub fn exemptions(text: &str) -> Result<Self, RequestRuleError> {
        let mut builder = Builder::default();
        for line in lines(text) {
            let conditions = builder.conditions(&words(line)?)?;
            // Clients choose all else freely, such as a second line of a field.
            let is_sure = |condition: &RequestCondition| {
                let subject = &condition.subject;
                let is_variable = |wanted| *subject == RequestSubject::Variable(wanted);
                *subject == RequestSubject::Path || is_variable(Variable::RequestUri) || is_variable(Variable::Method)
            };
            if !conditions.iter().all(is_sure) {
                return Err(RequestRuleError::Exemption(line.to_owned()));
            }
            builder.push(conditions, Answer::Pass)?;
        }
        Ok(builder.build())
    }

    pub fn iter(&self) -> std::slice::Iter<'_, RequestRule> {
        self.rules.iter()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    #[must_use]
    pub fn cost(&self) -> ExpressionCost {
        self.cost
    }
}

// === impl Builder ===

impl Builder {
    fn matches(&mut self, text: &str, ignores_case: bool) -> Result<TextTest, RequestRuleError> {
        self.cost.count += 1;
        if self.cost.count > MAX_EXPRESSIONS {
            return Err(RequestRuleError::TooManyExpressions);
        }
        let pattern = Pattern::of_rule(text, ignores_case)?;
        let bytes = pattern.memory();
        self.cost.bytes += bytes;
        Ok(TextTest::Matches(pattern))
    }

    /// Parses conditions that are joined by `and`.
    fn conditions(&mut self, words: &[String]) -> Result<Vec<RequestCondition>, RequestRuleError> {
        let conditions = words.split(|word| word == "and").map(|condition| match condition {
            [subject, operator, value] => self.condition(subject, operator, value),
            _ => Err(RequestRuleError::Condition(condition.join(" "))),
        });
        conditions.collect()
    }

    fn condition(&mut self, name: &str, operator: &str, value: &str) -> Result<RequestCondition, RequestRuleError> {
        self.conditions += 1;
        if self.conditions > MAX_CONDITIONS {
            return Err(RequestRuleError::TooManyConditions);
        }
        let subject = subject(name).ok_or_else(|| RequestRuleError::Subject(name.to_owned()))?;
        let (is_negated, positive) = operator.strip_prefix('!').map_or((false, operator), |rest| (true, rest));
        let test = match positive {
            "=" if name == "client" && value.contains('/') => {
                let network = value.parse::<IpNet>().map_err(|_invalid| RequestRuleError::Network(value.to_owned()))?;
                TextTest::Within(network.trunc())
            }
            "=" => TextTest::Is(value.into()),
            "~" => self.matches(value, false)?,
            "~*" => self.matches(value, true)?,
            _ => return Err(RequestRuleError::Operator(operator.to_owned())),
        };
        Ok(RequestCondition { subject, test, is_negated })
    }

    fn push(&mut self, conditions: Vec<RequestCondition>, answer: Answer) -> Result<(), RequestRuleError> {
        if self.rules.len() >= MAX_RULES {
            return Err(RequestRuleError::TooMany);
        }
        self.rules.push(RequestRule { conditions: conditions.into(), answer });
        Ok(())
    }

    fn build(self) -> RequestRules {
        RequestRules { rules: self.rules.into(), cost: self.cost }
    }
}

/// Splits a list at its lines, and at commas outside of brackets.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut is_escaped) = (0_u32, false);
    let entries = text.split(move |character: char| {
        let is_literal = is_escaped;
        is_escaped = character == '\\' && !is_literal;
        match character {
            '\n' => depth = 0,
            _ if is_literal => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == '\n' || (character == ',' && depth == 0 && !is_literal)
    });
    entries.map(str::trim).filter(|entry| !entry.is_empty())
}

/// Yields the lines that are neither empty nor comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Splits a line at blanks outside of quotation marks.
fn words(line: &str) -> Result<Vec<String>, RequestRuleError> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let Some(quoted) = rest.strip_prefix('"') else {
            let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            words.push(word.to_owned());
            rest = after.trim_start();
            continue;
        };
        let (mut word, mut end, mut is_escaped) = (String::new(), None, false);
        for (at, character) in quoted.char_indices() {
            match character {
                '"' if is_escaped => {
                    word.pop();
                    word.push('"');
                }
                '"' => {
                    end = Some(at + 1);
                    break;
                }
                _ => word.push(character),
            }
            is_escaped = character == '\\' && !is_escaped;
        }
        let end = end.ok_or_else(|| RequestRuleError::Quote(line.to_owned()))?;
        words.push(word);
        rest = quoted[end..].trim_start();
    }
    Ok(words)
}

fn subject(name: &str) -> Option<RequestSubject> {
    let named = |variable: &str| {
        let template = Template::parse(&format!("${variable}")).ok()?;
        let [crate::TemplatePiece::Variable(variable)] = template.pieces() else { return None };
        Some(RequestSubject::Variable(variable.clone()))
    };
    match name.split_once(':') {
        Some(("header", name)) => HeaderName::try_from(name).ok().map(RequestSubject::Header),
        Some(("cookie", name)) => named(&format!("cookie_{name}")),
        Some(("arg", name)) => named(&format!("arg_{name}")),
        Some(_) => None,
        None => match name {
            "path" => Some(RequestSubject::Path),
            "host" | "scheme" => named(name),
            "uri" => named("request_uri"),
            "query" => named("args"),
            "method" => named("request_method"),
            "client" => named("remote_addr"),
            _ => None,
        },
    }
}

fn is_status(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit())
}

fn refusal(text: &str) -> Option<u16> {
    text.parse().ok().filter(|status| is_status(text) && (400..600).contains(status))
}

fn answer(words: &[String], conditions: &[RequestCondition]) -> Result<Answer, RequestRuleError> {
    let invalid = || RequestRuleError::Answer(words.join(" "));
    let (status, url) = match words {
        [status] if is_status(status) => {
            return refusal(status).map(Answer::Refuse).or_else(|| response(status, "")).ok_or_else(invalid);
        }
        [status, body] if status.starts_with('2') && is_status(status) => {
            return response(status, body).ok_or_else(invalid);
        }
        [word, path] if word == "rewrite" => {
            let template = rewrite(path).ok_or_else(invalid)?;
            return groups(&template, path, conditions).map(|()| Answer::Rewrite(template));
        }
        [url] => (302, url),
        [status, url] => (status.parse().ok().filter(|status| REDIRECTS.contains(status)).ok_or_else(invalid)?, url),
        _ => return Err(invalid()),
    };
    let is_uri = ["http://", "https://", "/", "$"].iter().any(|start| url.starts_with(start));
    if !is_uri || !url.bytes().all(|b| b.is_ascii_graphic() && b != b'"') {
        return Err(invalid());
    }
    let template = Template::parse(url).map_err(|_variable| invalid())?;
    groups(&template, url, conditions)?;
    Ok(Answer::Redirect(Redirect { status, location: template.into() }))
}

/// Checks that groups come from an expression of the rule.
fn groups(template: &Template, text: &str, conditions: &[RequestCondition]) -> Result<(), RequestRuleError> {
    let has_groups = template.variables().any(|variable| matches!(variable, Variable::Group(_)));
    if has_groups && !conditions.iter().any(RequestCondition::has_groups) {
        return Err(RequestRuleError::Group(text.to_owned()));
    }
    Ok(())
}

/// Returns an answer with a text, in which `\n` stands for the end of a line.
fn response(status: &str, body: &str) -> Option<Answer> {
    let status = status.parse().ok().filter(|status| (200..300).contains(status))?;
    // Responses with these statuses have no body (RFC 9110, 15.3.5 and 15.3.6).
    let fits = body.len() <= MAX_BODY && (body.is_empty() || !matches!(status, 204 | 205));
    fits.then(|| Answer::Respond { status, body: body.replace("\\n", "\n").into() })
}

/// Parses a path for pods. Variables that clients choose freely need not be valid in it.
fn rewrite(text: &str) -> Option<Template> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/?{}".contains(&b);
    let template = Template::parse(text).ok().filter(|_| text.starts_with('/') && text.bytes().all(is_allowed))?;
    let is_safe =
        |variable: &Variable| matches!(variable, Variable::Group(_) | Variable::QuestionMark | Variable::Query);
    let all_safe = template.variables().all(is_safe);
    all_safe.then_some(template)
}

const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

// === impl RequestCondition ===

impl RequestCondition {
    /// Returns whether its expression provides the groups of a redirect.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        !self.is_negated && matches!(self.test, TextTest::Matches(_))
    }
}

// === Display ===

impl fmt::Display for RequestRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, RequestRule { conditions, answer }) in self.rules.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "; " })?;
            for (n, condition) in conditions.iter().enumerate() {
                write!(f, "{}{condition} ", if n == 0 { "" } else { "and " })?;
            }
            match answer {
                Answer::Pass => f.write_str("-> pass")?,
                Answer::Refuse(status) => write!(f, "-> {status}")?,
                Answer::Respond { status, body } if body.is_empty() => write!(f, "-> {status}")?,
                Answer::Respond { status, body } => write!(f, "-> {status} \"{}\"", body.replace('\n', "\\n"))?,
                Answer::Redirect(Redirect { status, location }) => write!(f, "-> {status} {location}")?,
                Answer::Rewrite(target) => write!(f, "-> rewrite {target}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for RequestCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, test, is_negated } = self;
        let not = if *is_negated { "!" } else { "" };
        match subject {
            RequestSubject::Path => f.write_str("path")?,
            RequestSubject::Header(name) => write!(f, "header:{name}")?,
            RequestSubject::Variable(variable) => write!(f, "{variable:?}")?,
        }
        match test {
            TextTest::Is(text) => write!(f, " {not}= {text}"),
            TextTest::Begins(text) => write!(f, " {not}^ {text}"),
            TextTest::Matches(pattern) => write!(f, " {not}~ {}", pattern.as_str()),
            TextTest::Within(network) => write!(f, " {not}= {network}"),
        }
    }
}

#[cfg(test)]
mod tests;
