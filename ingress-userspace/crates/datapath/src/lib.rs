//! Loads, attaches, feeds and reads the kernel programs. Independent of Kubernetes, HTTP and routes.
//!
//! ```text
//!            Datapath::open ── adopts or makes ──> pinned maps and links
//! control ── set_ports, set_addresses, host_ids ──> ports, node_addrs, nic_macs, moves, host_ids
//!            follow ─────────────────────────────> links of interfaces, nics, nic_net
//!            deny_list, client_limits ───────────> deny_config, denials, deny4, deny6, deny_changed, limits
//! tools ──── DenyEditor ─────────────────────────> denials, deny4, deny6, deny_changed
//! tools ──── NodeShare ──────────────────────────> share
//! proxy ──── register_listener, flows, …_cells ───> listeners, flows, host_l7, workers
//! app ────── Quic::open, use_key, sweep ─────────> quic, quic_sockets
//! app ────── take_over, heartbeat, evict_dead ─────> alive, flows
//! tools ──── Pinned::open ───────────────────────<── totals, host_net, nic_net, host_l7, deny_hits, clients, …
//! ```
//!
//! All state is below `<bpffs>/v1` and outlives the process: dropping a [`Datapath`] detaches nothing. A second process
//! that opens the same directory adopts maps and links, and replaces the programs in the links. Once it can serve, it
//! takes the node over ([`Datapath::take_over`]). The first process notices through [`Datapath::owner`]. If the second one
//! ends before, the first restores its own programs and modes ([`Datapath::keep_programs`]). [`unload`] removes all state.
//!
//! All methods take `&self`, so that one `Arc<Datapath>` serves every thread.
#![allow(unsafe_code, reason = "bpf(2), mmap(2) and shared memory; every use says why it is sound")]

mod alive;
mod deny;
mod error;
mod flags;
mod flows;
mod held;
mod hosts;
mod kernel;
mod limits;
mod link;
mod log;
mod maps;
mod moves;
mod netlink;
mod nics;
mod object;
mod options;
mod owner;
mod pinned;
mod pins;
mod probe;
mod quic;
mod report;
mod restore;
mod share;
mod shared;
mod syn_cookies;
mod sys;
mod table;
mod tc;
mod test_run;

