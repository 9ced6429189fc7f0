//! Regular expressions of nginx, which PCRE reads, in the syntax of this controller. Text with another meaning in the two
//! is named and never guessed.

use super::{convert::Done, look_ahead};

/// A look-ahead that is replaced: the expression matches if `is` does and `is_not` does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expression {
    pub(super) is: String,
    pub(super) is_not: Option<String>,
}

const LOOK_AROUND: &str = "it holds look-around or a back reference, which would take endless time on some requests";

// === impl Expression ===

impl Expression {
    pub(super) fn parse(text: &str) -> Done<Self> {
        let reason = match plain(text) {
            Ok(is) => return Ok(Self { is, is_not: None }),
            Err(reason) => reason,
        };
        look_ahead::replaced(text).ok_or(reason)
    }

    /// Returns the expression if it has no look-ahead.
    pub(super) fn single(self) -> Done<String> {
        if self.is_not.is_some() { Err(LOOK_AROUND.to_owned()) } else { Ok(self.is) }
    }
}

/// Translates an expression without look-around.
pub(super) fn plain(text: &str) -> Done<String> {
    let other = |part: &str| format!("PCRE reads `{part}` in `{text}` in another way than this controller");
    if !text.is_ascii() || text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(format!("`{text}` holds characters beyond ASCII, which PCRE reads as bytes"));
    }
    let (mut out, mut rest) = (String::new(), text);
    let (mut in_class, mut is_quantified) = (false, false);
    // Whether the class has an element, and whether the last one is itself a class.
    let (mut has_element, mut is_set) = (false, false);
    while let Some(character) = rest.chars().next() {
        let after = &rest[1..];
        let was_quantified = std::mem::take(&mut is_quantified);
        let was_set = std::mem::take(&mut is_set);
        let had_element = std::mem::replace(&mut has_element, in_class);
        let mut taken = 1;
        match character {
            '\\' => {
                let escaped = after.chars().next().ok_or_else(|| other("\\"))?;
                taken = 2;
                is_set = in_class && "dws".contains(escaped);
                out += &escape(escaped, in_class).ok_or_else(|| match escaped {
                    '1'..='9' => format!("`{text}`: {LOOK_AROUND}"),
                    _ => other(&format!("\\{escaped}")),
                })?;
            }
            '[' if in_class => match after.strip_prefix(':').and_then(|name| name.split_once(":]")) {
                Some((name, _)) => {
                    is_set = true;
                    taken = name.len() + 4;
                    out += &rest[..taken];
                }
                None => out += "\\[",
            },
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' | '-' if in_class && after.starts_with(character) => {
                return Err(other(&format!("{character}{character}")));
            }
            // PCRE reads it as itself, for a set begins and ends no range. What the set becomes would.
            '-' if in_class
                && !after.starts_with(']')
                && (was_set
                    || (had_element && ["\\d", "\\w", "\\s", "[:"].iter().any(|set| after.starts_with(set)))) =>
            {
                return Err(other("-"));
            }
            _ if in_class => out.push(character),
            '[' => {
                in_class = true;
                out.push('[');
                if let Some(negated) = after.strip_prefix('^') {
                    taken = 2;
                    out.push('^');
                    if negated.starts_with(']') {
                        taken = 3;
                        has_element = true;
                        out += "\\]";
                    }
                } else if after.starts_with(']') {
                    taken = 2;
                    has_element = true;
                    out += "\\]";
                }
            }
            '(' if after.starts_with('*') => return Err(other("(*")),
            '(' if after.starts_with('?') => {
                let group = group(after).ok_or_else(|| match after.as_bytes().get(1) {
                    Some(b'=' | b'!' | b'<') => format!("`{text}`: {LOOK_AROUND}"),
                    _ => other(&format!("({}", &after[..after.len().min(3)])),
                })?;
                taken = group + 1;
                out += &rest[..taken];
            }
            '+' if was_quantified => return Err(other("++")),
            '{' => match quantifier(after) {
                Some(length) => {
                    taken = length + 1;
                    is_quantified = true;
                    out += &rest[..taken];
                }
                None if after.starts_with(',') => return Err(other("{,")),
                None => out += "\\{",
            },
            '}' => out += "\\}",
            '*' | '+' | '?' => {
                // A second `?` makes it lazy, and a `+` behind that has no meaning.
                is_quantified = true;
                out.push(character);
            }
            _ => out.push(character),
        }
        rest = &rest[taken..];
    }
    if in_class { Err(format!("`{text}` is no regular expression: a `[` is not closed")) } else { Ok(out) }
}

