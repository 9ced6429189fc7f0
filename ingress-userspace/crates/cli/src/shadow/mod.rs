//! `shadow`: replays an access log of ingress-nginx against the route table that this controller would have. No request is
//! sent.
//!
//! ```text
//! directory or cluster ──> check::Installation ──> translate ──> route table ─┐
//! log ──> line (LineFormat) ──> LogLine ──────────────────────────────────────┴─> compare ──> ShadowReport ──> render
//! ```

mod arguments;
mod compare;
mod line;
mod render;
#[cfg(test)]
mod tests;
mod unread;
mod upstreams;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    path::Path,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use ingress_control::{
    Origin,
    boolean::boolean,
    change::{Object, ObjectName},
    translate::translate,
};
use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        networking::v1::{Ingress, IngressBackend, ServiceBackendPort},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

pub use arguments::ShadowArgs;
use compare::Comparison;
pub use compare::{Difference, ShadowReport};
use line::{LineFormat, LogLine, Unreadable};

use crate::{
    FINDINGS,
    check::{Installation, Objects},
    palette::Palette,
    print::{self, Format},
};

/// Help text behind the options.
pub const HELP: &str = "\
The command reads the log and the objects that ingress-nginx serves. It sends no request and changes nothing. For each
line it finds the rule that would serve the request here, applies its filters, and compares the answer: the Service, or the
status if no pod answered. Authentication, limits and the health of pods are not in a log; they are taken for the same. No
Secret is read, so lines of rules that need one are undecided.

The default format of ingress-nginx has no `$host`, which this command needs. `--print-format` prints a patch.

Examples:
  xdp-ingress shadow --print-format > patch.yaml
  kubectl -n ingress-nginx patch configmap ingress-nginx-controller --patch-file patch.yaml
  kubectl -n ingress-nginx logs deploy/ingress-nginx-controller > access.log
  xdp-ingress shadow --log access.log -A
  zcat access.log.*.gz | xdp-ingress shadow --log - --from-dir ./manifests -o json

Exit codes: 0 all decided lines are answered alike; 1 failure, with the reason on standard error, as if no line can be decided;
2 wrong usage; 3 requests differ.";

/// Default format of ingress-nginx.
const DEFAULT_FORMAT: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id";
/// Addition to the default format, so that all parts that decide are there. ingress-nginx redirects by this scheme, which
/// a trusted proxy in front of it may have named.
const ADDED: &str = " $pass_access_scheme \"$host\"";
/// Setting with the format.
const FORMAT_KEY: &str = "log-format-upstream";
/// Setting by which values are logged as clients sent them.
const UNESCAPED_KEY: &str = "log-format-escape-none";
/// Maximum length of a line in bytes; longer ones are not read to their end.
const LINE_MAX: usize = 64 * 1024;

