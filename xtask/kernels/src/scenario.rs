//! The test of one machine: it boots with the product, gets requests through each NIC, and reports its counts.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::StatusCode;
use serde_json::Value;
use tokio::sync::oneshot;

use super::console::{self, Stage};
use super::debian::Kernel;
use super::flood::Cookies;
use super::initramfs;
use super::machine::{HOST, Machine, Networks};
use super::{Attached, Hooks, NICS, Support};
use ingress_lab::Namespace;
use ingress_lab::client::{Answer, Ask, Connection, Protocol, Trust, block_on};
use ingress_lab::controller::{get, read_counts};
use ingress_lab::echo;
use ingress_lab::maps::{Counts, Host};
use xtask_image::oci::File;

/// Longest time to boot and load the programs. It takes ten seconds on two idle cores; other machines may be slow and
/// busy.
const READY: Duration = Duration::from_secs(600);
/// Longest time until the last packets of a closed connection have arrived.
pub(super) const SETTLED: Duration = Duration::from_secs(60);
/// Connections through each NIC, with a request each.
pub(super) const CONNECTIONS: u64 = 8;
/// Bytes of each response: some tens of segments.
const BYTES: u64 = 50_000;
/// Maximum payload of a segment in bytes.
const SEGMENT: u64 = 1460;
const SITE: &str = "kernels.test";
const INIT: &str = include_str!("init.sh");
const MANIFESTS: &str = include_str!("manifests.yaml");
/// Placeholders in [`MANIFESTS`] for the address and port of the pod.
const POD: [&str; 2] = ["POD_ADDRESS", "POD_PORT"];

/// Observations of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) support: Support,
    /// Requests with the correct answer, through all NICs.
    pub(super) requests: u64,
    /// Connections for which XDP chose a worker and sk_lookup delivered to it.
    pub(super) steered: u64,
    /// SYN cookies of XDP in a flood. `None` if this kernel has none, or was not flooded.
    pub(super) cookies: Option<Cookies>,
    /// Verified instructions of each program, by its name. Empty before Linux 5.16.
    pub(super) verified: BTreeMap<String, u32>,
}

/// Settings of a machine beyond the usual ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    /// Further arguments of the product, where its programs run.
    pub(super) arguments: &'static str,
    /// Lines of sysctl.conf(5).
    pub(super) sysctls: &'static str,
    pub(super) networks: Networks,
}

const USUAL: Setup = Setup { arguments: "", sysctls: "", networks: Networks::Users };

/// Boots `kernel` with the `product` and observes it; also returns the console output of the machine.
pub(super) fn observe(kernel: &Kernel, product: &[File]) -> (Result<Findings>, String) {
    in_machine(kernel, product, &USUAL, ask)
}

/// Boots `kernel` with the `product`, and calls `ask` with the machine; also returns the machine's console output.
pub(super) fn in_machine<T>(
    kernel: &Kernel,
    product: &[File],
    setup: &Setup,
    ask: impl FnOnce(&mut Machine) -> Result<T>,
) -> (Result<T>, String) {
    let started = Pod::start().and_then(|pod| {
        let initramfs = initramfs::archive(&files(kernel, product, pod.port, setup)?)?;
        Ok((Machine::start(&kernel.image, &initramfs, setup.networks)?, pod))
    });
    match started {
        Ok((mut machine, _pod)) => {
            let findings = ask(&mut machine);
            (findings, machine.console())
        }
        Err(error) => (Err(error), String::new()),
    }
}

