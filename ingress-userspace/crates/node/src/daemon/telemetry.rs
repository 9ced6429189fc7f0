//! Sets up logging: the filter and the line format. Log statements are in the modules.

use std::{
    error::Error,
    fmt::{self, Write},
    io::IsTerminal,
};

use anyhow::Context;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    field::RecordFields,
    filter::{LevelFilter, ParseError},
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Json, JsonFields, Writer},
        time::FormatTime,
    },
    registry::LookupSpan,
};

use crate::config::cli::LogFormatArg;

/// Targets of this project: its crates and the kernel programs.
const OWN: [&str; 8] = [
    "ingress_control",
    "ingress_datapath",
    "ingress_model",
    "ingress_node",
    "ingress_panics",
    "ingress_proxy",
    "ingress_quic",
    "ebpf",
];

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
        LogFormatArg::Text => builder.fmt_fields(OneLine).try_init(),
        LogFormatArg::Json => builder.fmt_fields(JsonFields::new()).event_format(json()).try_init(),
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

/// Most bytes of an error's causes in a line. The log of the kernel's verifier is one, and ends with the reason.
const CAUSES_MAX: usize = 1000;

/// Formats fields as a single line of text. Values come from objects and clients, so line breaks and terminal escapes are
/// escaped. Errors are written with their causes, which `tracing_subscriber` leaves out.
struct OneLine;

impl<'writer> FormatFields<'writer> for OneLine {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = Line { writer: &mut writer, has_fields: false, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

/// Fields of a line, separated by spaces.
struct Line<'l, 'w> {
    writer: &'l mut Writer<'w>,
    has_fields: bool,
    result: fmt::Result,
}

impl Line<'_, '_> {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        if std::mem::replace(&mut self.has_fields, true) {
            self.writer.write_char(' ')?;
        }
        if field.name() != "message" {
            write!(self.writer, "{}=", field.name())?;
        }
        Escaped(&mut *self.writer).write_fmt(value)
    }
}

impl Visit for Line<'_, '_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = self.add(field, format_args!("{value:?}"));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        if self.result.is_ok() {
            self.result = self.add(field, format_args!("{value}{}", causes(value)));
        }
    }
}

/// Returns the format of lines in JSON, with an event's fields beside its level and target.
fn json() -> WithCauses<Format<Json>> {
    WithCauses(tracing_subscriber::fmt::format().json().flatten_event(true))
}

/// Events in JSON. Errors have their causes, as in [`OneLine`].
struct WithCauses<F>(F);

impl<S, N, T> FormatEvent<S, N> for WithCauses<Format<Json, T>>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
    T: FormatTime,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut errors = Errors::default();
        event.record(&mut errors);
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        for (short, long) in errors.0 {
            // Fields of the event come before those of spans, and quotation marks within a text are escaped, so that the
            // first place is the field itself.
            line = line.replacen(&short, &long, 1);
        }
        writer.write_str(&line)
    }
}

/// Fields of an event that are errors with causes, in JSON: without the causes, and with them.
#[derive(Default)]
struct Errors(Vec<(String, String)>);

impl Visit for Errors {
    fn record_debug(&mut self, _field: &Field, _value: &dyn fmt::Debug) {}

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let causes = causes(value);
        if !causes.is_empty() {
            let entry = |text: String| format!("\"{}\":{}", field.name(), serde_json::Value::from(text));
            self.0.push((entry(value.to_string()), entry(format!("{value}{causes}"))));
        }
    }
}