/// Translates an escape. Classes hold ASCII characters alone in PCRE.
fn escape(character: char, in_class: bool) -> Option<String> {
    let class = |positive: &str, is_negated: bool| match (in_class, is_negated) {
        (true, false) => Some(positive.to_owned()),
        (true, true) => None,
        (false, false) => Some(format!("[{positive}]")),
        (false, true) => Some(format!("[^{positive}]")),
    };
    match character {
        'd' | 'D' => class("0-9", character == 'D'),
        'w' | 'W' => class("0-9A-Za-z_", character == 'W'),
        's' | 'S' => class("\\t-\\r ", character == 'S'),
        'b' if !in_class => Some("(?-u:\\b)".to_owned()),
        'A' | 'z' if !in_class => Some(format!("\\{character}")),
        'n' | 'r' | 't' | 'f' => Some(format!("\\{character}")),
        '<' | '>' => Some(character.to_string()),
        _ if character.is_ascii_punctuation() => Some(format!("\\{character}")),
        _ => None,
    }
}

/// Returns the length of the beginning of a group behind its parenthesis, if it means the same.
fn group(text: &str) -> Option<usize> {
    let body = text.strip_prefix('?')?;
    let name = body.strip_prefix("P<").or_else(|| body.strip_prefix('<'));
    if let Some(name) = name {
        let end = name.find('>')?;
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name[..end].bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        return is_name.then_some(text.len() - name.len() + end + 1);
    }
    let flags = body.find(|c: char| !"ims-".contains(c))?;
    let is_end = body[flags..].starts_with(':') || (flags > 0 && body[flags..].starts_with(')'));
    is_end.then_some(flags + 2)
}

