//! Look-ahead that a second expression replaces, where both have the same effect.

use super::{
    condition::escape,
    pattern::{Expression, plain},
};

/// Replaces a negative look-ahead, if that is possible.
pub(super) fn replaced(text: &str) -> Option<Expression> {
    without_look_ahead(text).or_else(|| of_alternatives(text))
}

/// Replaces a negative look-ahead by a second expression, where both have the same effect.
fn without_look_ahead(text: &str) -> Option<Expression> {
    let (before, rest) = text.split_once("(?!")?;
    let end = closing(rest)?;
    let (excluded, after) = (&rest[..end], &rest[end + 1..]);
    if !matches!(after, "" | ".*" | ".*$" | "(.*)" | "(.*)$") {
        return None;
    }
    let (is, excluded) = (plain(&format!("{before}{after}")).ok()?, plain(excluded).ok()?);
    let is_literal = |text: &str| {
        let mut is_escaped = false;
        text.chars().all(|character| {
            let is_plain =
                if is_escaped { character.is_ascii_punctuation() } else { !"^$.|?*+()[]{}".contains(character) };
            is_escaped = character == '\\' && !is_escaped;
            is_plain
        }) && !is_escaped
    };
    let segment = excluded.strip_suffix("\\/").or_else(|| excluded.strip_suffix('/'));
    let is_not = match before {
        // Each occurrence must be followed by the excluded text, which must not take the beginning of the next one.
        "/\\." if is_literal(&excluded) && !excluded.contains('/') => format!("^(?:[^/]|/\\.{excluded}|/[^./]|/$)*$"),
        // Here the `/` at the end of the text is that of the next occurrence, if there is one.
        "/\\." if let Some(segment) = segment.filter(|segment| is_literal(segment) && !segment.contains('/')) => {
            format!("^(?:[^/]|(?:/\\.{segment})*/(?:[^./]|$))*$")
        }
        "\\." if is_literal(&excluded) && !excluded.contains('.') => format!("^(?:[^.]|\\.{excluded})*$"),
        // There is one place where a literal can match, and one end of it.
        _ if before.strip_prefix('^').is_some_and(is_literal) => format!("{}(?:{excluded})", plain(before).ok()?),
        _ => return None,
    };
    Some(Expression { is, is_not: Some(is_not) })
}

/// Replaces a look-ahead at the end of one of several texts, such as `^(a|b(?!c)).*$`.
fn of_alternatives(text: &str) -> Option<Expression> {
    let (before, rest) = text.split_once("(?!")?;
    let end = closing(rest)?;
    let excluded = plain(&rest[..end]).ok()?;
    let is = format!("{before}{}", &rest[end + 1..]);
    let body = text.strip_prefix('^')?;
    let mut at = body.strip_suffix(".*$").or_else(|| body.strip_suffix(".*")).unwrap_or(body);
    let alternatives = alternatives(&mut at, 0).filter(|_| at.is_empty())?;
    let (cut, open): (Vec<_>, Vec<_>) = alternatives.into_iter().partition(|(_, is_cut)| *is_cut);
    let [(cut, _)] = &*cut else { return None };
    // No other text may match where this one does.
    let is_apart = |other: &str| !other.starts_with(cut.as_str()) && !cut.starts_with(other);
    if !open.iter().all(|(other, _)| is_apart(other)) {
        return None;
    }
    let is_not = format!("^{}(?:{excluded})", escape(cut));
    Some(Expression { is: plain(&is).ok()?, is_not: Some(is_not) })
}

/// Reads texts that `|` separates, up to the end of their group. The flag is set behind a look-ahead.
fn alternatives(rest: &mut &str, depth: usize) -> Option<Vec<(String, bool)>> {
    let (mut all, mut current) = (Vec::new(), vec![(String::new(), false)]);
    while let Some(character) = rest.chars().next().filter(|character| *character != ')') {
        // A look-ahead must be the last part.
        if character != '|' && current.iter().any(|(_, is_cut)| *is_cut) {
            return None;
        }
        let after = rest.get(1..)?;
        let parts = match character {
            // An anchor holds for the first of such alternatives alone.
            '|' if depth == 0 => return None,
            '|' => {
                *rest = after;
                all.append(&mut current);
                current.push((String::new(), false));
                continue;
            }
            '(' if after.starts_with("?!") => {
                *rest = &after[closing(&after[2..])? + 3..];
                vec![(String::new(), true)]
            }
            '(' if depth < 4 => {
                *rest = after.strip_prefix("?:").unwrap_or(after);
                let inner = alternatives(rest, depth + 1)?;
                *rest = rest.strip_prefix(')')?;
                inner
            }
            '\\' => {
                let escaped = after.chars().next().filter(char::is_ascii_punctuation)?;
                *rest = &after[1..];
                vec![(escaped.to_string(), false)]
            }
            _ if "^$.?*+()[]{}".contains(character) => return None,
            _ => {
                *rest = after;
                vec![(character.to_string(), false)]
            }
        };
        if rest.starts_with(['?', '*', '+', '{']) || current.len() * parts.len() + all.len() > 64 {
            return None;
        }
        let joined = |(text, _): &(String, bool)| {
            parts.iter().map(|(part, is_cut)| (format!("{text}{part}"), *is_cut)).collect::<Vec<_>>()
        };
        current = current.iter().flat_map(joined).collect();
    }
    all.append(&mut current);
    Some(all)
}

/// Returns the place of the parenthesis that closes a group, which has no group within.
fn closing(text: &str) -> Option<usize> {
    let (mut is_escaped, mut in_class) = (false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' => in_class = false,
            '[' => in_class = true,
            _ if in_class => {}
            ')' => return Some(at),
            '(' => return None,
            _ => {}
        }
    }
    None
}
