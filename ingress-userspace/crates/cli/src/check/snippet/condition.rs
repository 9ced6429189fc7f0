//! Conditions of `if`, and variables that carry them to a later `if`.

use ingress_model::{RequestCondition, Template, TextTest, Variable};

use super::{
    convert::{Converter, Done, Value},
    pattern::Expression,
};

/// A condition in the grammar of `redirect-rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    subject: String,
    operator: &'static str,
    value: String,
    /// Whether nginx compares more than is compared here: the port and the case of `Host`.
    is_loose: bool,
}

/// Maximum number of conditions of one answer.
const MAX_CONDITIONS: usize = 32;
/// Maximum number of conditions on the value of one variable.
const MAX_STEPS: usize = 64;

/// A variable that is set by conditions.
#[derive(Clone, Debug, Default)]
pub(super) struct Flag {
    /// Value if no condition holds.
    pub(super) base: String,
    /// Conditions in order, each with the text that is appended, or that takes the place of the value.
    pub(super) steps: Vec<(Vec<Condition>, Step)>,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Append(String),
    Replace(String),
}

const OPERATORS: [&str; 6] = ["=", "!=", "~", "~*", "!~", "!~*"];

// === impl Condition ===

impl Condition {
    pub(super) fn new(subject: &str, operator: &'static str, value: &str) -> Self {
        Self { subject: subject.to_owned(), operator, value: value.to_owned(), is_loose: false }
    }

    /// Returns the conditions under which an expression matches, the one with the groups last.
    pub(super) fn matching(subject: &str, ignores_case: bool, expression: &Expression) -> Vec<Self> {
        let (matches, fails) = if ignores_case { ("~*", "!~*") } else { ("~", "!~") };
        let is_not = expression.is_not.iter().map(|is_not| Self::new(subject, fails, is_not));
        is_not.chain([Self::new(subject, matches, &expression.is)]).collect()
    }

    /// Returns whether the condition may fail here for a request for which it holds in nginx.
    pub(super) fn is_narrower(&self) -> bool {
        self.is_loose && self.operator.starts_with('!')
    }

    /// Returns whether the condition is on this subject.
    pub(super) fn is_on(&self, subject: &str) -> bool {
        self.subject == subject
    }

    /// Returns whether `read` is what the text of this condition is meant to say.
    pub(super) fn is_read_as(&self, read: &RequestCondition) -> bool {
        let is_same = match &read.test {
            TextTest::Is(text) | TextTest::Begins(text) => **text == *self.value,
            TextTest::Matches(pattern) => pattern.as_str() == self.value,
            TextTest::Within(network) => network.to_string() == self.value,
        };
        is_same && read.is_negated == self.operator.starts_with('!')
    }

    fn negated(&self) -> Self {
        let operator = match self.operator {
            "=" => "!=",
            "!=" => "=",
            "~" => "!~",
            "!~" => "~",
            "~*" => "!~*",
            _ => "~*",
        };
        Self { operator, ..self.clone() }
    }

    /// Returns the text in `redirect-rules`.
    pub(super) fn text(&self) -> String {
        let Self { subject, operator, value, is_loose: _ } = self;
        let is_plain = !value.is_empty() && !value.starts_with('"') && !value.contains(char::is_whitespace);
        let value = if is_plain && !matches!(value.as_str(), "and" | "->") {
            value.clone()
        } else {
            format!("\"{}\"", value.replace('"', "\\\""))
        };
        format!("{subject} {operator} {value}")
    }
}

// === impl Flag ===

