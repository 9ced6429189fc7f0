//! Who renews a share, and its end without a renewal.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;

#[test]
fn a_share_that_is_not_renewed_ends_by_itself() {
    sandboxed(|sandbox| {
        beside_nginx();
        let datapath = serving(&sandbox.options(&["lo"]));
        let ours = clients().into_iter().find(|client| expected(*client, percent(50)) == OURS).expect("half of them");
        let (taken, now) = (1 << 14, now_s());
        for state in [SHARE_KEPT, SHARE_WATCHED] {
            lay(sandbox, Share { expires_s: now + 200, taken, state });
            assert_eq!(side_of(ours), OURS);
            lay(sandbox, Share { expires_s: now, taken, state });
            assert_eq!(side_of(ours), NGINX, "the time is over");
            datapath.heartbeat().expect("beats");
            assert_eq!(side_of(ours), NGINX, "and does not begin again by itself");
            let share = NodeShare::open(&sandbox.bpffs()).expect("opens");
            assert_eq!(share.get().effective(), ClientShare::NONE);
            assert!(!share.renew(percent(50)));
        }
        lay(sandbox, Share { expires_s: now + 200, taken, state: SHARE_KEPT });
        datapath.heartbeat().expect("beats");
        assert!(laid(sandbox).expires_s >= now + 300, "the process renews its own: {:?}", laid(sandbox));
        let watched = Share { expires_s: now + 200, taken, state: SHARE_WATCHED };
        lay(sandbox, watched);
        datapath.heartbeat().expect("beats");
        assert_eq!(laid(sandbox), watched, "a watcher renews its own");
        let share = NodeShare::open(&sandbox.bpffs()).expect("opens");
        assert!(share.renew(percent(50)) && laid(sandbox).expires_s >= now + 300);
        assert!(!share.renew(percent(40)), "another one is not its own");
        share.set(ClientShare::NONE, Renewal::Process);
        datapath.heartbeat().expect("beats");
        assert!(!share.renew(percent(50)) && !share.hand_over(percent(50)));
        assert_eq!(side_of(ours), NGINX, "no renewal brings back what an operator has ended");
        share.set(percent(50), Renewal::Caller);
        assert!(!share.hand_over(percent(40)) && share.hand_over(percent(50)));
        assert_eq!((share.get().share, share.get().renewal), (percent(50), Renewal::Process));
        assert!(!share.hand_over(percent(50)), "the process has it already");
        for all in [ClientShare::ALL, ClientShare::NONE] {
            share.set(all, Renewal::Process);
            assert_eq!(share.get().lasts, None, "needs no renewal");
        }
    });
}

/// Renewals by the heartbeat and by a watcher run all the time, while an operator goes back again and again.
#[test]
fn no_renewal_undoes_the_way_back() {
    const ROUNDS: u32 = 20_000;
    const LASTS: Duration = Duration::from_secs(2);
    sandboxed(|sandbox| {
        let datapath = serving(&sandbox.options(&[]));
        let open = || NodeShare::open(&sandbox.bpffs()).expect("opens");
        let (operator, watcher) = (open(), open());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    datapath.heartbeat().expect("beats");
                }
            });
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let _is_set_anew = !watcher.renew(percent(50)) && !watcher.hand_over(percent(50));
                }
            });
            let end = Instant::now() + LASTS;
            let undone = (0..ROUNDS).take_while(|_| Instant::now() < end).find_map(|round| {
                operator.set(percent(50), if round % 2 == 0 { Renewal::Process } else { Renewal::Caller });
                thread::yield_now();
                operator.set(ClientShare::NONE, Renewal::Process);
                (0..3).find_map(|_| {
                    thread::yield_now();
                    Some((round, operator.get())).filter(|(_, share)| share.share != ClientShare::NONE)
                })
            });
            is_over.store(true, Relaxed);
            assert_eq!(undone, None, "the share is up again");
        });
    });
}

#[test]
fn only_the_owner_of_the_node_renews_a_share() {
    sandboxed(|sandbox| {
        let options = sandbox.options(&[]);
        let [first, second] = [(); 2].map(|()| Datapath::open(&options).expect("opens"));
        first.take_over().expect("takes over");
        let share = Share { expires_s: now_s() + 200, taken: 1 << 14, state: SHARE_KEPT };
        lay(sandbox, share);
        second.take_over().expect("takes over");
        first.heartbeat().expect("beats");
        assert_eq!(laid(sandbox), share, "the new owner may hang while the one before drains");
        second.heartbeat().expect("beats");
        assert!(laid(sandbox).expires_s > share.expires_s, "{:?}", laid(sandbox));
    });
}
