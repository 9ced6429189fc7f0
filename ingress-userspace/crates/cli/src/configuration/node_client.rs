//! Requests to the API of a process over its socket.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum size of an answer; a page of a list is far smaller.
const ANSWER_MAX: usize = 64 << 20;
/// Number of items asked for at once, the maximum of the API.
pub(crate) const PAGE: usize = 1000;

/// A process that answers over its socket.
#[derive(Clone, Debug)]
pub struct NodeClient {
    socket: PathBuf,
    timeout: Duration,
}

impl NodeClient {
    /// Returns a client for the process at `socket`, with this time for each answer.
    #[must_use]
    pub fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { socket, timeout }
    }

    /// Returns whether a socket exists at this path.
    #[must_use]
    pub fn is_there(path: &Path) -> bool {
        use std::os::unix::fs::FileTypeExt as _;
        path.metadata().is_ok_and(|file| file.file_type().is_socket())
    }

    /// Returns all items of a list.
    ///
    /// # Errors
    /// Fails if the process does not answer in time, or refuses the request.
    pub fn list<T: DeserializeOwned>(&self, name: &str, parameters: &[(&str, &str)]) -> Result<Vec<T>> {
        let mut items = Vec::new();
        loop {
            let (offset, limit) = (items.len().to_string(), PAGE.to_string());
            let page = [("offset", &*offset), ("limit", &*limit)];
            let mut answer = self.get(name, &[parameters, &page].concat())?;
            let part: Vec<T> = serde_json::from_value(answer["items"].take())
                .with_context(|| format!("`{}` does not answer with a list", self.socket.display()))?;
            let total = answer["total"].as_u64().unwrap_or_default();
            let is_last = part.is_empty();
            items.extend(part);
            if is_last || items.len() as u64 >= total {
                return Ok(items);
            }
        }
    }

    /// Returns the answer for one resource of the API.
    ///
    /// # Errors
    /// Fails like [`NodeClient::list`].
    pub fn get(&self, name: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let (status, body) = self.fetch(&target(name, parameters))?;
        let body: Value = serde_json::from_str(&body).with_context(|| {
            format!("`{}` answers {status} without JSON; is it an older process?", self.socket.display())
        })?;
        if status != "200" {
            bail!("{}", body["error"].as_str().unwrap_or("the process gives no reason"));
        }
        Ok(body)
    }

    /// Returns the text at a path outside of the API.
    ///
    /// # Errors
    /// Fails like [`NodeClient::list`].
    pub fn text(&self, path: &str) -> Result<String> {
        match self.fetch(path)? {
            (status, body) if status == "200" => Ok(body),
            (status, _) => bail!("`{}` answers {status} to `{path}`", self.socket.display()),
        }
    }

    /// Returns the status and the body of an answer.
    fn fetch(&self, target: &str) -> Result<(String, String)> {
        let answer = self.exchange(target).with_context(|| {
            format!("no answer on `{}`; is `xdp-ingress run --probe-socket` running?", self.socket.display())
        })?;
        let text = String::from_utf8_lossy(&answer);
        let (head, body) = text.split_once("\r\n\r\n").context("the answer has no end of its head")?;
        let status =
            head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).context("the answer has no status")?;
        Ok((status.to_owned(), body.to_owned()))
    }

    fn exchange(&self, target: &str) -> io::Result<Vec<u8>> {
        let began = Instant::now();
        let left = || match self.timeout.saturating_sub(began.elapsed()) {
            Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
            left => Ok(left),
        };
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_write_timeout(Some(left()?))?;
        stream.write_all(format!("GET {target} HTTP/1.1\r\nhost: socket\r\nconnection: close\r\n\r\n").as_bytes())?;
        let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            stream.set_read_timeout(Some(left()?))?;
            match stream.read(&mut piece)? {
                0 => return Ok(answer),
                len => answer.extend(piece.iter().take(len)),
            }
            if answer.len() > ANSWER_MAX {
                return Err(io::Error::other("the answer is too large"));
            }
        }
    }
}

/// Returns the path and query of a resource of the API.
pub(crate) fn target(name: &str, parameters: &[(&str, &str)]) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    format!("/api/v1/{name}?{query}")
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use super::*;

    /// Answers each request with the next of these bodies.
    fn served(answers: Vec<(&'static str, String)>) -> (tempfile::TempDir, PathBuf, thread::JoinHandle<Vec<String>>) {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("probe.sock");
        let listener = UnixListener::bind(&path).expect("binds");
        let server = thread::spawn(move || {
            let answer = |(status, body): (&str, String)| {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut request = vec![0; 4096];
                let len = stream.read(&mut request).expect("a request");
                stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n{body}").as_bytes()).expect("an answer");
                String::from_utf8_lossy(&request[..len]).lines().next().unwrap_or_default().to_owned()
            };
            answers.into_iter().map(answer).collect()
        });
        (home, path, server)
    }

    #[test]
    fn a_list_is_read_page_by_page() {
        let page = |items: std::ops::Range<u32>| {
            ("200 OK", serde_json::json!({ "items": items.collect::<Vec<_>>(), "total": 1500 }).to_string())
        };
        let (_home, path, server) = served(vec![page(0..1000), page(1000..1500)]);
        let client = NodeClient::new(path, Duration::from_secs(10));
        let items: Vec<u32> = client.list("routes", &[("host", "a b")]).expect("a list");
        assert_eq!((items.len(), items.last()), (1500, Some(&1499)));
        let asked = server.join().expect("no panic");
        assert_eq!(asked[1], "GET /api/v1/routes?host=a+b&offset=1000&limit=1000 HTTP/1.1");
    }

    #[test]
    fn refusals_and_strangers_are_told_apart() {
        let error = serde_json::json!({ "error": "`x` is no URL" }).to_string();
        let (_home, path, _server) = served(vec![("400 Bad Request", error), ("200 OK", "hello".to_owned())]);
        let client = NodeClient::new(path, Duration::from_secs(10));
        assert_eq!(client.get("explain", &[]).expect_err("400").to_string(), "`x` is no URL");
        assert!(client.get("node", &[]).expect_err("no JSON").to_string().contains("without JSON"));
        let nowhere = NodeClient::new("/nonexistent/probe.sock".into(), Duration::from_secs(1));
        assert!(nowhere.get("node", &[]).expect_err("no socket").to_string().contains("no answer on"));
    }
}
