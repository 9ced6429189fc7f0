//! A flood of SYNs from spoofed senders in an emulated machine: XDP answers them by SYN cookies, and clients get their
//! connections by cookies as well. The flood arrives as frames at the second NIC, so that no SYN leaves this machine.
//! Clients come by the first one.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::NICS;
use super::debian::Kernel;
use super::machine::{Machine, Networks};
use super::scenario::{self, CONNECTIONS, SETTLED, Setup, adds_up, admin, request, total};
use ingress_lab::controller::read_counts;
use ingress_lab::packet;
use xtask_image::oci::File;

const SETUP: Setup = Setup {
    arguments: "--syn-cookies=on --syn-cookies-threshold=1000\n",
    sysctls: "net.ipv4.tcp_syncookies = 2\nnet.ipv4.tcp_timestamps = 2\n",
    networks: Networks::UsersAndWire,
};
/// Longest time until the flood is answered. It begins within a second where the machine gets CPU.
const ANSWERED: Duration = Duration::from_secs(120);
/// Answers before clients connect.
const ENOUGH: u64 = 1000;
/// SYNs of a burst, and the time between bursts: four thousand per second.
const BURST: (u32, Duration) = (40, Duration::from_millis(10));

/// SYN cookies that XDP has sent in a machine, and those that clients have confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cookies {
    pub(super) sent: u64,
    pub(super) confirmed: u64,
}

/// Boots `kernel` with the `product`, floods it, and connects clients meanwhile; also returns the machine's console output.
pub(super) fn observe(kernel: &Kernel, product: &[File]) -> (Result<Cookies>, String) {
    scenario::in_machine(kernel, product, &SETUP, ask)
}

fn ask(machine: &mut Machine) -> Result<Cookies> {
    if let Some(reason) = scenario::refusal(machine)? {
        bail!("the programs are refused: {reason}");
    }
    let metrics = String::from_utf8_lossy(&admin("/metrics")?.text).into_owned();
    ensure!(
        metrics.contains("xdp_ingress_syn_cookies_ready{state=\"ready\"} 1\n"),
        "XDP cannot send SYN cookies here; the console says why"
    );
    let counted = |name: &str| -> Result<u64> { Ok(total(&read_counts(admin)?, name)) };
    let flood = Flood::start(Machine::wire()?)?;
    machine.wait("the flood is answered", ANSWERED, |_| Ok((counted("syn_cookie_sent")? >= ENOUGH).then_some(())))?;
    let [client, flooded] = &NICS;
    for _ in 0..CONNECTIONS {
        request(Machine::http(client)).with_context(|| format!("a request by way of `{}`", client.driver))?;
    }
    let answers = flood.end()?;
    ensure!(answers > 0, "no answer of `{}` to a SYN is on the wire", flooded.driver);
    let counts = machine.wait("the counters add up", SETTLED, |_| {
        let counts = read_counts(admin)?;
        Ok(adds_up(&counts, CONNECTIONS).then_some(counts))
    })?;
    let [sent, confirmed, stale] =
        ["syn_cookie_sent", "syn_cookie_valid", "heartbeat_stale"].map(|name| total(&counts, name));
    // A machine that gets no CPU for seconds misses its heartbeat, and the stack then answers.
    ensure!(
        confirmed > 0 && confirmed + stale >= CONNECTIONS,
        "of {CONNECTIONS} connections {confirmed} were confirmed by cookies ({stale} packets without a heartbeat)"
    );
    Ok(Cookies { sent, confirmed })
}

/// A flood on the wire of a machine, until the value is dropped.
struct Flood {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64>>>,
}

impl Flood {
    fn start(wire: UdpSocket) -> Result<Self> {
        wire.set_nonblocking(true).context("cannot read the wire")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&is_over);
        let thread = thread::spawn(move || send(&wire, &theirs));
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Ends the flood, and returns the number of its SYNs that have got an answer.
    fn end(mut self) -> Result<u64> {
        self.is_over.store(true, Relaxed);
        let thread = self.thread.take().context("the flood has ended")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Flood {
    /// The next machine needs the wire.
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let _after_a_failure = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends SYNs until `is_over`, and returns the number of answers.
fn send(wire: &UdpSocket, is_over: &AtomicBool) -> Result<u64> {
    let (mut number, mut answers) = (0_u32, 0);
    let mut received = [0; 2048];
    while !is_over.load(Relaxed) {
        for _ in 0..BURST.0 {
            // A frame that does not fit on the wire is lost.
            let _lost = wire.send(&frame(number)?).is_err();
            number = number.wrapping_add(1);
        }
        while let Ok(length) = wire.recv(&mut received) {
            answers += u64::from(is_answer(&received[..length]));
        }
        thread::sleep(BURST.1);
    }
    Ok(answers)
}

/// Returns the frame with the SYN of this number; each of 65,536 has its own sender (RFC 2544).
fn frame(number: u32) -> Result<Vec<u8>> {
    let [.., flooded] = &NICS;
    let [.., high, low] = number.to_be_bytes();
    let port = 1024 + u16::try_from(number % 60_000)?;
    let sender = SocketAddrV4::new(Ipv4Addr::new(198, 18, high, low), port);
    let flooded_address = Ipv4Addr::new(10, 0, flooded.subnet, 15);
    let mut packet = packet::syn(sender, SocketAddrV4::new(flooded_address, 80));
    packet[3] = u8::try_from(packet.len())?;
    let checksum = packet::checksum(&[&packet[..20]]);
    packet[10..12].copy_from_slice(&checksum);
    let mut frame = vec![0x52, 0x54, 0, 0x12, 0x34, flooded.subnet];
    frame.extend([0x52, 0x55, 10, 0, flooded.subnet, 2, 8, 0]);
    frame.extend(packet);
    // The shortest frame of Ethernet.
    frame.resize(60, 0);
    Ok(frame)
}

/// Returns `true` for a SYN-ACK over IPv4 from port 80.
fn is_answer(frame: &[u8]) -> bool {
    const SYN_ACK: u8 = 0x12;
    frame.get(12..15) == Some(&[8, 0, 0x45]) && frame.get(34..36) == Some(&[0, 80]) && frame.get(47) == Some(&SYN_ACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_an_own_sender_and_valid_checksums() {
        let frames = [0, 1, 65_535].map(|number| frame(number).expect("a frame"));
        assert_eq!(
            frames.each_ref().map(|frame| frame[26..30].to_vec()),
            [vec![198, 18, 0, 0], vec![198, 18, 0, 1], vec![198, 18, 255, 255]]
        );
        for frame in &frames {
            assert_eq!(frame.len(), 60);
            assert_eq!(packet::checksum(&[&frame[14..34]]), [0, 0]);
            assert!(!is_answer(frame));
        }
    }
}