use std::{
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
    path::Path,
    sync::{
        Arc, RwLock,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
};

use aya::Ebpf;

use self::{
    alive::Life,
    nics::{Leftovers, NicContext, Nics},
    object::Variant,
    pins::Pins,
    share::ShareWord,
    sys::PinAccess,
    table::MapTable,
    tc::Direction,
};
use crate::shared::DatapathShared;
use ingress_common::{
    HostL7Cell, HostNet, PortKey, PortRule, Total, WorkerCell,
    map::{LISTENERS_MAX, MOVES, NIC_MACS, PORTS_MAX},
    steer::{PORT_REWRITTEN, SLOTS_PER_PORT, WORKER_ABSENT},
};

pub use self::{
    deny::{
        Applied, Denial, DenialOrigin, DenialOutcome, DenyConfig, DenyCount, DenyEditor, DenyEntry, DenyFill, DenyList,
        DenyView, Rejection, Removed,
    },
    error::{Error, Missing},
    flows::{Flows, flow_key},
    held::HeldAddress,
    hosts::{Given, HostIds},
    limits::{ClientLimiter, ClientLimits, LimitedClient, PacketRate},
    log::DebugLog,
    maps::{HostCounts, Maps, Totals},
    moves::{MovedAddress, monotonic_ns},
    options::{BPFFS, Interfaces, Options, SteeredPort, SynCookieOptions, SynThreshold, XdpMode},
    owner::{Claim, Owner},
    pinned::{Fill, Hook, LinkState, Pinned, PinnedLink, Process, Role},
    probe::probe,
    quic::{Quic, QuicKey},
    report::{Attachment, NicMode, NicReport, NicState, ProgramReport, Report, SynCookieState, TcHook, TransmitState},
    share::{AppliedShare, ClientShare, NodeShare, NotAShare, Renewal},
    syn_cookies::{SynCookies, SynFloodView},
    test_run::{RunOptions, RunResult, TestProgram, TransmitOptions},
};

/// The kernel part of this process.
#[derive(Debug)]
pub struct Datapath {
    shared: Arc<DatapathShared>,
    nics: RwLock<Nics>,
    host_cells: &'static [HostL7Cell],
    worker_cells: &'static [WorkerCell],
    host_ids: HostIds,
    deny_list: DenyList,
    client_limits: ClientLimiter,
    syn_cookies: SynCookies,
    debug_log: Option<DebugLog>,
    initial_share: ClientShare,
    report: Report,
}

// === impl Datapath ===

impl Datapath {
    /// Loads the programs, and adopts or creates maps and links. The node stays with its owner until
    /// [`Datapath::take_over`].
    ///
    /// On a fresh node, the programs pass everything until ports are set. After an adoption, the content of the maps
    /// keeps applying, and interfaces are never without a program.
    ///
    /// Beside another living process, the programs and links that these options exclude stay: sk_lookup, and interfaces
    /// that are not selected. [`Datapath::renew_programs`] removes them in the takeover. Without one they are removed here.
    ///
    /// # Errors
    /// Fails with [`Error::Unsupported`], which names all missing requirements, or with [`Error::NoInterface`] if no
    /// interface exists, before any change. After any other error the pins are as complete as before, and `open` can be
    /// retried.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let mut missing = probe(&options.bpffs);
        if options.rewrites {
            missing.extend(probe::rewriting());
        }
        if !missing.is_empty() {
            return Err(Error::Unsupported(missing));
        }
        nics::check(&options.interfaces)?;
        let pins = Pins::new(&options.bpffs);
        pins.create()?;
        let exclusive = pins.lock()?;
        let hosts = object::pinned_hosts(&pins)?.unwrap_or(options.host_capacity.max(1));
        let mut object = object::open(&pins, hosts, options.debug_log)?;
        let variant = Variant::of(kernel::running());
        let mut syn_cookie_state = syn_cookies::state(kernel::running(), options.syn_cookies);
        let has_cookies = matches!(syn_cookie_state, SynCookieState::Ready { .. });
        let mut xdp = if has_cookies { object::XDP_COOKIES } else { variant.xdp() };
        object::load_programs(&mut object, &[variant.lookup(), xdp, object::TC_OUT]);
        let maps = Maps::open(&pins, PinAccess::Write)?;
        let share = ShareWord::open(&pins)?;
        let mut programs = Vec::new();
        let leftovers = if pins.live_epochs()?.is_empty() { Leftovers::Remove } else { Leftovers::Keep };
        let delivers = (options.lookup, leftovers);
        let lookup = attach_lookup(&pins, &mut object, variant, delivers, &mut programs)?;
        if has_cookies && let Err(error) = object::loaded(&mut object, xdp) {
            // The start goes on: a node without cookies serves as before.
            (xdp, syn_cookie_state) = (variant.xdp(), SynCookieState::Failed(Arc::new(error)));
        }
        if options.measure {
            object::loaded(&mut object, object::BARE)?;
            let (_, report) = object::program(&mut object, object::TC_IN)?;
            programs.push(report);
        }
        let debug_log = options.debug_log.then(|| DebugLog::new(&mut object)).transpose().map_err(log_error)?;
        let names = (xdp, options.lookup.then(|| variant.lookup()));
        let place = NicContext { pins: &pins, maps: &maps };
        let nics = Nics::attach(place, object, names, options, leftovers, &mut programs)?;
        let (cells, workers) = (maps.map_host_l7()?, maps.map_workers()?);
        let (life, has_predecessor) = Life::begin(&pins, &maps)?;
        let worker_cells = own_workers(workers.leak(), life.first_worker());
        drop(exclusive);

        let host_cells = cells.leak();
        if !has_predecessor {
            // The processes that served these requests have died.
            host_cells.iter().for_each(|cell| cell.active.store(0, Relaxed));
        }
        let report = Report {
            epoch: life.epoch(),
            has_predecessor,
            interfaces: nics.reports().to_vec(),
            lookup,
            host_capacity: maps.host_capacity(),
            programs,
        };
        let nic_macs = MapTable::open(&pins, NIC_MACS, PinAccess::Write)?;
        let moves = MapTable::open(&pins, MOVES, PinAccess::Write)?;
        let flows_full = AtomicU64::new(0);
        let shared = Arc::new(DatapathShared { pins, maps, nic_macs, moves, share, life, flows_full });
        let host_ids = HostIds::read(Arc::clone(&shared), host_cells)?;
        let deny_list = DenyList::read(Arc::clone(&shared))?;
        let client_limits = ClientLimiter::read(Arc::clone(&shared))?;
        let syn_cookies = SynCookies::new(Arc::clone(&shared), options.syn_cookies, syn_cookie_state)?;
        let nics = RwLock::new(nics);
        Ok(Self {
            shared,
            nics,
            host_cells,
            worker_cells,
            host_ids,
            deny_list,
            client_limits,
            syn_cookies,
            debug_log,
            initial_share: options.initial_share,
            report,
        })
    }

    /// Returns the report of `open`.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Sets the steered ports to exactly these. Ports that stay are never absent meanwhile; removals make room where
    /// necessary.
    ///
    /// # Errors
    /// Fails with [`Error::TooMany`], [`Error::Slot`], or [`Error::Kernel`], after which some of the changes may be
    /// made.
    pub fn set_ports(&self, ports: &[SteeredPort]) -> Result<(), Error> {
        let entries: usize = ports.iter().map(SteeredPort::entries).sum();
        if entries > PORTS_MAX as usize {
            return Err(Error::TooMany { what: "ports", count: entries, max: PORTS_MAX });
        }
        let first_worker = self.shared.life.first_worker();
        let mut wanted = Vec::with_capacity(entries);
        for &SteeredPort { port, proto, first_slot, workers, flags, rewritten } in ports {
            let last = first_slot.saturating_add(workers.saturating_sub(1));
            slot_fits(last)?;
            let key = |port: u16| PortKey { port_be: port.to_be(), proto, pad: 0 };
            let flags = self.client_limits.flags(self.deny_list.flags(flags));
            let rule = PortRule { first_slot, workers, flags, rewrite_be: 0, first_worker };
            // Added first, so that it exists before any packet gets it. Removals follow the changes, if there is room
            // for both.
            if let Some(rewritten) = rewritten {
                let back = PortRule { flags: flags | PORT_REWRITTEN, rewrite_be: port.to_be(), ..rule };
                wanted.push((key(rewritten), back));
            }
            wanted.push((key(port), PortRule { rewrite_be: rewritten.unwrap_or(0).to_be(), ..rule }));
        }
        self.shared.maps.ports.replace(&wanted)
    }

    /// Puts a listening TCP socket into a slot, replacing the current one. The slot becomes empty when the socket
    /// closes.
    ///
    /// The socket must listen; an IPv6 socket without `IPV6_V6ONLY` serves both families.
    ///
    /// # Errors
    /// Fails with [`Error::Slot`], or with [`Error::Kernel`] if the socket does not listen.
    pub fn register_listener(&self, slot: u32, listener: BorrowedFd<'_>) -> Result<(), Error> {
        slot_fits(slot)?;
        self.shared.maps.listeners.set(&slot, &listener.as_raw_fd().cast_unsigned())?;
        self.syn_cookies.record(slot, listener)
    }

    /// Returns a handle with which the proxy attributes connections to hosts.
    #[must_use]
    pub fn flows(&self) -> Flows {
        Flows::new(Arc::clone(&self.shared))
    }

    /// Returns request counters by host id. They are shared with every other process of this node and kept when this
    /// one ends. The mapping stays until the process ends.
    #[must_use]
    pub const fn host_cells(&self) -> &'static [HostL7Cell] {
        self.host_cells
    }

    /// Returns the load cells of this process's workers, by number. The programs choose the worker of a connection by
    /// them; a worker counts as absent until it writes its cell. The mapping stays until the process ends.
    #[must_use]
    pub const fn worker_cells(&self) -> &'static [WorkerCell] {
        self.worker_cells
    }

    /// Returns the host ids of this node.
    #[must_use]
    pub const fn host_ids(&self) -> &HostIds {
        &self.host_ids
    }

    /// Returns the deny list.
    #[must_use]
    pub const fn deny_list(&self) -> &DenyList {
        &self.deny_list
    }

    /// Returns the limits of clients.
    #[must_use]
    pub const fn client_limits(&self) -> &ClientLimiter {
        &self.client_limits
    }

    /// Returns the SYN cookies of XDP.
    #[must_use]
    pub const fn syn_cookies(&self) -> &SynCookies {
        &self.syn_cookies
    }

    /// Reports to the kernel that this process is responsive; must be called every second (XDP stops limiting and
    /// choosing after [`ingress_common::steer::HEARTBEAT_STALE_NS`]). Also renews the share of the
    /// clients ([`NodeShare`]) if this process owns the node, and adds lost flows to the totals.
    ///
    /// # Errors
    /// Fails if the totals cannot be written; the heartbeat is sent nevertheless.
    pub fn heartbeat(&self) -> Result<(), Error> {
        self.shared.life.beat();
        // A draining process lives on while the owner hangs, whose share has to end.
        if self.owner() == Owner::This {
            self.shared.share.keep();
        }
        let lost = self.shared.flows_full.swap(0, AcqRel);
        if lost == 0 {
            return Ok(());
        }
        // No program counts this reason, so nothing is overwritten.
        let written = self.shared.maps.totals.change_first(Total::FlowsFull as u32, |entry| entry.packets += lost);
        if written.is_err() {
            self.shared.flows_full.fetch_add(lost, Relaxed);
        }
        written
    }

    /// Deletes the flows of ended processes, but not those of living ones, and returns the number of deletions. Reads
    /// the whole map (about 0.1 µs per flow): for startup and every few minutes.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn evict_dead(&self) -> Result<usize, Error> {
        flows::evict_dead(&self.shared)
    }

    /// Returns packets and bytes by reason.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn totals(&self) -> Result<Totals, Error> {
        let mut totals = self.shared.maps.totals()?;
        totals.add(Total::FlowsFull, self.shared.flows_full.load(Relaxed));
        Ok(totals)
    }

    /// Returns wire traffic by host id, summed over the CPUs.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn host_net(&self) -> Result<Vec<HostNet>, Error> {
        self.shared.maps.host_net()
    }

    /// Returns all other readable maps.
    #[must_use]
    pub fn maps(&self) -> &Maps {
        &self.shared.maps
    }

    /// Takes the log of the programs; `None` unless [`Options::debug_log`] is on, and after the first call.
    pub const fn debug_log(&mut self) -> Option<DebugLog> {
        self.debug_log.take()
    }
}

