//! Arguments of ingress-nginx, so that `run` starts with those that its chart renders. The verdicts on its flags are in
//! `ingress_control::migration`; a flag that has no effect here is accepted, hidden from the help, and reported.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command, builder::ValueParser, parser::ValueSource};
use ingress_cli::options::boolean;
use ingress_control::migration::{Flag, Kind, Surface, Takes, Verdict, foreign_flags};

/// The program in the first argument of the containers of ingress-nginx.
const PROGRAM: &str = "/nginx-ingress-controller";

/// Adds what `run` accepts for the sake of a migration.
pub(crate) fn accept(run: Command) -> Command {
    let run = run.alias(PROGRAM).version(env!("CARGO_PKG_VERSION"));
    foreign_flags().iter().fold(run, |run, flag| run.arg(argument(flag)))
}

/// Leaves out flags of ingress-nginx with an empty value, which are as if not set there.
pub(crate) fn without_empty(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.filter(|argument| {
        let name = argument.to_str().and_then(|text| text.strip_prefix("--")?.strip_suffix('='));
        name.is_none_or(|name| !Surface::Flags.names().any(|known| known == name))
    })
}

/// Returns the flags without effect that `matches` of `run` have.
pub(crate) fn given(matches: &ArgMatches) -> Vec<&'static Flag> {
    let is_given = |flag: &&Flag| matches.value_source(flag.name) == Some(ValueSource::CommandLine);
    foreign_flags().iter().filter(is_given).collect()
}

/// Writes a line of the log for each of `flags`, without values, which may be secret.
pub(crate) fn report(flags: &[&'static Flag]) {
    for Flag { name, verdict: Verdict { kind, text, instead }, .. } in flags {
        match kind {
            Kind::Full | Kind::NoEffect => {
                tracing::info!(flag = name, reason = text, instead, "a flag of ingress-nginx has no effect here");
            }
            Kind::Differs | Kind::Refused => {
                tracing::warn!(flag = name, reason = text, instead, "a flag of ingress-nginx is not supported here");
            }
        }
    }
}

fn argument(flag: &'static Flag) -> Arg {
    // Repeated flags are no error for ingress-nginx.
    let argument = Arg::new(flag.name).long(flag.name).action(ArgAction::Append).hide(true);
    let argument = match (flag.name.chars().next(), flag.name.len()) {
        (Some(short), 1) => argument.short(short),
        _ => argument,
    };
    match flag.takes {
        Takes::Switch => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(ValueParser::new(boolean)),
        Takes::Text => argument.num_args(1).allow_hyphen_values(true),
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;
    use crate::config::{
        cli::{Cli, Command as Subcommand, RunArgs, command},
        settings::RunSettings,
    };

    /// The arguments of the chart, with its default values, and with a value for each flag.
    const RENDERED: [&str; 2] =
        [include_str!("ingress-nginx/default.txt"), include_str!("ingress-nginx/everything.txt")];

    fn parse(arguments: &[&str]) -> Result<(RunArgs, Vec<&'static str>), clap::Error> {
        let arguments = ["xdp-ingress"].iter().chain(arguments).map(OsString::from);
        let matches = command().try_get_matches_from(without_empty(arguments))?;
        let given = given(matches.subcommand_matches("run").expect("run")).iter().map(|flag| flag.name).collect();
        match Cli::from_arg_matches(&matches)?.command {
            Subcommand::Run(args) => Ok((*args, given)),
            other => panic!("{other:?}"),
        }
    }

    fn rendered(text: &str) -> Vec<String> {
        text.lines().map(|line| line.replace("$(POD_NAMESPACE)", "ingress-nginx")).collect()
    }

    #[test]
    fn arguments_of_the_chart_start_us() {
        for text in RENDERED {
            let arguments = rendered(text);
            let (args, _) = parse(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).expect("accepted");
            assert_eq!(args.source.controller_class, "k8s.io/ingress-nginx");
            RunSettings::resolve(args).expect("no contradiction");
        }
    }

    #[test]
    fn everything_has_each_flag_of_ingress_nginx() {
        let lines = rendered(RENDERED[1]);
        let name = |line: &String| line.trim_start_matches('-').split('=').next().map(str::to_owned);
        let mut names: Vec<_> = lines.iter().skip(1).filter_map(name).collect();
        names.push("version".into());
        names.sort();
        assert_eq!(names, Surface::Flags.names().collect::<Vec<_>>());
    }

    #[test]
    fn flags_without_effect_are_reported() {
        let (_, given) = parse(&["run", "--profiling=false", "-v", "3", "--sync-period", "1m"]).expect("accepted");
        assert_eq!(given, ["profiling", "sync-period", "v"]);
        assert_eq!(parse(&["run"]).expect("accepted").1, [""; 0]);
        let (_, given) = parse(&["run", "--v=2", "--v=3", "--profiling", "--watch-namespace="]).expect("accepted");
        assert_eq!(given, ["profiling", "v"]);
        for wrong in [&["run", "--profiling=on"][..], &["run", "--profilingx"], &["run", "--sync-period"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn switches_take_booleans_of_go() {
        for (word, expect) in [
            ("1", true),
            ("t", true),
            ("T", true),
            ("true", true),
            ("True", true),
            ("TRUE", true),
            ("0", false),
            ("f", false),
            ("F", false),
            ("false", false),
            ("False", false),
            ("FALSE", false),
        ] {
            let typed = |flag: &str| format!("--{flag}={word}");
            let flags = ["ingress-class-by-name", "watch-ingress-without-class", "disable-catch-all"].map(typed);
            let more = ["report-node-internal-ip-address", "disable-leader-election", "update-status"].map(typed);
            let line: Vec<_> = ["run"].into_iter().chain(flags.iter().chain(&more).map(String::as_str)).collect();
            let (args, _) = parse(&line).expect("accepted");
            let found = [
                args.source.ingress_class_by_name,
                args.source.watch_ingress_without_class,
                args.routing.disable_catch_all,
                args.status.report_node_internal_ip_address,
                args.status.disable_leader_election,
                args.status.update_status,
            ];
            assert_eq!(found, [expect; 6], "{word}");
        }
        assert!(parse(&["run", "--disable-catch-all=yes"]).is_err());
    }
}
