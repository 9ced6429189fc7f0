//! Output of `xdp-ingress top --output json`: counters as exact integers, in the form of the admin address, and rates.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::selection::{Selection, TopColumn};
use crate::{
    counters,
    print::per_second,
    reading::{Amounts, HostReading, Reading},
};

/// Returns the selected hosts, ordered by their rates if available, and the totals of the node.
pub fn top(reading: &Reading, rates: Option<&Amounts>, selection: &Selection) -> Value {
    let whole = reading.whole();
    let counted: BTreeMap<_, _> = whole.hosts.iter().map(|host| (host.id, host)).collect();
    let hosts = selection.of(rates.unwrap_or(&whole)).into_iter().filter_map(|selected| {
        let HostReading { name, id, counts } = counted.get(&selected.id)?;
        let mut host = counters::host(name, *id, &counts.l7, &counts.net);
        if let (Some(within), Value::Object(host)) = (rates.and_then(|rates| rates.within), &mut host) {
            let rate = |column: &TopColumn| {
                let rate = per_second(column.value(&selected.counts)?, within);
                column.is_rate().then(|| (column.name().to_owned(), Value::from(rate)))
            };
            host.insert(
                "per_second".to_owned(),
                Value::Object(TopColumn::ALL.iter().filter_map(rate).collect::<Map<_, _>>()),
            );
        }
        Some(host)
    });
    json!({
        "seconds": rates.and_then(|rates| rates.within).map(|within| within.as_secs_f64()),
        "hosts": hosts.collect::<Vec<_>>(),
        "totals": counters::totals(whole.totals.iter().map(|counted| (counted.name, counted.traffic))),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::reading::tests::{host, reading};

    const ALL: Selection = Selection { sort: TopColumn::Requests, reversed: false, filter: String::new(), limit: None };

    #[test]
    fn json_has_exact_counters_and_rates() {
        let start = Instant::now();
        let mut large = host("large.test", 7, 2);
        large.counts.l7.bytes_out = u64::MAX;
        let now = reading(start + Duration::from_millis(500), vec![host("(unattributed)", 0, 1), large]);

        let counters = top(&now, None, &ALL);
        assert_eq!(counters["seconds"], Value::Null);
        assert_eq!(counters["hosts"][0]["bytes_out"], u64::MAX, "to the last byte");
        assert_eq!(counters["hosts"][0]["requests"], json!({ "2xx": 20, "3xx": 4, "4xx": 6, "5xx": 8, "aborted": 2 }));
        assert_eq!(counters["hosts"][1]["host"], "(unattributed)");
        assert_eq!(counters["hosts"][1].get("per_second"), None);
        assert_eq!(counters["totals"]["accepted"], json!({ "packets": 300, "bytes": 27_000 }));

        // Only the first host has new traffic, so it comes first, with its totals since the start.
        let mut before = reading(start, now.hosts.clone());
        before.hosts[0].counts = host("", 0, 0).counts;
        let rates = top(&now, Some(&now.since(&before)), &ALL);
        assert_eq!(rates["seconds"], 0.5);
        assert_eq!(
            (&rates["hosts"][0]["host"], &rates["hosts"][0]["bytes_in"]),
            (&json!("(unattributed)"), &json!(1000))
        );
        assert_eq!(
            rates["hosts"][0]["per_second"],
            json!({
                "requests": 40.0, "4xx": 6.0, "errors": 10.0, "packets": 200.0, "bytes": 18_000.0, "in": 2000.0,
                "out": 100_000.0,
            })
        );
        assert_eq!(rates["hosts"][1]["per_second"]["requests"], 0.0);
        assert_eq!(
            top(&now, None, &Selection { filter: "large".into(), ..ALL })["hosts"].as_array().map(Vec::len),
            Some(1)
        );
    }
}