/// Detaches programs (of interfaces first, of the lookup last), and removes their links, then maps, below `bpffs`.
/// Returns the removed objects in that order. Existing connections continue; new ones reach the plain network stack. Running processes are not notified.
/// Filters of clsact, used before Linux 6.6, are removed from this network namespace.
///
/// # Errors
/// Fails if an object cannot be removed; those before it are gone.
pub fn unload(bpffs: &Path) -> Result<Vec<String>, Error> {
    let pins = Pins::new(bpffs);
    if !pins.exists() {
        return Ok(Vec::new());
    }
    let _exclusive = pins.lock()?;
    let mut removed = Vec::new();
    for interface in nics::with_programs(&pins)? {
        for direction in [Direction::In, Direction::Out] {
            removed.extend(tc::detach(&pins, direction, &interface)?);
        }
    }
    for path in pins.all_links()? {
        if link::remove(&path)? {
            removed.push(path.display().to_string());
        }
    }
    removed.extend(pins.remove_rest()?);
    Ok(removed)
}

fn attach_lookup(
    pins: &Pins,
    object: &mut Ebpf,
    variant: Variant,
    (wanted, leftovers): (bool, Leftovers),
    programs: &mut Vec<ProgramReport>,
) -> Result<Option<Attachment>, Error> {
    let (program, report) = object::program(object, variant.lookup())?;
    programs.push(report);
    if wanted {
        return link::lookup(pins, program.as_fd()).map(Some);
    }
    if leftovers == Leftovers::Remove {
        link::remove_lookup(pins)?;
    }
    Ok(None)
}

/// Returns the entries of this new process, cleared of values from a previous one.
fn own_workers(cells: &'static [WorkerCell], first: u32) -> &'static [WorkerCell] {
    let group = cells.chunks_exact(SLOTS_PER_PORT as usize).nth((first / SLOTS_PER_PORT) as usize).unwrap_or_default();
    for WorkerCell { open, settled, chosen } in group {
        open.store(WORKER_ABSENT, Relaxed);
        chosen.store(0, Relaxed);
        settled.store(0, Relaxed);
    }
    group
}

fn slot_fits(slot: u32) -> Result<(), Error> {
    if slot < LISTENERS_MAX { Ok(()) } else { Err(Error::Slot { slot, max: LISTENERS_MAX }) }
}

fn log_error(error: aya_log::Error) -> Error {
    Error::kernel("open", "log of the programs", std::io::Error::other(error))
}