/// Runs `shadow`.
///
/// # Errors
/// Fails if the objects or the log cannot be read, the format lacks a part, or standard output cannot be written.
pub fn shadow(args: &ShadowArgs) -> Result<ExitCode> {
    if args.print_format {
        print::text(&patch()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut installation = Installation::read(&args.installation)?;
    if installation.is_directory {
        assume_services(&mut installation.objects);
    }
    let format = format(args.format.as_deref(), &installation)?;
    let log = args.log.as_deref().unwrap_or(Path::new("-"));
    let report = match log.to_str() {
        Some("-") => replay(&installation, &format, io::stdin().lock()),
        _ => File::open(log)
            .map_err(anyhow::Error::from)
            .and_then(|file| replay(&installation, &format, BufReader::with_capacity(1 << 20, file))),
    };
    let report = report.with_context(|| format!("cannot read the log `{}`", log.display()))?;
    let text = match args.output {
        Format::Table => render::table(&report, false, Palette::of_stdout(args.no_color)),
        Format::Wide => render::table(&report, true, Palette::of_stdout(args.no_color)),
        Format::Json => format!("{:#}\n", serde_json::to_value(&report)?),
        Format::Yaml => serde_saphyr::to_string(&report)?,
    };
    print::text(&text)?;
    has_decided(&report)?;
    Ok(if report.different > 0 { FINDINGS.into() } else { ExitCode::SUCCESS })
}

/// Checks that the report says something about the log.
fn has_decided(report: &ShadowReport) -> Result<()> {
    ensure!(report.lines > 0, "the log has no line");
    let most = report.undecided.iter().max_by_key(|(_, count)| **count);
    let (reason, count) = most.map_or(("", 0), |(reason, count)| (reason.as_str(), *count));
    ensure!(
        report.alike + report.different > 0,
        "no line could be decided; does `--format` fit the log? For {count} of {} lines: {reason}",
        report.lines
    );
    Ok(())
}

/// Returns the patch for the ConfigMap of ingress-nginx.
fn patch() -> Result<String> {
    let data = BTreeMap::from([(FORMAT_KEY, format!("{DEFAULT_FORMAT}{ADDED}"))]);
    let comment = "\
# The default format of ingress-nginx with the scheme and the host. Add it, and log for some time:
#   kubectl -n ingress-nginx patch configmap ingress-nginx-controller --patch-file FILE
";
    Ok(comment.to_owned() + &serde_saphyr::to_string(&BTreeMap::from([("data", data)]))?)
}

/// Returns the format that the options name, or the installation has.
fn format(named: Option<&str>, Installation { objects, controller, .. }: &Installation) -> Result<LineFormat> {
    let settings = controller.settings().and_then(|name| objects.cluster.config_maps.get(&name));
    let data = settings.and_then(|stored| stored.object.data.as_ref());
    let setting = |key: &str| data.and_then(|data| data.get(key)).map(String::as_str);
    ensure!(
        setting(UNESCAPED_KEY).and_then(|value| boolean(value.trim())) != Some(true),
        "with the setting `{UNESCAPED_KEY}`, a quotation mark in a request shifts the values behind it; remove the setting, \
         and log again"
    );
    let installed = setting(FORMAT_KEY);
    let (text, origin) = match (named, installed) {
        (Some(named), _) => (named, "of `--format`"),
        (None, Some(installed)) => (installed, "of the setting `log-format-upstream`"),
        (None, None) => (DEFAULT_FORMAT, "that ingress-nginx has by default"),
    };
    LineFormat::parse(text.trim_end()).with_context(|| format!("the format {origin} is not sufficient"))
}

/// Adds the Services that Ingresses name and the directory lacks, since a log tells only of those that exist.
fn assume_services(objects: &mut Objects) {
    let mut ports = BTreeMap::<ObjectName, BTreeSet<(Option<String>, i32)>>::new();
    for (name, stored) in objects.cluster.ingresses.iter() {
        for service in backends(&stored.object).filter_map(|backend| backend.service.as_ref()) {
            let name = ObjectName::new(&name.namespace, &service.name);
            if objects.cluster.services.get(&name).is_some() {
                continue;
            }
            let ports = ports.entry(name).or_default();
            match &service.port {
                // A port with a name needs some number.
                Some(ServiceBackendPort { name: Some(port), .. }) => {
                    let number = 1 + i32::try_from(ports.len()).unwrap_or_default();
                    if !ports.iter().any(|(name, _)| name.as_ref() == Some(port)) {
                        ports.insert((Some(port.clone()), number));
                    }
                }
                Some(ServiceBackendPort { number: Some(number), .. }) => drop(ports.insert((None, *number))),
                _ => {}
            }
        }
    }
    for (name, ports) in ports {
        let port = |(name, port): (Option<String>, i32)| ServicePort { name, port, ..ServicePort::default() };
        let spec = ServiceSpec { ports: Some(ports.into_iter().map(port).collect()), ..ServiceSpec::default() };
        let metadata = ObjectMeta {
            namespace: Some(name.namespace.to_string()),
            name: Some(name.name.to_string()),
            ..ObjectMeta::default()
        };
        let service = Service { metadata, spec: Some(spec), status: None };
        objects.add(Object::Service(Arc::new(service.into())), &Origin::Api);
    }
}

fn backends(ingress: &Ingress) -> impl Iterator<Item = &IngressBackend> {
    let spec = ingress.spec.as_ref();
    let rules = spec.and_then(|spec| spec.rules.as_deref()).unwrap_or_default();
    let paths = rules.iter().filter_map(|rule| rule.http.as_ref()).flat_map(|http| &http.paths);
    paths.map(|path| &path.backend).chain(spec.and_then(|spec| spec.default_backend.as_ref()))
}

/// Replays all lines of `log`.
fn replay(installation: &Installation, format: &LineFormat, mut log: impl BufRead) -> Result<ShadowReport> {
    let Installation { objects, controller, is_directory, .. } = installation;
    let translation = translate(&objects.cluster, &controller.options(objects, *is_directory));
    let mut comparison = Comparison::new(&translation, installation, format);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let limit = u64::try_from(LINE_MAX).unwrap_or(u64::MAX);
        if (&mut log).take(limit).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        } else if bytes.len() == LINE_MAX {
            log.skip_until(b'\n')?;
        }
        let line = if bytes.last() == Some(&b'\r') { &bytes[..bytes.len() - 1] } else { &*bytes };
        if line.is_empty() {
            continue;
        }
        comparison.add(read(format, line));
    }
    Ok(comparison.finish())
}

/// Reads a line. nginx escapes all bytes but those of ASCII, so others are no value of a request.
fn read<'l>(format: &LineFormat, line: &'l [u8]) -> Result<LogLine<'l>, Unreadable> {
    format.read(std::str::from_utf8(line).map_err(|_invalid| Unreadable::Form)?)
}
