//! Words of commands, quoted for a shell where they need it.

/// Returns `word` as a shell reads it.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