impl Flag {
    /// Returns the conditions under which the variable has this value.
    fn conditions(&self, value: &str) -> Done<Vec<Condition>> {
        let unclear = || Err(format!("it is not clear when the variable is `{value}`"));
        let is_appended = self.steps.iter().all(|(_, step)| matches!(step, Step::Append(_)));
        let last = |step: &Step| match step {
            Step::Append(text) => self.base.clone() + text,
            Step::Replace(text) => text.clone(),
        };
        match &*self.steps {
            [(conditions, step)] if last(step) == value && self.base != value => Ok(conditions.clone()),
            [(conditions, step)] if last(step) != value && self.base == value => match &**conditions {
                [one] => Ok(vec![one.negated()]),
                _ => unclear(),
            },
            steps if is_appended => {
                let (mut whole, mut all) = (self.base.clone(), Vec::new());
                for (conditions, step) in steps {
                    let (Step::Append(text) | Step::Replace(text)) = step;
                    whole += text;
                    all.extend(conditions.iter().cloned());
                    if whole.len() > value.len() || all.len() > MAX_CONDITIONS {
                        return unclear();
                    }
                }
                // Different texts, none of them empty, add up to the whole only if all conditions hold.
                let is_whole =
                    whole == value && steps.iter().all(|(_, step)| !matches!(step, Step::Append(t) if t.is_empty()));
                if is_whole { Ok(all) } else { unclear() }
            }
            _ => unclear(),
        }
    }
}

// === impl Converter ===

