//! Answers of the snippet itself: `return` and `rewrite`.

use ingress_model::{RequestRule, RequestRules};

use super::{
    Place,
    condition::Condition,
    convert::{Converter, Done},
    pattern::{Expression, beginning},
};

/// Maximum number of rules of a list.
pub(super) const MAX_RULES: usize = 64;

/// Beginning of an answer that gives pods another path.
const REWRITE: &str = "rewrite ";

/// An answer of nginx itself, as `redirect-rules` has it, with the difference if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) difference: Option<&'static str>,
}

/// Whether the path for pods is rewritten by an earlier rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rewrites {
    #[default]
    No,
    /// By one with `break`.
    Ended,
    /// By one after which nginx begins again.
    Again,
}

// === impl Answer ===

impl Answer {
    pub(super) fn refusal(status: &str) -> Self {
        Self { text: status.to_owned(), difference: None }
    }

    /// Returns the status, if the answer refuses a request.
    pub(super) fn refused(&self) -> Option<&str> {
        Some(self.text.as_str()).filter(|text| is_error(text))
    }

    /// Returns whether pods get the request, with another path.
    fn rewrites(&self) -> bool {
        self.text.starts_with(REWRITE)
    }
}

// === impl Converter ===

impl Converter<'_> {
    /// Reads the arguments of `return`.
    pub(super) fn returned(&self, arguments: &[String]) -> Done<Answer> {
        let (status, target) = match arguments {
            [url] if url.contains("://") || url.starts_with('$') => ("302", Some(url)),
            [status] => (status.as_str(), None),
            [status, target] => (status.as_str(), Some(target)),
            _ => return Err("`return` has a status and a URL".to_owned()),
        };
        let answer = |text: String, difference| Ok(Answer { text, difference });
        match (status, target) {
            ("301" | "302" | "303" | "307" | "308", Some(url)) => {
                answer(format!("{status} {}", self.expand(url)?), None)
            }
            ("444", None) => answer("403".to_owned(), Some("nginx closes the connection, here the answer is 403")),
            (status, None) if is_error(status) => answer(status.to_owned(), None),
            (status, Some(_)) if is_error(status) => answer(status.to_owned(), Some("the body is another text")),
            (status, None) if is_success(status) => answer(status.to_owned(), None),
            (status, Some(body)) if is_success(status) => {
                let body = self.fixed(body)?;
                if body.is_empty() {
                    return answer(status.to_owned(), None);
                }
                if body.contains('\\') || body.chars().any(|c| c.is_control() && c != '\n') {
                    return Err("its text has control characters".to_owned());
                }
                let body = body.replace('"', "\\\"").replace('\n', "\\n");
                answer(format!("{status} \"{body}\""), Some("the type of the text is `text/plain`"))
            }
            _ => Err("the proxy makes no such answer; let a pod answer".to_owned()),
        }
    }

    /// Converts `return`.
    pub(super) fn answer(&mut self, arguments: &[String], conditions: &[Condition]) -> Done {
        if self.place == Place::Auth {
            return self.exemption(arguments, conditions);
        }
        let answer = self.returned(arguments)?;
        self.rule(conditions, &answer)
    }

    /// Converts `return` of an `auth-snippet`, which answers in place of the service.
    fn exemption(&mut self, arguments: &[String], conditions: &[Condition]) -> Done {
        if !arguments.first().is_some_and(|status| is_success(status)) {
            return Err("it answers in place of `auth-url`; refuse requests with `redirect-rules`".to_owned());
        }
        if conditions.is_empty() {
            return Err("it admits all requests; remove `auth-url`".to_owned());
        }
        // It may refuse some of the requests, or leave them to the service.
        if self.conversion.rest.iter().any(|remark| remark.place == Place::Auth) {
            return Err("a directive before it is not converted, and may decide first".to_owned());
        }
        if conditions.iter().any(|condition| condition.is_on("path")) {
            return Err("`$uri` is the path of the request to `auth-url`; compare `$request_uri`".to_owned());
        }
        let texts: Vec<_> = conditions.iter().map(Condition::text).collect();
        let line = texts.join(" and ");
        let read = RequestRules::exemptions(&line).map_err(|error| error.to_string())?;
        if !is_read_as(&read, conditions) {
            return Err("its conditions cannot be written as an annotation".to_owned());
        }
        self.differ("paths count in normal form, and in each form that a pod may read");
        self.exempt.push(line);
        Ok(())
    }

    /// Reads the arguments of `rewrite`, as far as it redirects: the conditions on the path, and the answer.
    pub(super) fn rewritten(&self, arguments: &[String]) -> Done<(Vec<Condition>, Answer)> {
        let (pattern, target, flag) = match arguments {
            [pattern, target] => (pattern, target, ""),
            [pattern, target, flag] => (pattern, target, flag.as_str()),
            _ => return Err("`rewrite` has an expression and a target".to_owned()),
        };
        let is_url = ["http://", "https://", "$scheme"].iter().any(|start| target.starts_with(start));
        let status = match flag {
            "permanent" => "301",
            "redirect" => "302",
            "" | "last" | "break" if is_url => "302",
            "" | "last" | "break" => return self.path_for_pods(pattern, target, flag == "break"),
            _ => return Err(format!("`{flag}` is no flag of `rewrite`")),
        };
        let mut difference = None;
        let target = self.expand(target)?;
        let target = match target.strip_suffix('?') {
            Some(target) => target.to_owned(),
            None if target.contains('?') => {
                difference = Some("the query of the request is not appended");
                target
            }
            None if target.contains("$request_uri") || target.contains("${request_uri}") => target,
            None => format!("{target}$is_args$args"),
        };
        let conditions = Condition::matching("path", false, &Expression::parse(pattern)?);
        Ok((conditions, Answer { text: format!("{status} {target}"), difference }))
    }

    /// Reads a `rewrite` of the path that pods get.
    fn path_for_pods(&self, pattern: &str, target: &str, ends: bool) -> Done<(Vec<Condition>, Answer)> {
        let by_hand =
            format!("it changes the path; write it into `path`, as `{pattern}`, with `rewrite-target: {target}`");
        if self.place != Place::Location || self.facts.has("rewrite-target") {
            return Err(by_hand);
        }
        let expression = Expression::parse(pattern)?;
        // nginx looks for a location again, and runs what it has: here that must be the same one, with nothing to run.
        let is_alone = matches!(&*self.facts.paths, [path] if path.is_own && !path.is_exact && path.path == "/")
            && !self.facts.has_expressions
            && self.redirects.is_empty()
            && self.denied.is_empty();
        let (from, to) = (beginning(&expression.is), target.split('$').next().unwrap_or_default());
        let is_once = from.len() > 1 && !to.starts_with(&from) && !from.starts_with(to);
        let may_follow = ends || (is_alone && is_once);
        if !may_follow {
            return Err(by_hand);
        }
        let target = self.expand(target)?;
        let (target, query) = match target.strip_suffix('?') {
            Some(target) => (target, ""),
            None if target.contains('?') => return Err(by_hand),
            None => (target.as_str(), "$is_args$args"),
        };
        let text = format!("{REWRITE}{target}{query}");
        Ok((Condition::matching("path", false, &expression), Answer { text, difference: None }))
    }

    /// Converts `rewrite`.
    pub(super) fn rewrite(&mut self, arguments: &[String], conditions: &[Condition]) -> Done {
        if self.place == Place::Auth {
            return Err("it holds for the requests to `auth-url`, of which only fields can be changed".to_owned());
        }
        let (own, answer) = self.rewritten(arguments)?;
        self.ends_rewriting = arguments.get(2).is_some_and(|flag| flag == "break");
        let all = self.both(conditions, own)?;
        self.rule(&all, &answer)
    }

    /// Adds a rule of `redirect-rules`.
    pub(super) fn rule(&mut self, conditions: &[Condition], answer: &Answer) -> Done {
        if answer.refused().is_some() && conditions.iter().any(Condition::is_narrower) {
            return Err("nginx also refuses other ports and spellings of the host; compare `$host`".to_owned());
        }
        if self.rewrites == Rewrites::Again {
            return Err("nginx runs it for the rewritten path".to_owned());
        }
        let texts: Vec<_> = conditions.iter().map(Condition::text).collect();
        let line = format!("{} -> {}", texts.join(" and "), answer.text);
        let line = line.trim_start().to_owned();
        if self.redirects.contains(&line) {
            return Ok(());
        }
        if self.redirects.len() >= MAX_RULES {
            return Err(format!("there are more than {MAX_RULES} rules"));
        }
        let read = RequestRules::redirects(&line).map_err(|error| error.to_string())?;
        if !is_read_as(&read, conditions) {
            return Err("its conditions cannot be written as an annotation".to_owned());
        }
        if answer.rewrites() {
            // Behind `break`, nginx runs no further directive of the module rewrite, and neither does the list.
            self.rewrites = if self.ends_rewriting { Rewrites::Ended } else { Rewrites::Again };
        }
        if let Some(difference) = answer.difference {
            self.differ(difference);
        }
        self.redirects.push(line);
        Ok(())
    }

    /// Refuses all requests that no rule answers. nginx also refuses those whose path a rule has rewritten, but here such a
    /// rule ends the list.
    pub(super) fn refuse_all(&mut self, status: &str) {
        for rule in &mut self.redirects {
            // A path for pods has neither blanks nor quotation marks, so the last arrow is that of the rule.
            if let Some((conditions, answer)) = rule.rsplit_once("-> ")
                && answer.starts_with(REWRITE)
                && !answer.ends_with('"')
            {
                *rule = format!("{conditions}-> {status}");
            }
        }
        self.redirects.push(format!("-> {status}"));
    }
}

/// Returns whether `read` is one rule with these conditions.
fn is_read_as(read: &RequestRules, conditions: &[Condition]) -> bool {
    let is_same = |RequestRule { conditions: read, .. }: &RequestRule| {
        read.len() == conditions.len() && read.iter().zip(conditions).all(|(read, own)| own.is_read_as(read))
    };
    read.iter().count() == 1 && read.iter().all(is_same)
}

fn is_success(status: &str) -> bool {
    status.len() == 3 && status.parse::<u16>().is_ok_and(|status| (200..300).contains(&status))
}

pub(super) fn is_error(status: &str) -> bool {
    status != "444" && status.len() == 3 && status.parse::<u16>().is_ok_and(|status| (400..600).contains(&status))
}
