//! Removes addresses of clients from texts, and from a log what is not our own.
//!
//! Each address becomes `address-N`, the same one everywhere in a bundle, so that a reader still sees which lines are
//! about the same client. Addresses of loopback and the unspecified ones tell nothing, and stay.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use ingress_inspect::without_queries;
use serde_json::Value;

/// Addresses that have been replaced, with their numbers.
#[derive(Debug, Default)]
pub struct Redaction {
    numbers: HashMap<IpAddr, usize>,
}

impl Redaction {
    /// Returns `text` with a number in place of each IP address.
    #[must_use]
    pub fn addresses(&mut self, text: &str) -> String {
        let is_part = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(is_part) {
            let (before, from) = rest.split_at(start);
            let (word, after) = from.split_at(from.find(|c| !is_part(c)).unwrap_or(from.len()));
            out.push_str(before);
            // The end of an escaped line break in JSON is no part of the word.
            let is_escape = ["\\n", "\\r", "\\t"].iter().any(|escape| out.ends_with(escape));
            let is_whole = (is_escape || !out.ends_with(is_word)) && !after.starts_with(is_word);
            // A part of a longer word is an address only with dots; `proxy::conn` has `::c`.
            let is_meant = is_whole || word.contains('.');
            match is_meant.then(|| self.replace(word)).flatten() {
                Some(replaced) => out.push_str(&replaced),
                None => out.push_str(word),
            }
            rest = after;
        }
        out + rest
    }

    /// Returns the replacement of `word`, if it is an address, which a port and punctuation may follow.
    fn replace(&mut self, word: &str) -> Option<String> {
        let parse = |text: &str| match (text.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
            (Ok(address), _) => Some((address, String::new())),
            (_, Ok(both)) => Some((both.ip(), format!(":{}", both.port()))),
            _ => None,
        };
        // An address may end in `::`, so punctuation is taken off only where the whole is none.
        let (found, tail) = match parse(word) {
            Some(found) => (found, ""),
            None => {
                let core = word.trim_end_matches(['.', ':']);
                (parse(core)?, &word[core.len()..])
            }
        };
        let (address, port) = found;
        let address = address.to_canonical();
        if address.is_loopback() || address.is_unspecified() {
            return None;
        }
        let next = self.numbers.len() + 1;
        let number = self.numbers.entry(address).or_insert(next);
        Some(format!("address-{number}{port}{tail}"))
    }
}

/// Returns the lines of our own log, without queries of URLs. Lines of the access log have whatever its format asks for.
pub(super) fn own_lines(log: &str) -> String {
    let (own, others): (Vec<_>, Vec<_>) = log.lines().partition(|line| is_own(line));
    let mut text: String = own.into_iter().map(|line| without_queries(line) + "\n").collect();
    if !others.is_empty() {
        text += &format!("({} other lines, such as those of the access log, are left out)\n", others.len());
    }
    text
}

/// Returns whether a line is one of `--log-format json` or `text`: with a time, a level and a target.
fn is_own(line: &str) -> bool {
    if line.starts_with('{') {
        let value: Option<Value> = serde_json::from_str(line).ok();
        return value.is_some_and(|line| ["timestamp", "level", "target"].iter().all(|name| line[name].is_string()));
    }
    let mut words = line.split_whitespace();
    let is_time =
        |word: &str| word.ends_with('Z') && word.contains('T') && word.starts_with(|c: char| c.is_ascii_digit());
    words.next().is_some_and(is_time)
        && words.next().is_some_and(|word| ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"].contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_gets_one_name() {
        let mut redaction = Redaction::default();
        for (text, expected) in [
            ("client 192.0.2.7:4711 refused", "client address-1:4711 refused"),
            ("192.0.2.7, 198.51.100.9.", "address-1, address-2."),
            ("[2001:db8::7]:443 and 2001:db8::7/64:", "[address-3]:443 and address-3/64:"),
            ("::ffff:192.0.2.7", "address-1"),
            (r#"{"client":"203.0.113.1","n":1.5}"#, r#"{"client":"address-4","n":1.5}"#),
            ("denied_packets_total{network=\"192.0.2.0/24\"} 3", "denied_packets_total{network=\"address-5/24\"} 3"),
            (
                "at 12:34:56.789 ingress_proxy::conn: 127.0.0.1:80 ::1 ::",
                "at 12:34:56.789 ingress_proxy::conn: 127.0.0.1:80 ::1 ::",
            ),
            ("abc::def::add x::1 v0.1.0 10.0.0", "abc::def::add x::1 v0.1.0 10.0.0"),
            ("2001:db8:1::/48", "address-6/48"),
            (r"one\n192.0.2.7\n2001:db8::7", r"one\naddress-1\naddress-3"),
            ("ü192.0.2.7x end", "üaddress-1x end"),
            ("", ""),
        ] {
            assert_eq!(redaction.addresses(text), expected);
        }
    }

    #[test]
    fn only_our_own_lines_stay_in_a_log() {
        let log = "\
{\"timestamp\":\"2026-11-26T14:00:00Z\",\"level\":\"INFO\",\"target\":\"ingress_control\",\"message\":\"asked https://a.test/x?key=hunter2\"}
{\"remote_addr\":\"192.0.2.7\",\"uri\":\"/x?key=hunter2\"}
2026-11-26T14:00:01.5Z  WARN ingress_proxy: slow
192.0.2.7 - hunter2 [26/Nov/2026] \"GET /\"
2026-11-26T14:00:01Z hunter2
";
        let expected = "\
{\"timestamp\":\"2026-11-26T14:00:00Z\",\"level\":\"INFO\",\"target\":\"ingress_control\",\"message\":\"asked https://a.test/x?…\"}
2026-11-26T14:00:01.5Z  WARN ingress_proxy: slow
(3 other lines, such as those of the access log, are left out)
";
        assert_eq!(own_lines(log), expected);
        assert_eq!(own_lines(""), "");
    }
}
