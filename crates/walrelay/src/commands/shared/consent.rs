//! Asks the user at the terminal for consent. A signal means no.

use std::io::{self, IsTerminal as _, Write as _};

use crate::error::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use walrelay_errors::Code;
use walrelay_relay::shutdown::Shutdown;

async fn ask(question: &str, shutdown: &Shutdown) -> Result<(), Error> {
    let failed = |source| Error::Io { action: "ask".into(), source };
    let mut errors = io::stderr();
    write!(errors, "{question} [y/N] ").and_then(|()| errors.flush()).map_err(failed)?;
    // A thread of its own reads the answer: only a line of input ends a blocking read of a
    // terminal.
    let answer = async {
        let reading = spawn_blocking(|| {
            let mut answer = String::new();
            io::stdin().read_line(&mut answer).map(|_| answer)
        });
        reading.await?
    };
    let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
    let stopped = async {
        tokio::select! {
            () = shutdown.requested() => {}
            _ = hang_up.recv() => {}
        }
        // Ends the line of the question. An error is ignored, because standard error may be closed.
        drop(writeln!(io::stderr()));
    };
    answered(answer, stopped).await.map_err(failed)?
}

/// Asks at the terminal for consent to what `what` describes, as in "drop slot walrelay".
///
/// # Errors
///
/// The user did not agree, there is no terminal, or a signal came.
pub(super) async fn ask_for(what: &str, shutdown: &Shutdown) -> Result<(), Error> {
    if io::stdin().is_terminal() {
        return ask(&format!("{what}?"), shutdown).await;
    }
    let what = format!("this would {what}, and there is no terminal to ask at");
    Err(Error::refused(Code::ConsentMissing, what))
}

async fn answered(
    answer: impl Future<Output = io::Result<String>>,
    stopped: impl Future<Output = ()>,
) -> io::Result<Result<(), Error>> {
    let given = tokio::select! {
        given = answer => given?,
        () = stopped => {
            let what = "stopped by a signal: nothing was done".to_owned();
            return Ok(Err(Error::stopped(what, "")));
        }
    };
    Ok(match given.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Error::refused(Code::ConsentDeclined, "the answer was not yes".to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use walrelay_errors::Coded as _;

    use super::*;

    #[tokio::test]
    async fn a_signal_at_the_question_is_a_no_with_the_code_of_what_is_interrupted() {
        let told = answered(pending(), ready(())).await.unwrap().unwrap_err();
        assert_eq!(told.exit(), Error::Interrupted.exit());
        assert!(told.report().contains("nothing was done"), "{}", told.report());
    }

    #[tokio::test]
    async fn only_yes_is_a_yes() {
        let told = async |text: &str| answered(ready(Ok(text.to_owned())), pending()).await;
        for yes in ["y\n", "Y\n", "yes\n"] {
            assert!(told(yes).await.unwrap().is_ok(), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "maybe\n"] {
            let declined = told(no).await.unwrap().unwrap_err();
            assert_eq!(declined.code(), Code::ConsentDeclined, "{no:?}");
            assert!(declined.report().contains("Nothing was changed"), "{}", declined.report());
        }
    }
}
