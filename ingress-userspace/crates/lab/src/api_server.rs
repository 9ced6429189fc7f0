//! A minimal API server: it streams lists and watches of its objects (KEP-3157) over plain HTTP/1.1, with a connection
//! for each. It refuses all other requests and does not interpret objects.
//!
//! Selections are by kind, namespace and `metadata.name`; any other selector is ignored.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, BufRead as _, BufReader, BufWriter, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// A server that runs as long as this process.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Version of the newest object.
    version: u64,
    objects: BTreeMap<Key, Value>,
    /// All events so far, for watches that resume where another ended.
    events: Vec<Event>,
    watches: Vec<Watch>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Resource name as in paths: `ingresses`.
    resource: &'static str,
    /// Empty for objects without a namespace.
    namespace: String,
    name: String,
}

#[derive(Debug)]
struct Event {
    version: u64,
    key: Key,
    line: String,
}

#[derive(Debug)]
struct Watch {
    selection: Selection,
    stream: TcpStream,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Selection {
    resource: &'static str,
    namespace: Option<String>,
    name: Option<String>,
}

/// Start of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// All objects, followed by a marker for the end of the list.
    List,
    /// Events after this version.
    After(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Added,
    Modified,
    Deleted,
    Bookmark,
}

/// Resource, API version and kind of all objects that the server can hold.
const KINDS: [(&str, &str, &str); 9] = [
    ("configmaps", "v1", "ConfigMap"),
    ("endpointslices", "discovery.k8s.io/v1", "EndpointSlice"),
    ("ingressclasses", "networking.k8s.io/v1", "IngressClass"),
    ("ingresses", "networking.k8s.io/v1", "Ingress"),
    ("namespaces", "v1", "Namespace"),
    ("nodes", "v1", "Node"),
    ("referencegrants", "gateway.networking.k8s.io/v1", "ReferenceGrant"),
    ("secrets", "v1", "Secret"),
    ("services", "v1", "Service"),
];

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";

// === impl ApiServer ===

impl ApiServer {
    /// Listens on a loopback port.
    ///
    /// # Errors
    /// Fails if no port is free.
    pub fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port for an API server")?;
        let (address, shared) = (listener.local_addr()?, Arc::new(Shared::default()));
        let server = Self { address, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // The client reopens a broken connection itself.
                thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Ok(server)
    }

    /// Returns a kubeconfig for this server.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "clusters": [{"name": "lab", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "lab", "user": {}}],
        })
        .to_string()
    }

    /// Adds or replaces these objects, and notifies watches.
    ///
    /// # Errors
    /// Fails if the kind of an object is unknown, or an object has no name.
    pub fn apply(&self, objects: impl IntoIterator<Item = Value>) -> anyhow::Result<()> {
        let mut state = self.shared.state();
        for object in objects {
            let key = Key::of(&object)?;
            let verb = if state.objects.contains_key(&key) { Verb::Modified } else { Verb::Added };
            let object = state.tell(verb, &key, object);
            state.objects.insert(key, object);
        }
        Ok(())
    }

    /// Removes these objects, and notifies watches.
    ///
    /// # Errors
    /// Fails if an object does not exist.
    pub fn remove(&self, objects: impl IntoIterator<Item = Value>) -> anyhow::Result<()> {
        let mut state = self.shared.state();
        for object in objects {
            let key = Key::of(&object)?;
            let last = state.objects.remove(&key).with_context(|| format!("there is no {key}"))?;
            state.tell(Verb::Deleted, &key, last);
        }
        Ok(())
    }
}

// === impl Shared ===

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock comes from a panic in a test.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses requests until one asks for a watch, which then takes the connection over.
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        while let Some(first) = lines.next().transpose()? {
            for line in lines.by_ref() {
                if line?.is_empty() {
                    break;
                }
            }
            if let Some((selection, beginning)) = parse(&first) {
                return self.state().begin(Watch { selection, stream }, beginning);
            }
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        }
        Ok(())
    }
}

// === impl State ===

impl State {
    /// Gives the object the next version, sends it to all watches that cover it, and returns it.
    fn tell(&mut self, verb: Verb, key: &Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let line = verb.line(&object);
        // A closed watch is dropped; its client asks again, from the version that it knows.
        self.watches.retain_mut(|Watch { selection, stream }| {
            !selection.covers(key) || stream.write_all(chunk(&line).as_bytes()).is_ok()
        });
        self.events.push(Event { version: self.version, key: key.clone(), line });
        object
    }

    fn begin(&mut self, watch: Watch, beginning: Beginning) -> io::Result<()> {
        let mut out = BufWriter::new(&watch.stream);
        out.write_all(STREAM.as_bytes())?;
        match beginning {
            Beginning::List => {
                for (_, object) in self.objects.iter().filter(|(key, _)| watch.selection.covers(key)) {
                    out.write_all(chunk(&Verb::Added.line(object)).as_bytes())?;
                }
                let end = watch.selection.end_of_list(self.version);
                out.write_all(chunk(&Verb::Bookmark.line(&end)).as_bytes())?;
            }
            Beginning::After(version) => {
                let is_new = |event: &&Event| event.version > version && watch.selection.covers(&event.key);
                for event in self.events.iter().filter(is_new) {
                    out.write_all(chunk(&event.line).as_bytes())?;
                }
            }
        }
        out.flush()?;
        drop(out);
        self.watches.push(watch);
        Ok(())
    }
}

// === impl Key ===