/// Returns all files of the machine.
fn files(kernel: &Kernel, product: &[File], pod_port: u16, setup: &Setup) -> Result<Vec<File>> {
    let text = |path: &str, mode: u32, content: String| File { path: path.to_owned(), mode, content: content.into() };
    let manifests = MANIFESTS.replace(POD[0], &HOST.to_string()).replace(POD[1], &pod_port.to_string());
    let nics: String = NICS.iter().map(|nic| format!("{} {}\n", nic.driver, nic.subnet)).collect();
    let mut files = product.to_vec();
    files.push(text("/init", 0o755, INIT.to_owned()));
    files.push(text("/manifests/site.yaml", 0o644, manifests));
    files.push(text("/nics", 0o644, nics));
    files.push(text("/arguments", 0o644, setup.arguments.to_owned()));
    files.push(text("/sysctls", 0o644, setup.sysctls.to_owned()));
    let mut order = String::new();
    let mut read = |path: String, from: &Path| -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read `{}`", from.display()))?;
        files.push(File { path, mode: 0o755, content });
        Ok(())
    };
    read("/bin/busybox".to_owned(), &kernel.busybox)?;
    for module in &kernel.modules {
        let name = module.file_name().context("a module has a name")?.to_string_lossy();
        read(format!("/modules/{name}"), module)?;
        order.push_str(&name);
        order.push('\n');
    }
    files.push(text("/modules/order", 0o644, order));
    Ok(files)
}

/// Waits until the product serves. Returns the reason for which the programs do not run.
pub(super) fn refusal(machine: &mut Machine) -> Result<Option<String>> {
    machine.wait("the product is ready", READY, |console| {
        Ok(match console::stage(console) {
            Stage::Starting => None,
            Stage::Programs => Some(None),
            Stage::Listeners(reason) => Some(Some(reason)),
            Stage::Failed(reason) => bail!("{reason}"),
        })
    })
}

fn ask(machine: &mut Machine) -> Result<Findings> {
    let refusal = refusal(machine)?;
    for nic in &NICS {
        for _ in 0..CONNECTIONS {
            request(Machine::http(nic)).with_context(|| format!("a request by way of `{}`", nic.driver))?;
        }
    }
    let requests = CONNECTIONS * NICS.len() as u64;
    let (support, steered) = match refusal {
        Some(reason) => (Support::Refused(reason), 0),
        None => {
            let counts = machine.wait("the counters add up", SETTLED, |_| {
                let counts = read_counts(admin)?;
                Ok(adds_up(&counts, requests).then_some(counts))
            })?;
            (Support::Programs(attached(&admin("/interfaces")?.json()?)?), steered(&counts, requests)?)
        }
    };
    Ok(Findings { support, requests, steered, cookies: None, verified: BTreeMap::new() })
}

/// Sends a request on a new connection and reads its answer to the end.
pub(super) fn request(to: SocketAddr) -> Result<()> {
    block_on(async {
        let mut connection = Connection::open(to, Protocol::Http1, SITE, &Trust::none()).await?;
        let answer = connection.send(&Ask::get(SITE, &format!("/bytes/{BYTES}"))).await?;
        ensure!(answer.status == StatusCode::OK, "answered {}", answer.status);
        ensure!(
            answer.body.received() == BYTES && answer.body.intact(),
            "{} bytes of {BYTES} came, or others than were sent",
            answer.body.received()
        );
        connection.close().await
    })
}

pub(super) fn admin(path: &str) -> Result<Answer> {
    let answer = get(&Namespace::current(), Machine::admin(), path)?;
    ensure!(answer.status.is_success(), "admin path `{path}` answers {}", answer.status);
    Ok(answer)
}

/// Returns `true` if the sums hold that hold once all packets have arrived: Σ hosts = accepted, and = transmitted. The
/// end of a response may arrive before its request is counted.
pub(super) fn adds_up(counts: &Counts, requests: u64) -> bool {
    let sum = |of: fn(&Host) -> u64| counts.hosts.values().map(of).sum::<u64>();
    sum(|host| host.net.rx_packets) == total(counts, "accepted")
        && sum(|host| host.net.tx_packets) == total(counts, "transmitted")
        && sum(|host| host.l7.requests.to_array().into_iter().sum()) >= requests
}

pub(super) fn total(counts: &Counts, name: &str) -> u64 {
    counts.totals.get(name).map_or(0, |traffic| traffic.packets)
}

