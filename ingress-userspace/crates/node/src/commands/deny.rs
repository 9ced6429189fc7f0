//! `xdp-ingress deny`: shows the deny list of this node with its dropped traffic, and edits the operator's denials,
//! through the pinned maps. No process is contacted.

use std::{collections::BTreeMap, net::IpAddr, process::ExitCode, time::Duration};

use anyhow::anyhow;
use ingress_cli::{
    FINDINGS,
    counters::OTHERS,
    print,
    table::{self, TableColumn},
};
use ingress_common::{
    Traffic,
    steer::{DENY_OTHERS, DenyRule},
};
use ingress_datapath::{Denial, DenialOrigin, DenialOutcome, DenyConfig, DenyEditor, DenyEntry, Pinned, Removed};
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::commands::arguments::{DenyAddArgs, DenyCommand, DenyRemoveArgs, DenyTestArgs, PinArgs, ShowArgs};

/// A row of the list.
#[derive(Debug, PartialEq, Eq)]
struct DenyRow {
    /// A prefix, or [`OTHERS`].
    prefix: String,
    effect: Effect,
    /// `None` if the prefix has no counter of its own.
    dropped: Option<Traffic>,
    /// Whether the settings list the prefix.
    is_configured: bool,
    denials: Vec<Denial>,
}

/// Effect of an entry on packets from its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Deny(DenyRule),
    Pass,
    /// No effect: other entries decide.
    Nothing,
}

/// Origin shown for entries of `block-cidrs`.
const SETTINGS: &str = "settings";

/// Writes the requested output to standard output.
///
/// # Errors
/// Fails if nothing is pinned, the pins cannot be read or changed, a denial is not possible, or standard output cannot
/// be written.
pub(crate) fn run(command: DenyCommand) -> anyhow::Result<ExitCode> {
    let answer = match command {
        DenyCommand::List(ShowArgs { output, pins: PinArgs { bpffs } }) => {
            let read = || {
                let pinned = Pinned::open(&bpffs)?;
                let maps = pinned.maps();
                Ok(rows(&maps.deny_entries()?, &maps.deny_hits()?, &maps.deny_config()?, &maps.denials()?))
            };
            print::show(&output, read, |rows, style| style.render(&json(rows), || table(rows)))?;
            return Ok(ExitCode::SUCCESS);
        }
        DenyCommand::Test(DenyTestArgs { address, exit_code, pins: PinArgs { bpffs } }) => {
            let entries = Pinned::open(&bpffs)?.maps().deny_entries()?;
            print::text(&(verdict(&entries, address) + "\n"))?;
            let is_denied = DenyEntry::deciding(&entries, address).is_some_and(|entry| entry.rule.is_some());
            return Ok(if exit_code && is_denied { FINDINGS.into() } else { ExitCode::SUCCESS });
        }
        DenyCommand::Add(DenyAddArgs { network, lasts, reason, pins: PinArgs { bpffs } }) => {
            let denial = Denial { network: network.trunc(), origin: DenialOrigin::Operator, lasts, reason };
            added(&denial, DenyEditor::open(&bpffs)?.add(&denial)?)? + "\n"
        }
        DenyCommand::Remove(DenyRemoveArgs { network, pins: PinArgs { bpffs } }) => {
            removed(&DenyEditor::open(&bpffs)?.remove(network)?)? + "\n"
        }
    };
    print::text(&answer)?;
    Ok(ExitCode::SUCCESS)
}

fn rows(entries: &[DenyEntry], hits: &[Traffic], config: &DenyConfig, denials: &[Denial]) -> Vec<DenyRow> {
    let dropped = |rule: DenyRule| hits.get(rule as usize).copied().unwrap_or_default();
    let mut by_network = BTreeMap::<IpNet, Vec<Denial>>::new();
    for denial in denials {
        by_network.entry(denial.network).or_default().push(*denial);
    }
    let mut rows: Vec<_> = Vec::with_capacity(entries.len());
    for &DenyEntry { prefix, rule } in entries {
        let row = DenyRow {
            prefix: prefix.to_string(),
            effect: rule.map_or(Effect::Pass, Effect::Deny),
            dropped: rule.filter(|rule| *rule != DENY_OTHERS).map(dropped),
            is_configured: rule.is_some() && config.denies(prefix),
            denials: rule.and_then(|_| by_network.remove(&prefix)).unwrap_or_default(),
        };
        rows.push((prefix, row));
    }
    for (network, denials) in by_network {
        let prefix = network.to_string();
        rows.push((network, DenyRow { prefix, effect: Effect::Nothing, dropped: None, is_configured: false, denials }));
    }
    rows.sort_by_key(|(prefix, _)| *prefix);
    // Shown once in use, and kept while its counter is not zero, because its drops are part of the totals.
    let others = DenyRow {
        prefix: OTHERS.to_owned(),
        effect: Effect::Deny(DENY_OTHERS),
        dropped: Some(dropped(DENY_OTHERS)),
        is_configured: false,
        denials: Vec::new(),
    };
    let is_used =
        entries.iter().any(|entry| entry.rule == Some(DENY_OTHERS)) || others.dropped != Some(Traffic::default());
    rows.into_iter().map(|(_, row)| row).chain(is_used.then_some(others)).collect()
}

