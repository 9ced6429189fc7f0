//! A serving peer that receives changes.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::Signal;
use rustls::ClientConfig;
use serde_json::Value;

use super::{
    Change, Pod, Way,
    ask::{self, Found},
    conf::{Conf, Haproxy},
    name, objects,
    stage::{Stage, group_file, secret_file},
};
use crate::{peers::Ports, usage};
use ingress_lab::{Namespace, Process, api_server::ApiServer, controller, idle};

/// A serving peer.
pub(crate) struct Serving<'s> {
    pub(super) stage: &'s Stage,
    pub(super) way: Way,
    pub(super) process: Process,
    pub(super) told: Told,
    pub(super) conf: Conf,
    /// Hosts that lead to pod b.
    pub(super) moved: BTreeSet<usize>,
    pub(super) client: Arc<ClientConfig>,
    /// Time from its start to its first response for the host in the middle.
    pub(super) start: Duration,
}

/// A peer's way to receive changes.
pub(super) enum Told {
    Signal(Signal),
    Map,
    Api(ApiServer),
    Manifests(PathBuf),
}

/// A prepared change.
pub(crate) enum Telling {
    Signal(Signal),
    /// A command of haproxy's runtime API.
    Map(String),
    Apply(Vec<Value>),
    Remove(Vec<Value>),
    /// A file that replaces another.
    Rename {
        fresh: PathBuf,
        place: PathBuf,
    },
}

/// The view of a new connection before and after a change.
pub(crate) enum Expected {
    Pods {
        host: usize,
        before: Found,
        after: Found,
    },
    /// Any certificate except this one.
    Certificate {
        host: usize,
        before: Vec<u8>,
    },
}

/// Time limit for a start, with 100,000 hosts and on a machine with other load.
const START: Duration = Duration::from_secs(300);
/// Time for a peer to return the buffers of its start.
const SETTLE: Duration = Duration::from_secs(2);
/// Time for the product to learn of the objects behind an Ingress; it has no signal for that.
const BEHIND: Duration = Duration::from_millis(100);

// === impl Serving ===

