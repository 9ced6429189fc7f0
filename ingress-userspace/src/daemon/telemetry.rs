//! Sets up logging: the filter and the line format. Log statements are in the modules.

use std::{
    fmt::{self, Write},
    io::IsTerminal,
};

use anyhow::Context;
use tracing_subscriber::{
    EnvFilter,
    field::MakeExt,
    filter::{LevelFilter, ParseError},
    fmt::{
        FormatFields,
        format::{Writer, debug_fn},
    },
};

use crate::config::cli::LogFormatArg;

/// Targets of this project: the binary, its crates and the kernel programs.
const OWN: [&str; 7] =
    ["xdp_ingress", "ingress_control", "ingress_datapath", "ingress_model", "ingress_panics", "ingress_proxy", "ebpf"];

/// Log filter for libraries unless the user asks for more. Libraries that talk to clients, pods and name servers are
/// off: some warn once per frame or packet, so their peer could fill the log (h2 warns of every PING ACK without a
/// PING). The kube client warns with the whole body of an unreadable response, which may be a Secret. Warnings of its
/// watchers are reported once, with an explanation, by `ingress_control::source`.
const LIBRARIES: &str = "error,h2=off,hyper=off,hyper_util=off,rustls=off,tokio_rustls=off,tower=off,tonic=off,\
                         hickory_net=off,hickory_proto=off,hickory_resolver=off";

/// Logs to standard error, in colour only on a terminal and without `NO_COLOR` (no-color.org).
///
/// # Errors
/// Fails if `directives` cannot be parsed, or logging is already set up.
pub(crate) fn init(directives: &str, format: LogFormatArg) -> anyhow::Result<()> {
    let filter = filter(directives)
        .with_context(|| format!("`--log {directives}` is not a level or list of target=level directives"))?;
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    match format {
        LogFormatArg::Text => builder.fmt_fields(one_line()).try_init(),
        LogFormatArg::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|error| anyhow::anyhow!(error).context("cannot set up logging"))
}

/// Builds the filter. A level without a target applies to [`OWN`] targets only, so that it never enables a library
/// implicitly.
fn filter(directives: &str) -> Result<EnvFilter, ParseError> {
    let directives = directives.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let asked = directives.map(|directive| match directive.parse::<LevelFilter>() {
        Ok(level) => OWN.map(|target| format!("{target}={level}")).join(","),
        Err(_names_a_target) => directive.to_owned(),
    });
    EnvFilter::try_new(std::iter::once(LIBRARIES.to_owned()).chain(asked).collect::<Vec<_>>().join(","))
}

/// Returns a field formatter for single lines of text. Values come from objects and clients, so line breaks and
/// terminal escapes are escaped.
fn one_line() -> impl for<'writer> FormatFields<'writer> + 'static {
    debug_fn(|writer: &mut Writer<'_>, field, value| match field.name() {
        "message" => write!(Escaped(writer), "{value:?}"),
        name => {
            write!(writer, "{name}=")?;
            write!(Escaped(writer), "{value:?}")
        }
    })
    .delimited(" ")
}

/// Escapes control characters, and the two separators that some readers take for the end of a line.
struct Escaped<'w, W>(&'w mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let is_control = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
        for piece in text.split_inclusive(is_control) {
            let mut plain = piece.chars();
            match plain.next_back().filter(|last| is_control(*last)) {
                Some(last) => write!(self.0, "{}{}", plain.as_str(), last.escape_default())?,
                None => self.0.write_str(piece)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("unpoisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'w> MakeWriter<'w> for Lines {
        type Writer = Self;

        fn make_writer(&'w self) -> Self {
            self.clone()
        }
    }

    /// Returns the text logged by `events` with these directives.
    fn written(directives: &str, events: impl FnOnce()) -> String {
        let lines = Lines::default();
        let filter = filter(directives).expect("valid");
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(lines.clone())
            .with_ansi(false)
            .without_time();
        tracing::subscriber::with_default(subscriber.fmt_fields(one_line()).finish(), events);
        String::from_utf8(lines.0.lock().expect("unpoisoned").clone()).expect("text")
    }

    #[test]
    fn a_log_level_enables_no_unnamed_library() {
        let events = || {
            tracing::warn!(target: "h2::proto::ping_pong", "recv PING ack that we never sent");
            tracing::error!(target: "hyper::proto", "a peer can cause this");
            tracing::warn!(target: "hickory_net::udp", "a name server can cause this");
            tracing::warn!(target: "kube_client::client", "the body of a Secret");
            tracing::warn!(target: "a_library_of_tomorrow", "a peer can cause this");
            tracing::info!(target: "ingress_control", "library of ours");
            tracing::info!(target: "xdp_ingress::admin", "binary of ours");
        };
        for (directives, expect) in [
            ("info", &["library of ours", "binary of ours"][..]),
            ("debug", &["library of ours", "binary of ours"]),
            ("warn", &[]),
            ("", &[]),
            ("off", &[]),
            ("info, xdp_ingress=warn", &["library of ours"]),
            ("warn,h2=warn", &["recv PING ack that we never sent"]),
        ] {
            let written = written(directives, events);
            let messages: Vec<_> = written.lines().map(|line| line.split_once(": ").expect("a target").1).collect();
            assert_eq!(messages, expect, "{directives}");
        }
        assert!(filter("info,xdp_ingress=loud").is_err());
    }

    #[test]
    fn logged_values_are_escaped() {
        let forged =
            "x\n2026-11-23T00:00:00Z ERROR xdp_ingress::admin: FORGED\r\u{1b}[2J\u{9b}1m\u{85}\u{2028}\u{7f}\0\té";
        let events = || {
            let span = tracing::info_span!(target: "xdp_ingress", "change", cause = %forged);
            let _entered = span.enter();
            tracing::info!(target: "xdp_ingress", shown = %forged, debugged = ?forged, plain = forged, "says {forged}");
        };
        let written = written("info", events);
        let escaped =
            r"x\n2026-11-23T00:00:00Z ERROR xdp_ingress::admin: FORGED\r\u{1b}[2J\u{9b}1m\u{85}\u{2028}\u{7f}\u{0}\té";
        assert_eq!(written.matches(escaped).count(), 3, "{written}");
        assert_eq!(written.matches("FORGED").count(), 5, "{written}");
        assert!(!written.trim_end_matches('\n').chars().any(char::is_control), "{written:?}");
    }
}