fn table(rows: &[DenyRow]) -> String {
    table::table(COLUMNS, &rows.iter().map(DenyRow::cells).collect::<Vec<_>>())
}

const COLUMNS: [TableColumn; 7] = [
    TableColumn::Words("PREFIX"),
    TableColumn::Numbers("RULE", 5),
    TableColumn::Numbers("PACKETS", 12),
    TableColumn::Numbers("BYTES", 15),
    TableColumn::Words("ORIGIN"),
    TableColumn::Numbers("LEFT", 6),
    TableColumn::Words("REASON"),
];

fn json(rows: &[DenyRow]) -> Value {
    let origin = |Denial { network: _, origin, lasts, reason }: &Denial| {
        json!({
            "origin": origin.as_str(), "seconds_left": lasts.map(|lasts| lasts.as_secs()), "reason": reason.to_string(),
        })
    };
    let row = |row: &DenyRow| {
        let DenyRow { prefix, effect, dropped, is_configured, denials } = row;
        let (effect, rule) = match effect {
            Effect::Deny(rule) => ("deny", Some(rule)),
            Effect::Pass => ("pass", None),
            Effect::Nothing => ("none", None),
        };
        let (packets, bytes) = (dropped.map(|dropped| dropped.packets), dropped.map(|dropped| dropped.bytes));
        let settings = is_configured.then(|| json!({ "origin": SETTINGS, "seconds_left": null, "reason": "" }));
        let origins: Value = settings.into_iter().chain(denials.iter().map(origin)).collect();
        json!({
            "prefix": prefix, "effect": effect, "rule": rule, "packets": packets, "bytes": bytes, "origins": origins,
        })
    };
    rows.iter().map(row).collect()
}

impl DenyRow {
    /// Returns the cells in the order of [`COLUMNS`].
    fn cells(&self) -> [String; COLUMNS.len()] {
        let Self { prefix, effect, dropped, is_configured, denials } = self;
        let rule = match effect {
            Effect::Deny(rule) => rule.to_string(),
            Effect::Pass => "pass".to_owned(),
            Effect::Nothing => "none".to_owned(),
        };
        let or_dash = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        let packets = or_dash(dropped.map(|dropped| dropped.packets.to_string()));
        let bytes = or_dash(dropped.map(|dropped| dropped.bytes.to_string()));
        let origins = is_configured.then_some(SETTINGS).into_iter();
        let origins: Vec<_> = origins.chain(denials.iter().map(|denial| denial.origin.as_str())).collect();
        // The prefix is admitted again when the last of them ends.
        let ends = !is_configured && !denials.is_empty() && denials.iter().all(|denial| denial.lasts.is_some());
        let left = denials.iter().filter_map(|denial| denial.lasts).max().filter(|_| ends);
        let reasons: Vec<_> = denials.iter().map(|denial| denial.reason.to_string()).collect();
        let reasons = reasons.iter().filter(|reason| !reason.is_empty()).map(String::as_str).collect::<Vec<_>>();
        let origin = or_dash(Some(origins.join("+")));
        [prefix.clone(), rule, packets, bytes, origin, or_dash(left.map(time)), reasons.join("; ")]
    }
}

/// Formats a duration in its two largest units, rounded down.
fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0 => "ended".to_owned(),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Describes the result of adding a denial, if it is in force.
fn added(denial: &Denial, entered: DenialOutcome) -> anyhow::Result<String> {
    let Denial { network, origin: _, lasts, reason: _ } = denial;
    match entered {
        DenialOutcome::Enforced => {
            let lasts = lasts.map_or_else(|| "until it is removed".to_owned(), |lasts| format!("for {}", time(lasts)));
            Ok(format!("denied {network} {lasts}"))
        }
        DenialOutcome::LeftOut => Err(anyhow!(
            "`{network}` is recorded, but the deny list is full, and its packets pass until there is room; name larger \
             networks in `block-cidrs`, or remove denials"
        )),
        DenialOutcome::Rejected(why) => Err(why.into()),
    }
}