/// Returns how many connections XDP and sk_lookup have steered. Fails unless these are all connections for `requests`
/// and each of their packets was counted.
///
/// A machine that gets no CPU time retransmits segments and misses its own heartbeat, and XDP then leaves the choice to
/// the default rule. Counts are therefore checked against bounds and against each other.
fn steered(counts: &Counts, requests: u64) -> Result<u64> {
    let site = counts.hosts.get(SITE).with_context(|| format!("`{SITE}` is not counted"))?;
    ensure!(
        site.l7.requests.to_array() == [requests, 0, 0, 0, 0],
        "{requests} requests were answered, and counted were {:?}",
        site.l7.requests
    );
    ensure!(site.l7.bytes_out == requests * BYTES, "{} bytes of responses were counted", site.l7.bytes_out);
    ensure!(site.net.rx_packets >= requests, "{} packets to the host were counted", site.net.rx_packets);
    let segments = requests * BYTES.div_ceil(SEGMENT);
    ensure!(site.net.tx_packets >= segments, "{} of {segments} segments were counted", site.net.tx_packets);
    for failure in ["slot_empty", "assign_failed", "flows_full", "host_out_of_range"] {
        let packets = total(counts, failure);
        ensure!(packets == 0, "{packets} packets were counted as `{failure}`");
    }
    let [decided, stale, delivered, late] =
        ["decided", "heartbeat_stale", "lookup_decided", "lookup_late"].map(|name| total(counts, name));
    // Before Linux 5.17 sk_lookup cannot tell these two apart; the machine itself sends no requests.
    let by_default = total(counts, "undecided") + total(counts, "lookup_default");
    ensure!(
        decided + stale >= requests && delivered + late + by_default >= requests,
        "of {requests} connections {decided} were decided and {delivered} delivered ({stale} without a heartbeat, \
         {late} late)"
    );
    ensure!(by_default <= stale, "{by_default} connections went by the default rule, but {stale} without a heartbeat");
    ensure!(delivered > 0, "none of {requests} connections was steered");
    Ok(delivered.min(requests))
}

/// Returns the attachment of the programs according to `/interfaces`. Fails unless packets have been received and sent
/// on each NIC.
fn attached(interfaces: &Value) -> Result<Attached> {
    let hooks = NICS.each_ref().map(|nic| -> Result<Hooks> {
        let interface = interfaces.as_array().into_iter().flatten().find(|one| one["interface"] == nic.driver);
        let interface = interface.with_context(|| format!("`/interfaces` does not have `{}`", nic.driver))?;
        for counter in ["rx_packets", "tx_packets"] {
            let counted = interface[counter].as_u64().unwrap_or_default();
            ensure!(counted > 0, "`{counter}` of `{}` is 0: {interface}", nic.driver);
        }
        let word = |name: &str| interface[name].as_str().unwrap_or("unknown").to_owned();
        Ok(Hooks { receives: word("receives"), transmits: word("transmits") })
    });
    // In the order of the array, so that the first error is reported.
    let [first, second] = hooks;
    Ok([first?, second?])
}

