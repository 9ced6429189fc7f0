//! Port mapping for `--steer rewrite`: the rewritten ports on this node for the public ports. Pure except for
//! [`local_ports`].

use std::{fs, num::NonZeroU16, ops::RangeInclusive};

/// Default range of NodePort Services (`--service-node-port-range` of the API server may change it).
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// Default range of the kernel's ephemeral ports for outgoing connections.
const LOCAL_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// Mapping of ports by a constant offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortRewrite {
    offset: NonZeroU16,
    /// The kernel's ephemeral port range for outgoing connections.
    local: RangeInclusive<u16>,
    /// Ports for HTTP, HTTPS and the admin address.
    own: [u16; 3],
}

/// Reason why a port cannot be rewritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("port {port} plus `--rewrite-offset` {offset} exceeds 65535; choose a smaller offset")]
    Beyond { port: u16, offset: NonZeroU16 },
    #[error(
        "port {port} would become {rewritten}, in the range of NodePort Services (30000-32767); choose another \
         `--rewrite-offset`"
    )]
    NodePort { port: u16, rewritten: u16 },
    #[error(
        "port {port} would become {rewritten}, in the kernel's range for outgoing connections \
         (`net.ipv4.ip_local_port_range`); choose another `--rewrite-offset`, or make that range smaller"
    )]
    Local { port: u16, rewritten: u16 },
    #[error("port {port} would become {rewritten}, which is already a served port; choose another `--rewrite-offset`")]
    Served { port: u16, rewritten: u16 },
}

impl PortRewrite {
    /// Creates the mapping; `local` comes from [`local_ports`], `own` are the ports for HTTP, HTTPS and the admin
    /// address.
    pub(crate) const fn new(offset: NonZeroU16, local: RangeInclusive<u16>, own: [u16; 3]) -> Self {
        Self { offset, local, own }
    }

    /// Returns the offset between public and rewritten ports.
    pub(crate) const fn offset(&self) -> NonZeroU16 {
        self.offset
    }

    /// Returns the rewritten port. `is_served` returns whether a port beside our own is public.
    ///
    /// # Errors
    /// Fails if the result exceeds 65535, or is in use for another purpose.
    pub(crate) fn of(&self, port: u16, is_served: impl Fn(u16) -> bool) -> Result<u16, Unfit> {
        let Self { offset, local, own } = self;
        let rewritten = port.checked_add(offset.get()).ok_or(Unfit::Beyond { port, offset: *offset })?;
        if NODE_PORTS.contains(&rewritten) {
            return Err(Unfit::NodePort { port, rewritten });
        }
        if local.contains(&rewritten) {
            return Err(Unfit::Local { port, rewritten });
        }
        if own.contains(&rewritten) || is_served(rewritten) {
            return Err(Unfit::Served { port, rewritten });
        }
        Ok(rewritten)
    }
}

/// Returns the ephemeral port range of this network namespace.
pub(crate) fn local_ports() -> RangeInclusive<u16> {
    let range_text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    range_text.and_then(|range_text| range(&range_text)).unwrap_or(LOCAL_PORTS)
}

/// Parses two numbers.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse::<u16>);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port_rewrite(offset: u16) -> PortRewrite {
        PortRewrite::new(NonZeroU16::new(offset).expect("not 0"), LOCAL_PORTS, [80, 443, 9110])
    }

    #[test]
    fn a_rewritten_port_has_no_other_use() {
        let is_served = |port| port == 5432;
        for (offset, port, expected) in
            [(10_000, 80, Ok(10_080)), (10_000, 443, Ok(10_443)), (65_092, 443, Ok(65_535)), (1, 80, Ok(81))]
        {
            assert_eq!(port_rewrite(offset).of(port, is_served), expected, "{port} by {offset}");
        }
        for (offset, port, expected) in [
            (65_093, 443, "port 443 plus `--rewrite-offset` 65093 exceeds 65535"),
            (30_000, 80, "port 80 would become 30080, in the range of NodePort Services"),
            (32_324, 443, "would become 32767, in the range of NodePort"),
            (32_325, 443, "port 443 would become 32768, in the kernel's range"),
            (60_919, 80, "would become 60999, in the kernel's range"),
            (363, 80, "port 80 would become 443, which is already a served port"),
            (9_030, 80, "would become 9110, which is already"),
            (5_352, 80, "would become 5432, which is already"),
        ] {
            let unfit = port_rewrite(offset).of(port, is_served).expect_err("unfit").to_string();
            assert!(unfit.contains(expected) && unfit.contains("choose"), "{unfit}");
        }
    }

    #[test]
    fn the_local_port_range_is_two_numbers() {
        assert_eq!(range("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(range("1024 65535"), Some(1024..=65_535));
        for text in ["", "1024", "1024\tx", "-1 5"] {
            assert_eq!(range(text), None, "{text}");
        }
    }
}
