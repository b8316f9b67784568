//! The demo, as a newcomer starts it.

use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::relay::RelayCommand;
use walrelay_tests::DEADLINE;

async fn demo(options: &[&str]) -> Option<String> {
    installation_or_skip()?;
    let command = RelayCommand::new(["demo", "--quiet"].into_iter().chain(options.iter().copied()));
    let done = command?.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    let promise = "lost 0, out of order 0";
    assert!(done.text.contains(promise) && done.text.contains("applied twice 0"), "{}", done.text);
    Some(done.text)
}

#[tokio::test]
async fn the_demo_loses_nothing_through_a_kill_an_outage_and_a_bad_row() {
    let Some(text) = demo(&["--rows", "200"]).await else { return };
    for told in [
        "kill -9 of the relay",
        "Pub/Sub refuses everything",
        "Pub/Sub is back",
        "dead       1 row that no topic can take",
    ] {
        assert!(text.contains(told), "{told:?} is not in {text}");
    }
}

#[tokio::test]
async fn a_calm_demo_ends_with_its_rows() {
    let Some(text) = demo(&["--calm", "--rows", "50", "--rate", "500"]).await else { return };
    assert!(text.contains("committed  50 rows") && !text.contains("kill"), "{text}");
}