/// A pod on this machine's loopback, which emulated machines reach at [`HOST`].
struct Pod {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Pod {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port for the pod")?;
        let port = listener.local_addr().context("the pod's listener has no address")?.port();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            echo::serve("pod", vec![(listener, echo::Security::Plain)], async {
                stopped.await.ok();
            })
        });
        Ok(Self { port, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;

    use ingress_common::{HostL7, HostNet, Traffic};
    use serde_json::json;

    use super::*;

    /// Returns the counts of a machine without faults.
    fn counts(requests: u64) -> Counts {
        let host = |id: u32, requests: u64, rx_packets: u64, tx_packets: u64| Host {
            id,
            net: HostNet { rx_packets, tx_packets, ..HostNet::default() },
            l7: HostL7 { requests: [requests, 0, 0, 0, 0].into(), bytes_out: requests * BYTES, ..HostL7::default() },
        };
        let packets = |packets: u64| Traffic { packets, ..Traffic::default() };
        Counts {
            hosts: BTreeMap::from([
                ("(unattributed)".to_owned(), host(0, 0, 3 * requests, requests)),
                (SITE.to_owned(), host(1, requests, 5 * requests, 35 * requests)),
            ]),
            totals: BTreeMap::from([
                ("accepted", packets(8 * requests)),
                ("transmitted", packets(36 * requests)),
                ("decided", packets(requests)),
                ("lookup_decided", packets(requests)),
            ]),
        }
    }

    #[test]
    fn incomplete_sums_do_not_add_up() {
        assert!(adds_up(&counts(16), 16));
        assert!(!adds_up(&counts(15), 16));
        for name in ["accepted", "transmitted"] {
            let mut late = counts(16);
            late.totals.insert(name, Traffic::default());
            assert!(!adds_up(&late, 16), "{name}");
        }
    }

    #[test]
    fn connections_not_steered_or_counted_are_found() {
        assert_eq!(steered(&counts(16), 16).expect("all is well"), 16);
        assert!(steered(&counts(15), 16).is_err());
        let change = |changes: &[(&'static str, u64)]| {
            let mut changed = counts(16);
            for &(name, packets) in changes {
                changed.totals.insert(name, Traffic { packets, ..Traffic::default() });
            }
            steered(&changed, 16).ok()
        };
        for changes in [
            &[("decided", 15)][..],
            &[("lookup_decided", 15)],
            &[("lookup_decided", 15), ("undecided", 1)],
            &[("lookup_decided", 0), ("undecided", 16), ("heartbeat_stale", 16)],
            &[("slot_empty", 1)],
        ] {
            assert_eq!(change(changes), None, "{changes:?}");
        }
        let starved =
            [("decided", 14), ("heartbeat_stale", 2), ("lookup_decided", 13), ("undecided", 2), ("lookup_late", 1)];
        assert_eq!(change(&starved), Some(13));
        let blind = [("decided", 14), ("heartbeat_stale", 2), ("lookup_decided", 14), ("lookup_default", 2)];
        assert_eq!(change(&blind), Some(14));
        assert_eq!(change(&[("lookup_default", 1)]), None);
        assert_eq!(change(&[("decided", 17), ("lookup_decided", 17)]), Some(16));
    }

    #[test]
    fn each_nic_reports_its_attach_mode_and_counts_packets() {
        let interface = |name: &str, receives: &str, packets: u64| {
            json!({
                "interface": name, "receives": receives, "transmits": "tcx", "rx_packets": packets,
                "tx_packets": packets,
            })
        };
        let hooks = |receives: &str| Hooks { receives: receives.to_owned(), transmits: "tcx".to_owned() };
        let both = json!([interface("e1000", "generic", 1), interface("virtio_net", "native", 1)]);
        assert_eq!(attached(&both).expect("both are there"), [hooks("native"), hooks("generic")]);
        assert!(attached(&json!([interface("e1000", "generic", 1)])).is_err());
        let silent = json!([interface("e1000", "generic", 0), interface("virtio_net", "native", 1)]);
        assert!(attached(&silent).expect_err("nothing came by it").to_string().contains("e1000"));
    }

    #[test]
    fn the_machine_receives_the_pod_address_and_modules_in_order() {
        let dir = env::temp_dir().join(format!("xdp-ingress-scenario-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("directory");
        let put = |name: &str| {
            fs::write(dir.join(name), name).expect("file is written");
            dir.join(name)
        };
        let kernel = Kernel {
            release: "6".to_owned(),
            image: put("vmlinuz"),
            modules: vec![put("b.ko"), put("a.ko")],
            busybox: put("busybox"),
        };
        let files = files(&kernel, &[], 4711, &USUAL).expect("files");
        let content = |path: &str| {
            let file = files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("no `{path}`"));
            String::from_utf8_lossy(&file.content).into_owned()
        };
        assert_eq!(content("/modules/order"), "b.ko\na.ko\n");
        assert_eq!(content("/modules/a.ko"), "a.ko");
        assert_eq!(content("/nics"), "virtio_net 2\ne1000 3\n");
        let manifests = content("/manifests/site.yaml");
        assert!(
            manifests.contains("10.0.2.2") && manifests.contains("4711") && manifests.contains(SITE),
            "{manifests}"
        );
        assert!(!POD.iter().any(|word| manifests.contains(word)), "{manifests}");
        fs::remove_dir_all(&dir).expect("directory is removed");
    }
}