/// Returns the causes of an error, each after a colon. Causes that the text before them names are left out, and so is the
/// beginning of a long text.
fn causes(error: &(dyn Error + 'static)) -> String {
    let (mut causes, mut named) = (String::new(), error.to_string());
    for cause in std::iter::successors(error.source(), |&error| error.source()) {
        let cause = cause.to_string();
        if !named.contains(&cause) {
            causes.push_str(": ");
            causes.push_str(&cause);
            named = cause;
        }
    }
    let start = causes.ceil_char_boundary(causes.len().saturating_sub(CAUSES_MAX));
    if start > 0 {
        causes.replace_range(..start, ": …");
    }
    causes
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
        fs, io,
        path::Path,
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
        tracing::subscriber::with_default(subscriber.fmt_fields(OneLine).finish(), events);
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
            tracing::info!(target: "ingress_node::admin", "node of ours");
        };
        for (directives, expect) in [
            ("info", &["library of ours", "node of ours"][..]),
            ("debug", &["library of ours", "node of ours"]),
            ("warn", &[]),
            ("", &[]),
            ("off", &[]),
            ("info, ingress_node=warn", &["library of ours"]),
            ("warn,h2=warn", &["recv PING ack that we never sent"]),
        ] {
            let written = written(directives, events);
            let messages: Vec<_> = written.lines().map(|line| line.split_once(": ").expect("a target").1).collect();
            assert_eq!(messages, expect, "{directives}");
        }
        assert!(filter("info,ingress_node=loud").is_err());
    }

    #[test]
    fn a_log_level_enables_each_crate_of_this_project_that_logs() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
        let logs = |name: &str| {
            let manifest = fs::read_to_string(crates.join(name).join("Cargo.toml")).expect("a manifest");
            let (dependencies, _) = manifest.split_once("[dev-dependencies]").unwrap_or((&manifest, ""));
            ["\ntracing.", "\ntracing ="].iter().any(|line| dependencies.contains(line))
        };
        let names = fs::read_dir(crates).expect("readable").map(|entry| entry.expect("an entry").file_name());
        let names = names.map(|name| name.into_string().expect("text")).filter(|name| logs(name));
        let loggers: Vec<_> = names.map(|name| format!("ingress_{}", name.replace('-', "_"))).collect();
        assert!(loggers.len() > 4, "{loggers:?}");
        assert!(loggers.iter().all(|target| OWN.contains(&target.as_str())), "{loggers:?}");
    }

    #[test]
    fn errors_are_logged_with_their_causes() {
        let refused = |log: &str| {
            let kernel = anyhow::anyhow!("{log}invalid argument\n").context("BPF_PROG_LOAD: invalid argument\n");
            kernel.context("cannot attach XDP to `eth0`")
        };
        let short = "cannot attach XDP to `eth0`: BPF_PROG_LOAD: invalid argument\\n";
        let long = format!("{}R1 is no pointer: ", "x".repeat(5000));
        for (log, expect) in [("", short), (&long, "R1 is no pointer: invalid argument\\n")] {
            let error = refused(log);
            let error: &(dyn Error + 'static) = error.as_ref();
            let written = written("info", || {
                tracing::warn!(target: "ingress_node", error, name = 1, "cannot attach");
            });
            assert!(written.contains("error=cannot attach XDP to `eth0`: "), "{written}");
            assert!(written.contains(expect) && written.trim_end().ends_with(" name=1"), "{written}");
            assert!(written.len() < CAUSES_MAX + 200, "{written}");
        }
    }

    #[test]
    fn errors_in_json_have_the_causes_of_those_in_text() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).fmt_fields(JsonFields::new());
        let forged = r#"","error":"cannot attach "XDP"""#;
        let [error, other] = ["cannot attach \"XDP\"", "cannot set"].map(|top| {
            let cause = anyhow::anyhow!("{}no \"memory\"\n", "x".repeat(if top == "cannot set" { 5000 } else { 0 }));
            cause.context(top)
        });
        let alone = io::Error::other("alone");
        tracing::subscriber::with_default(subscriber.event_format(json()).finish(), || {
            let span = tracing::info_span!("change", error = %"cannot attach \"XDP\"");
            let _entered = span.enter();
            let (error, other): (&(dyn Error + 'static), &(dyn Error + 'static)) = (error.as_ref(), other.as_ref());
            tracing::warn!(forged, error, other, alone = &alone as &dyn Error, count = 1, "cannot {forged}");
        });
        let written = String::from_utf8(lines.0.lock().expect("unpoisoned").clone()).expect("text");
        let line: serde_json::Value = serde_json::from_str(&written).expect("one line of JSON");
        assert_eq!(line["error"], "cannot attach \"XDP\": no \"memory\"\n", "{written}");
        let other = line["other"].as_str().expect("a text");
        assert!(other.starts_with("cannot set: …x") && other.ends_with("xno \"memory\"\n"), "{written}");
        assert!(other.len() < CAUSES_MAX + 50, "{written}");
        assert_eq!((&line["alone"], &line["count"]), (&"alone".into(), &1.into()), "{written}");
        assert_eq!((&line["forged"], &line["span"]["error"]), (&forged.into(), &"cannot attach \"XDP\"".into()));
        assert_eq!((&line["level"], &line["message"]), (&"WARN".into(), &format!("cannot {forged}").into()));
        assert!(line["timestamp"].is_string() && line["target"].is_string(), "{written}");
    }

    #[test]
    fn logged_values_are_escaped() {
        let forged =
            "x\n2026-11-23T00:00:00Z ERROR ingress_node::admin: FORGED\r\u{1b}[2J\u{9b}1m\u{85}\u{2028}\u{7f}\0\té";
        let events = || {
            let span = tracing::info_span!(target: "ingress_node", "change", cause = %forged);
            let _entered = span.enter();
            tracing::info!(target: "ingress_node", shown = %forged, debugged = ?forged, plain = forged, "says {forged}");
        };
        let written = written("info", events);
        let escaped =
            r"x\n2026-11-23T00:00:00Z ERROR ingress_node::admin: FORGED\r\u{1b}[2J\u{9b}1m\u{85}\u{2028}\u{7f}\u{0}\té";
        assert_eq!(written.matches(escaped).count(), 3, "{written}");
        assert_eq!(written.matches("FORGED").count(), 5, "{written}");
        assert!(!written.trim_end_matches('\n').chars().any(char::is_control), "{written:?}");
    }
}