impl Serving<'_> {
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid().cast_unsigned()
    }

    /// Returns the bytes of memory that the peer uses with all its descendants.
    pub(crate) fn memory(&self) -> anyhow::Result<u64> {
        usage::memory(self.pid())
    }

    /// Returns [`Serving::memory`] after the buffers of its start are returned.
    pub(crate) fn settled(&self) -> anyhow::Result<u64> {
        thread::sleep(SETTLE);
        self.memory()
    }

    /// Returns the milliseconds that the product says it took for its latest change, from the receipt of the first event until
    /// it was served; `None` for other peers.
    ///
    /// # Errors
    /// Fails if the product does not say it.
    pub(crate) fn within(&self) -> anyhow::Result<Option<f64>> {
        if !self.way.is_ours() {
            return Ok(None);
        }
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, self.conf.admin_port));
        let answer = controller::get(&Namespace::current(), admin, "/api/v1/changes")?;
        let changes: Value = serde_json::from_slice(&answer.text).context("no list of changes")?;
        Ok(Some(changes[0]["milliseconds"].as_f64().context("the latest change has no duration")?))
    }

    /// Returns the address and name of its first host.
    pub(crate) fn server(&self) -> anyhow::Result<idle::Server> {
        let [http, https] = self.addresses();
        Ok(idle::Server { http, https, host: name(0), trust: self.stage.authority.trust()? })
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        let Ports { http, https } = self.conf.ports;
        [http, https].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Waits until the host in the middle is served.
    pub(super) fn wait(&mut self) -> anyhow::Result<()> {
        let ([http, _], name) = (self.addresses(), name(self.conf.plan.hosts / 2));
        self.process.wait_until(START, "it serves", || ask::pod(http, &name) == Found::Pod(Pod::A))
    }

    /// Returns the time of its start, up to the first response.
    pub(crate) fn start(&self) -> Duration {
        self.start
    }

    /// Prepares a change: of the endpoint of host `number`, of the Ingress of that host, or of the certificate with
    /// that number.
    ///
    /// # Errors
    /// Fails if the peer does not support such a change, or a file cannot be written.
    pub(crate) fn prepare(&mut self, change: Change, number: usize) -> anyhow::Result<(Telling, Expected)> {
        let Conf { plan, pod_port, .. } = self.conf;
        let (found_a, host) = (Found::Pod(Pod::A), number);
        let way = self.way;
        let group = |pod: Pod| objects::group(way, plan, host, pod.address(), pod_port).to_vec();
        let (telling, expected) = match change {
            Change::Endpoint => {
                let before = Pod::of(host, &self.moved);
                if !self.moved.remove(&host) {
                    self.moved.insert(host);
                }
                let after = Pod::of(host, &self.moved);
                let telling = match &self.told {
                    Told::Signal(signal) => {
                        self.rewrite()?;
                        Telling::Signal(*signal)
                    }
                    Told::Map => {
                        let map = self.conf.map();
                        Telling::Map(format!("set map {} {} {}\n", map.display(), name(host), after.name()))
                    }
                    Told::Api(_) => Telling::Apply(vec![objects::slice(host, after.address(), pod_port)]),
                    Told::Manifests(manifests) => fresh(manifests, &group_file(host), &group(after))?,
                };
                (telling, Expected::Pods { host, before: Found::Pod(before), after: Found::Pod(after) })
            }
            Change::Added => {
                let telling = match &self.told {
                    Told::Api(api) => {
                        // Three watches report them, in an unknown order.
                        api.apply(objects::behind(host, Pod::A.address(), pod_port))?;
                        thread::sleep(BEHIND);
                        Telling::Apply(vec![objects::ingress(plan, host)])
                    }
                    Told::Manifests(manifests) => fresh(manifests, &group_file(host), &group(Pod::A))?,
                    Told::Signal(_) | Told::Map => bail!("{} is not told of {change}", self.way),
                };
                (telling, Expected::Pods { host, before: Found::Nothing, after: found_a })
            }
            Change::Removed => {
                let telling = match &self.told {
                    Told::Api(_) => Telling::Remove(vec![objects::ingress(plan, host)]),
                    Told::Manifests(manifests) => {
                        let behind = objects::behind(host, Pod::A.address(), pod_port);
                        fresh(manifests, &group_file(host), &behind)?
                    }
                    Told::Signal(_) | Told::Map => bail!("{} is not told of {change}", self.way),
                };
                (telling, Expected::Pods { host, before: found_a, after: Found::Nothing })
            }
            Change::Certificate => {
                let objects = vec![objects::secret(number, &self.stage.sign()?)];
                let telling = match &self.told {
                    Told::Api(_) => Telling::Apply(objects),
                    Told::Manifests(manifests) => fresh(manifests, &secret_file(number), &objects)?,
                    Told::Signal(_) | Told::Map => bail!("{} is not told of {change}", self.way),
                };
                let host = (0..plan.hosts).find(|host| plan.certificate(*host) == Some(number));
                let host = host.with_context(|| format!("no host has certificate {number}"))?;
                let before = ask::certificate(self.addresses()[1], &name(host), &self.client)?;
                (telling, Expected::Certificate { host, before })
            }
        };
        Ok((telling, expected))
    }

    fn rewrite(&self) -> anyhow::Result<()> {
        let words = match self.way {
            Way::Nginx => self.conf.nginx(&self.moved),
            Way::Haproxy => self.conf.haproxy(Haproxy::Master, &self.moved),
            Way::HaproxyMap | Way::XdpIngress | Way::XdpIngressFiles | Way::XdpIngressGatewayFiles => {
                bail!("{} reads nothing again", self.way)
            }
        };
        words.map(drop)
    }

    /// Sends the change to the peer, and does nothing else.
    ///
    /// # Errors
    /// Fails if the peer cannot be reached, or refuses.
    pub(crate) fn tell(&self, telling: Telling) -> anyhow::Result<()> {
        match (telling, &self.told) {
            (Telling::Signal(signal), _) => self.process.signal(signal),
            (Telling::Map(command), _) => set_map(&self.conf.socket(), &command),
            (Telling::Apply(objects), Told::Api(api)) => api.apply(objects),
            (Telling::Remove(objects), Told::Api(api)) => api.remove(objects),
            (Telling::Apply(_) | Telling::Remove(_), _) => bail!("{} has no API server", self.way),
            (Telling::Rename { fresh, place }, _) => {
                fs::rename(&fresh, &place).with_context(|| format!("cannot write `{}`", place.display()))
            }
        }
    }

    /// Returns `Some(true)` if a new connection sees the state after the change, `Some(false)` for the state before it,
    /// and `None` for any other.
    pub(crate) fn look(&self, expected: &Expected) -> Option<bool> {
        let [http, https] = self.addresses();
        match expected {
            Expected::Pods { host, before, after } => {
                let found = ask::pod(http, &name(*host));
                if found == *after { Some(true) } else { (found == *before).then_some(false) }
            }
            Expected::Certificate { host, before } => {
                let shown = ask::certificate(https, &name(*host), &self.client).ok()?;
                Some(shown != *before)
            }
        }
    }
}

/// Writes a manifest next to the watched directory: the change takes effect only when the file is renamed.
fn fresh(manifests: &Path, file: &str, objects: &[Value]) -> anyhow::Result<Telling> {
    let (fresh, place) = (manifests.with_file_name("fresh"), manifests.join(file));
    fs::write(&fresh, objects::manifest(objects)).with_context(|| format!("cannot write `{}`", fresh.display()))?;
    Ok(Telling::Rename { fresh, place })
}

/// Sends a command to haproxy, which responds with an empty line if it succeeds.
fn set_map(socket: &Path, command: &str) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(socket).with_context(|| format!("no haproxy at `{}`", socket.display()))?;
    stream.write_all(command.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.trim().is_empty(), "haproxy says `{}`", answer.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn output_of_haproxy_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let answers = ["\n", "unknown map identifier.\n"];
        let server = thread::spawn(move || {
            answers.map(|answer| {
                let (mut stream, _) = listener.accept().expect("accepted");
                let mut command = [0; 10];
                stream.read_exact(&mut command).expect("a command");
                stream.write_all(answer.as_bytes()).expect("answered");
                command
            })
        });
        assert!(set_map(&socket, "set map x\n").is_ok());
        let error = set_map(&socket, "set map y\n").expect_err("refused").to_string();
        assert_eq!(error, "haproxy says `unknown map identifier.`");
        assert_eq!(server.join().expect("no panic"), [*b"set map x\n", *b"set map y\n"]);
    }
}
