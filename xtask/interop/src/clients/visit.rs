//! Visits of browsers: a page whose script runs cases, and the hosts that it asks.

use std::iter;

use super::errand::{Errand, Task};
use super::{Case, Host};

/// A visit to the page.
#[derive(Debug)]
pub(super) struct Visit {
    /// Host of the page.
    pub(super) page: Host,
    /// Other hosts that the page asks; their addresses have the IP of the page's.
    others: Vec<Host>,
    query: String,
}

impl Visit {
    pub(super) fn of_cases(page: Host, cases: &[Case]) -> Self {
        let names: Vec<String> = cases.iter().map(Case::to_string).collect();
        Self { page, others: Vec::new(), query: format!("cases={}", names.join(",")) }
    }

    pub(super) fn of_errands(page: Host, errands: &[Errand]) -> Self {
        let of = |Errand { name, task, hosts, .. }: &Errand| {
            let ports: Vec<String> = hosts.iter().map(|host| host.at.port().to_string()).collect();
            let (kind, number) = match task {
                Task::Bytes(length) => ("bytes", length),
                Task::Connections(count) => ("connections", count),
            };
            format!("{name}_{}_{kind}_{number}", ports.join("."))
        };
        let of_all =
            |alone| errands.iter().filter(|errand| errand.alone == alone).map(of).collect::<Vec<_>>().join(",");
        let query = format!("paths={}&alone={}", of_all(false), of_all(true));
        Self { page, others: errands.iter().flat_map(|errand| errand.hosts.clone()).collect(), query }
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}/page?{}", self.page, self.query)
    }

    /// Returns the text of `of` for each host, with commas.
    pub(super) fn list(&self, of: impl FnMut(&Host) -> String) -> String {
        iter::once(&self.page).chain(&self.others).map(of).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_knows_its_paths_and_a_browser_its_hosts() {
        let errand = |name: &str, task, alone, ports: &[u16]| {
            let at: Vec<_> = ports.iter().map(|port| ([127, 0, 0, 1], *port).into()).collect();
            Errand { name: name.to_owned(), task, alone, hosts: Host::on_path(name, &at) }
        };
        let errands = [
            errand("goodput", Task::Bytes(9), true, &[5]),
            errand("handshakeloss", Task::Connections(2), false, &[6, 7]),
            errand("ecn", Task::Bytes(4), false, &[8]),
        ];
        let visit = Visit::of_errands(Host::web(([127, 0, 0, 1], 4).into()), &errands);
        let paths = "paths=handshakeloss_6.7_connections_2,ecn_8_bytes_4&alone=goodput_5_bytes_9";
        assert_eq!(visit.url(), format!("https://web.test:4/page?{paths}"));
        let hosts =
            "web.test:4,goodput.web.test:5,handshakeloss-0.web.test:6,handshakeloss-1.web.test:7,ecn.web.test:8";
        assert_eq!(visit.list(Host::to_string), hosts);
    }
}
