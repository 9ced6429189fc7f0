//! Applies rules that answer requests.
//!
//! A client must not escape a refusal by writing the same in another way. So a refusal holds if its condition holds for
//! *any* form of a text that a pod may see: another reading of the path, another line of a field, another cookie or argument
//! of the same name. An exemption must hold for all of them. A redirect looks at the text as nginx does.
//!
//! Work is bounded. If a text is too long to be searched, a refusal holds and an exemption does not. A rule with another
//! answer refuses the request, because a redirect may be what protects a pod. So length hides nothing.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use regex::Captures;

use super::{Edits, Subject, Verdict, location_with, path, render};
use crate::{
    Answer, Pattern, RefusedPaths, RequestCondition, RequestRule, RequestRules, RequestSubject, Template, TextTest,
    Variable, request_path,
};

/// Limit for the product of automaton states and bytes, over all searches for one request; 5 to 12 ms in the worst case.
pub(super) const WORK_MAX: usize = 1 << 20;

/// Answer to a text that is too long to be searched: "request header fields too large" (RFC 6585, section 5).
const TOO_LONG: u16 = 431;

/// Returns the answer of the first rule whose conditions hold.
pub(super) fn apply<'f>(rules: &'f RequestRules, subject: &Subject<'_>, edits: &mut Edits<'f>) -> Verdict<'f> {
    let mut request = Request::of(subject);
    for RequestRule { conditions, answer } in rules.iter() {
        match request.meets_all(conditions, answer) {
            Some(true) => {}
            Some(false) => continue,
            None => return Verdict::Refuse { status: TOO_LONG },
        }
        return match answer {
            Answer::Pass => Verdict::Continue,
            Answer::Refuse(status) => Verdict::Refuse { status: *status },
            Answer::Respond { status, body } => Verdict::Respond { status: *status, body },
            Answer::Redirect(_) | Answer::Rewrite(_) => {
                let last = conditions.iter().rev().find(|condition| condition.has_groups());
                let text = last.map(|condition| searched(condition, subject)).unwrap_or_default();
                let groups = last.and_then(|condition| captures(condition, &text));
                match answer {
                    Answer::Redirect(redirect) => {
                        let location = location_with(redirect, subject, groups.as_ref());
                        Verdict::Redirect { status: redirect.status, location }
                    }
                    Answer::Rewrite(target) if subject.target != "*" => {
                        edits.target = Some(render(target, subject, groups.as_ref()));
                        Verdict::Continue
                    }
                    _ => Verdict::Continue,
                }
            }
        };
    }
    Verdict::Continue
}

/// Returns whether a request is exempt: a rule without another answer holds for every form in which a pod may read it.
#[must_use]
pub fn exempts(rules: &RequestRules, subject: &Subject<'_>) -> bool {
    // A pod that decodes twice reads yet another path.
    let double = RefusedPaths { parameters: false, double_escapes: true };
    if rules.is_empty() || request_path::check(path(subject.target), double).is_err() {
        return false;
    }
    let mut request = Request::of(subject);
    rules.iter().any(|RequestRule { conditions, answer }| {
        *answer == Answer::Pass && request.meets_all(conditions, answer) == Some(true)
    })
}

/// Returns the first text that decides about the answer and is not known, for a request of which only some texts are
/// known; `None` if those decide.
#[must_use]
pub fn undecided_by<'f>(
    rules: &'f RequestRules,
    subject: &Subject<'_>,
    is_known: impl Fn(&RequestSubject) -> bool,
) -> Option<&'f RequestSubject> {
    let mut request = Request::of(subject);
    let mut first = None;
    for RequestRule { conditions, answer } in rules.iter() {
        let (known, unknown): (Vec<_>, Vec<_>) = conditions.iter().partition(|condition| is_known(&condition.subject));
        if request.meets_all(known, answer) == Some(false) {
            continue;
        }
        let asked = unknown.first().map(|condition| &condition.subject);
        match (answer, asked) {
            // Pods answer then, and they do without the rule. A rewritten path leads to the same ones.
            (Answer::Pass | Answer::Rewrite(_), None) => return None,
            (Answer::Pass | Answer::Rewrite(_), Some(_)) => first = first.or(asked),
            _ => return first.or(asked),
        }
    }
    None
}

