//! The fate of datagrams on a path: lost, corrupted, late, or none. Connections are numbered in order of arrival. The fate
//! of the n-th datagram of a connection in one direction follows from the seed and that number, as far as it is chance.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Rate of paths with faults, in bits a second, as at the QUIC Interop Runner.
pub(crate) const RATE: u64 = 10_000_000;
/// Datagrams that wait for their turn; further ones are lost.
const QUEUE: usize = 25;
/// Most datagrams that meet a fault by chance one after another, in one direction.
const BURST: u8 = 3;

/// A path: its delay, and its fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Delay of each direction.
    pub(crate) delay: Duration,
    /// Rate of each direction in bits a second, with a queue of 25 datagrams. Without, datagrams do not wait.
    pub(crate) rate: Option<u64>,
    pub(crate) fault: Fault,
}

/// A fault of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Datagrams that are lost, in per cent.
    Loss(u64),
    /// Datagrams in which one bit is flipped, in per cent.
    Corruption(u64),
    /// A time without any datagram, from the moment when the client has got as many of them.
    Blackhole {
        after: u64,
        lasts: Duration,
    },
    /// Another port of the client, as by NAT, when it sends after it has got as many datagrams; and another address, unless
    /// kept.
    Rebinding {
        every: u64,
        keeps_address: bool,
    },
    /// After the server's first datagram, as many of the client's are lost.
    ClientLoss(u64),
    /// Only that marks of congestion pass. Other paths clear them.
    KeepsEcn,
}

/// Direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// A direction of a connection's path.
#[derive(Debug)]
pub(super) struct Link {
    random: Random,
    /// Datagrams that met the fault, one after another.
    in_a_row: u8,
    /// Time when the last datagram has left the queue.
    free_at: Instant,
    /// Times when datagrams leave the queue.
    queue: VecDeque<Instant>,
}

/// Random numbers by SplitMix64.
#[derive(Debug)]
struct Random(u64);

// === impl Link ===

impl Link {
    pub(super) fn new(seed: u64, connection: u64, direction: Direction) -> Self {
        let mut random = Random(seed ^ (connection << 1 | u64::from(direction == Direction::ToClient)) << 32);
        // Neighbouring seeds would begin with similar states.
        random = Random(random.below(u64::MAX));
        Self { random, in_a_row: 0, free_at: Instant::now(), queue: VecDeque::new() }
    }

    /// Draws whether the next datagram meets a fault of this probability.
    pub(super) fn is_hit(&mut self, per_cent: u64) -> bool {
        let is_hit = self.random.below(100) < per_cent && self.in_a_row < BURST;
        self.in_a_row = if is_hit { self.in_a_row + 1 } else { 0 };
        is_hit
    }

    /// Flips one bit.
    pub(super) fn corrupt(&mut self, datagram: &mut [u8]) {
        let bit = usize::try_from(self.random.below(datagram.len() as u64 * 8)).unwrap_or_default();
        if let Some(byte) = datagram.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Returns when a datagram arrives at the other end; `None` if the queue is full.
    pub(super) fn arrival(&mut self, now: Instant, length: usize, plan: &Plan) -> Option<Instant> {
        let Some(rate) = plan.rate else { return Some(now + plan.delay) };
        while self.queue.front().is_some_and(|leaves| *leaves <= now) {
            self.queue.pop_front();
        }
        if self.queue.len() >= QUEUE {
            return None;
        }
        let time = Duration::from_nanos(length as u64 * 8 * 1_000_000_000 / rate.max(1));
        self.free_at = self.free_at.max(now) + time;
        self.queue.push_back(self.free_at);
        Some(self.free_at + plan.delay)
    }
}

// === impl Random ===

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_follow_the_seed_and_are_at_most_three_in_a_row() {
        let draw = |connection, direction| {
            let mut link = Link::new(7, connection, direction);
            (0..10_000).map(|_| link.is_hit(30)).collect::<Vec<bool>>()
        };
        let hits = draw(1, Direction::ToServer);
        assert_eq!(hits, draw(1, Direction::ToServer));
        assert_ne!(hits, draw(1, Direction::ToClient));
        assert_ne!(hits, draw(2, Direction::ToServer));
        let count = hits.iter().filter(|is_hit| **is_hit).count();
        assert!((2_700..3_100).contains(&count), "{count}");
        let longest = hits.split(|is_hit| !is_hit).map(<[bool]>::len).max();
        assert_eq!(longest, Some(usize::from(BURST)));
    }

    #[test]
    fn one_bit_is_flipped() {
        let mut link = Link::new(7, 0, Direction::ToServer);
        let mut datagram = [0; 100];
        link.corrupt(&mut datagram);
        assert_eq!(datagram.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    }

    #[test]
    fn datagrams_leave_at_the_rate_and_a_full_queue_loses_them() {
        let mut link = Link::new(7, 0, Direction::ToServer);
        let now = Instant::now();
        let plan = Plan { delay: Duration::from_millis(15), rate: Some(RATE), fault: Fault::None };
        let arrivals: Vec<_> = (0..40).map(|_| link.arrival(now, 1_250, &plan)).collect();
        // 1,250 bytes are 10,000 bits, which take 1 ms.
        assert_eq!(arrivals[0], Some(now + Duration::from_millis(16)));
        assert_eq!(arrivals[QUEUE - 1], Some(now + Duration::from_millis(40)));
        assert!(arrivals[QUEUE..].iter().all(Option::is_none));
        let later = now + Duration::from_millis(100);
        assert_eq!(link.arrival(later, 1_250, &plan), Some(later + Duration::from_millis(16)));
        let free = Plan { rate: None, ..plan };
        assert!((0..40).all(|_| link.arrival(now, 1_250, &free) == Some(now + Duration::from_millis(15))));
    }
}
