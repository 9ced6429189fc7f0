//! Connection IDs: how quinn-proto gets new ones, and how it treats packets with an unknown ID.
//!
//! [`NodeIds`] has the layout of `ingress_common::quic`, by which the kernel chooses the socket of a packet. Behind
//! [`Ids`] are others, for tests.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use aws_lc_rs::rand;
use ingress_common::quic::{ID_LENGTH, Issuer, NONCE_LENGTH, QuicCell};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// Length of the IDs that this node issues, in bytes.
pub const LENGTH: usize = ID_LENGTH;

/// Number of random bytes in an ID.
pub const NONCE: usize = NONCE_LENGTH;

/// The owner of a connection ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This worker.
    Own,
    /// Another worker of this process, by its number.
    Sibling(u8),
    /// Another process of this node, which still lives.
    Elsewhere,
    /// A process that has ended. Its clients are told by stateless resets.
    Gone,
    /// The ID was not issued by this node.
    Unknown,
}

/// Issues and recognises the connection IDs of one worker.
pub trait Ids: fmt::Debug + Send + Sync {
    /// Returns the ID of this worker with `nonce`.
    fn issue(&self, nonce: [u8; NONCE]) -> [u8; LENGTH];

    /// Returns the owner of `id`.
    fn owner(&self, id: &[u8; LENGTH]) -> Owner;
}

/// The IDs of a worker, sealed with the keys of its node.
#[derive(Debug)]
pub struct NodeIds<C> {
    cell: C,
    epoch: u32,
    worker: u8,
}

impl<C: Deref<Target = QuicCell>> NodeIds<C> {
    /// The IDs of the worker `worker`, below 64, of the process `epoch`. `cell` is shared with the node's other processes
    /// and the kernel. It has the current key and the epoch of this process before the driver begins.
    pub fn new(cell: C, epoch: u32, worker: u8) -> Self {
        Self { cell, epoch, worker }
    }
}

impl<C: Deref<Target = QuicCell> + fmt::Debug + Send + Sync> Ids for NodeIds<C> {
    fn issue(&self, nonce: [u8; NONCE]) -> [u8; LENGTH] {
        self.cell.issue(nonce, Issuer::new(self.epoch, self.worker))
    }

    fn owner(&self, id: &[u8; LENGTH]) -> Owner {
        match self.cell.open(id) {
            None => Owner::Unknown,
            Some(issuer) if !issuer.is_of(self.epoch) => match self.cell.living(issuer) {
                Some(_epoch) => Owner::Elsewhere,
                None => Owner::Gone,
            },
            Some(issuer) if issuer.worker == self.worker => Owner::Own,
            Some(issuer) => Owner::Sibling(issuer.worker),
        }
    }
}

/// Lets quinn-proto use [`Ids`].
#[derive(Debug)]
pub(crate) struct Generator(pub(crate) Arc<dyn Ids>);

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut nonce = [0; NONCE];
        // Without randomness, IDs repeat and quinn-proto would try forever; the TLS handshake needs it as well.
        if rand::fill(&mut nonce).is_err() {
            tracing::error!("no randomness for connection IDs; the process ends");
            std::process::abort();
        }
        ConnectionId::new(&self.0.issue(nonce))
    }

    /// Decides between a stateless reset (`Ok`) and silence (`Err`), for a packet without a known connection. When in
    /// doubt, silence: a reset for another process's connection would end it.
    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        let id = <&[u8; LENGTH]>::try_from(&**cid).map_err(|_other_length| InvalidCid)?;
        match self.0.owner(id) {
            Owner::Own | Owner::Gone => Ok(()),
            Owner::Sibling(_) | Owner::Elsewhere | Owner::Unknown => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    /// IDs do not expire by themselves: the key of their seal outlives its connections.
    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Returns the destination ID of a datagram with a short header, or of a long header if the ID has our length.
pub(crate) fn destination(datagram: &[u8]) -> Option<&[u8; LENGTH]> {
    const LONG: u8 = 0x80;
    let (first, rest) = datagram.split_first()?;
    if first & LONG == 0 {
        return rest.first_chunk();
    }
    let (_version, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first()?;
    if usize::from(*length) == LENGTH { rest.first_chunk() } else { None }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// IDs without a seal: the byte after the nonce is the worker, the next ones are fixed.
    #[derive(Debug)]
    pub(crate) struct Plain(pub(crate) u8);

    impl Ids for Plain {
        fn issue(&self, nonce: [u8; NONCE]) -> [u8; LENGTH] {
            let mut id = [7; LENGTH];
            id[..NONCE].copy_from_slice(&nonce);
            id[NONCE] = self.0;
            id
        }

        fn owner(&self, id: &[u8; LENGTH]) -> Owner {
            match id[NONCE] {
                _ if id[NONCE + 1..] != [7; LENGTH - NONCE - 1] => Owner::Unknown,
                100 => Owner::Elsewhere,
                101 => Owner::Gone,
                worker if worker == self.0 => Owner::Own,
                worker => Owner::Sibling(worker),
            }
        }
    }

    #[test]
    fn unknown_connections_are_reset_only_if_no_living_process_may_have_them() {
        let generator = Generator(Arc::new(Plain(1)));
        for (worker, resets) in [(1, true), (2, false), (100, false), (101, true)] {
            let id = ConnectionId::new(&Plain(worker).issue([0; NONCE]));
            assert_eq!(generator.validate(&id).is_ok(), resets, "{worker}");
        }
        for foreign in [&[0; LENGTH][..], &[7; 8], &[]] {
            assert!(generator.validate(&ConnectionId::new(foreign)).is_err(), "{foreign:?}");
        }
    }

    #[test]
    fn ids_of_a_node_name_their_worker_and_process() {
        let cell = Arc::new(QuicCell::default());
        cell.set_current_key(1, &[1, 2]);
        cell.set_epoch(7, true);
        let of = |epoch, worker| NodeIds::new(Arc::clone(&cell), epoch, worker);
        let id = of(7, 3).issue([5; NONCE]);
        let owners = [of(7, 3), of(7, 4), of(8, 3)].map(|ids| ids.owner(&id));
        assert_eq!(owners, [Owner::Own, Owner::Sibling(3), Owner::Elsewhere]);
        cell.set_epoch(7, false);
        assert_eq!(of(8, 3).owner(&id), Owner::Gone);
        assert_eq!(of(8, 3).owner(&[0; LENGTH]), Owner::Unknown);
    }

    #[test]
    fn generated_ids_are_own_and_differ() {
        let mut generator = Generator(Arc::new(Plain(3)));
        let (one, other) = (generator.generate_cid(), generator.generate_cid());
        assert_ne!(one, other);
        for id in [one, other] {
            assert_eq!(id.len(), generator.cid_len());
            assert!(generator.validate(&id).is_ok());
        }
    }

    #[test]
    fn destinations_are_found_in_both_headers() {
        let id = [9; LENGTH];
        let short = [&[0x40][..], &id, &[1, 2]].concat();
        let long = [&[0xc0, 0, 0, 0, 1, 16][..], &id, &[0]].concat();
        let foreign = [&[0xc0, 0, 0, 0, 1, 8][..], &id].concat();
        for (datagram, expected) in
            [(&short[..], Some(&id)), (&long, Some(&id)), (&foreign, None), (&short[..16], None), (&[], None)]
        {
            assert_eq!(destination(datagram), expected, "{datagram:?}");
        }
    }
}