/// Returns the length of a quantifier behind its brace, with the closing one.
fn quantifier(text: &str) -> Option<usize> {
    let end = text.find('}')?;
    let (least, most) = text[..end].split_once(',').unwrap_or((&text[..end], ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (!least.is_empty() && is_number(least) && is_number(most)).then_some(end + 1)
}

/// Returns the text that every match begins with at the start of a value; empty if that is not known.
pub(super) fn beginning(expression: &str) -> String {
    let Some(rest) = expression.strip_prefix('^') else { return String::new() };
    let (mut text, mut characters) = (String::new(), rest.chars().peekable());
    while let Some(character) = characters.next() {
        let literal = match character {
            '\\' => match characters.next() {
                Some(escaped) if escaped.is_ascii_punctuation() => escaped,
                _ => break,
            },
            _ if "^$.|?*+()[]{}".contains(character) => break,
            _ => character,
        };
        match characters.peek() {
            // The character may be missing, or is one of several.
            Some('?' | '*' | '{') => break,
            _ => text.push(literal),
        }
    }
    // One of the alternatives at the top may begin with anything.
    if rest.contains('|') && (rest.contains('[') || !is_within_group(rest)) { String::new() } else { text }
}

/// Returns whether all `|` of an expression stand within groups.
fn is_within_group(expression: &str) -> bool {
    let (mut depth, mut is_escaped) = (0_usize, false);
    for character in expression.chars() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use ingress_model::Pattern;

    use super::*;

    #[test]
    fn expressions_keep_their_meaning() {
        for (text, expect) in [
            ("^/a/(.*)$", "^/a/(.*)$"),
            (r"\.(sql|bak)$", r"\.(sql|bak)$"),
            (r"^/p/\d+[\w-]", "^/p/[0-9]+[0-9A-Za-z_-]"),
            (r"a\S\b", r"a[^\t-\r ](?-u:\b)"),
            ("a[b[c]d", r"a[b\[c]d"),
            ("[]a]", r"[\]a]"),
            ("[^]a]", r"[^\]a]"),
            ("[[:alpha:]_]", "[[:alpha:]_]"),
            (r"[-\d][^-\d][a-z\d-]", "[-0-9][^-0-9][a-z0-9-]"),
            (r"[a-z-9]\d-\d", "[a-z-9][0-9]-[0-9]"),
            ("/{id}", r"/\{id\}"),
            ("a{2,3}?", "a{2,3}?"),
            (r"\<a", "<a"),
            ("(?i)a(?:b|c)(?<n>d)", "(?i)a(?:b|c)(?<n>d)"),
        ] {
            let expression = Expression::parse(text).expect(text);
            assert_eq!((expression.is.as_str(), expression.is_not), (expect, None), "{text}");
            assert!(Pattern::of_rule(expect, false).is_ok(), "{expect}");
        }
    }

    #[test]
    fn expressions_that_pcre_reads_otherwise_are_named() {
        for (text, expect) in [
            ("a(?=b)", "look-around"),
            ("(?<=a)b", "look-around"),
            ("(?<!a)b", "look-around"),
            ("(.)\\1", "back reference"),
            ("a++", "`++`"),
            ("a*+", "`++`"),
            ("a{2}+", "`++`"),
            ("(?>a)", "`(?>a`"),
            ("(?R)", "`(?R)`"),
            ("(?x)a b", "`(?x)`"),
            ("(*UTF8)a", "`(*`"),
            ("[a&&b]", "`&&`"),
            ("[a--b]", "`--`"),
            (r"[.-\d]", "`-`"),
            (r"[\w-.]", "`-`"),
            (r"[]-\s]", "`-`"),
            (r"[^]-\s]", "`-`"),
            (r"[.-[:alpha:]]", "`-`"),
            (r"[[:alpha:]-z]", "`-`"),
            (r"\Qa\E", "`\\Q`"),
            (r"\v", "`\\v`"),
            (r"\p{L}", "`\\p`"),
            (r"[\W]", "`\\W`"),
            ("a{,3}", "`{,`"),
            ("é", "beyond ASCII"),
            ("[a", "not closed"),
        ] {
            let reason = Expression::parse(text).expect_err(text);
            assert!(reason.contains(expect), "{text}: {reason}");
        }
    }

    #[test]
    fn look_ahead_becomes_a_second_expression() {
        let matches = |text: &str, value: &str| {
            let Expression { is, is_not } = Expression::parse(text).expect(text);
            let test = |pattern: &str| Pattern::of_rule(pattern, false).expect(pattern).is_match(value);
            test(&is) && is_not.is_none_or(|is_not| !test(&is_not))
        };
        for (text, value, expect) in [
            ("^/actuator/(?!health)", "/actuator/env", true),
            ("^/actuator/(?!health)", "/actuator/health/x", false),
            ("^/actuator/(?!health|info)(.*)$", "/actuator/info", false),
            (r"/\.(?!well-known).*", "/.git/config", true),
            (r"/\.(?!well-known).*", "/.well-known/x", false),
            (r"/\.(?!well-known).*", "/a/.well-known/x", false),
            (r"/\.(?!well-known).*", "/.well-known/.git/config", true),
            (r"/\.(?!well-known).*", "/.well-known", false),
            (r"/\.(?!well-known)", "/.well-know", true),
            (r"^(d\/1\.(3|4|5(?!\.[0-9]-dev))|Go ).*$", "d/1.5.1", true),
            (r"^(d\/1\.(3|4|5(?!\.[0-9]-dev))|Go ).*$", "d/1.5.1-dev", false),
            (r"^(d\/1\.(3|4|5(?!\.[0-9]-dev))|Go ).*$", "d/1.4.1-dev", true),
            (r"^(d\/1\.(3|4|5(?!\.[0-9]-dev))|Go ).*$", "Go 1.1", true),
            (r"^(d\/1\.(3|4|5(?!\.[0-9]-dev))|Go ).*$", "d/1.6", false),
        ] {
            assert_eq!(matches(text, value), expect, "{text} {value}");
        }
        for text in [
            "^/a+(?!b)",
            "^/a(?!b)c",
            "(?!a)b",
            "^/a(?!b(c))",
            "/a(?!b)",
            "^(a|ab(?!c))",
            "^(a(?!b)|c)d",
            "^/a|/b(?!c)",
            "^a(?!b)|c",
            // The excluded text may hold the whole next occurrence.
            r"/\.(?!a/b)",
            r"/\.(?!a/\.b)",
            r"/\.(?!a\\/)",
            r"\.(?!a\.b)",
        ] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_occurrence_needs_the_text_that_exempts_it() {
        let (mut texts, mut last) = (Vec::new(), vec![String::new()]);
        for _length in 1..=8 {
            last = last.iter().flat_map(|text| ["/", ".", "w"].map(|letter| format!("{text}{letter}"))).collect();
            texts.extend_from_slice(&last);
        }
        for (text, start, exempt) in [
            (r"/\.(?!w)", "/.", "w"),
            (r"/\.(?!w/)", "/.", "w/"),
            (r"/\.(?!w\/).*", "/.", "w/"),
            (r"/\.(?!ww/)", "/.", "ww/"),
            (r"\.(?!w)", ".", "w"),
            (r"\.(?!w/)", ".", "w/"),
        ] {
            let Expression { is, is_not } = Expression::parse(text).expect(text);
            let pattern = |text: &str| Pattern::of_rule(text, false).expect(text);
            let (is, is_not) = (pattern(&is), pattern(&is_not.expect("an exemption")));
            for value in &texts {
                let mut found = value.match_indices(start).map(|(at, _)| &value[at + start.len()..]);
                let expect = found.any(|rest| !rest.starts_with(exempt));
                let is_refused = is.is_match(value) && !is_not.is_match(value);
                // A path with an empty segment may be refused beyond that.
                let is_right = is_refused == expect || (is_refused && value.contains("//"));
                assert!(is_right, "{text} {value}: {is_refused}");
            }
        }
    }

    #[test]
    fn the_beginning_of_matches_is_known_where_it_is_literal() {
        for (text, expect) in [(r"^/a\.b(c|d)", "/a.b"), ("^/ab?", "/a"), ("/a", ""), ("^/a|b", ""), ("^/(a|b)", "/")] {
            assert_eq!(beginning(text), expect, "{text}");
        }
    }
}
