//! Parses lists of the form `name=value,name=value`, the format of OpenTelemetry's variables.

/// The text is not such a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a list as in name=value,name=value; other bytes than visible ASCII as %XX")]
pub struct PairsError;

/// Parses the names and values of a list. Values are percent-decoded (W3C Baggage, without
/// properties).
///
/// # Errors
///
/// A member is not a pair, has an empty name, or does not decode to UTF-8 text.
pub fn pairs(text: &str) -> Result<Vec<(String, String)>, PairsError> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    members
        .map(|member| {
            let (name, value) = member.split_once('=').ok_or(PairsError)?;
            let name = decoded(name.trim())?;
            if name.is_empty() {
                return Err(PairsError);
            }
            Ok((name, decoded(value.trim())?))
        })
        .collect()
}

fn decoded(text: &str) -> Result<String, PairsError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|it| char::from(it).to_digit(16)).ok_or(PairsError);
        let value = digit()? << 4 | digit()?;
        bytes.push(u8::try_from(value).map_err(|_| PairsError)?);
    }
    String::from_utf8(bytes).map_err(|_| PairsError)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn members_are_cut_and_decoded() {
        let expected = [pair("a", "1"), pair("authorization", "Basic eA=="), pair("b", "")];
        assert_eq!(pairs("a=1, authorization = Basic%20eA== ,b=,"), Ok(expected.to_vec()));
        assert_eq!(pairs("city=Z%C3%BCrich%2C"), Ok(vec![pair("city", "Zürich,")]));
        assert_eq!(pairs(" "), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_list_of_pairs_is_refused() {
        for text in ["a", "=1", "a=%", "a=%4", "a=%zz", "a=%FF", "a=1,b"] {
            assert_eq!(pairs(text), Err(PairsError), "{text}");
        }
    }
}