impl Key {
    fn of(object: &Value) -> anyhow::Result<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let known = KINDS.into_iter().find(|(_, _, known)| *known == kind);
        let (resource, ..) = known.with_context(|| format!("an API server of the lab knows no `{kind}`"))?;
        if name.is_empty() {
            bail!("an object of kind `{kind}` has no name");
        }
        Ok(Self { resource, namespace, name })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, namespace, name } = self;
        write!(f, "{resource} {namespace}/{name}")
    }
}

// === impl Selection ===

impl Selection {
    fn covers(&self, key: &Key) -> bool {
        let Self { resource, namespace, name } = self;
        *resource == key.resource
            && namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && name.as_ref().is_none_or(|name| *name == key.name)
    }

    /// Returns the bookmark after a list.
    fn end_of_list(&self, version: u64) -> Value {
        let known = KINDS.into_iter().find(|(resource, ..)| *resource == self.resource);
        let (_, api_version, kind) = known.unwrap_or_default();
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata})
    }
}

// === impl Verb ===

impl Verb {
    fn line(self, object: &Value) -> String {
        let verb = match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
        };
        format!("{{\"type\":\"{verb}\",\"object\":{object}}}\n")
    }
}

fn chunk(line: &str) -> String {
    format!("{:x}\r\n{line}\r\n", line.len())
}

/// Parses the first line of a request; `None` unless it asks for a watch of a known kind.
fn parse(line: &str) -> Option<(Selection, Beginning)> {
    let target = line.strip_prefix("GET ")?.split(' ').next()?;
    let (path, query) = target.split_once('?')?;
    let field = |name: &str| query.split('&').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    field("watch").filter(|watch| *watch == "true")?;
    let mut segments = path.rsplit('/');
    let last = segments.next()?;
    let (resource, ..) = KINDS.into_iter().find(|(resource, ..)| *resource == last)?;
    let namespace = segments.next().filter(|_| segments.next() == Some("namespaces")).map(str::to_owned);
    let name = field("fieldSelector").and_then(|selector| selector.strip_prefix("metadata.name%3D")).map(str::to_owned);
    let beginning = match field("sendInitialEvents") {
        Some("true") => Beginning::List,
        _ => Beginning::After(field("resourceVersion")?.parse().ok()?),
    };
    Some((Selection { resource, namespace, name }, beginning))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn requests_of_watches_are_parsed() {
        let selection = |resource, namespace: Option<&str>, name: Option<&str>| Selection {
            resource,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        let list = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0";
        for (line, expect) in [
            (format!("GET /api/v1/nodes?&{list} HTTP/1.1"), Some((selection("nodes", None, None), Beginning::List))),
            (
                format!("GET /api/v1/namespaces/n/secrets?&fieldSelector=metadata.name%3Ds&{list} HTTP/1.1"),
                Some((selection("secrets", Some("n"), Some("s")), Beginning::List)),
            ),
            (
                "GET /apis/networking.k8s.io/v1/ingresses?&watch=true&resourceVersion=7 HTTP/1.1".into(),
                Some((selection("ingresses", None, None), Beginning::After(7))),
            ),
            ("GET /api/v1/nodes?limit=500 HTTP/1.1".into(), None),
            (format!("GET /api/v1/pods?{list} HTTP/1.1"), None),
            ("POST /api/v1/namespaces/n/events HTTP/1.1".into(), None),
            ("GET /version HTTP/1.1".into(), None),
        ] {
            assert_eq!(parse(&line), expect, "{line}");
        }
    }

    /// Returns the first `count` events of a watch: type, name and version.
    fn events(server: &ApiServer, target: &str, count: usize) -> Vec<String> {
        let mut stream = TcpStream::connect(server.address).expect("connected");
        write!(stream, "GET {target} HTTP/1.1\r\nHost: lab\r\n\r\n").expect("written");
        let mut text = String::new();
        let mut bytes = [0; 4096];
        loop {
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let events: Vec<String> = lines
                .filter(Value::is_object)
                .map(|event| {
                    let metadata = &event["object"]["metadata"];
                    let part = |value: &Value| value.as_str().unwrap_or("-").to_owned();
                    [&event["type"], &metadata["name"], &metadata["resourceVersion"]].map(part).join(" ")
                })
                .collect();
            if events.len() >= count {
                return events;
            }
            let read = stream.read(&mut bytes).expect("read");
            assert!(read > 0, "the watch ended after {events:?}");
            text.push_str(std::str::from_utf8(&bytes[..read]).expect("text"));
        }
    }

    #[test]
    fn a_watch_begins_with_a_list_or_resumes() {
        let server = ApiServer::start().expect("started");
        let service = |name: &str| json!({"kind": "Service", "metadata": {"namespace": "n", "name": name}});
        server.apply([service("a"), service("b")]).expect("applied");
        server.apply([json!({"kind": "Node", "metadata": {"name": "x"}})]).expect("applied");
        let list = "/api/v1/services?watch=true&sendInitialEvents=true";
        assert_eq!(events(&server, list, 3), ["ADDED a 1", "ADDED b 2", "BOOKMARK - 3"]);
        server.apply([service("a")]).expect("applied");
        server.remove([service("b")]).expect("removed");
        let after = "/api/v1/services?watch=true&resourceVersion=3";
        assert_eq!(events(&server, after, 2), ["MODIFIED a 4", "DELETED b 5"]);
        assert_eq!(events(&server, list, 2), ["ADDED a 4", "BOOKMARK - 5"]);
        let error = server.remove([service("b")]).expect_err("it is gone").to_string();
        assert_eq!(error, "there is no services n/b");
        assert!(server.apply([json!({"kind": "Pod", "metadata": {"name": "p"}})]).is_err());
    }
}
