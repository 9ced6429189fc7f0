//! The registry of a release: the common beginning of its repositories. It contacts none.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};

/// The repositories of a release, below the registry.
pub const IMAGE: &str = "xdp-ingress";
/// As [`IMAGE`], of the chart.
pub const CHART: &str = "charts/xdp-ingress";

/// A registry with the beginning of a path: `HOST[:PORT][/PATH]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry(String);

// === impl Registry ===

impl Registry {
    /// Returns the full name of a repository, [`IMAGE`] or [`CHART`].
    #[must_use]
    pub fn repository(&self, name: &str) -> String {
        format!("{self}/{name}")
    }

    /// Returns `true` if the registry is on this machine's loopback, where tools speak plain HTTP.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.0.split('/').next().unwrap_or_default();
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        name == "localhost" || name.starts_with("127.") || name == "[::1]"
    }
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Registry {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some((scheme, rest)) = text.split_once("://") {
            bail!("`{text}` begins with a scheme; write `{rest}` instead of `{scheme}://{rest}`");
        }
        let (host, path) = text.split_once('/').map_or((text, None), |(host, path)| (host, Some(path)));
        // A colon is at the end of the name, or after the bracket of an IPv6 address.
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (host, None),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-[]:".contains(&byte);
        ensure!(!name.is_empty() && name.bytes().all(is_name), "`{text}` begins with no host");
        if let Some(port) = port {
            port.parse::<u16>().with_context(|| format!("`{port}` in `{text}` is no port"))?;
        }
        // OCI distribution-spec, "Pulling manifests"; a simpler form of its expression.
        let is_part = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
            let ends = [part.bytes().next(), part.bytes().next_back()];
            part.bytes().all(allowed) && ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
        };
        for part in path.into_iter().flat_map(|path| path.split('/')) {
            ensure!(
                is_part(part),
                "`{part}` in `{text}` is no part of a repository's name: use a-z, 0-9, and `.`, `_` or `-` between them"
            );
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_host_and_the_beginning_of_a_path() {
        for text in ["registry.example.com/a/b-c", "localhost:5000", "10.99.0.1:5000/x", "[::1]:5000/x", "a"] {
            assert_eq!(text.parse::<Registry>().unwrap().to_string(), text);
        }
        for (text, reason) in [
            ("https://r/x", "write `r/x`"),
            ("", "no host"),
            ("/x", "no host"),
            ("r:x/y", "no port"),
            ("r/x:1", "no part of a repository's name"),
            ("r/x@sha256", "no part of a repository's name"),
            ("r/X", "no part of a repository's name"),
            ("r/x/", "no part of a repository's name"),
            ("r x/y", "no host"),
        ] {
            let error = text.parse::<Registry>().unwrap_err();
            assert!(format!("{error:#}").contains(reason), "{text}: {error:#}");
        }
    }

    #[test]
    fn plain_http_is_for_loopback() {
        for (text, expect) in
            [("localhost:5000/x", true), ("127.0.0.1/x", true), ("[::1]:1/x", true), ("localhost.example", false)]
        {
            assert_eq!(text.parse::<Registry>().unwrap().is_loopback(), expect, "{text}");
        }
    }
}
