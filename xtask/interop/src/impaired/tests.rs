use std::time::Instant;

use super::*;

/// Counts of a path on which each case passes, but for the connections.
fn met(connections: usize) -> Counts {
    let tally = Tally { all: 100, hit: 20, hit_in_handshake: 20, marked: 100, marked_to_the_end: 100, overflowed: 0 };
    let begun = Instant::now();
    let first = begun + 2 * LONG_DELAY;
    Counts {
        connections,
        begun: Some(begun),
        to_server: tally,
        to_client: Tally { marked: 20, ..tally },
        moves: 5,
        answered: 5,
        proven: 4,
        unproven: Some((1_200, 3_000)),
        transfer: Some((first, first + Duration::from_secs(4))),
        handshake: 14_000,
        ..Counts::default()
    }
}

/// Counts of a path of goodput: its server does not mark to the end.
fn met_by(case: Impaired, connections: usize) -> Counts {
    let mut counts = met(connections);
    if case == Impaired::Goodput {
        counts.to_client.marked_to_the_end = 0;
    }
    counts
}

/// Returns the counts on which `case` fails for want of its fault or its effect.
fn missed(case: Impaired) -> Vec<Counts> {
    let broken = |breaks: fn(&mut Counts)| {
        let mut counts = met_by(case, case.connections());
        breaks(&mut counts);
        counts
    };
    let mut missed = match case {
        Impaired::Handshakeloss | Impaired::Handshakecorruption => {
            vec![broken(|at| at.to_server.hit_in_handshake = 2), broken(|at| at.to_client.hit_in_handshake = 2)]
        }
        Impaired::Transferloss | Impaired::Transfercorruption => {
            vec![broken(|at| at.to_server.hit = 0), broken(|at| at.to_client.hit = 9)]
        }
        Impaired::Amplificationlimit => vec![
            broken(|at| at.to_server.hit = 2),
            broken(|at| at.unproven = None),
            broken(|at| at.unproven = Some((1_200, 2_148))),
            broken(|at| at.handshake = 9_999),
        ],
        Impaired::Longrtt => vec![
            broken(|at| at.begun = None),
            broken(|at| at.begun = at.begun.map(|begun| begun + Duration::from_millis(1))),
        ],
        Impaired::Goodput => vec![
            broken(|at| at.to_client.marked_to_the_end = 10),
            broken(|at| at.transfer = at.transfer.map(|(first, last)| (first, last + Duration::from_secs(2)))),
            broken(|at| at.transfer = None),
        ],
        Impaired::RebindAddr => vec![broken(|at| (at.moves, at.proven) = (2, 2)), broken(|at| at.proven = 3)],
        Impaired::Blackhole => vec![broken(|at| at.to_server.hit = 0), broken(|at| at.to_client.hit = 0)],
        Impaired::Ecn => {
            vec![broken(|at| at.to_server.marked_to_the_end = 14), broken(|at| at.to_client.marked_to_the_end = 14)]
        }
    };
    if !matches!(case, Impaired::Handshakecorruption | Impaired::Transfercorruption) {
        missed.push(broken(|at| at.is_over_limit = true));
    }
    missed
}

#[test]
fn a_case_fails_if_one_thing_is_missing() {
    for &case in Impaired::value_variants() {
        let judged = case.judge(&met_by(case, case.connections()));
        assert!(judged.is_ok(), "{case} {judged:?}");
        for counts in missed(case) {
            assert!(case.judge(&counts).is_err(), "{case} {counts:?}");
        }
    }
}

#[test]
fn a_case_passes_with_its_fault_and_its_connections() {
    for &case in Impaired::value_variants() {
        let passed: Vec<usize> = [1, 2, CONNECTIONS, CONNECTIONS + AGAIN, CONNECTIONS + AGAIN + 1]
            .into_iter()
            .filter(|&count| case.judge(&met_by(case, count)).is_ok())
            .collect();
        let many = [Impaired::Handshakeloss, Impaired::Handshakecorruption].contains(&case);
        let expected: &[usize] = if many { &[CONNECTIONS, CONNECTIONS + AGAIN] } else { &[1] };
        assert_eq!(passed, expected, "{case}");
    }
}

#[test]
fn few_clients_are_asked_unless_all_are_wanted() {
    let choice = |value: &str| Choice::of(Some(value.as_ref())).unwrap();
    assert_eq!([Choice::of(None).unwrap(), choice("")], [Choice::Few; 2]);
    assert!(Kind::value_variants().iter().all(|kind| choice("all").has(*kind)));
    let few: Vec<Kind> = Kind::value_variants().iter().copied().filter(|kind| Choice::Few.has(*kind)).collect();
    assert_eq!(few, FEW);
    assert!(Choice::of(Some("chromium".as_ref())).is_err());
}

#[test]
fn goodput_is_a_share_of_the_rate() {
    assert_eq!(share_of_rate(Duration::from_millis(3_200)), 100);
    assert_eq!(share_of_rate(Duration::from_millis(6_400)), 50);
    assert_eq!(share_of_rate(Duration::ZERO), 0);
}

#[test]
fn the_table_has_figures_reasons_and_failures() {
    let mut report = Report::new();
    let cells = [(Impaired::Goodput, Ok("passed: 95 %".to_owned())), (Impaired::Blackhole, Err("reset".to_owned()))];
    report.add(Kind::Aioquic, cells);
    report.add(Kind::Chromium, []);
    let table = report.to_string();
    for line in [
        "| path of the QUIC Interop Runner | aioquic | chromium |\n|---|---|---|\n",
        "| `goodput` | passed: 95 % | not run |",
        "| `blackhole` | **failed** | not run |",
        "| `ecn` | cannot: it does not mark its packets | cannot: it does not mark its packets |",
        "| `rebind-addr` | not run | not run |",
    ] {
        assert!(table.contains(line), "{table}");
    }
    assert_eq!(report.failures(), ["aioquic: `blackhole` failed: reset"]);
}