/// A request while rules are applied to it.
struct Request<'s, 'r> {
    subject: &'s Subject<'r>,
    /// Other forms in which a pod may read the path.
    other_paths: Vec<String>,
    /// The work that is left for searches.
    work: usize,
}

// === impl Request ===

impl<'s, 'r> Request<'s, 'r> {
    fn of(subject: &'s Subject<'r>) -> Self {
        let mut other_paths = request_path::others(path(subject.target));
        // In PCRE, `$` also matches before a line feed at the end.
        let cut: Vec<_> = other_paths.iter().filter_map(|path| path.strip_suffix('\n')).map(str::to_owned).collect();
        other_paths.extend(cut);
        Self { subject, other_paths, work: WORK_MAX }
    }

    /// Returns whether all conditions hold, for a rule with this answer; `None` if a text is too long to tell.
    fn meets_all<'c>(
        &mut self,
        conditions: impl IntoIterator<Item = &'c RequestCondition>,
        answer: &Answer,
    ) -> Option<bool> {
        all(conditions.into_iter().map(|condition| {
            let met = self.meets(condition, answer);
            match answer {
                Answer::Refuse(_) => Some(met.unwrap_or(true)),
                Answer::Pass => Some(met.unwrap_or(false)),
                Answer::Redirect(_) | Answer::Respond { .. } | Answer::Rewrite(_) => met,
            }
        }))
    }

    /// Returns whether a condition holds, for a rule with this answer; `None` if a text is too long to tell.
    fn meets(&mut self, condition: &RequestCondition, answer: &Answer) -> Option<bool> {
        let RequestCondition { subject: wanted, test, is_negated } = condition;
        let Self { subject, other_paths, work } = self;
        let refuses = matches!(answer, Answer::Refuse(_));
        let mut holds = |text: &str| match test {
            TextTest::Is(whole) => Some((text == &**whole) != *is_negated),
            TextTest::Begins(start) => Some(text.starts_with(&**start) != *is_negated),
            TextTest::Matches(pattern) => is_match(pattern, text, work).map(|is_match| is_match != *is_negated),
            TextTest::Within(network) => Some(network.contains(&subject.client) != *is_negated),
        };
        match (answer, wanted) {
            (Answer::Refuse(_) | Answer::Pass, RequestSubject::Path) => {
                let texts = [path(subject.target)].into_iter().chain(other_paths.iter().map(String::as_str));
                if refuses { any(texts.map(holds)) } else { all(texts.map(holds)) }
            }
            (Answer::Pass, RequestSubject::Variable(Variable::RequestUri)) => {
                let query = &subject.target[path(subject.target).len()..];
                let others = other_paths.iter().map(|path| Cow::Owned(format!("{path}{query}")));
                all([Cow::Borrowed(subject.target)].into_iter().chain(others).map(|text| holds(&text)))
            }
            // Neither a second line nor a byte that is not UTF-8 hides a match.
            (_, RequestSubject::Header(name)) if subject.headers.contains_key(name) => {
                let lines = subject.headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
                let held = lines.map(|line| holds(&line));
                // A redirect without a match must find none in any line.
                if refuses || !is_negated { any(held) } else { all(held) }
            }
            (Answer::Refuse(_), RequestSubject::Variable(Variable::Cookie(name))) => {
                let mut values = any_case_cookies(subject.headers, name).map(String::from_utf8_lossy).peekable();
                if values.peek().is_none() {
                    holds("")
                } else {
                    any(values.map(|value| holds(value.trim_matches('"'))))
                }
            }
            (Answer::Refuse(_), RequestSubject::Variable(Variable::Argument(name))) => {
                let query = subject.target.split_once('?').map_or("", |(_, query)| query);
                let mut values = arguments(query, name).peekable();
                if values.peek().is_none() { holds("") } else { any(values.map(|value| holds(&value))) }
            }
            (_, other) => holds(&first(other, subject)),
        }
    }
}

