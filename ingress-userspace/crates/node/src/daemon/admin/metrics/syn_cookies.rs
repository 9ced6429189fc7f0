//! Metrics of SYN cookies of XDP, which a process without them does not have. Their packets are among `kernel_packets`.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::{
    Scrape, SynCookiesView,
    encode::{gauge, gauges},
};

impl Scrape {
    pub(super) fn encode_syn_cookies(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(SynCookiesView { state, is_flood, rate, threshold }) = self.syn_cookies else { return Ok(()) };
        let help = "1 with the state of SYN cookies of XDP if they are ready; 0 with the reason if not";
        let row = ([("state", state)], u64::from(state == "ready"));
        gauges(encoder, "syn_cookies_ready", help, std::iter::once(row))?;
        gauge(encoder, "syn_flood", "1 while XDP takes the rate of SYNs for a flood", u64::from(is_flood))?;
        gauge(encoder, "syn_rate", "SYNs per second to steered ports in the latest second", rate)?;
        let help = "SYNs per second from which on there is a flood; 0 while SYN cookies are off";
        gauge(encoder, "syn_flood_threshold", help, threshold)
    }
}
