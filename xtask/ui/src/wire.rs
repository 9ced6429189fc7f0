//! Commands of WebDriver: JSON over HTTP on loopback, one connection for each.
//!
//! The client libraries do not pass `deny.toml`: fantoccini 0.22 needs `webdriver`, which is under the MPL-2.0, and
//! thirtyfour 0.38 needs `async-trait`. Each brings more than a hundred crates, for the nine commands that are sent here.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Longest wait for an answer: longer than the longest script.
const LIMIT: Duration = Duration::from_secs(120);

/// Method of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Post,
    Delete,
}

/// A WebDriver server on loopback.
#[derive(Debug)]
pub(crate) struct Wire {
    port: u16,
}

impl Wire {
    pub(crate) fn new(port: u16) -> Self {
        Self { port }
    }

    /// Sends a command; returns the `value` of its answer.
    ///
    /// # Errors
    /// Fails if there is no answer, or with the error of the answer (WebDriver, 6.6).
    pub(crate) fn call(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let answer = self.exchange(method, path, body).with_context(|| format!("no answer to `{path}`"))?;
        let mut answer: Value = serde_json::from_str(&answer).context("the answer is not JSON")?;
        let value = answer["value"].take();
        if let Some(error) = value.get("error").filter(|_| value.get("stacktrace").is_some()) {
            bail!("`{path}` failed: {error}: {}", value["message"]);
        }
        Ok(value)
    }

    /// Returns the body of the answer.
    fn exchange(&self, method: Method, path: &str, body: &Value) -> Result<String> {
        let (method, body) = match method {
            Method::Get => ("GET", String::new()),
            Method::Post => ("POST", body.to_string()),
            Method::Delete => ("DELETE", String::new()),
        };
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nContent-Length: \
             {}\r\n\r\n{body}",
            self.port,
            body.len()
        )?;
        body_of(&mut BufReader::new(stream))
    }
}

/// Reads the head and the body of an answer. ChromeDriver leaves the connection open.
fn body_of(answer: &mut impl BufRead) -> Result<String> {
    let mut length = None;
    loop {
        let mut line = String::new();
        answer.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = Some(value.trim().parse().with_context(|| format!("the answer has a `{line}`"))?);
        }
    }
    let mut body = vec![0; length.context("the answer has no length")?];
    answer.read_exact(&mut body)?;
    String::from_utf8(body).context("the answer is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_ends_after_its_length() {
        let mut answer = &b"HTTP/1.1 200 OK\r\nContent-Length:2\r\nx: y\r\n\r\n{}more"[..];
        assert_eq!(body_of(&mut answer).expect("a body"), "{}");
        assert_eq!(answer, b"more");
        for bad in ["HTTP/1.1 200 OK\r\n\r\n{}", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", ""] {
            assert!(body_of(&mut bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
