//! Words of commands, quoted for a shell where they need it.

/// Returns `word` as a shell reads it.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    if !word.contains(char::is_control) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    // Control characters would move the cursor of a terminal, or end a line (POSIX.1-2024, 2.2.4).
    let mut quoted = "$'".to_owned();
    for character in word.chars() {
        match character {
            '\'' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                let mut bytes = [0; 4];
                quoted.extend(control.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:03o}")));
            }
            other => quoted.push(other),
        }
    }
    quoted + "'"
}

/// Returns a text as YAML reads it as text: a name such as `123` or `true` is none without quotation marks.
pub(super) fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_one_word() {
        for (word, expected) in [
            ("./manifests", "./manifests"),
            ("oci://registry.test/a:1", "oci://registry.test/a:1"),
            ("", "''"),
            ("my files", "'my files'"),
            ("it's; $(x)", r"'it'\''s; $(x)'"),
            ("a'\\\n\u{1b}[2J\u{9b}", r"$'a\'\\\012\033[2J\302\233'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
