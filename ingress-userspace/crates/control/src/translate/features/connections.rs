//! Lifetime, rates and number of client connections.

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, bytes, count, number, seconds};
use ingress_model::Settings;

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Settings>] = &[
    key(
        "client-body-min-rate",
        "smallest rate of a request body, in bytes per second: an average over the time that the proxy waits for it, \
         from 5 s on. Slower requests get 408. Not for gRPC, nor with `proxy-request-buffering: \"off\"` of an \
         Ingress; `0` for any rate. Specific to xdp-ingress",
    )
    .default("240")
    .reads(|value, settings| count(value, RATE_MAX, &mut settings.body_min_rate)),
    key(
        "client-body-timeout",
        "longest pause within a request body, and longest time during which a client accepts no byte of a response, \
         in seconds",
    )
    .default("60")
    .reads(|value, settings| seconds(value, &mut settings.stall_timeout)),
    key("client-header-timeout", "time limit for the head of a request from its first byte to its last, in seconds")
        .default("10")
        .nginx("60")
        .reads(|value, settings| seconds(value, &mut settings.head_timeout)),
    key(
        "client-read-min-rate",
        "smallest rate at which a client reads a response, in bytes per second: an average over the time that its \
         socket is full, from 5 s on. Slower connections end; `0` for any rate. Specific to xdp-ingress",
    )
    .default("240")
    .reads(|value, settings| count(value, RATE_MAX, &mut settings.read_min_rate)),
    key(
        "http2-max-concurrent-streams",
        "largest number of open streams on one connection of HTTP/2 or HTTP/3, from 1 to 10000",
    )
    .default("128")
    .reads(|value, settings| {
        number(value, 1..=10_000, &mut settings.streams_max).ok_or_else(|| "a number from 1 to 10000".into())
    }),
    key("keep-alive", "how long a connection without a request in flight stays open, in seconds")
        .default("75")
        .reads(|value, settings| seconds(value, &mut settings.idle_timeout)),
    key(
        "large-client-header-buffers",
        "largest head of a request, as the product of a number and a size, from 8 KiB to 256 KiB; larger ones get 431. \
         The target of a request has 8 KiB at most. A client can make a connection of HTTP/1 take six times as much \
         memory, and each stream of HTTP/2 and HTTP/3 once as much; bound them by `max-connections-per-client` and \
         `http2-max-concurrent-streams`",
    )
    .default("4 8k")
    .differs("one field may have the whole size, and a target has 8 KiB at most")
    .reads(head),
    key(
        "max-connections",
        "largest number of client connections that each worker has open; further ones are closed; `0` for any number. \
         Specific to xdp-ingress",
    )
    .default("65536")
    .reads(|value, settings| count(value, CONNECTIONS_MAX, &mut settings.connections_max)),
    key(
        "max-connections-per-client",
        "the same for one client on one node. The default is a quarter of the default for a worker, because many \
         clients may share an address; trusted proxies are exempt; `0` for any number. Specific to xdp-ingress",
    )
    .default("16384")
    .reads(|value, settings| count(value, CONNECTIONS_MAX, &mut settings.connections_per_client)),
    key("use-http2", "whether TLS handshakes offer HTTP/2, and port 80 accepts clients that begin with it")
        .default("true")
        .reads(|value, settings| boolean(value, &mut settings.http2)),
    key("use-http3", "whether HTTP/3 is served and offered by nodes with `--http3`. See [HTTP/3](http3.md)")
        .default("true")
        .reads(|value, settings| boolean(value, &mut settings.http3)),
];

/// Reads the product of a number and a size.
fn head(value: &str, settings: &mut Settings) -> Read {
    let product = value.split_once(' ').and_then(|(number, size)| {
        let number: u64 = number.parse().ok()?;
        bytes(size.trim()).ok()?.checked_mul(number)
    });
    let fits = product.and_then(|product| usize::try_from(product).ok()).filter(|size| HEAD_SIZES.contains(size));
    let size = fits.ok_or("a number and a size, as `4 16k`, with a product from 8k to 256k")?;
    settings.request_head_max = Some(size).filter(|size| *size != HEAD_DEFAULT);
    Ok(())
}

/// The size that the process has by itself.
const HEAD_DEFAULT: usize = 32 * 1024;
/// Sizes of heads. In the worst case, a connection of HTTP/1 takes six times as much: twice for its read buffer, and four
/// times for the line that the framing of the request is read from. One of HTTP/2 or HTTP/3 takes it for each stream.
const HEAD_SIZES: std::ops::RangeInclusive<usize> = 8 * 1024..=256 * 1024;
const CONNECTIONS_MAX: u32 = 10_000_000;
/// Upper bound of minimum rates: some legitimate clients have less than a megabyte per second.
const RATE_MAX: u32 = 1_000_000;
