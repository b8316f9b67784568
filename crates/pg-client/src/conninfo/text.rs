//! Splits both written forms of a connection string into `keyword = value` pairs.
//!
//! Interprets no value. Problems quote only the names of libpq's parameters, because a password with an
//! unencoded `/`, `@` or `&` can end up in any other part.

use super::problem::ConninfoProblem;

/// Keywords and values in the order written. A later value replaces an earlier one.
pub(super) type Pairs = Vec<(String, String)>;

/// Splits a URL or a keyword string.
pub(super) fn pairs(text: &str, problems: &mut Vec<ConninfoProblem>) -> Pairs {
    let scheme = ["postgresql://", "postgres://"];
    if let Some(rest) = scheme.iter().find_map(|scheme| text.strip_prefix(scheme)) {
        return from_url(rest, problems);
    }
    let first = text.split_once('=').map(|(keyword, _)| keyword.trim_end());
    if !first.is_some_and(|keyword| {
        keyword.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_whitespace())
    }) {
        problems.push(ConninfoProblem::new(
            "it is neither a URL (postgresql://user@host/database) nor keywords (host=... user=...); a URL has no \
             quotes around it, and no driver's name in its scheme",
        ));
        return Pairs::new();
    }
    from_keywords(text, problems)
}

fn from_url(rest: &str, problems: &mut Vec<ConninfoProblem>) -> Pairs {
    let mut pairs = Pairs::new();
    let mut put =
        |keyword: &str, encoded: &str, found: &mut Vec<ConninfoProblem>| match percent_decoded(
            encoded,
        ) {
            Some(value) => pairs.push((keyword.to_owned(), value)),
            None => found.push(ConninfoProblem::new(
                "a part is not valid percent-encoding; write a literal % as %25",
            )),
        };
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(authority_end);
    // The query may contain an @, but the path of a well-formed URL never does.
    let path_end = tail.find('?').unwrap_or(tail.len());
    let (path, query) = tail.split_at(path_end);
    if path.contains('@') || (!authority.contains('@') && query.contains('@')) {
        problems.push(ConninfoProblem::new(
            "there is an @ behind a / or ?: percent-encode / ? # and @ in the user name and \
             password (%2F %3F %23 %40)",
        ));
        return Pairs::new();
    }
    let (user_info, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = match user_info.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user_info, None),
    };
    if !user.is_empty() {
        put("user", user, problems);
    }
    if let Some(password) = password {
        put("password", password, problems);
    }
    let (names, ports) = split_hosts(hosts);
    if !hosts.is_empty() {
        put("host", &names, problems);
        put("port", &ports, problems);
    }
    let database = path.strip_prefix('/').unwrap_or(path);
    if !database.is_empty() {
        put("dbname", database, problems);
    }
    let query = query.strip_prefix('?').unwrap_or(query);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let Some((keyword, value)) = parameter.split_once('=') else {
            problems.push(ConninfoProblem::new("a parameter behind ? has no ="));
            continue;
        };
        match percent_decoded(keyword) {
            Some(keyword) => put(&keyword, value, problems),
            None => problems.push(ConninfoProblem::new("a parameter's name is not valid encoding")),
        }
    }
    pairs
}

/// `h1:1,[::1]:2,h3` → `h1,::1,h3` and `1,2,`.
fn split_hosts(hosts: &str) -> (String, String) {
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (name, port) = match bracketed {
            Some((name, tail)) => (name, tail.strip_prefix(':').unwrap_or(tail)),
            None => host.rsplit_once(':').unwrap_or((host, "")),
        };
        names.push(name);
        ports.push(port);
    }
    (names.join(","), ports.join(","))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let high = char::from(rest.next()?).to_digit(16)?;
        let low = char::from(rest.next()?).to_digit(16)?;
        let decoded = u8::try_from(high * 16 + low).ok()?;
        // A zero byte would end the value early in the protocol.
        bytes.push((decoded != 0).then_some(decoded)?);
    }
    String::from_utf8(bytes).ok()
}

fn from_keywords(text: &str, problems: &mut Vec<ConninfoProblem>) -> Pairs {
    let mut pairs = Pairs::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let Some((keyword, tail)) = rest.split_once('=') else {
            problems.push(ConninfoProblem::new("a keyword at the end has no ="));
            break;
        };
        let keyword = keyword.trim_end();
        if keyword.is_empty() || keyword.contains(char::is_whitespace) {
            problems.push(ConninfoProblem::new(
                "a keyword has no =; write values that contain spaces in single quotes",
            ));
            break;
        }
        let Some((value, tail)) = keyword_value(tail.trim_start()) else {
            problems.push(ConninfoProblem::new("the quote of a value is not closed"));
            break;
        };
        pairs.push((keyword.to_owned(), value));
        rest = tail.trim_start();
    }
    pairs
}

/// Returns one value, quoted or not, and the text after it. `None` if the quote is not closed.
fn keyword_value(text: &str) -> Option<(String, &str)> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut characters = text.char_indices().skip(usize::from(quoted));
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Some((value, &text[at + 1..])),
            space if !quoted && space.is_whitespace() => return Some((value, &text[at..])),
            other => value.push(other),
        }
    }
    (!quoted).then_some((value, ""))
}