impl Converter<'_> {
    /// Parses the arguments of `if`.
    pub(super) fn conditions(&self, arguments: &[String]) -> Done<Vec<Condition>> {
        let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let unknown = || format!("`if {}` is not understood", arguments.join(" "));
        if let Some(first) = words.first_mut() {
            *first = first.strip_prefix('(').ok_or_else(unknown)?;
        }
        if let Some(last) = words.last_mut() {
            *last = last.strip_suffix(')').ok_or_else(unknown)?;
        }
        // Parentheses may stand apart.
        if words.first() == Some(&"") {
            words.remove(0);
        }
        if words.len() != 3 && words.last() == Some(&"") {
            words.pop();
        }
        let (variable, operator, value) = match *words {
            [variable] => (variable, "!~*", "^0?$"),
            [variable, operator, value] => {
                let operator = OPERATORS.into_iter().find(|known| *known == operator).ok_or_else(unknown)?;
                (variable, operator, value)
            }
            _ => return Err(unknown()),
        };
        let name =
            variable.strip_prefix('$').ok_or_else(|| format!("`{variable}` is no condition that exists here"))?;
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        if let Some(known) = self.variables.get(name) {
            return match known {
                Value::Flag(flag) if operator == "=" => flag.conditions(value),
                Value::Flag(flag) if words.len() == 1 => flag.conditions("1").or_else(|_| flag.conditions("true")),
                _ => Err(format!("the value of `${name}` is not known beforehand")),
            };
        }
        let value = if operator.contains('~') { value.to_owned() } else { self.constant(value)? };
        let condition = match (name, operator, value.as_str()) {
            ("https", "=", "on") | ("https", "!=", "") => Condition::new("scheme", "=", "https"),
            ("https", "!=", "on") | ("https", "=", "") => Condition::new("scheme", "=", "http"),
            ("server_name", ..) if self.facts.only_host().is_none() && !self.facts.hosts.is_empty() => {
                return Err("`$server_name` is the host of the rule, not that of the request".to_owned());
            }
            _ => {
                let subject = subject(name).ok_or_else(|| format!("`${name}` is no subject of a condition here"))?;
                match operator {
                    "~" | "~*" if words.len() != 1 => {
                        let expression = Expression::parse(&value)?;
                        let is_loose = is_loose(name);
                        let conditions = Condition::matching(&subject, operator == "~*", &expression).into_iter();
                        return Ok(conditions.map(|condition| Condition { is_loose, ..condition }).collect());
                    }
                    "!~" | "!~*" if words.len() != 1 => {
                        Condition::new(&subject, operator, &Expression::parse(&value)?.single()?)
                    }
                    _ => Condition::new(&subject, operator, &value),
                }
            }
        };
        if name == "http_host" && !operator.contains('~') && condition.value.contains(':') {
            return Err("the port is no part of the host that is compared here".to_owned());
        }
        Ok(vec![Condition { is_loose: is_loose(name), ..condition }])
    }

    /// Remembers the value that `set` gives to a variable.
    pub(super) fn set_variable(&mut self, arguments: &[String], conditions: &[Condition]) -> Done {
        let [name, value] = arguments else { return Err("`set` has two arguments".to_owned()) };
        let name = name.strip_prefix('$').unwrap_or(name).to_owned();
        if conditions.is_empty() {
            let value = self.expand(value)?;
            // A later expression has groups of its own.
            let has_groups =
                |template: Template| template.variables().any(|variable| matches!(variable, Variable::Group(_)));
            if value.contains('$') && Template::parse(&value).is_ok_and(has_groups) {
                return Err(format!("`${name}` holds a group of an earlier expression"));
            }
            let is_constant = !value.contains('$');
            let flag = Value::Flag(Flag { base: value.clone(), steps: Vec::new() });
            self.variables.insert(name, if is_constant { flag } else { Value::Text(value) });
            return Ok(());
        }
        let mut flag = match self.variables.get(&name) {
            Some(Value::Flag(flag)) => flag.clone(),
            Some(_) => return Err(format!("`${name}` depends on conditions")),
            None => Flag::default(),
        };
        let own = [format!("${name}"), format!("${{{name}}}")];
        let step = match own.iter().find_map(|own| value.strip_prefix(own.as_str())) {
            Some(rest) if !rest.contains('$') => Step::Append(rest.to_owned()),
            // Without a value before, both are the same.
            None if !value.contains('$') && flag.base.is_empty() && flag.steps.is_empty() => {
                Step::Append(value.clone())
            }
            None if !value.contains('$') => Step::Replace(value.clone()),
            _ => return Err(format!("`${name}` depends on conditions")),
        };
        if flag.steps.len() >= MAX_STEPS {
            return Err(format!("`${name}` depends on more than {MAX_STEPS} conditions"));
        }
        flag.steps.push((conditions.to_vec(), step));
        self.variables.insert(name, Value::Flag(flag));
        Ok(())
    }

    /// Returns these conditions together.
    pub(super) fn both(&self, outer: &[Condition], inner: Vec<Condition>) -> Done<Vec<Condition>> {
        if outer.len() + inner.len() > MAX_CONDITIONS {
            return Err(format!("it depends on more than {MAX_CONDITIONS} conditions"));
        }
        Ok(outer.iter().cloned().chain(inner).collect())
    }

    /// Returns a text whose variables are all known beforehand.
    fn constant(&self, text: &str) -> Done<String> {
        let text = self.expand(text)?;
        if text.contains('$') { Err(format!("`{text}` is compared, which is no constant")) } else { Ok(text) }
    }
}

/// Returns whether a variable has the port and the case of `Host`, of which conditions know nothing here.
fn is_loose(variable: &str) -> bool {
    matches!(variable, "http_host" | "best_http_host")
}

/// Returns the subject of `redirect-rules` for a variable.
fn subject(variable: &str) -> Option<String> {
    Some(match variable {
        "host" | "http_host" | "best_http_host" | "server_name" => "host".to_owned(),
        "uri" | "document_uri" => "path".to_owned(),
        "request_uri" => "uri".to_owned(),
        "args" | "query_string" => "query".to_owned(),
        "scheme" | "pass_access_scheme" => "scheme".to_owned(),
        "request_method" => "method".to_owned(),
        "remote_addr" => "client".to_owned(),
        _ => {
            let (kind, name) = variable.split_once('_').filter(|(_, name)| !name.is_empty())?;
            match kind {
                "http" => format!("header:{}", name.replace('_', "-")),
                "cookie" | "arg" => format!("{kind}:{name}"),
                _ => return None,
            }
        }
    })
}

/// Returns an expression that matches exactly this text.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if "\\.+*?()|[]{}^$#&-~".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}
