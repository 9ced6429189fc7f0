//! Connections of TCP services, and sessions of UDP services.

use std::num::NonZeroU32;

use super::row::{Row, key};
use crate::translate::values::{boolean, number, time};
use ingress_model::{StreamRetry, StreamSettings};

/// Sorted by name.
pub(super) const SETTINGS: &[Row<StreamSettings>] = &[
    key(
        "max-udp-sessions",
        "largest number of sessions of UDP services that each worker has open, from 1 to 1000000; datagrams of \
         further clients are dropped. Each session takes a port of the node (`net.ipv4.ip_local_port_range`). \
         Specific to xdp-ingress",
    )
    .default("4096")
    .reads(|value, streams| {
        let mut count = 0;
        number(value, 1..=1_000_000, &mut count).ok_or("a number from 1 to 1000000")?;
        streams.sessions_max = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
        Ok(())
    }),
    key("proxy-stream-next-upstream", "whether TCP services try another pod if a connection to one fails")
        .default("true")
        .reads(|value, streams| boolean(value, &mut streams.retry.enabled)),
    key(
        "proxy-stream-next-upstream-timeout",
        "time after which no other pod is tried, as `30s` or `10m`; `0` for no limit",
    )
    .default("600s")
    .reads(|value, streams| {
        streams.retry.within = Some(time(value)?).filter(|within| !within.is_zero());
        Ok(())
    }),
    key("proxy-stream-next-upstream-tries", "largest number of pods to try in all, up to 10; `0` for 10")
        .differs("at most 10; `0` means 10")
        .default("3")
        .reads(|value, streams| {
            let mut tries = 0;
            number(value, 0..=1000, &mut tries).ok_or("a number up to 10")?;
            streams.retry.tries = if tries == 0 { StreamRetry::TRIES_MAX } else { tries.min(StreamRetry::TRIES_MAX) };
            Ok(())
        }),
    key(
        "proxy-stream-responses",
        "number of datagrams with which pods of UDP services answer each datagram of a client; a session with all its \
         answers is kept for only one second",
    )
    .default("1")
    .reads(|value, streams| {
        number(value, 0..=1_000_000, &mut streams.responses).ok_or_else(|| "a number up to 1000000".into())
    }),
    key(
        "proxy-stream-timeout",
        "how long connections of TCP services, and sessions of UDP services, stay open without bytes in either \
         direction, as `30s` or `10m`",
    )
    .default("600s")
    .reads(|value, streams| {
        streams.timeout = Some(time(value)?).filter(|time| !time.is_zero()).ok_or("a time from `1s` to `7d`")?;
        Ok(())
    }),
];