/// Returns whether all hold: `Some(false)` if one does not, and otherwise `None` if one is not known.
fn all(mut held: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let unknown = held.try_fold(Some(true), |so_far, one| match one {
        Some(false) => Err(()),
        Some(true) => Ok(so_far),
        None => Ok(None),
    });
    unknown.unwrap_or(Some(false))
}

/// Returns whether one holds: `Some(true)` if one does, and otherwise `None` if one is not known.
fn any(held: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    all(held.map(|one| one.map(|is_held| !is_held))).map(|none| !none)
}

/// Searches for `pattern`; `None` if the text is too long, or no work is left.
fn is_match(pattern: &Pattern, text: &str, work: &mut usize) -> Option<bool> {
    if pattern.is_beyond(text) {
        return None;
    }
    *work = work.checked_sub(pattern.work(text))?;
    Some(pattern.is_match(text))
}

/// Yields the values of an argument, as the client wrote them and decoded.
fn arguments<'q>(query: &'q str, name: &str) -> impl Iterator<Item = Cow<'q, str>> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    // nginx ignores the case of names.
    let named = pairs.filter(move |(found, _)| decoded(found).eq_ignore_ascii_case(name)).map(|(_, value)| value);
    named.flat_map(|value| [value.into(), decoded(value)])
}

/// Iterates over the values of all cookies of that name in any case, which nginx ignores.
fn any_case_cookies<'r>(headers: &'r http::HeaderMap, name: &str) -> impl Iterator<Item = &'r [u8]> {
    let fields = headers.get_all(http::header::COOKIE).iter().map(http::HeaderValue::as_bytes);
    let pairs = fields.flat_map(|field| field.split(|b| *b == b';')).map(<[u8]>::trim_ascii);
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_at_checked(name.len())?;
        value.strip_prefix(b"=").filter(|_| found.eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// Decodes a text, without a copy if it has nothing to decode: a list may look at each pair of a query 256 times.
fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

/// Returns the text of a subject; of a repeated field, that of the first line.
fn first<'r>(wanted: &RequestSubject, subject: &Subject<'r>) -> Cow<'r, str> {
    match wanted {
        RequestSubject::Path => path(subject.target).into(),
        RequestSubject::Variable(Variable::Host) => subject.host.into(),
        RequestSubject::Header(name) => {
            subject.headers.get(name).map(|line| String::from_utf8_lossy(line.as_bytes())).unwrap_or_default()
        }
        RequestSubject::Variable(Variable::Cookie(name)) => {
            let value = any_case_cookies(subject.headers, name).next().map(String::from_utf8_lossy);
            value.map(|value| value.trim_matches('"').to_owned().into()).unwrap_or_default()
        }
        RequestSubject::Variable(variable) => render(&Template::of(variable.clone()), subject, None).into(),
    }
}

/// Returns the text in which a condition has found its expression: of a repeated field, that of the first line with a match.
/// It has the bound of the search that found it.
fn searched<'r>(condition: &RequestCondition, subject: &Subject<'r>) -> Cow<'r, str> {
    match (&condition.subject, &condition.test) {
        (RequestSubject::Header(name), TextTest::Matches(pattern)) => {
            let mut lines = subject.headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
            let mut work = WORK_MAX;
            lines.find(|line| is_match(pattern, line, &mut work) == Some(true)).unwrap_or_default()
        }
        (wanted, _) => first(wanted, subject),
    }
}

fn captures<'t>(condition: &RequestCondition, text: &'t str) -> Option<Captures<'t>> {
    match &condition.test {
        TextTest::Matches(pattern) => pattern.captures(text),
        TextTest::Is(_) | TextTest::Begins(_) | TextTest::Within(_) => None,
    }
}

#[cfg(test)]
mod tests;