/// Describes the removed entries, if there were any.
fn removed(removed: &Removed) -> anyhow::Result<String> {
    let Removed { network, origins, is_configured, still_denied_by } = removed;
    match (&origins[..], is_configured, still_denied_by) {
        ([], true, _) => Err(anyhow!(
            "`{network}` is denied by `block-cidrs` of the settings; remove it from the ConfigMap, and every node \
             admits it"
        )),
        ([], false, Some(by)) => {
            Err(anyhow!("the list has no denial of `{network}`, but `{by}` contains it; remove that one"))
        }
        ([], false, None) => {
            Err(anyhow!("the list has no denial of `{network}`; `xdp-ingress deny list` shows all denials"))
        }
        (origins, is_configured, still_denied_by) => {
            let origins: Vec<_> = origins.iter().map(|origin| origin.as_str()).collect();
            let rest = match still_denied_by {
                _ if *is_configured => "; `block-cidrs` of the settings still denies it".to_owned(),
                Some(by) => format!("; `{by}` still denies it"),
                None => String::new(),
            };
            Ok(format!("removed {network} ({}){rest}", origins.join(", ")))
        }
    }
}

fn verdict(entries: &[DenyEntry], address: IpAddr) -> String {
    match DenyEntry::deciding(entries, address) {
        Some(DenyEntry { prefix, rule: Some(rule) }) => format!("denied by {prefix} (rule {rule})"),
        Some(DenyEntry { prefix, rule: None }) => {
            format!("passes by {prefix}, a network of trusted proxies")
        }
        None => "passes; no entry of the deny list contains it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ingress_common::DenialReason;
    use ingress_datapath::Rejection;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a network")
    }

    fn entry(prefix: &str, rule: Option<DenyRule>) -> DenyEntry {
        DenyEntry { prefix: net(prefix), rule }
    }

    fn denial(network: &str, origin: DenialOrigin, lasts: Option<u64>, reason: &str) -> Denial {
        let reason = DenialReason::new(reason).expect("a reason");
        Denial { network: net(network), origin, lasts: lasts.map(Duration::from_secs), reason }
    }

    fn list() -> [DenyEntry; 5] {
        [
            entry("10.0.0.0/8", Some(2)),
            entry("10.1.0.0/16", None),
            entry("192.0.2.7/32", Some(3)),
            entry("2001:db8::/32", Some(1)),
            entry("2001:db8:1::/48", Some(DENY_OTHERS)),
        ]
    }

    fn denials() -> [Denial; 5] {
        [
            denial("10.0.0.0/8", DenialOrigin::Operator, Some(60), "ticket 4711"),
            denial("10.1.2.3/32", DenialOrigin::Escalation, Some(59), "refused 3 times in 60 s: limit"),
            denial("192.0.2.7/32", DenialOrigin::Operator, Some(3_600), ""),
            denial("192.0.2.7/32", DenialOrigin::Escalation, Some(86_399), "refused"),
            denial("2001:db8:1::/48", DenialOrigin::Operator, None, ""),
        ]
    }

    fn config() -> DenyConfig {
        DenyConfig::new(["10.0.0.0/8", "2001:db8::/32"].map(net), ["10.1.0.0/16"].map(net))
    }

    const HITS: [Traffic; 4] = [
        Traffic { packets: 1, bytes: 60 },
        Traffic { packets: 0, bytes: 0 },
        Traffic { packets: 12, bytes: 1_000 },
        Traffic { packets: 7, bytes: 420 },
    ];

    #[test]
    fn each_prefix_and_the_shared_rule_have_a_line() {
        let expect = "\
PREFIX            RULE       PACKETS            BYTES  ORIGIN                 LEFT  REASON
10.0.0.0/8           2            12             1000  settings+operator         -  ticket 4711
10.1.0.0/16       pass             -                -  -                         -
10.1.2.3/32       none             -                -  escalation              59s  refused 3 times in 60 s: limit
192.0.2.7/32         3             7              420  operator+escalation  23h59m  refused
2001:db8::/32        1             0                0  settings                  -
2001:db8:1::/48      0             -                -  operator                  -
(others)             0             1               60  -                         -
";
        assert_eq!(table(&rows(&list(), &HITS, &config(), &denials())), expect);
        assert!(rows(&[], &[], &DenyConfig::default(), &[]).is_empty());
        assert_eq!(rows(&[], &HITS, &DenyConfig::default(), &[]).len(), 1, "what was shared goes on to be shown");
    }

    #[test]
    fn json_holds_numbers_or_null() {
        let json = json(&rows(&list()[..2], &HITS[1..], &config(), &denials()[..2]));
        let settings = json!({ "origin": "settings", "seconds_left": null, "reason": "" });
        let operator = json!({ "origin": "operator", "seconds_left": 60, "reason": "ticket 4711" });
        let reason = "refused 3 times in 60 s: limit";
        let expect = json!([
            {
                "prefix": "10.0.0.0/8", "effect": "deny", "rule": 2, "packets": 7, "bytes": 420,
                "origins": [settings, operator],
            },
            {
                "prefix": "10.1.0.0/16", "effect": "pass", "rule": null, "packets": null, "bytes": null, "origins": [],
            },
            {
                "prefix": "10.1.2.3/32", "effect": "none", "rule": null, "packets": null, "bytes": null,
                "origins": [{ "origin": "escalation", "seconds_left": 59, "reason": reason }],
            },
        ]);
        assert_eq!(json, expect);
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, expect) in [
            (0, "ended"),
            (1, "1s"),
            (59, "59s"),
            (60, "1m00s"),
            (3_599, "59m59s"),
            (3_600, "1h00m"),
            (86_399, "23h59m"),
            (86_400, "1d00h"),
            (31_536_000, "365d00h"),
        ] {
            assert_eq!(time(Duration::from_secs(seconds)), expect);
        }
    }

    #[test]
    fn changes_of_the_deny_list_report_their_result() {
        let asked = denial("192.0.2.0/24", DenialOrigin::Operator, Some(3_600), "");
        let said = |entered| added(&asked, entered).map_err(|error| error.to_string());
        assert_eq!(said(DenialOutcome::Enforced), Ok("denied 192.0.2.0/24 for 1h00m".to_owned()));
        let forever = added(&Denial { lasts: None, ..asked }, DenialOutcome::Enforced).expect("it holds");
        assert_eq!(forever, "denied 192.0.2.0/24 until it is removed");
        assert!(said(DenialOutcome::LeftOut).is_err_and(|error| error.contains("the deny list is full")));
        let why = Rejection::Trusted { network: net("192.0.2.0/24"), by: net("192.0.0.0/16") };
        assert!(
            said(DenialOutcome::Rejected(why))
                .is_err_and(|error| error.contains("`192.0.2.0/24` is in `192.0.0.0/16`"))
        );

        let both = vec![DenialOrigin::Operator, DenialOrigin::Escalation];
        for (origins, is_configured, by, expect) in [
            (both, false, None, Ok("removed 192.0.2.0/24 (operator, escalation)")),
            (
                vec![DenialOrigin::Operator],
                false,
                Some("192.0.0.0/16"),
                Ok("(operator); `192.0.0.0/16` still denies it"),
            ),
            (
                vec![DenialOrigin::Operator],
                true,
                Some("192.0.2.0/24"),
                Ok("`block-cidrs` of the settings still denies it"),
            ),
            (vec![], true, Some("192.0.2.0/24"), Err("remove it from the ConfigMap")),
            (vec![], false, Some("192.0.0.0/16"), Err("`192.0.0.0/16` contains it")),
            (vec![], false, None, Err("the list has no denial of `192.0.2.0/24`")),
        ] {
            let network = net("192.0.2.0/24");
            let result = removed(&Removed { network, origins, is_configured, still_denied_by: by.map(net) });
            match (result, expect) {
                (Ok(said), Ok(expect)) => assert!(said.contains(expect), "{said}"),
                (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
                (result, expect) => panic!("{result:?}, not {expect:?}"),
            }
        }
    }

    #[test]
    fn the_longest_prefix_decides() {
        for (address, expect) in [
            ("10.2.3.4", "denied by 10.0.0.0/8 (rule 2)"),
            ("::ffff:10.2.3.4", "denied by 10.0.0.0/8 (rule 2)"),
            ("10.1.3.4", "passes by 10.1.0.0/16, a network of trusted proxies"),
            ("192.0.2.1", "passes; no entry of the deny list contains it"),
            ("2001:db8:1::1", "denied by 2001:db8:1::/48 (rule 0)"),
            ("2001:db8:2::1", "denied by 2001:db8::/32 (rule 1)"),
        ] {
            assert_eq!(verdict(&list(), address.parse().expect("an address")), expect, "{address}");
        }
    }
}
