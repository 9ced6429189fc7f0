//! The sockets of HTTP/3 in the kernel part: the program that chooses among them by connection ID, their port, and the
//! removal of processes that have ended. The sockets belong to the workers.

use std::{net::UdpSocket, os::fd::AsFd as _};

use ingress_common::{
    QuicCell,
    flow::PROTO_UDP,
    steer::{PORT_COUNT_ONLY, PORT_QUIC, PORT_QUIC_CHECKS},
};
use ingress_datapath::{Quic, QuicKey, SteeredPort};
use tracing::{info, warn};

use super::{Kernel, error_of};
use crate::daemon::http3::Http3Error;

/// Sockets of this process, entered in the maps. Dropped, the process is out of the choice.
pub(super) struct OpenQuic {
    quic: Quic,
    port: SteeredPort,
}

impl OpenQuic {
    /// Returns the port, whose new connections come to the workers of this process while it owns the node.
    pub(super) fn port(&self) -> SteeredPort {
        self.port
    }
}

impl Kernel {
    /// Binds the sockets of `port` by `bind`, one for each worker, and lets packets with the IDs of this process reach
    /// them. `bind` gets whether they join those of a predecessor. New connections come with [`Kernel::take_over`].
    ///
    /// # Errors
    /// Fails if the kernel refuses a part; the sockets are closed then.
    pub(in crate::daemon) fn open_quic(
        &mut self,
        port: u16,
        key: QuicKey,
        bind: impl FnOnce(bool) -> Result<Vec<UdpSocket>, Http3Error>,
    ) -> Result<(Vec<UdpSocket>, &'static QuicCell), Http3Error> {
        let quic = self.datapath.quic()?;
        let sockets = bind(quic.has_predecessor())?;
        quic.use_key(key)?;
        let descriptors: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
        quic.open(&self.datapath, &descriptors)?;
        let cell = quic.cell();
        let workers = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
        let flags = PORT_COUNT_ONLY | PORT_QUIC | PORT_QUIC_CHECKS;
        let port = SteeredPort { port, proto: PROTO_UDP, first_slot: 0, workers, flags, rewritten: None };
        self.quic = Some(OpenQuic { quic, port });
        Ok((sockets, cell))
    }

    /// Removes processes that have died, so that their clients are told. If there are none, it reads less than 200 bytes.
    pub(super) fn sweep_quic(&mut self) {
        let Some(OpenQuic { quic, port: _ }) = &self.quic else { return };
        let swept = quic.sweep();
        self.failures.note("cannot remove processes that have died from the maps of QUIC", error_of(&swept));
        if let Ok(processes @ 1..) = swept {
            info!(processes, "QUIC connections of processes that have died are reset");
        }
    }

    /// Removes this process from the maps of QUIC. Must be called after the last socket has closed: while one is open,
    /// packets with its IDs must reach it.
    pub(in crate::daemon) fn close_quic(&mut self) {
        let Some(OpenQuic { quic, port: _ }) = self.quic.take() else { return };
        if let Err(error) = quic.close() {
            let error = &error as &dyn std::error::Error;
            warn!(error, "cannot remove this process from the maps of QUIC; the next one does");
        }
    }
}
